/* SPDX-License-Identifier: Apache-2.0
 *
 * wired.h - the communicator of processes over wires.
 */
#ifndef DP_COMM_WIRED_H
#define DP_COMM_WIRED_H

#include "comm/settings.h"
#include "comm/star.h"

/* transport: "auto", "shm", "tcp". Collective. Errors are those of dp_comm_open. */
int dp_comm_wired_open(const struct dp_star_config *config, const char *transport,
                       const struct dp_comm_settings *settings, struct dp_comm **out);

#endif
