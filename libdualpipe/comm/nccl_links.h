/* SPDX-License-Identifier: Apache-2.0
 *
 * nccl_links.h - the NCCL communicators of one rank: for each peer, direction and channel one that
 * connects and one for messages, with a stream. All are made together, abandoned together, and made
 * anew after a reset.
 */
#ifndef DP_COMM_NCCL_LINKS_H
#define DP_COMM_NCCL_LINKS_H

#include "comm/nccl_api.h"
#include <dualpipe/nccl.h>

enum { DP_NCCL_CHANNELS = DP_CHANNEL_REDUCE + 1, DP_NCCL_ENDS = 2 * DP_NCCL_CHANNELS };
enum { DP_NCCL_ID_TAG = 0x4e43 }; /* of the messages with NCCL's identities */

struct dp_nccl_link {
    int peer, channel;
    bool sends;
    struct dp_nccl_comm *comms[2]; /* the one that was connected, and the one of messages */
    struct dp_device_stream *stream;
    char *scratch; /* a byte of device memory: NCCL leaves messages of no bytes out */
};

struct dp_nccl_links {
    struct dp_nccl nccl;
    struct dp_comm *host;
    struct dp_device *dev;
    int count;
    struct dp_nccl_peer *peers; /* [ranks] without channels: no peer */
    int *at; /* [ranks * DP_NCCL_ENDS] number of the link in `links`; -1: there is none */
    struct dp_nccl_link *links; /* [count] */
    char *scratch;
    struct dp_device_event *idle;
    struct dp_nccl_memory *memory; /* that is registered with all communicators */
};

/* One message of a group of calls. */
struct dp_nccl_message {
    struct dp_nccl_link *link;
    void *buf;
    size_t len;
};

/* Collective: streams and communicators for the peers of config; zeroed `links` before, fini also
 * on an error. */
int dp_nccl_links_init(struct dp_nccl_links *links, struct dp_comm *host,
                       const struct dp_nccl_config *config);
/* Collective: make all communicators, and a first message over each, so that no later one waits for
 * a connection. */
int dp_nccl_links_connect(struct dp_nccl_links *links);
struct dp_nccl_link *dp_nccl_links_find(const struct dp_nccl_links *links, int peer, int channel,
                                        bool sends);
/* One group of calls: returns when the kernels are in the streams. */
int dp_nccl_links_start(struct dp_nccl_links *links, const struct dp_nccl_message *messages,
                        size_t count);
/* Register memory of the device, or pinned memory, with all communicators, so that transports that can
 * read and write it without a copy. It stays registered over resets, until it is unregistered or the
 * links end. */
int dp_nccl_links_register(struct dp_nccl_links *links, void *ptr, size_t bytes);
void dp_nccl_links_unregister(struct dp_nccl_links *links, void *ptr);
/* The first link that NCCL reports an error of (the error is that of dp_last_error), or NULL. */
struct dp_nccl_link *dp_nccl_links_failed(struct dp_nccl_links *links);
/* End what is in flight, and wait until no stream touches a buffer any more. */
int dp_nccl_links_abort(struct dp_nccl_links *links);
/* In order: what has been started is finished first. */
void dp_nccl_links_fini(struct dp_nccl_links *links);

#endif
