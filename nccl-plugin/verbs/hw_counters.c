/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl-plugin/verbs/hw_counters.h"

#include "base/fail.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TEXT_LEN = 1024 };

/* 0: there is none, or it does not count. */
static unsigned long long read_number(int dir, const char *name)
{
    char text[32] = "";
    const int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0)
        return 0;
    if (read(fd, text, sizeof(text) - 1) < 0)
        text[0] = '\0';
    close(fd);
    return strtoull(text, NULL, 10);
}

static void add_all(const char *path, char text[TEXT_LEN])
{
    DIR *list = opendir(path);
    size_t len = strlen(text);

    for (struct dirent *e; list && len < TEXT_LEN && (e = readdir(list));) {
        const unsigned long long n =
            *e->d_name == '.' ? 0 : read_number(dirfd(list), e->d_name);
        if (n)
            len += (size_t)snprintf(text + len, TEXT_LEN - len, "%s%s %llu", len ? ", " : "",
                                    e->d_name, n);
    }
    if (list)
        closedir(list);
}

void dpn_port_log_counters(const struct dpn_port *port)
{
    static const char *const kinds[] = {"hw_counters", "counters"};
    char path[PATH_MAX], text[TEXT_LEN] = "";

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        snprintf(path, sizeof(path), "%s/ports/%d/%s", port->hca->context->device->ibdev_path,
                 port->number, kinds[i]);
        add_all(path, text);
    }
    dp_log(DP_LOG_WARN, "counters of %s: %s", port->name, *text ? text : "none");
}
