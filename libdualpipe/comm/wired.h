/* SPDX-License-Identifier: Apache-2.0
 *
 * wired.h - the communicator of processes over wires.
 */
#ifndef DP_COMM_WIRED_H
#define DP_COMM_WIRED_H

#include "comm/mesh.h"
#include "comm/settings.h"
#include "comm/star.h"

/* transport: "auto", "shm", "tcp", or "mpi" with mpi, which is taken. Collective. Errors are those of
 * dp_comm_open. */
int dp_comm_wired_open(const struct dp_star_config *config, const char *transport,
                       struct dp_mesh_mpi mpi, const struct dp_comm_settings *settings,
                       struct dp_comm **out);

/* Rank and size are MPI's; those of config, if any, must be the same. */
int dp_comm_mpi_open(const struct dp_comm_config *config, const struct dp_comm_settings *settings,
                     struct dp_comm **out);

#endif
