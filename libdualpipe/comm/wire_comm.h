/* SPDX-License-Identifier: Apache-2.0
 *
 * wire_comm.h - the communicator of processes over wires.
 */
#ifndef DP_COMM_WIRE_COMM_H
#define DP_COMM_WIRE_COMM_H

#include "comm/peers.h"
#include "comm/settings.h"
#include "comm/rendezvous.h"

/* transport: "auto", "shm", "tcp", or "mpi" with mpi, which is taken. Collective. Errors are those
 * of dp_comm_open. */
int dp_comm_wire_open(const struct dp_rendezvous_config *config, const char *transport,
                      struct dp_peers_mpi mpi, const struct dp_comm_settings *settings,
                      struct dp_comm **out);

/* dp_comm_open for a group that has no launcher: rank and size are those of config. first_new, and
 * a rank of -1: see dp_rendezvous_config. */
int dp_comm_meet(const struct dp_comm_config *config, int first_new, struct dp_comm **out);

/* Rank and size are MPI's; those of config, if any, must be the same. */
int dp_comm_mpi_open(const struct dp_comm_config *config, const struct dp_comm_settings *settings,
                     struct dp_comm **out);

/* For tests, of a communicator that was opened with DUALPIPE_COMM_FAULT: see dp_peers_break. */
void dp_comm_wire_break(struct dp_comm *comm, int peer, bool silently);

#endif
