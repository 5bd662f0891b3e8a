/* SPDX-License-Identifier: Apache-2.0
 *
 * peers.c - links: made, connected and accepted when they are first used, moved along, and closed.
 */
#include "comm/peers.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/text.h"
#include "wire/tcp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How often connections are looked for while a receive waits for one, or for any peer's message. */
static const int64_t WAITED_FOR_NS = 20 * DP_NS_PER_US;

/* How long a peer may wait for this rank to have files again. */
static const int64_t REFUSED_NS = DP_NS_PER_S;

/* A rank that computes may have connected and not said so yet; one that is dropped tries again. */
static const int64_t HANDSHAKE_NS = 30 * DP_NS_PER_S;

/* The label of a wire, which its connecting side sends. */
static uint64_t make_label(uint32_t epoch, int rank, int channel)
{
    return (uint64_t)epoch << 32 | (uint64_t)rank << 16 | (uint64_t)channel;
}

static bool is_same_host(const struct dp_endpoint *a, const struct dp_endpoint *b)
{
    return !memcmp(a->host_id, b->host_id, sizeof(a->host_id));
}

int dp_peers_count_here(const struct dp_endpoint *endpoints, int size, int rank)
{
    int count = 0;

    for (int i = 0; i < size; i++)
        count += is_same_host(&endpoints[i], &endpoints[rank]);
    return count;
}

static int listen_tcp(struct dp_peers *peers, const struct dp_rendezvous *rendezvous,
                      const char *interface, struct dp_endpoint *endpoint)
{
    union dp_sockaddr known;
    struct dp_wire_config config = {
        .interface = interface, .handshake_timeout_ns = HANDSHAKE_NS, .needs_files = true};

    if (!interface && dp_rendezvous_find_address(rendezvous, &known))
        config.reached_by = &known;
    return dp_wire_tcp.listen(&config, &peers->tcp, &endpoint->tcp);
}

/* Where it cannot be, the others use tcp. */
static int listen_shm(struct dp_peers *peers, bool is_needed, struct dp_endpoint *endpoint)
{
    const struct dp_wire_config config = {.handshake_timeout_ns = HANDSHAKE_NS, .needs_files = true};
    const int err = dp_wire_shm.listen(&config, &peers->shm, &endpoint->shm);

    if (err == DP_EUNSUPPORTED && is_needed)
        return dp_fail(err, "transport shm: %s", dp_last_error());
    return err == DP_EUNSUPPORTED ? 0 : err;
}

int dp_peers_init(struct dp_peers *peers, struct dp_rendezvous *rendezvous,
                  enum dp_transport transport, struct dp_peers_mpi mpi,
                  const struct dp_comm_settings *settings,
                  struct dp_endpoint *endpoint)
{
    const bool shm = transport == DP_TRANSPORT_AUTO || transport == DP_TRANSPORT_SHM;
    const bool tcp = transport == DP_TRANSPORT_AUTO || transport == DP_TRANSPORT_TCP;
    int err;

    *endpoint = (struct dp_endpoint){.transport = (uint8_t)transport};
    *peers = (struct dp_peers){
        .rank = rendezvous->rank,
        .size = rendezvous->size,
        .transport = transport,
        .mpi = mpi,
        .rendezvous = rendezvous,
    };
    if (rendezvous->size > UINT16_MAX)
        return dp_fail(DP_EINVAL, "%d ranks: expected at most %d", rendezvous->size, UINT16_MAX);
    err = dp_host_id("", endpoint->host_id);
    if (!err && shm)
        err = listen_shm(peers, !tcp, endpoint);
    if (!err && tcp)
        err = listen_tcp(peers, rendezvous, settings->interface, endpoint);
    return err;
}

/* ---- links ----------------------------------------------------------------------------------- */

static void empty(struct dp_wire_queue *queue)
{
    queue->head = NULL;
    queue->end = &queue->head;
}

