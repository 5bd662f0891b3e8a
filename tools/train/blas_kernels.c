/* SPDX-License-Identifier: Apache-2.0
 *
 * blas_kernels.c - OpenBLAS knows processors by their model. One that came after its release gets
 * the kernels of the oldest (3 times slower, seen with 0.3.21), unless OPENBLAS_CORETYPE names others
 * when the library is loaded; so the program begins again with that.
 */
#include "train/blas_kernels.h"

#include "command.h"

#include <cblas.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* NULL: what OpenBLAS has chosen is right, as far as can be told. */
static const char *better_kernels(void)
{
#if defined(__x86_64__)
    static const char *const old[] = {"Prescott", "Core2", "Penryn", "Dunnington", "Nehalem",
                                      "Sandybridge", "Athlon", "Opteron", "Opteron_SSE3",
                                      "Barcelona", "Bobcat", "Bulldozer", "Nano", "Atom"};
    const char *chosen = openblas_get_corename();

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

static void begin_again(int argc, char **argv)
{
    static char program[] = "dualpipe";
    char **words = calloc((size_t)argc + 2, sizeof(*words));

    if (!words)
        return;
    words[0] = program;
    memcpy(words + 1, argv, (size_t)argc * sizeof(*words));
    execv("/proc/self/exe", words);
    free(words); /* slow, but right */
}

void blas_begin(int argc, char **argv)
{
    const char *kernels = getenv("OPENBLAS_CORETYPE") ? NULL : better_kernels();

    if (kernels && !command_completes && !setenv("OPENBLAS_CORETYPE", kernels, 1))
        begin_again(argc, argv);
    openblas_set_num_threads(1);
}
