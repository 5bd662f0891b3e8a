/* SPDX-License-Identifier: Apache-2.0
 *
 * peers.h - the wires of a rank. A link is one channel of the world (comm_ops.h) to one peer, so
 * that channels never wait for each other. The side that sends first connects a wire; the other
 * side answers on it, unless it has connected one itself by then: in that case each side sends on
 * its own, and neither has to wait for the other to connect first. One connection for both
 * directions is not only one descriptor less: the answer carries TCP's acknowledgement.
 *
 * A link comes to be when it is first used: a rank has descriptors for its neighbours, not for all
 * ranks. The first message waits until the peer calls any function of the communicator; receives
 * that come before the peer's wire are kept in the link.
 */
#ifndef DP_COMM_PEERS_H
#define DP_COMM_PEERS_H

#include "comm/rendezvous.h"
#include "comm/settings.h"
#include "wire/mpi.h"

/* Where messages go over MPI; NULL members: they do not. */
struct dp_peers_mpi {
    const struct dp_mpi *ops;
    struct dp_mpi_group *group;
};

struct dp_link {
    int peer, channel;
    struct dp_wire *out, *in;   /* NULL: not connected yet. May be the same wire; MPI: always is */
    struct dp_wire_queue early; /* receives that wait for `in` */
    bool is_busy[2];            /* out, in: whether it is in the list of busy wires */
    bool is_ended;              /* given up: no request succeeds any more */
    int64_t broken_since_ns;    /* the other end has ended it, in a group that survives; 0: not */
};

/* A transfer on a link. A receive from any peer has no link until a message has come for it. */
struct dp_link_request {
    struct dp_wire_request wire;
    struct dp_link *link;
};

struct dp_peers_channel {
    struct dp_link **links;   /* [size], by peer; NULL: not used yet */
    struct dp_wire_queue any; /* receives from any peer, until a message has come for them */
    int next_peer;            /* where the search for the next message of any peer begins */
};

struct dp_busy_wire {
    struct dp_link *link;
    bool in;
};

/* Has come from a rank that is in the next epoch already. */
struct dp_future_wire {
    uint64_t label;
    struct dp_wire *wire;
};

/* A wire for watching (below) that a peer has connected. */
struct dp_watcher {
    struct dp_watcher *next;
    int peer;
    struct dp_wire *wire;
};

/* More busy wires than this are not polled for, but looked at once a millisecond. */
enum {
    DP_PEERS_FDS = 1024,
    DP_PEERS_CHANNELS = (1 << 16) - 1,
    DP_WATCH_CHANNEL = DP_PEERS_CHANNELS,
};

struct dp_peers {
    int rank, size;
    enum dp_transport transport;
    struct dp_wire_listener *shm, *tcp;
    struct dp_peers_mpi mpi;
    struct dp_rendezvous *rendezvous;
    struct dp_peers_channel *channels; /* [channel_count] */
    int channel_count;
    struct dp_link **links; /* [link_count], all of them */
    int link_count, link_room;
    struct dp_busy_wire *busy; /* [busy_count], room for two of each link */
    int busy_count;
    int armed_listeners; /* of the last arm */
    int early_count;     /* links with early receives */
    int any_count;       /* channels with receives from any peer */
    struct dp_future_wire *future;
    int future_count;
    struct dp_watcher *watchers;
    bool *buried; /* [size] ranks that are dead in a group that survives; NULL: none */
    struct dp_abort refusal; /* error, text: why the last accept could let in no peer; 0: it could */
    int64_t refused_since_ns;
    uint32_t epoch; /* of the rendezvous; wires of an earlier one are not accepted */
    int64_t accepted_ns; /* when the listeners were last asked */
};

/* Listen; *endpoint is what the others must know. Zeroed memory is valid. */
int dp_peers_init(struct dp_peers *peers, struct dp_rendezvous *rendezvous,
                  enum dp_transport transport, struct dp_peers_mpi mpi,
                  const struct dp_comm_settings *settings,
                  struct dp_endpoint *endpoint);
/* After a gather: links may be used from now on. DP_EMISMATCH and DP_EUNSUPPORTED name the ranks.
 */
int dp_peers_begin(struct dp_peers *peers);
/* Close the wires, but go on listening. Links stay. */
void dp_peers_disconnect(struct dp_peers *peers);
/* Close the wires of these channels. */
void dp_peers_close_channels(struct dp_peers *peers, int first, int count);
void dp_peers_unlisten(struct dp_peers *peers);
/* Finish all requests with DP_EABORTED; no wire touches a buffer again. */
void dp_peers_fail(struct dp_peers *peers);
void dp_peers_fini(struct dp_peers *peers);

