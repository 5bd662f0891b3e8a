/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h" /* GNU extensions: dladdr */

#include "comm/nccl_api.h"

#include "base/dl.h"
#include "base/fail.h"
#include <dualpipe/nccl.h>

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static const struct dp_option table[] = {
    {"LIBRARY", DP_OPTION_STRING, NULL, "file of NCCL; without it libnccl.so.2 or libnccl.so",
     offsetof(struct dp_nccl_options, library), .is_code = true},
    {"STAGE_CLASS", DP_OPTION_INT, "-1",
     "traffic class that NCCL's net plugin is given for activations and gradients; -1: none",
     offsetof(struct dp_nccl_options, stage_class), .min = -1, .max = 255},
    {"REDUCE_CLASS", DP_OPTION_INT, "-1", "the same for sums of gradients; -1: none",
     offsetof(struct dp_nccl_options, reduce_class), .min = -1, .max = 255},
    {"CTAS", DP_OPTION_INT, "4",
     "most thread blocks of a kernel that moves messages (each takes an SM); 0: what NCCL chooses",
     offsetof(struct dp_nccl_options, ctas), .min = 0, .max = 64},
};
const struct dp_option_area dp_nccl_option_area = {"NCCL", table, sizeof(table) / sizeof(table[0])};

static const struct dp_dl_symbol symbols[] = {
#define SYMBOL(result, name, parameters) {"nccl" #name, offsetof(struct dp_nccl, name), false},
    DP_NCCL_FUNCTIONS(SYMBOL)
#undef SYMBOL
};

static int check_version(struct dp_nccl *nccl)
{
    int err = dp_nccl_check(nccl, nccl->GetVersion(&nccl->version), "asking for its version");

    if (err || nccl->version >= DP_NCCL_OLDEST)
        return err;
    return dp_fail(DP_EUNSUPPORTED, "NCCL: %s is of version %d, expected %d (2.27) or newer",
                   nccl->file, nccl->version, DP_NCCL_OLDEST);
}

/* The path of the file that was opened, also where it was looked for by name. */
static const char *find_file(const struct dp_nccl *nccl)
{
    const void *inside;
    Dl_info info;

    memcpy(&inside, &nccl->GetVersion, sizeof(inside));
    return dladdr(inside, &info) ? info.dli_fname : "libnccl";
}

int dp_nccl_load(struct dp_nccl *out)
{
    char reason[512];
    void *handle;
    int err = dp_options_read(&dp_nccl_option_area, &out->options);

    if (err)
        return err;
    const char *const own[] = {out->options.library, NULL};
    static const char *const usual[] = {"libnccl.so.2", "libnccl.so", NULL};
    if (dp_dl_open(own[0] ? own : usual, symbols, sizeof(symbols) / sizeof(symbols[0]), out,
                   &handle)) {
        snprintf(reason, sizeof(reason), "%s", dp_last_error());
        return dp_fail(DP_ENOENT, "NCCL: %s (DUALPIPE_NCCL_LIBRARY says which file it is)", reason);
    }
    out->file = find_file(out);
    return check_version(out);
}

int dp_nccl_version(int *version, const char **file)
{
    struct dp_nccl nccl;

    if (!version)
        return dp_fail(DP_EINVAL, "the version of NCCL without a place for it");
    int err = dp_nccl_load(&nccl);
    if (err)
        return err;
    *version = nccl.version;
    if (file)
        *file = nccl.file;
    return 0;
}

/* ---- errors ---------------------------------------------------------------------------------- */

static int nearest_error(int result)
{
    switch (result) {
    case DP_NCCL_INVALID_ARGUMENT:
    case DP_NCCL_INVALID_USAGE:
        return DP_EINVAL;
    case DP_NCCL_SYSTEM_ERROR:
    case DP_NCCL_REMOTE_ERROR:
        return DP_ECOMM;
    default:
        return DP_EIO;
    }
}

int dp_nccl_check(const struct dp_nccl *nccl, int result, const char *fmt, ...)
{
    char what[256];
    va_list args;

    if (result == DP_NCCL_SUCCESS || result == DP_NCCL_IN_PROGRESS)
        return 0;
    va_start(args, fmt);
    vsnprintf(what, sizeof(what), fmt, args);
    va_end(args);
    const char *last = nccl->GetLastError(NULL);
    return dp_fail(nearest_error(result), "NCCL: %s: %s%s%s", what, nccl->GetErrorString(result),
                   last && *last ? ": " : "", last ? last : "");
}