static void push(struct dp_wire_queue *queue, struct dp_wire_request *req)
{
    *queue->end = req;
    queue->end = &req->next;
}

static struct dp_wire_request *pop(struct dp_wire_queue *queue)
{
    struct dp_wire_request *req = queue->head;

    queue->head = req->next;
    if (!queue->head)
        queue->end = &queue->head;
    return req;
}

static int grow_channels(struct dp_peers *peers, int channel)
{
    int count = peers->channel_count ? peers->channel_count : DP_CHANNELS;

    if (channel >= DP_PEERS_CHANNELS)
        return dp_fail(DP_ENOMEM, "more than %d communicators in one family",
                       DP_PEERS_CHANNELS / DP_CHANNELS);
    while (count <= channel)
        count *= 2;
    struct dp_peers_channel *channels = realloc(peers->channels, (size_t)count * sizeof(*channels));
    if (!channels)
        return dp_fail(DP_ENOMEM, "no memory for %d channels", count);
    for (int i = peers->channel_count; i < count; i++)
        channels[i] = (struct dp_peers_channel){.links = NULL};
    peers->channels = channels;
    peers->channel_count = count;
    /* The ends of queues point into the array. */
    for (int i = 0; i < count; i++)
        if (!channels[i].any.head)
            empty(&channels[i].any);
    return 0;
}

static int grow_links(struct dp_peers *peers)
{
    const int room = peers->link_room ? 2 * peers->link_room : 8;
    struct dp_link **links = realloc(peers->links, (size_t)room * sizeof(struct dp_link *));

    if (links)
        peers->links = links;
    struct dp_busy_wire *busy = realloc(peers->busy, 2 * (size_t)room * sizeof(*busy));
    if (busy)
        peers->busy = busy;
    if (!links || !busy)
        return dp_fail(DP_ENOMEM, "no memory for links to %d peers", room);
    peers->link_room = room;
    return 0;
}

static int make_link(struct dp_peers *peers, int peer, int channel)
{
    struct dp_peers_channel *c = &peers->channels[channel];
    int err = peers->link_count < peers->link_room ? 0 : grow_links(peers);

    if (err)
        return err;
    if (!c->links)
        c->links = calloc((size_t)peers->size, sizeof(struct dp_link *));
    struct dp_link *link = c->links ? calloc(1, sizeof(*link)) : NULL;
    if (!link)
        return dp_fail(DP_ENOMEM, "no memory for a link to rank %d", peer);
    link->peer = peer;
    link->channel = channel;
    empty(&link->early);
    c->links[peer] = link;
    peers->links[peers->link_count++] = link;
    return 0;
}

static inline int find_link(struct dp_peers *peers, int peer, int channel, struct dp_link **out)
{
    int err = channel < peers->channel_count ? 0 : grow_channels(peers, channel);

    if (!err && (!peers->channels[channel].links || !peers->channels[channel].links[peer]))
        err = make_link(peers, peer, channel);
    if (!err)
        *out = peers->channels[channel].links[peer];
    return err;
}

/* ---- connecting ------------------------------------------------------------------------------ */

/* One wire for both directions is in the list once. */
static inline void note(struct dp_peers *peers, struct dp_link *link, bool in)
{
    const struct dp_wire *wire = in ? link->in : link->out;

    if (link->is_busy[in] || !dp_wire_is_busy(wire) ||
        (link->in == link->out && link->is_busy[!in]))
        return;
    link->is_busy[in] = true;
    peers->busy[peers->busy_count++] = (struct dp_busy_wire){link, in};
}

int (*dp_peers_wrap)(const struct dp_peers *peers, const struct dp_link *link,
                     struct dp_wire **wire);

static int wrap(const struct dp_peers *peers, const struct dp_link *link, struct dp_wire **wire)
{
    return dp_peers_wrap ? dp_peers_wrap(peers, link, wire) : 0;
}

