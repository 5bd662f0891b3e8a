/* SPDX-License-Identifier: Apache-2.0
 *
 * transport.h - how the messages of a comm travel, once its two sides have a wire between them:
 * over that wire itself (dpn_wire_transport: shm, tcp), or beside it. What a transport does with
 * the wire is its own affair; a comm keeps it as long as it lives, so that each side hears when the
 * other ends.
 *
 *      wire is connected
 *      open, open ... DP_EAGAIN ... 0          both sides, until they are ready
 *      reg, isend | irecv, iflush, test ...
 *      close                                   at any time, also before open has succeeded
 *
 * Nothing blocks, and the caller holds the comm's lock, but for reg and dereg: these may take long
 * and are called without it, also while other threads call the rest.
 */
#ifndef DPN_NET_TRANSPORT_H
#define DPN_NET_TRANSPORT_H

#include <dualpipe/dualpipe.h>

struct dpn_comm;
struct dpn_memory;
struct dpn_request;

/* What is to be registered. */
struct dpn_region {
    void *data;
    size_t size;
    int type;        /* NCCL_PTR_HOST or NCCL_PTR_CUDA */
    int fd;          /* of a dma-buf, the caller's; -1: none */
    uint64_t offset; /* in the dma-buf */
};

/* One receive of a group, or what of it is to be flushed. */
struct dpn_piece {
    void *data;
    size_t size;
    int tag;
    struct dpn_memory *memory; /* NULL: none, where the transport needs none */
    bool is_watched;           /* of a receive: needs the order of stores of net/ordered_copy.h */
};

/* Every member is set. Errors are those of net.h. */
struct dpn_transport {
    const char *name;
    /* comm->state is the transport's from its first call on. */
    int (*open)(struct dpn_comm *comm);
    /* What the transport does not want is DP_EUNSUPPORTED. *out is malloc'ed and begins with a
     * zeroed struct dpn_memory. */
    int (*reg)(struct dpn_comm *comm, const struct dpn_region *region, struct dpn_memory **out);
    /* Nothing touches the memory any more when it returns, if need be by the end of the connection.
     * Frees memory. */
    void (*dereg)(struct dpn_comm *comm, struct dpn_memory *memory);
    /* *out stays NULL: try again. */
    int (*isend)(struct dpn_comm *comm, const struct dpn_piece *piece, struct dpn_request **out);
    int (*irecv)(struct dpn_comm *comm, int n, const struct dpn_piece *pieces,
                 struct dpn_request **out);
    /* Make what arrived visible to the GPU; *out stays NULL: it is. */
    int (*iflush)(struct dpn_comm *comm, int n, const struct dpn_piece *pieces,
                  struct dpn_request **out);
    /* done is false when called. A request that is done is free again. */
    int (*test)(struct dpn_request *request, bool *done, int *sizes);
    /* Frees comm->state and sets it to NULL. Memory that is still registered is given to dereg
     * after it. The wire may be closed here, and be NULL then. */
    void (*close)(struct dpn_comm *comm);
};

extern const struct dpn_transport dpn_wire_transport;

#endif
