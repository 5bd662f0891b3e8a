/* SPDX-License-Identifier: Apache-2.0
 *
 * memory.h - memory that other processes of this host can map, so that messages from it and into it
 * are copied by both sides at once, in user space, at the full speed of memory.
 *
 * It is memory like any other; malloc's will always do. But a large message between processes of one
 * host (dp_comm_isend, 64 KiB and more) of which either end lies in such memory needs no system call
 * and no right to look into another process, and of which both ends do is copied the quickest that
 * two processes can.
 *
 *      float *activations;
 *      err = dp_shared_alloc(bytes, -1, (void **)&activations);
 *      dp_comm_isend(comm, peer, channel, tag, activations + n, len, &req);
 *      ...                     a peer on this host maps the piece of memory when the first message
 *      dp_shared_free(activations);                            of it is under way, and keeps it mapped
 *
 * A pipeline (pipeline.h) does so by itself, where messages are that large.
 *
 * Who gets it. The memory has no name that could be found or left behind. It is passed on to the peers
 * that a message goes to or comes from, which have shown that they know the group's secret; these can
 * read and write all of what one call has handed out, so keep what must stay private elsewhere.
 *
 * Other libraries. Dualpipe's plugin for NCCL sends such memory the same way between processes of one
 * host, where the program has libdualpipe.so loaded; what a program allocates with a libdualpipe that is
 * linked into it is memory like any other for the plugin. Others find the file by dp_shared_find.
 *
 * Forking. The child shares it with its parent, whatever either writes. What one frees the other keeps.
 */
#ifndef DUALPIPE_MEMORY_H
#define DUALPIPE_MEMORY_H

#include <dualpipe/dualpipe.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { DP_SHARED_MAX = 256 }; /* pieces of a process, at any time */

/* `bytes` of it, at least 1: zeroed, all pages there, page aligned; from 2 MiB on aligned to that, and
 * in huge pages where the system has them for shared memory
 * (/sys/kernel/mm/transparent_hugepage/shmem_enabled). numa_node: where, as long as there is room; -1:
 * as the system likes. The caller frees. Any thread.
 * DP_EINVAL (no bytes, no such node), DP_ENOMEM (no memory, or DP_SHARED_MAX are there already),
 * DP_EUNSUPPORTED (the system has no such memory, or does not let this process say where), DP_EIO (this
 * process may open no more files). */
DP_PUBLIC int dp_shared_alloc(size_t bytes, int numa_node, void **out);

/* The memory goes back to the system, also where a peer has it mapped. No message from it or into
 * it may be in flight. ptr may be NULL. Any thread. DP_EINVAL for what dp_shared_alloc did not
 * return. */
DP_PUBLIC int dp_shared_free(void *ptr);

/* Where something lies in a piece of such memory. */
struct dp_shared_place {
    uint64_t id;   /* of the piece; never 0, and never given again */
    size_t offset; /* in it */
    size_t bytes;  /* of the whole piece */
    int fd;        /* its file, sealed against being cut: not the caller's, and open until it is freed */
};

/* For libraries that pass memory on by themselves: whether all of ptr[len] lies in one piece. The caller
 * sees to it that this piece is not freed meanwhile; others may be. No lock, no system call. Any
 * thread. */
DP_PUBLIC bool dp_shared_find(const void *ptr, size_t len, struct dp_shared_place *out);

#ifdef __cplusplus
}
#endif
#endif