static bool uses_shm(const struct dp_peers *peers, int peer)
{
    const struct dp_endpoint *all = peers->rendezvous->endpoints;

    return dp_wire_shm_reaches(&all[peers->rank].shm, &all[peer].shm);
}

/* A peer that has accepted this rank's wire before it sends anything answers on it. */
static struct dp_wire *input_of(const struct dp_link *link)
{
    return link->in || dp_peers_wrap ? link->in : link->out;
}

static void begin_in(struct dp_peers *peers, struct dp_link *link)
{
    if (link->out)
        dp_wire_expect(link->out, false);
    peers->early_count -= link->early.head != NULL;
    while (link->early.head) {
        struct dp_wire_request *req = pop(&link->early);
        dp_wire_irecv(link->in, req->buf, req->len, req);
    }
    dp_wire_expect(link->in, peers->channels[link->channel].any.head);
    note(peers, link, true);
}

/* MPI: both directions at once, and without the peer. */
static int connect_by_mpi(struct dp_peers *peers, struct dp_link *link)
{
    struct dp_wire *wire =
        peers->mpi.ops->wire(peers->mpi.group, link->peer, link->channel, peers->epoch);

    if (!wire)
        return dp_fail(DP_ENOMEM, "no memory for a wire to rank %d", link->peer);
    int err = wrap(peers, link, &wire);
    if (err)
        return err;
    link->out = link->in = wire;
    begin_in(peers, link);
    return 0;
}

int dp_peers_connect(struct dp_peers *peers, int peer, int channel, struct dp_wire **out)
{
    const struct dp_endpoint *endpoint = &peers->rendezvous->endpoints[peer];
    const uint64_t label = make_label(peers->epoch, peers->rank, channel);
    struct dp_wire_address tcp = endpoint->tcp;

    if (uses_shm(peers, peer)) {
        const int err = dp_wire_shm.connect(&endpoint->shm, label, out);
        if (err != DP_EUNSUPPORTED || peers->transport == DP_TRANSPORT_SHM)
            return err;
    }
    dp_wire_tcp_take_scope(&tcp, &peers->rendezvous->endpoints[peers->rank].tcp);
    return dp_wire_tcp.connect(&tcp, label, out);
}

static int connect_out(struct dp_peers *peers, struct dp_link *link)
{
    struct dp_wire *wire;

    if (peers->mpi.ops)
        return connect_by_mpi(peers, link);
    if (link->in && !link->in->error && !dp_peers_wrap) {
        link->out = link->in;
        return 0;
    }
    int err = dp_peers_connect(peers, link->peer, link->channel, &wire);
    if (!err)
        err = wrap(peers, link, &wire);
    if (err)
        return err;
    link->out = wire;
    if (input_of(link) == wire)
        dp_wire_expect(wire, link->early.head || peers->channels[link->channel].any.head);
    return 0;
}

/* The transport must be the same on all ranks, and reach them all. */
int dp_peers_begin(struct dp_peers *peers)
{
    const struct dp_endpoint *all = peers->rendezvous->endpoints;

    peers->epoch = peers->rendezvous->epoch;
    for (int i = 0; i < peers->size; i++) {
        if (all[i].transport != all[0].transport)
            return dp_fail(DP_EMISMATCH,
                           "transport: all ranks must agree; rank 0 has %s, but rank %d has %s",
                           dp_transport_names[all[0].transport % DP_TRANSPORTS], i,
                           dp_transport_names[all[i].transport % DP_TRANSPORTS]);
        if (peers->transport == DP_TRANSPORT_SHM && !uses_shm(peers, i))
            return dp_fail(DP_EUNSUPPORTED,
                           "transport shm: rank %d is on another host, in another container or of "
                           "another user than rank %d; expected auto or tcp",
                           i, peers->rank);
    }
    return 0;
}

/* ---- accepting ------------------------------------------------------------------------------- */

static bool is_buried(const struct dp_peers *peers, int peer)
{
    return peers->buried && peers->buried[peer];
}

