/* SPDX-License-Identifier: Apache-2.0
 *
 * settings.h - DUALPIPE_COMM_*, and what every communicator begins with because of them.
 */
#ifndef DP_COMM_SETTINGS_H
#define DP_COMM_SETTINGS_H

#include "base/options.h"
#include "comm/comm_ops.h"

struct dp_comm_settings {
    int64_t timeout_ms;
    int64_t spin_us; /* -1: by the number of cores */
    const char *transport, *address, *secret, *interface, *fault, *module_dir;
    int64_t port; /* 0: by the launcher's variables */
};

extern const struct dp_option_area dp_comm_option_area;

/* Fill the part that every communicator begins with. ranks_here is how many of the ranks run on
 * this host: if they are more than its cores, a wait that spins only keeps the others from what it
 * waits for. */
void dp_comm_init(struct dp_comm *comm, const struct dp_comm_ops *ops, int rank, int size,
                  int ranks_here, const struct dp_comm_settings *settings);

#endif
