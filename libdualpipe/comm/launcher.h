/* SPDX-License-Identifier: Apache-2.0
 *
 * launcher.h - what torchrun, mpirun and srun tell the processes they start. See
 * dp_comm_config_from_env.
 */
#ifndef DP_COMM_LAUNCHER_H
#define DP_COMM_LAUNCHER_H

#include "comm/settings.h"

enum { DP_ADDRESS_TEXT = 300 };

struct dp_launch {
    int rank, size;
    char address[DP_ADDRESS_TEXT]; /* "host:port" */
};

/* get: how to read a variable, NULL if unset; a test has its own. DP_ENOENT, DP_EINVAL. */
int dp_launch_read(const char *(*get)(const char *name), const struct dp_comm_settings *settings,
                   struct dp_launch *out);

/* What of it a launcher tells; `out` as dp_process_from_env fills it. */
int dp_process_read(const char *(*get)(const char *name), struct dp_process *out);

/* The entry of `list`, "0,2,GPU-5b1c", that is the process's own: *own of *len characters. */
int dp_process_own_gpu(const struct dp_process *process, const char *list, const char **own,
                       size_t *len);

#endif