static void refuse(struct dp_peers *peers, int error, const char *text)
{
    if (peers->refusal.error)
        return;
    peers->refusal.error = error;
    dp_snprintf(peers->refusal.text, sizeof(peers->refusal.text), "%s", text);
    if (!peers->refused_since_ns)
        peers->refused_since_ns = dp_now_ns();
}

/* Its peer will find the connection closed, which is this rank's fault. */
static void drop_for_memory(struct dp_peers *peers, struct dp_wire *wire)
{
    dp_wire_close(wire);
    refuse(peers, DP_ENOMEM, "no memory for the connection of a peer");
}

static void add_watcher(struct dp_peers *peers, int peer, struct dp_wire *wire)
{
    struct dp_watcher *watcher = malloc(sizeof(*watcher));

    if (!watcher) {
        drop_for_memory(peers, wire);
        return;
    }
    *watcher = (struct dp_watcher){peers->watchers, peer, wire};
    peers->watchers = watcher;
}

bool dp_peers_take_watch(struct dp_peers *peers, int *peer, struct dp_wire **out)
{
    struct dp_watcher *watcher = peers->watchers;

    if (!watcher)
        return false;
    peers->watchers = watcher->next;
    *peer = watcher->peer;
    *out = watcher->wire;
    free(watcher);
    return true;
}

/* Takes the wire. A second wire of a link, or one of an earlier epoch, is closed. */
static void add_in(struct dp_peers *peers, uint64_t label, struct dp_wire *wire)
{
    const int peer = (int)(label >> 16 & UINT16_MAX), channel = (int)(label & UINT16_MAX);
    struct dp_link *link;

    if (label >> 32 == peers->epoch && peer < peers->size && peer != peers->rank &&
        channel == DP_WATCH_CHANNEL) {
        add_watcher(peers, peer, wire);
        return;
    }
    const bool is_known = label >> 32 == peers->epoch && peer < peers->size && peer != peers->rank &&
                          !is_buried(peers, peer);
    if (is_known && find_link(peers, peer, channel, &link)) {
        drop_for_memory(peers, wire);
        return;
    }
    if (!is_known || link->in || link->is_ended) {
        dp_wire_close(wire);
        return;
    }
    if (wrap(peers, link, &wire)) {
        refuse(peers, DP_ENOMEM, dp_last_error());
        return;
    }
    link->in = wire;
    begin_in(peers, link);
}

static void keep_for_future(struct dp_peers *peers, uint64_t label, struct dp_wire *wire)
{
    struct dp_future_wire *future =
        realloc(peers->future, (size_t)(peers->future_count + 1) * sizeof(*future));

    if (!future) {
        drop_for_memory(peers, wire);
        return;
    }
    peers->future = future;
    future[peers->future_count++] = (struct dp_future_wire){label, wire};
}

static void accept_from(struct dp_peers *peers, const struct dp_wire_ops *ops,
                        struct dp_wire_listener *listener)
{
    struct dp_wire *wire;
    uint64_t label;
    int err = listener ? 0 : DP_EAGAIN;

    while (!err && !(err = ops->accept(listener, &label, &wire))) {
        if (label >> 32 > peers->epoch)
            keep_for_future(peers, label, wire);
        else
            add_in(peers, label, wire);
    }
    if (err != DP_EAGAIN)
        refuse(peers, err, dp_last_error());
}

void dp_peers_accept(struct dp_peers *peers)
{
    peers->accepted_ns = dp_now_ns();
    if (peers->refusal.error != DP_ENOMEM) /* whose connection is lost */
        peers->refusal.error = 0;
    for (int i = 0; i < peers->future_count;) {
        const struct dp_future_wire f = peers->future[i];
        if (f.label >> 32 > peers->epoch) {
            i++;
            continue;
        }
        peers->future[i] = peers->future[--peers->future_count];
        add_in(peers, f.label, f.wire);
    }
    accept_from(peers, &dp_wire_shm, peers->shm);
    accept_from(peers, &dp_wire_tcp, peers->tcp);
    if (!peers->refusal.error)
        peers->refused_since_ns = 0;
}

