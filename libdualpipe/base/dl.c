/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h" /* GNU extensions: dlinfo */

#include "base/dl.h"

#include "base/fail.h"
#include "base/options.h"
#include "base/text.h"

#include <dlfcn.h>
#include <glob.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

struct search {
    const char *const *names;
    struct dp_text reasons;
};

static void *open_file(struct search *s, const char *file)
{
    void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    const char *why = handle ? NULL : dlerror();

    if (why && !(s->reasons.data && strstr(s->reasons.data, why)))
        dp_text_addf(&s->reasons, "%s%s", s->reasons.len ? "; " : "", why);
    return handle;
}

static void *open_matching(struct search *s, const char *pattern)
{
    glob_t found;
    void *handle = NULL;

    if (glob(pattern, 0, NULL, &found))
        return NULL;
    for (size_t i = 0; i < found.gl_pathc && !handle; i++)
        handle = open_file(s, found.gl_pathv[i]);
    globfree(&found);
    return handle;
}

static const char python_packages[] = "lib*/python3*/*-packages/nvidia/*/lib";

/* Of the directory, len bytes, every character is meant as it is; `below` is a pattern. */
static void *open_below(struct search *s, const char *dir, size_t len, const char *below)
{
    void *handle = NULL;

    for (size_t i = 0; s->names[i] && !handle; i++) {
        struct dp_text pattern = {0};
        for (size_t k = 0; k < len; k++)
            dp_text_addf(&pattern, "\\%c", dir[k]);
        dp_text_addf(&pattern, "/%s/%s", below, s->names[i]);
        if (!pattern.failed && !strchr(s->names[i], '/'))
            handle = open_matching(s, pattern.data);
        dp_text_fini(&pattern);
    }
    return handle;
}

/* Among the packages of the Python that a program is, or is a script of: PREFIX/bin/NAME. In an
 * environment of its own that is a link to the Python that it was made of. */
static void *open_beside(struct search *s, const char *program)
{
    char real[PATH_MAX];
    const char *const files[] = {program, realpath(program, real)};
    void *handle = NULL;

    for (int i = 0; i < 2 && !handle; i++) {
        char dir[PATH_MAX];
        const char *slash = files[i] ? strrchr(files[i], '/') : NULL;
        if (slash && (size_t)snprintf(dir, sizeof(dir), "%.*s/..", (int)(slash - files[i]),
                                      files[i]) < sizeof(dir))
            handle = open_below(s, dir, strlen(dir), python_packages);
    }
    return handle;
}

static void *open_beside_python3(struct search *s)
{
    const char *dirs = dp_trusted_variable("PATH");
    char file[PATH_MAX];

    for (; dirs; dirs = strchr(dirs, ':') ? strchr(dirs, ':') + 1 : NULL)
        if ((size_t)snprintf(file, sizeof(file), "%.*s/python3", (int)strcspn(dirs, ":"), dirs) <
                sizeof(file) && !access(file, X_OK))
            return open_beside(s, file);
    return NULL;
}

static void *open_packaged(struct search *s)
{
    static const char cuda[] = "lib64";
    static const struct {
        const char *dir, *below; /* dir: a path, or the variable that has it */
    } places[] = {
        {"VIRTUAL_ENV", python_packages}, {"CONDA_PREFIX", python_packages},
        {"CUDA_HOME", cuda}, {"CUDA_PATH", cuda},
        {"/usr/local", python_packages}, {"/usr/local/cuda", cuda},
    };
    void *handle = NULL;

    if (!getauxval(AT_SECURE)) /* its caller chose this name */
        handle = open_beside(s, (const char *)getauxval(AT_EXECFN));
    if (!handle)
        handle = open_beside(s, "/proc/self/exe");
    if (!handle)
        handle = open_beside_python3(s);
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]) && !handle; i++) {
        const bool is_path = *places[i].dir == '/';
        const char *dir = is_path ? places[i].dir : dp_trusted_variable(places[i].dir);
        if (dir)
            handle = open_below(s, dir, strlen(dir), places[i].below);
    }
    return handle;
}

int dp_library_open(const char *const *names, void **out, const char **file)
{
    struct search s = {.names = names};
    struct link_map *map;
    void *handle = NULL;
    int err = 0;

    for (size_t i = 0; names[i] && !handle; i++)
        handle = open_file(&s, names[i]);
    if (!handle)
        handle = open_packaged(&s);
    if (!handle)
        err = dp_fail_quietly(DP_ENOENT, "%s", s.reasons.data ? s.reasons.data : "no library named");
    dp_text_fini(&s.reasons);
    if (err)
        return err;
    if (file)
        *file = dlinfo(handle, RTLD_DI_LINKMAP, &map) ? names[0] : map->l_name;
    *out = handle;
    return 0;
}

int dp_dl_open(const char *const *names, const struct dp_dl_symbol *symbols, size_t count,
               void *table, void **out)
{
    const char *file;
    void *handle;
    int err = dp_library_open(names, &handle, &file);

    if (err)
        return err;
    for (size_t i = 0; i < count; i++) {
        void *symbol = dlsym(handle, symbols[i].name);
        if (!symbol && !symbols[i].optional) {
            err = dp_fail_quietly(DP_ENOENT, "%s has no %s", file, symbols[i].name);
            dlclose(handle);
            return err;
        }
        /* Copied as bytes: ISO C has no cast from object to function pointer. */
        memcpy((char *)table + symbols[i].offset, &symbol, sizeof(symbol));
    }
    *out = handle;
    return 0;
}
