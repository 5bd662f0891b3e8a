/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h" /* GNU extensions: RTLD_NEXT, dladdr, dl_iterate_phdr */

#include "offload/preload/real.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Entries are added and never removed. A reader sees the key only after the function: the store of
 * the key releases, its load acquires. */
enum { ENTRIES = 1024 /* a power of 2 */, PROBES = 16 };
static struct entry {
    _Atomic(const void *) caller;
    const char *_Atomic name;
    void *_Atomic function;
} entries[ENTRIES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static size_t hash(const char *name, const void *caller)
{
    const uint64_t x = (uint64_t)(uintptr_t)caller * UINT64_C(0x9e3779b97f4a7c15);

    return (size_t)(x >> 40 ^ (uintptr_t)name >> 3) % ENTRIES;
}

static struct entry *look_up(const char *name, const void *caller)
{
    const size_t first = hash(name, caller);

    for (size_t i = 0; i < PROBES; i++) {
        struct entry *e = &entries[(first + i) % ENTRIES];
        const void *key = atomic_load_explicit(&e->caller, memory_order_acquire);
        if (!key)
            return NULL;
        if (key == caller && atomic_load_explicit(&e->name, memory_order_relaxed) == name)
            return e;
    }
    return NULL;
}

/* May keep nothing, as where the neighbourhood is full: the next call searches again. */
static void keep(const char *name, const void *caller, void *function)
{
    const size_t first = hash(name, caller);

    /* Held: by another thread, or, in a forked child, by one that is not there. */
    if (pthread_mutex_trylock(&lock))
        return;
    for (size_t i = 0; i < PROBES; i++) {
        struct entry *e = &entries[(first + i) % ENTRIES];
        if (atomic_load_explicit(&e->caller, memory_order_relaxed))
            continue;
        atomic_store_explicit(&e->name, name, memory_order_relaxed);
        atomic_store_explicit(&e->function, function, memory_order_relaxed);
        atomic_store_explicit(&e->caller, caller, memory_order_release);
        break;
    }
    pthread_mutex_unlock(&lock);
}

/* An object whose function is kept stays loaded: another caller may come to lie where this one is,
 * and find the entry. */
static void pin(const void *function)
{
    Dl_info info;

    if (function && dladdr(function, &info) && info.dli_fname) {
        void *object = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
        if (object)
            dlclose(object);
    }
}

/* In the scope of a loaded object: itself and what it was linked with. */
static void *find_in_file(const char *file, const char *name, const void *own)
{
    void *object = dlopen(file, RTLD_LAZY | RTLD_NOLOAD);
    void *found = object ? dlsym(object, name) : NULL;

    if (object)
        dlclose(object);
    return found == own ? NULL : found;
}

static void *find_in_caller(const char *name, const void *own, const void *caller)
{
    Dl_info info;

    if (!dladdr(caller, &info) || !info.dli_fname)
        return NULL;
    return find_in_file(info.dli_fname, name, own);
}

/* The files of the libraries of CUDA that are loaded. They are opened only after the walk,
 * which holds a lock of the loader that dlopen takes in another order. */
enum { CUDA_FILES = 16, FILE_LEN = 512 };
struct cuda_files {
    int count;
    char name[CUDA_FILES][FILE_LEN];
};

static bool is_named(const struct dl_phdr_info *info, const char *prefix)
{
    const char *slash = strrchr(info->dlpi_name, '/');

    return !strncmp(slash ? slash + 1 : info->dlpi_name, prefix, strlen(prefix));
}

static int add_cuda_file(struct dl_phdr_info *info, size_t size, void *user)
{
    struct cuda_files *files = user;

    (void)size;
    if (is_named(info, "libcuda") && files->count < CUDA_FILES && strlen(info->dlpi_name) < FILE_LEN)
        strcpy(files->name[files->count++], info->dlpi_name);
    return 0;
}

/* For calls between the libraries of CUDA, whose caller may be this library itself: where one of
 * them jumps instead of calling, the return address is ours. */
static void *find_in_cuda(const char *name, const void *own)
{
    struct cuda_files files = {.count = 0};
    void *found = NULL;

    dl_iterate_phdr(add_cuda_file, &files);
    for (int i = 0; i < files.count && !found; i++)
        found = find_in_file(files.name[i], name, own);
    return found;
}

void *dpo_real(const char *name, const void *own, const void *caller)
{
    const struct entry *e = look_up(name, caller);

    if (e)
        return atomic_load_explicit(&e->function, memory_order_relaxed);
    void *found = dlsym(RTLD_NEXT, name);
    if (!found || found == own)
        found = find_in_caller(name, own, caller);
    if (!found) /* not kept: it holds for this call only */
        return find_in_cuda(name, own);
    pin(found);
    keep(name, caller, found);
    return found;
}

static int is_file(struct dl_phdr_info *info, size_t size, void *prefix)
{
    (void)size;
    return is_named(info, prefix);
}

bool dpo_is_loaded(const char *prefix)
{
    char name[64];

    snprintf(name, sizeof(name), "%s", prefix); /* the walk takes no constant */
    return dl_iterate_phdr(is_file, name) != 0;
}