void dp_peers_accept_every(struct dp_peers *peers, int64_t every_ns)
{
    if (dp_now_ns() - peers->accepted_ns >= every_ns)
        dp_peers_accept(peers);
}

/* ---- requests -------------------------------------------------------------------------------- */

int dp_peers_isend(struct dp_peers *peers, int peer, int channel, uint64_t tag, const void *buf,
                   size_t len, struct dp_link_request *req)
{
    int err = find_link(peers, peer, channel, &req->link);

    if (!err && req->link->is_ended) {
        req->wire = (struct dp_wire_request){.status = DP_ECOMM};
        return 0;
    }
    if (!err && !req->link->out)
        err = connect_out(peers, req->link);
    if (err)
        return err;
    dp_wire_isend(req->link->out, tag, buf, len, &req->wire);
    note(peers, req->link, false);
    return 0;
}

static void wait_for_message(struct dp_wire_queue *queue, void *buf, size_t room,
                             struct dp_wire_request *req)
{
    *req = (struct dp_wire_request){.buf = buf, .len = room, .status = DP_EAGAIN};
    push(queue, req);
}

static struct dp_link *link_at(const struct dp_peers *peers, int channel, int peer)
{
    return peers->channels[channel].links ? peers->channels[channel].links[peer] : NULL;
}

static void expect_on(struct dp_peers *peers, struct dp_link *link, bool expects)
{
    struct dp_wire *wire = input_of(link);

    if (!wire)
        return;
    dp_wire_expect(wire, expects);
    note(peers, link, link->in);
}

/* Whether the peer has sent something that no receive has been queued for. The first message on the
 * wire that this rank sends on makes it the one to receive from. */
static bool has_message(struct dp_peers *peers, struct dp_link *link)
{
    struct dp_wire *wire = input_of(link);

    if (!wire || wire->error || !wire->ops->has_message(wire))
        return false;
    if (!link->in) {
        link->in = wire;
        begin_in(peers, link);
    }
    return true;
}

int dp_peers_irecv(struct dp_peers *peers, int peer, int channel, void *buf, size_t room,
                   struct dp_link_request *req)
{
    int err = find_link(peers, peer, channel, &req->link);

    if (err)
        return err;
    if (peers->any_count && peers->channels[channel].any.head)
        return dp_fail(DP_EINVAL,
                       "a receive from rank %d while one from any rank is pending on "
                       "its channel",
                       peer);
    if (req->link->is_ended) {
        req->wire = (struct dp_wire_request){.status = DP_ECOMM};
        return 0;
    }
    if (!req->link->in && peers->mpi.ops)
        err = connect_by_mpi(peers, req->link);
    if (err)
        return err;
    if (req->link->in) {
        dp_wire_irecv(req->link->in, buf, room, &req->wire);
        note(peers, req->link, true);
        return 0;
    }
    peers->early_count += !req->link->early.head;
    wait_for_message(&req->link->early, buf, room, &req->wire);
    expect_on(peers, req->link, true);
    return 0;
}

struct dp_wire *dp_peers_wire(const struct dp_peers *peers, int peer, int channel, bool in)
{
    const struct dp_link *link =
        channel < peers->channel_count ? link_at(peers, channel, peer) : NULL;

    return link ? in ? link->in : link->out : NULL;
}

static void expect(struct dp_peers *peers, int channel, bool expects)
{
    for (int peer = 0; peer < peers->size; peer++) {
        struct dp_link *link = link_at(peers, channel, peer);
        if (link)
            expect_on(peers, link, expects);
    }
}

