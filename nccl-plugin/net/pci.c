/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl-plugin/net/pci.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_pci(const char *dir)
{
    char link[PATH_MAX + 16], target[PATH_MAX];

    snprintf(link, sizeof(link), "%s/subsystem", dir);
    ssize_t n = readlink(link, target, sizeof(target) - 1);
    if (n <= 0)
        return false;
    target[n] = '\0';
    const char *name = strrchr(target, '/');
    return name && !strcmp(name, "/pci");
}

/* The device itself, or the nearest above it on the PCI bus: a virtio device or a sub-function
 * stands below the function that NCCL knows. */
char *dpn_pci_path(const char *device)
{
    char *dir = realpath(device, NULL);

    while (dir && !is_pci(dir)) {
        char *slash = strrchr(dir, '/');
        if (slash && slash != dir) {
            *slash = '\0';
            continue;
        }
        free(dir);
        dir = NULL;
    }
    return dir;
}
