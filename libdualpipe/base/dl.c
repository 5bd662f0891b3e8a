/* SPDX-License-Identifier: Apache-2.0 */
#include "base/dl.h"

#include "base/fail.h"
#include "base/text.h"

#include <dlfcn.h>
#include <string.h>

static void *open_first(const char *const *files, const char **opened, struct dp_text *reasons)
{
    for (size_t i = 0; files[i]; i++) {
        void *handle = dlopen(files[i], RTLD_NOW | RTLD_LOCAL);
        if (handle) {
            *opened = files[i];
            return handle;
        }
        dp_text_addf(reasons, "%s%s", i ? "; " : "", dlerror());
    }
    return NULL;
}

int dp_dl_open(const char *const *files, const struct dp_dl_symbol *symbols, size_t count,
               void *table, void **out)
{
    struct dp_text reasons = {0};
    const char *file = NULL;
    int err = 0;

    void *handle = open_first(files, &file, &reasons);
    if (!handle)
        err = dp_fail_quietly(DP_ENOENT, "%s", reasons.data ? reasons.data : "no library named");
    dp_text_fini(&reasons);
    if (err)
        return err;

    for (size_t i = 0; i < count; i++) {
        void *symbol = dlsym(handle, symbols[i].name);
        if (!symbol && !symbols[i].optional) {
            dlclose(handle);
            return dp_fail_quietly(DP_ENOENT, "%s has no %s", file, symbols[i].name);
        }
        /* Copied as bytes: ISO C has no cast from object to function pointer. */
        memcpy((char *)table + symbols[i].offset, &symbol, sizeof(symbol));
    }
    *out = handle;
    return 0;
}