/* MPI has no connection that would come by itself. */
static int connect_channel_by_mpi(struct dp_peers *peers, int channel)
{
    int err = 0;

    for (int peer = 0; peer < peers->size && !err; peer++) {
        struct dp_link *link = NULL;
        if (peer != peers->rank)
            err = find_link(peers, peer, channel, &link);
        if (!err && link && !link->in)
            err = connect_by_mpi(peers, link);
    }
    return err;
}

/* The next peer in turn that has sent a message; NULL: none. */
static struct dp_link *find_message(struct dp_peers *peers, int channel)
{
    struct dp_peers_channel *c = &peers->channels[channel];

    for (int i = 0; i < peers->size; i++) {
        const int peer = (c->next_peer + i) % peers->size;
        struct dp_link *link = link_at(peers, channel, peer);
        if (!link || !has_message(peers, link))
            continue;
        c->next_peer = (peer + 1) % peers->size;
        return link;
    }
    return NULL;
}

static void serve_any(struct dp_peers *peers, int channel)
{
    struct dp_peers_channel *c = &peers->channels[channel];
    struct dp_link *link;

    while (c->any.head && (link = find_message(peers, channel))) {
        struct dp_wire_request *wire = pop(&c->any);
        ((struct dp_link_request *)wire)->link = link;
        dp_wire_irecv(link->in, wire->buf, wire->len, wire);
        note(peers, link, true);
    }
    if (c->any.head)
        return;
    peers->any_count--;
    expect(peers, channel, false);
}

int dp_peers_irecv_any(struct dp_peers *peers, int channel, void *buf, size_t room,
                       struct dp_link_request *req)
{
    int err = channel < peers->channel_count ? 0 : grow_channels(peers, channel);

    if (!err && peers->mpi.ops)
        err = connect_channel_by_mpi(peers, channel);
    if (err)
        return err;
    struct dp_peers_channel *c = &peers->channels[channel];
    req->link = NULL;
    if (c->any.head) {
        wait_for_message(&c->any, buf, room, &req->wire);
        return 0;
    }
    wait_for_message(&c->any, buf, room, &req->wire);
    peers->any_count++;
    expect(peers, channel, true);
    serve_any(peers, channel);
    return 0;
}

/* ---- wires with something to do -------------------------------------------------------------- */

static struct dp_wire *wire_of(const struct dp_busy_wire *busy)
{
    return busy->in ? busy->link->in : busy->link->out;
}

/* Whether a receive waits for its peer to connect. */
static bool waits(const struct dp_peers *peers)
{
    return peers->early_count || peers->any_count;
}

bool dp_peers_are_refused(const struct dp_peers *peers, int64_t now_ns)
{
    return peers->refusal.error && (peers->refusal.error == DP_ENOMEM || waits(peers) ||
                                    now_ns - peers->refused_since_ns > REFUSED_NS);
}

void dp_peers_progress(struct dp_peers *peers)
{
    if (waits(peers))
        dp_peers_accept_every(peers, WAITED_FOR_NS);
    for (int i = 0; i < peers->busy_count;) {
        const struct dp_busy_wire *busy = &peers->busy[i];
        struct dp_wire *wire = wire_of(busy);
        wire->ops->progress(wire);
        if (!busy->link->in && busy->link->early.head)
            has_message(peers, busy->link);
        if (!wire->error && dp_wire_is_busy(wire)) {
            i++;
            continue;
        }
        busy->link->is_busy[busy->in] = false;
        peers->busy[i] = peers->busy[--peers->busy_count];
    }
    for (int channel = 0; channel < peers->channel_count && peers->any_count; channel++)
        if (peers->channels[channel].any.head)
            serve_any(peers, channel);
}

unsigned dp_peers_moves(const struct dp_peers *peers)
{
    unsigned moves = 0;

    for (int i = 0; i < peers->busy_count; i++)
        moves += dp_wire_moves(wire_of(&peers->busy[i]));
    return moves;
}

