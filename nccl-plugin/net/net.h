/* SPDX-License-Identifier: Apache-2.0
 *
 * net.h - the net plugin without NCCL's versions: connections in one direction between two ranks,
 * over libdualpipe's wires. Errors are ours (dualpipe.h); versions.c translates.
 *
 *      receiver                                  sender
 *      listen -> handle   -- by NCCL's means -->  connect, connect ... -> comm
 *      accept, accept ... -> comm
 *      irecv: a CTS entry (tags, room)   ----->  kept, oldest first
 *                                        <-----  isend: the message, to the oldest of its tag
 *      test, test ...                            test, test ...
 *
 * The receiver sends clear-to-send (CTS) entries first, so no long message arrives without a place
 * to go to, whatever the order of tags, and none stands in the way of another. Without an entry a
 * sender has a few short messages sent at once (net/wire_transport.h; by RDMA verbs/recv.c); for
 * others it is told to try again.
 *
 * Nothing blocks: DP_EAGAIN says that the same call is to be made again.
 *
 * Threads: any number in different comms at once; in one comm one thread for isend, irecv and test,
 * and at the same time others for registration. Everything else takes locks of its own.
 */
#ifndef DPN_NET_H
#define DPN_NET_H

#include "nccl-plugin/nccl_abi.h"
#include "nccl-plugin/net/devices.h"
#include "nccl-plugin/net/transport.h"

enum { DPN_MAX_RECEIVES = 8 };             /* of one irecv */
#define DPN_MAX_BYTES ((size_t)1 << 30) /* of one message: NCCL's own limit, and its int holds it  \
                                         */

struct dpn_net; /* what one communicator of NCCL has opened */
struct dpn_listener;
struct dpn_comm;
struct dpn_memory;
struct dpn_request;

/* The first of a process reads the options and looks for devices. Without any it succeeds, and
 * there are 0. DP_EINVAL for an option, DP_ENOMEM. */
int dpn_net_init(ncclDebugLogger_t logger, struct dpn_net **out);
/* Closes what is still open. NULL is fine. A process that was forked after init closes nothing of
 * its parent's, here and below. */
void dpn_net_finalize(struct dpn_net *net);

/* What the connections are for that this thread makes next (options.h), and their traffic
 * class, unless it is NCCL_NET_TRAFFIC_CLASS_UNDEF. NCCL says it just before it connects, while
 * another of its threads says what moves over the same context's connections. */
void dpn_net_say_next(const struct dpn_net *net, uint32_t ops, int traffic_class);

/* For versions without a context: one for the process, never finalized; NULL before its init.
 * names_watched: the version (9 and later) has irecv tell which receives are watched, and can be
 * told that a device needs flushes. */
int dpn_net_init_shared(ncclDebugLogger_t logger, bool names_watched);
struct dpn_net *dpn_net_shared(void);

/* DP_ESTATE before the first init. */
int dpn_net_devices(int *count);
/* *out stays. DP_EINVAL naming the number. */
int dpn_net_device(int dev, const struct dpn_device **out);

/* The same for NCCL, which asks when it has loaded the plugin, and takes all for plain: what was
 * fused before the last context was finalized is forgotten. A plugin that it has kept it does not
 * ask again, and it uses what is fused. */
int dpn_net_count_devices(int *count);
/* Fuse RDMA ports into a further device. DP_EUNSUPPORTED: they cannot be; DP_EINVAL. */
int dpn_net_fuse(const int *devs, int count, int *out);

/* handle: 128 bytes to write. */
int dpn_net_listen(struct dpn_net *net, int dev, void *handle, struct dpn_listener **out);
/* The same memory in every repetition. DP_EMISMATCH: the handle of something else; DP_EUNSUPPORTED:
 * no wire in common; DP_ECOMM, DP_ETIMEDOUT: no peer there. The state of the attempt is gone
 * then. */
int dpn_net_connect(struct dpn_net *net, int dev, const void *handle, struct dpn_comm **out);
/* Any number of peers, one after the other. */
int dpn_net_accept(struct dpn_listener *listener, struct dpn_comm **out);
/* All closers: NULL is fine; never wait; requests in flight are dropped. */
void dpn_net_close_listener(struct dpn_listener *listener);
void dpn_net_close(struct dpn_comm *comm);

/* DP_EUNSUPPORTED: memory that the comm's transport cannot reach, as a GPU's from shm and tcp. The
 * dma-buf, if any, may be closed when this returns. */
int dpn_net_register(struct dpn_comm *comm, const struct dpn_region *region,
                     struct dpn_memory **out);
/* With a request in flight that uses the memory the connection is broken off: when this returns,
 * nothing touches the memory any more. NULL is fine. */
int dpn_net_deregister(struct dpn_comm *comm, struct dpn_memory *memory);

/* *out NULL: try again. memory may be NULL. DP_EMISMATCH: the receiver has less room. */
int dpn_net_isend(struct dpn_comm *comm, const void *data, size_t size, int tag,
                  struct dpn_memory *memory, struct dpn_request **out);
/* A group of n receives, which is done when all are. is_watched: see net/ordered_copy.h. */
int dpn_net_irecv(struct dpn_comm *comm, int n, void *const *data, const size_t *sizes,
                  const int *tags, struct dpn_memory *const *memories, bool is_watched,
                  struct dpn_request **out);
/* Make n receives that are done visible to the GPU that the memory is of. *out NULL: they are. */
int dpn_net_iflush(struct dpn_comm *comm, int n, void *const *data, const int *sizes,
                   struct dpn_memory *const *memories, struct dpn_request **out);
/* Moves everything in the comm. With *done the request is gone. sizes: one of a send, n of a
 * receive; NULL is fine. */
int dpn_net_test(struct dpn_request *request, bool *done, int *sizes);

#endif
