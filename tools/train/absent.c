/* SPDX-License-Identifier: Apache-2.0
 *
 * absent.c - `dualpipe train`, `plan`, `bench step --device cuda` and what `checkpoint verify` knows of
 * the model, in a build without BLAS: says what to do about it.
 */
#include "bench/step_cuda.h"
#include "command.h"
#include "commands.h"
#include "train/host.h"

#include <stdio.h>

int run_train(int argc, char **argv)
{
    (void)argc, (void)argv;
    return command_broke("'dualpipe train' and 'plan' were not built, because configure found no "
                         "OpenBLAS; "
                         "install it (Debian, Ubuntu: libopenblas-dev), configure and make again");
}

/* Which tensors there must be only the model knows. */
int host_verify(const struct dp_checkpoint *c, const char *path,
                void (*fault)(void *user, const char *sentence), void *user)
{
    (void)c, (void)fault, (void)user;
    fprintf(stderr, "dualpipe: %s: checksums only; this build has no 'dualpipe train'\n", path);
    return 0;
}

int run_plan(int argc, char **argv)
{
    return run_train(argc, argv);
}

bool step_cuda_prepare(const struct step_cuda_config *config, const char *file, const void **image,
                       void **read)
{
    (void)file, (void)image, (void)read;
    command_broke("--device %s: the stages of 'dualpipe train' were not built, because configure "
                  "found no OpenBLAS; install it (Debian, Ubuntu: libopenblas-dev), configure and "
                  "make again", config->device);
    return false;
}

int step_cuda_open(const struct step_cuda_config *config, struct step_cuda **out)
{
    (void)config;
    *out = NULL;
    return DP_EUNSUPPORTED;
}

int step_cuda_run(struct step_cuda *s)
{
    (void)s;
    return DP_EUNSUPPORTED;
}

void step_cuda_take_times(struct step_cuda *s, int64_t *op_ns)
{
    (void)s, (void)op_ns;
}

void step_cuda_close(struct step_cuda *s)
{
    (void)s;
}