bool dp_peers_need_progress(const struct dp_peers *peers)
{
    for (int i = 0; i < peers->busy_count; i++)
        if (dp_wire_needs_progress(wire_of(&peers->busy[i])))
            return true;
    return peers->early_count;
}

/* ---- sleeping -------------------------------------------------------------------------------- */

enum { LISTENERS = 2 };

/* Whatever cannot be polled for (MPI, wires beyond the room, connections in their handshake) shows
 * as a descriptor of -1: the caller then limits its sleep. */
bool dp_peers_arm(struct dp_peers *peers, struct pollfd *fds, int *armed)
{
    const struct dp_wire_listener *const listeners[LISTENERS] = {peers->shm, peers->tcp};

    *armed = 0;
    for (int i = 0; i < LISTENERS; i++)
        if (listeners[i] && !dp_acceptor_arm(listeners[i], &fds[(*armed)++]))
            fds[*armed - 1] = (struct pollfd){.fd = -1};
    peers->armed_listeners = *armed;
    for (int i = 0; i < peers->busy_count && *armed < DP_PEERS_FDS - 1; i++) {
        struct dp_wire *wire = wire_of(&peers->busy[i]);
        fds[*armed] = (struct pollfd){.fd = -1};
        if (!wire->ops->arm(wire, &fds[(*armed)++]))
            return false;
    }
    if (*armed - peers->armed_listeners < peers->busy_count)
        fds[(*armed)++] = (struct pollfd){.fd = -1};
    return true;
}

void dp_peers_disarm(struct dp_peers *peers, const struct pollfd *fds, int armed)
{
    const int listeners = peers->armed_listeners;
    bool connects = false;

    for (int i = 0; i < armed && i < listeners; i++)
        connects |= fds[i].fd < 0 || fds[i].revents; /* -1: one is in its handshake */
    for (int i = listeners; i < armed && i - listeners < peers->busy_count; i++) {
        struct dp_wire *wire = wire_of(&peers->busy[i - listeners]);
        wire->ops->disarm(wire, fds[i].revents);
    }
    if (connects)
        dp_peers_accept(peers);
}

/* ---- end ----------------------------------------------------------------------------------- */

static void finish_all(struct dp_wire_queue *queue, int status)
{
    while (queue->head)
        pop(queue)->status = status;
}

static void fail_wire(struct dp_wire *wire)
{
    if (wire)
        dp_wire_fail(wire, DP_EABORTED, "aborted");
}

static void forget_busy(struct dp_peers *peers)
{
    while (peers->busy_count) {
        const struct dp_busy_wire *busy = &peers->busy[--peers->busy_count];
        busy->link->is_busy[busy->in] = false;
    }
}

static void finish_early(struct dp_peers *peers, struct dp_link *link, int status)
{
    peers->early_count -= link->early.head != NULL;
    finish_all(&link->early, status);
}

void dp_peers_finish_early(struct dp_peers *peers, struct dp_link *link)
{
    finish_early(peers, link, DP_ECOMM);
}

static void finish_any(struct dp_peers *peers, int channel)
{
    peers->any_count -= peers->channels[channel].any.head != NULL;
    finish_all(&peers->channels[channel].any, DP_EABORTED);
}

void dp_peers_fail(struct dp_peers *peers)
{
    for (int i = 0; i < peers->link_count; i++) {
        fail_wire(peers->links[i]->out);
        fail_wire(peers->links[i]->in);
        finish_early(peers, peers->links[i], DP_EABORTED);
    }
    for (int channel = 0; channel < peers->channel_count; channel++)
        finish_any(peers, channel);
    forget_busy(peers);
}

static void forget_busy_link(struct dp_peers *peers, struct dp_link *link)
{
    for (int i = 0; i < peers->busy_count;)
        if (peers->busy[i].link == link)
            peers->busy[i] = peers->busy[--peers->busy_count];
        else
            i++;
    link->is_busy[0] = link->is_busy[1] = false;
}

