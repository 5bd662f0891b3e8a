/* SPDX-License-Identifier: Apache-2.0
 *
 * mpi.h - what the module mpi.so offers: ranks, a broadcast, and wires over MPI. It is a module so
 * that libdualpipe loads where there is no MPI; it is opened when the transport "mpi" is asked for.
 *
 * Only messages go over MPI. Failures, resets and the end go over the control connections
 * (rendezvous.h) as with all processes, since MPI ends a job with a failed rank without naming the
 * rank.
 */
#ifndef DP_WIRE_MPI_H
#define DP_WIRE_MPI_H

#include "wire/wire.h"

struct dp_mpi_group;

/* The module's one symbol is a table of this type, dp_mpi_module. Functions that can fail return 0 or -1
 * and leave a sentence in why[DP_MPI_WHY]. */
enum { DP_MPI_WHY = 256 };
struct dp_mpi {
    const char *version; /* of libdualpipe: must be the same */
    size_t wire_bytes;   /* of struct dp_wire_base */
    /* Collective. Starts MPI if it does not run yet, and in that case ends it with the process. */
    int (*begin)(struct dp_mpi_group **out, int *rank, int *size, char *why);
    /* Collective: rank 0's bytes to all. */
    int (*broadcast)(struct dp_mpi_group *group, void *buf, size_t len, char *why);
    /* A wire to a peer. Wires of an earlier epoch and this one never mix. NULL: no memory, or no
     * tag of MPI left for the channel. */
    struct dp_wire *(*wire)(struct dp_mpi_group *group, int peer, int channel, uint32_t epoch);
    /* All wires are closed. is_broken: a rank may have ended, or stand still, so that the process must
     * not wait for it when it ends MPI. group may be NULL. */
    void (*end)(struct dp_mpi_group *group, bool is_broken);
};

#endif
