/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin_path.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool plugin_path(const char *file, char out[PLUGIN_PATH_LEN])
{
    static const char *const places[] = {"/../../nccl-plugin/.libs/", "/../../offload/.libs/",
                                         "/../nccl-plugin/.libs/", "/../offload/.libs/",
                                         "/../lib/"};
    char self[PATH_MAX], real[PATH_MAX];
    ssize_t len = readlink("/proc/self/exe", self, sizeof(self) - 1);
    char *slash = len > 0 ? (self[len] = '\0', strrchr(self, '/')) : NULL;

    for (size_t i = 0; slash && i < sizeof(places) / sizeof(places[0]); i++) {
        snprintf(out, PLUGIN_PATH_LEN, "%.*s%s%s", (int)(slash - self), self, places[i], file);
        if (!access(out, R_OK) && realpath(out, real)) {
            snprintf(out, PLUGIN_PATH_LEN, "%s", real);
            return true;
        }
    }
    snprintf(out, PLUGIN_PATH_LEN, "%s/%s", DP_PLUGIN_DIR, file);
    if (!access(out, R_OK))
        return true;
    snprintf(out, PLUGIN_PATH_LEN, "%s", file);
    return false;
}