/* Queue a request; the link is made at its first use. Errors of the connection show in the request.
 * DP_EIO, DP_ENOMEM. */
int dp_peers_isend(struct dp_peers *peers, int peer, int channel, uint64_t tag, const void *buf,
                   size_t len, struct dp_link_request *req);
/* DP_EINVAL while a receive from any peer of the channel is pending, as a receive of one peer mixes
 * with none from any. */
int dp_peers_irecv(struct dp_peers *peers, int peer, int channel, void *buf, size_t room,
                   struct dp_link_request *req);
/* Receive the next message on this channel of any peer that no receive is pending from. */
int dp_peers_irecv_any(struct dp_peers *peers, int channel, void *buf, size_t room,
                       struct dp_link_request *req);
/* The wire that the request is in; NULL: none yet, or none any more. */
static inline struct dp_wire *dp_peers_wire_of(const struct dp_link_request *req, bool is_send)
{
    if (!req->link)
        return NULL;
    return is_send ? req->link->out : req->link->in;
}

/* A wire to the peer, without a link. */
int dp_peers_connect(struct dp_peers *peers, int peer, int channel, struct dp_wire **out);
/* A wire of DP_WATCH_CHANNEL that a peer has connected; false: there is none. */
bool dp_peers_take_watch(struct dp_peers *peers, int *peer, struct dp_wire **out);
/* The peer is dead: fail all its requests, and later ones. DP_ENOMEM. */
int dp_peers_bury(struct dp_peers *peers, int peer);
/* The peer makes no wire any more: fail the receives that wait for one. */
void dp_peers_finish_early(struct dp_peers *peers, struct dp_link *link);
/* Fail this request and its link, so that no request of that succeeds any more. */
void dp_peers_cancel(struct dp_peers *peers, struct dp_link_request *req);
/* Fail all requests of these channels, and later ones on their links. */
void dp_peers_end_channels(struct dp_peers *peers, int first, int count);
/* The wire of a link, out or in; NULL: there is none yet, or there are no wires but MPI's. */
struct dp_wire *dp_peers_wire(const struct dp_peers *peers, int peer, int channel, bool in);

/* Let in peers that have connected; the second one, unless that was done within the last `every_ns`:
 * asking two listeners costs several microseconds even if there is none. */
void dp_peers_accept(struct dp_peers *peers);
void dp_peers_accept_every(struct dp_peers *peers, int64_t every_ns);
/* Whether this rank lacks files or memory for a peer that wants to connect, and something waits for
 * that: a receive here, or for a second the peer. */
bool dp_peers_are_refused(const struct dp_peers *peers, int64_t now_ns);
/* Move along all wires that have something to do. */
void dp_peers_progress(struct dp_peers *peers);
/* Changes whenever bytes move on one of these wires. */
unsigned dp_peers_moves(const struct dp_peers *peers);
/* Whether a wire needs this rank to look after it again and again. */
bool dp_peers_need_progress(const struct dp_peers *peers);
/* Say what to poll for before a sleep, at most DP_PEERS_FDS. false: there is work to do now. In
 * either case disarm comes next with the same *armed. */
bool dp_peers_arm(struct dp_peers *peers, struct pollfd *fds, int *armed);
void dp_peers_disarm(struct dp_peers *peers, const struct pollfd *fds, int armed);

/* How many of all ranks are on the host of `rank`. */
int dp_peers_count_here(const struct dp_endpoint *endpoints, int size, int rank);

/* ---- wire comm ------------------------------------------------------------------------------- */

/* The communicator of processes over wires. */

/* mpi goes with its transport only, and is taken. Collective. Errors are those
 * of dp_comm_open. */
int dp_comm_wire_open(const struct dp_rendezvous_config *config, enum dp_transport transport,
                      struct dp_peers_mpi mpi, const struct dp_comm_settings *settings,
                      struct dp_comm **out);

/* dp_comm_open for a group that has no launcher: rank and size are those of config. first_new, and
 * a rank of -1: see dp_rendezvous_config. */
int dp_comm_meet(const struct dp_comm_config *config, int first_new, struct dp_comm **out);

/* Rank and size are MPI's; those of config, if any, must be the same. */
int dp_comm_mpi_open(const struct dp_comm_config *config, const struct dp_comm_settings *settings,
                     struct dp_comm **out);

/* A test's, NULL: none. It takes every wire of a link, and gives another one in its place or an
 * error; links then have a wire for each direction. */
extern int (*dp_peers_wrap)(const struct dp_peers *peers, const struct dp_link *link,
                            struct dp_wire **wire);

#endif
