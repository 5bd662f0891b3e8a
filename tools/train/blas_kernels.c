/* SPDX-License-Identifier: Apache-2.0
 *
 * blas_kernels.c - OpenBLAS knows processors by their model. One that came after its release gets
 * the kernels of the oldest (3 times slower, seen with 0.3.21), unless OPENBLAS_CORETYPE names others
 * when the library is loaded; so it is loaded again with that.
 */
#include "train/blas_kernels.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* NULL: what OpenBLAS has chosen is right, as far as can be told. */
static const char *better_kernels(const char *chosen)
{
#if defined(__x86_64__)
    static const char *const old[] = {"Prescott", "Core2", "Penryn", "Dunnington", "Nehalem",
                                      "Sandybridge", "Athlon", "Opteron", "Opteron_SSE3",
                                      "Barcelona", "Bobcat", "Bulldozer", "Nano", "Atom"};

    for (size_t i = 0; i < sizeof(old) / sizeof(old[0]); i++) {
        if (strcmp(chosen, old[i]))
            continue;
        if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
            __builtin_cpu_supports("avx512vl"))
            return "SkylakeX";
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
            return "Haswell";
    }
#endif
    return NULL;
}

static struct blas_kernels blas;
static char failure[512];

static void *find(void *library, const char *name)
{
    void *at = library ? dlsym(library, name) : NULL;

    if (!at && !failure[0])
        snprintf(failure, sizeof(failure), "OpenBLAS cannot be loaded: %s; install it (Debian, "
                                           "Ubuntu: libopenblas0)", dlerror());
    return at;
}

static void *open_library(void)
{
    return dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
}

/* OpenBLAS maps a buffer for the first product of a thread, of up to 128 MiB, and keeps it. Where
 * it may not, it tries for ever. */
static void take_buffer(void)
{
    enum { SIDE = 128, BUFFER = 144 << 20 };
    static float a[SIDE * SIDE], b[SIDE * SIDE];
    void *room = mmap(NULL, BUFFER, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (room == MAP_FAILED) {
        snprintf(failure, sizeof(failure), "OpenBLAS needs %d MiB of address space for its buffer: "
                 "%s; see 'ulimit -v'", BUFFER >> 20, strerror(errno));
        return;
    }
    munmap(room, BUFFER);
    blas.sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, SIDE, SIDE, SIDE, 1, a, SIDE, a, SIDE, 0,
               b, SIDE);
}

static void load(void)
{
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
    void *library = open_library();
    char *(*name)(void) = (char *(*)(void))find(library, "openblas_get_corename");
    const char *kernels = getenv("OPENBLAS_CORETYPE") || !name ? NULL : better_kernels(name());
    if (kernels && !setenv("OPENBLAS_CORETYPE", kernels, 1)) {
        dlclose(library);
        library = open_library();
    }
    blas.sgemm = (__typeof__(blas.sgemm))find(library, "cblas_sgemm");
    blas.dgemm = (__typeof__(blas.dgemm))find(library, "cblas_dgemm");
    if (!failure[0])
        take_buffer();
}

const struct blas_kernels *blas_begin(const char **why)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, load);
    *why = failure;
    return failure[0] ? NULL : &blas;
}

const struct blas_kernels *blas_get(void)
{
    const char *why;
    const struct blas_kernels *found = blas_begin(&why);

    if (!found) {
        fprintf(stderr, "%s\n", why);
        abort();
    }
    return found;
}