static void close_link(struct dp_peers *peers, struct dp_link *link)
{
    forget_busy_link(peers, link);
    finish_early(peers, link, DP_EABORTED);
    dp_wire_close(link->out);
    if (link->in != link->out)
        dp_wire_close(link->in);
    link->out = link->in = NULL;
}

/* ---- groups that survive --------------------------------------------------------------------- */

static void end_link(struct dp_peers *peers, struct dp_link *link)
{
    link->is_ended = true;
    finish_early(peers, link, DP_ECOMM);
    if (link->out)
        dp_wire_fail(link->out, DP_ECOMM, "given up");
    if (link->in)
        dp_wire_fail(link->in, DP_ECOMM, "given up");
    close_link(peers, link);
}

int dp_peers_bury(struct dp_peers *peers, int peer)
{
    for (int i = 0; i < peers->link_count; i++)
        if (peers->links[i]->peer == peer)
            end_link(peers, peers->links[i]);
    if (!peers->buried)
        peers->buried = calloc((size_t)peers->size, sizeof(*peers->buried));
    if (!peers->buried)
        return dp_fail(DP_ENOMEM, "no memory to remember that rank %d is dead", peer);
    peers->buried[peer] = true;
    return 0;
}

static bool take_out(struct dp_wire_queue *queue, const struct dp_wire_request *req)
{
    for (struct dp_wire_request **at = &queue->head; *at; at = &(*at)->next)
        if (*at == req) {
            *at = req->next;
            if (!*at)
                queue->end = at;
            return true;
        }
    return false;
}

void dp_peers_cancel(struct dp_peers *peers, struct dp_link_request *req)
{
    if (req->link) {
        end_link(peers, req->link);
        return;
    }
    for (int channel = 0; channel < peers->channel_count; channel++)
        if (take_out(&peers->channels[channel].any, &req->wire)) {
            req->wire.status = DP_ECOMM;
            if (!peers->channels[channel].any.head) {
                peers->any_count--;
                expect(peers, channel, false);
            }
        }
}

void dp_peers_end_channels(struct dp_peers *peers, int first, int count)
{
    for (int channel = first; channel < first + count && channel < peers->channel_count; channel++)
        finish_any(peers, channel);
    for (int i = 0; i < peers->link_count; i++)
        if (peers->links[i]->channel >= first && peers->links[i]->channel < first + count)
            end_link(peers, peers->links[i]);
}

void dp_peers_close_channels(struct dp_peers *peers, int first, int count)
{
    for (int channel = first; channel < first + count && channel < peers->channel_count; channel++)
        finish_any(peers, channel);
    for (int i = 0; i < peers->link_count; i++)
        if (peers->links[i]->channel >= first && peers->links[i]->channel < first + count)
            close_link(peers, peers->links[i]);
}

void dp_peers_disconnect(struct dp_peers *peers)
{
    dp_peers_close_channels(peers, 0, DP_PEERS_CHANNELS);
}

void dp_peers_unlisten(struct dp_peers *peers)
{
    dp_wire_shm.unlisten(peers->shm);
    dp_wire_tcp.unlisten(peers->tcp);
    peers->shm = peers->tcp = NULL;
}

void dp_peers_fini(struct dp_peers *peers)
{
    dp_peers_disconnect(peers);
    dp_peers_unlisten(peers);
    for (int i = 0; i < peers->future_count; i++)
        dp_wire_close(peers->future[i].wire);
    struct dp_wire *watch;
    for (int peer; dp_peers_take_watch(peers, &peer, &watch);)
        dp_wire_close(watch);
    free(peers->buried);
    for (int i = 0; i < peers->link_count; i++)
        free(peers->links[i]);
    for (int i = 0; i < peers->channel_count; i++)
        free(peers->channels[i].links);
    free(peers->future);
    free(peers->busy);
    free(peers->links);
    free(peers->channels);
    *peers = (struct dp_peers){0};
}
