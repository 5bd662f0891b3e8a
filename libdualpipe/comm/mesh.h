/* SPDX-License-Identifier: Apache-2.0
 *
 * mesh.h - the wires of a rank: one to each other rank for each channel, so that channels never wait
 * for each other, and what a wire cannot take stays with the sender.
 */
#ifndef DP_COMM_MESH_H
#define DP_COMM_MESH_H

#include "comm/mpi.h"
#include "comm/settings.h"
#include "comm/star.h"
#include "wire/fault.h"

enum dp_mesh_transport { DP_MESH_AUTO, DP_MESH_SHM, DP_MESH_TCP, DP_MESH_MPI };

/* Where messages go over MPI; NULL members: they do not. */
struct dp_mesh_mpi {
    const struct dp_mpi *ops;
    struct dp_mpi_group *group;
};

struct dp_mesh {
    int rank, size;
    enum dp_mesh_transport transport;
    struct dp_wire_listener *shm, *tcp;
    struct dp_mesh_mpi mpi;
    struct dp_wire **wires; /* [size * DP_CHANNELS]; NULL to the own rank */
    int *busy;              /* [busy_count] indices of the wires that have something to do */
    bool *is_busy;          /* [size * DP_CHANNELS] */
    int busy_count;
    bool has_fault;
    struct dp_wire_fault fault;
    uint32_t epoch; /* of the star; wires of an earlier one are not let in */
};

static inline struct dp_wire *dp_mesh_wire(const struct dp_mesh *mesh, int peer, int channel)
{
    return mesh->wires[peer * DP_CHANNELS + channel];
}

/* Listen; *card is what the others must know. Zeroed memory is a mesh. */
int dp_mesh_init(struct dp_mesh *mesh, struct dp_star *star, const char *transport,
                 struct dp_mesh_mpi mpi, const struct dp_comm_settings *settings,
                 struct dp_card *card);
/* Collective, after a gather: connect to all, by their cards. DP_EMISMATCH, DP_ETIMEDOUT and DP_ECOMM
 * name the ranks. */
int dp_mesh_connect(struct dp_mesh *mesh, const struct dp_star *star, int64_t until_ns);
/* Close the wires, but go on listening. */
void dp_mesh_disconnect(struct dp_mesh *mesh);
/* Finish all requests with DP_EABORTED; no wire touches a buffer again. */
void dp_mesh_fail(struct dp_mesh *mesh);
void dp_mesh_fini(struct dp_mesh *mesh);

/* A request was queued in this wire. */
void dp_mesh_note(struct dp_mesh *mesh, int peer, int channel);
/* Move along all wires that have something to do. */
void dp_mesh_progress(struct dp_mesh *mesh);
/* Changes whenever bytes move on one of these wires. */
unsigned dp_mesh_moves(const struct dp_mesh *mesh);
/* Say what to poll for before a sleep. false: there is work to do now. In either case *armed wires are
 * to be disarmed behind it. */
bool dp_mesh_arm(struct dp_mesh *mesh, struct pollfd *fds, int *armed);
void dp_mesh_disarm(struct dp_mesh *mesh, const struct pollfd *fds, int armed);

/* How many of all ranks are on the host of `rank`. */
int dp_mesh_count_here(const struct dp_card *cards, int size, int rank);

#endif
