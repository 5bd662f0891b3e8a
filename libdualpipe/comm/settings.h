/* SPDX-License-Identifier: Apache-2.0
 *
 * settings.h - DUALPIPE_COMM_*, and what launchers tell.
 */
#ifndef DP_COMM_SETTINGS_H
#define DP_COMM_SETTINGS_H

#include "base/options.h"

#include <dualpipe/comm.h>

struct dp_comm_settings {
    int64_t timeout_ms;
    int64_t spin_us; /* -1: by the number of cores */
    const char *transport, *address, *secret, *interface, *module_dir;
    int64_t port; /* 0: by the launcher's variables */
};

extern const struct dp_option_area dp_comm_option_area;

enum dp_transport {
    DP_TRANSPORT_AUTO,
    DP_TRANSPORT_SHM,
    DP_TRANSPORT_TCP,
    DP_TRANSPORT_MPI,
    DP_TRANSPORTS
};
extern const char *const dp_transport_names[DP_TRANSPORTS + 1];
/* By its name; DP_EINVAL. */
int dp_transport_find(const char *name, enum dp_transport *out);

/* How long a wait spins. ranks_here is how many of the ranks run on this host: if they are more than
 * its cores, a wait that spins only keeps the others from what it waits for. */
int64_t dp_comm_spin_ns(const struct dp_comm_settings *settings, int ranks_here);

/* ---- launcher -------------------------------------------------------------------------------- */

/* What torchrun, mpirun and srun tell the processes they start. See
 * dp_comm_config_from_env. */

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
