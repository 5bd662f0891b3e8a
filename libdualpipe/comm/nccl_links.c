/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/internal.h"
#include "comm/nccl_links.h"

#include "base/clock.h"
#include "base/fail.h"
#include "comm/backoff.h"
#include "device/device_ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const channel_names[DP_NCCL_CHANNELS] = {"activation", "gradient", "reduce"};

/* After an abort kernels end at once; a device that hangs is given up. */
static const int64_t END_NS = 10 * DP_NS_PER_S;

/* ---- waiting for NCCL's own threads ---------------------------------------------------------- */

/* A communicator that does not block hands every group of calls to a new thread and answers "in
 * progress"; until that is over nothing else may be done with it. So a deadline holds while two ranks
 * connect, of which each waits for the other. Messages do not wait, and shall not cost a thread each:
 * they have a communicator that blocks, split from the first, whose connections it shares. */

static int check_link(const struct dp_nccl_links *l, const struct dp_nccl_link *link, int result,
                      const char *what)
{
    return dp_nccl_check(&l->nccl, result, "%s (%s %s rank %d)", what, channel_names[link->channel],
                         link->sends ? "to" : "from", link->peer);
}

static struct dp_nccl_comm *comm_of(const struct dp_nccl_link *link)
{
    return link->comms[1] ? link->comms[1] : link->comms[0];
}

static int settle(struct dp_nccl_links *l, const struct dp_nccl_link *link,
                  struct dp_nccl_comm *comm, const char *what, int64_t until_ns)
{
    enum { SPINS = 1000 };
    unsigned backoff_us = 0;

    for (int i = 0;; i++) {
        int state = DP_NCCL_SUCCESS;
        int err = check_link(l, link, l->nccl.CommGetAsyncError(comm, &state), what);
        if (err || state != DP_NCCL_IN_PROGRESS)
            return err ? err : check_link(l, link, state, what);
        if (i < SPINS) {
            dp_cpu_pause();
            continue;
        }
        err = dp_comm_progress(l->host);
        if (!err)
            err = dp_comm_poll(l->host);
        if (!err && dp_now_ns() > until_ns)
            err = dp_fail(DP_ETIMEDOUT, "NCCL: %s (%s %s rank %d): not done within %.1f s", what,
                          channel_names[link->channel], link->sends ? "to" : "from", link->peer,
                          (double)dp_comm_deadline(l->host) / DP_NS_PER_S);
        if (err)
            return err;
        dp_backoff(&backoff_us);
    }
}

static int64_t deadline(const struct dp_nccl_links *l)
{
    return dp_now_ns() + dp_comm_deadline(l->host);
}

static int settle_all(struct dp_nccl_links *l, const char *what, int64_t until_ns)
{
    int err = 0;

    for (int which = 0; which < 2; which++)
        for (int i = 0; i < l->count && !err; i++)
            if (l->links[i].comms[which])
                err = settle(l, &l->links[i], l->links[i].comms[which], what, until_ns);
    return err;
}

/* ---- messages -------------------------------------------------------------------------------- */

static int call(const struct dp_nccl_links *l, const struct dp_nccl_message *m)
{
    struct dp_nccl_stream *stream = dp_device_stream_native(m->link->stream);
    void *buf = m->len ? m->buf : m->link->scratch;
    const size_t len = m->len ? m->len : 1;

    /* In a communicator of a link the sender is rank 0. */
    return m->link->sends ? l->nccl.Send(buf, len, DP_NCCL_UINT8, 1, comm_of(m->link), stream)
                          : l->nccl.Recv(buf, len, DP_NCCL_UINT8, 0, comm_of(m->link), stream);
}

static int call_all(struct dp_nccl_links *l, const struct dp_nccl_message *messages, size_t count)
{
    int err = dp_nccl_check(&l->nccl, l->nccl.GroupStart(), "beginning a group of calls");

    if (err)
        return err;
    for (size_t i = 0; i < count && !err; i++)
        err = check_link(l, messages[i].link, call(l, &messages[i]), "starting a message");
    int end = dp_nccl_check(&l->nccl, l->nccl.GroupEnd(), "starting a group of messages");
    return err ? err : end;
}

int dp_nccl_links_start(struct dp_nccl_links *l, const struct dp_nccl_message *messages,
                        size_t count)
{
    int err = l->dev->ops->enter(l->dev);

    if (err)
        return err;
    err = call_all(l, messages, count);
    l->dev->ops->leave(l->dev);
    return err;
}

struct dp_nccl_link *dp_nccl_links_failed(struct dp_nccl_links *l)
{
    for (int i = 0; i < l->count; i++) {
        struct dp_nccl_link *link = &l->links[i];
        int state = DP_NCCL_SUCCESS;
        if (!comm_of(link))
            continue;
        const int result = l->nccl.CommGetAsyncError(comm_of(link), &state);
        if (check_link(l, link, result ? result : state, "an operation in flight"))
            return link;
    }
    return NULL;
}

struct dp_nccl_link *dp_nccl_links_find(const struct dp_nccl_links *l, int peer, int channel,
                                        bool sends)
{
    const int i = l->at[peer * DP_NCCL_ENDS + channel * 2 + sends];

    return i < 0 ? NULL : &l->links[i];
}

/* ---- registered memory ----------------------------------------------------------------------- */

struct dp_nccl_memory {
    struct dp_nccl_memory *next;
    void *ptr;
    size_t bytes;
    void *handles[]; /* [links] NULL: not registered with that communicator */
};

static int register_one(struct dp_nccl_links *l, struct dp_nccl_memory *m, const char *what)
{
    int err = 0;

    for (int i = 0; i < l->count; i++)
        m->handles[i] = NULL;
    for (int i = 0; i < l->count && !err; i++) {
        struct dp_nccl_link *link = &l->links[i];
        if (link->comms[1])
            err = check_link(
                l, link, l->nccl.CommRegister(link->comms[1], m->ptr, m->bytes, &m->handles[i]), what);
    }
    return err;
}

/* With new communicators, after a reset. */
static int register_again(struct dp_nccl_links *l)
{
    int err = 0;

    for (struct dp_nccl_memory *m = l->memory; m && !err; m = m->next)
        err = register_one(l, m, "registering memory again");
    return err;
}

static void deregister(struct dp_nccl_links *l, struct dp_nccl_memory *m)
{
    for (int i = 0; i < l->count; i++)
        if (l->links[i].comms[1] && m->handles[i])
            check_link(l, &l->links[i],
                       l->nccl.CommDeregister(l->links[i].comms[1], m->handles[i]),
                       "letting go of memory");
    free(m);
}

int dp_nccl_links_register(struct dp_nccl_links *l, void *ptr, size_t bytes)
{
    struct dp_nccl_memory *m = calloc(1, sizeof(*m) + (size_t)l->count * sizeof(m->handles[0]));

    if (!m)
        return dp_fail(DP_ENOMEM, "NCCL: no memory to register %zu bytes", bytes);
    m->ptr = ptr;
    m->bytes = bytes;
    int err = l->count ? l->dev->ops->enter(l->dev) : 0;
    if (!err && l->count) {
        err = register_one(l, m, "registering memory");
        if (err) {
            deregister(l, m);
            m = NULL;
        }
        l->dev->ops->leave(l->dev);
    }
    if (err) {
        free(m);
        return err;
    }
    m->next = l->memory;
    l->memory = m;
    return 0;
}

void dp_nccl_links_unregister(struct dp_nccl_links *l, void *ptr)
{
    struct dp_nccl_memory **at = &l->memory, *m;

    while (*at && (*at)->ptr != ptr)
        at = &(*at)->next;
    m = *at;
    if (!m)
        return;
    *at = m->next;
    if (!l->count || l->dev->ops->enter(l->dev)) {
        free(m);
        return;
    }
    deregister(l, m);
    l->dev->ops->leave(l->dev);
}

/* ---- connecting ------------------------------------------------------------------------------ */

/* The sender of a direction makes its identities. NCCL listens for each until it is used. */
static int exchange_ids(struct dp_nccl_links *l, int peer,
                        struct dp_nccl_id ids[2][DP_NCCL_CHANNELS])
{
    struct dp_request send, receive;
    int err = 0;

    memset(ids, 0, 2 * DP_NCCL_CHANNELS * sizeof(ids[0][0]));
    for (int c = 0; c < DP_NCCL_CHANNELS && !err; c++)
        if (l->peers[peer].sends >> c & 1)
            err = dp_nccl_check(&l->nccl, l->nccl.GetUniqueId(&ids[1][c]), "making an identity");
    if (!err)
        err = dp_comm_irecv(l->host, peer, DP_CHANNEL_CONTROL, DP_NCCL_ID_TAG, ids[0],
                            sizeof(ids[0]), &receive);
    if (!err)
        err = dp_comm_isend(l->host, peer, DP_CHANNEL_CONTROL, DP_NCCL_ID_TAG, ids[1],
                            sizeof(ids[1]), &send);
    if (!err)
        err = dp_comm_wait(l->host, &receive, peer);
    return err ? err : dp_comm_wait(l->host, &send, peer);
}

static struct dp_nccl_comm_config make_config(const struct dp_nccl_links *l,
                                              const struct dp_nccl_link *link, bool blocks,
                                              const char *name)
{
    const struct dp_nccl_options *o = &l->nccl.options;
    const int64_t class = link->channel == DP_CHANNEL_REDUCE ? o->reduce_class : o->stage_class;

    return (struct dp_nccl_comm_config){
        .size = sizeof(struct dp_nccl_comm_config),
        .magic = 0xcafebeef,
        .version = DP_NCCL_OLDEST,
        .blocking = blocks,
        .cga_cluster_size = DP_NCCL_UNSET,
        .min_ctas = DP_NCCL_UNSET,
        .max_ctas = o->ctas ? (int)o->ctas : DP_NCCL_UNSET,
        .split_share = blocks ? 1 : DP_NCCL_UNSET,
        .traffic_class = class < 0 ? DP_NCCL_UNSET : (int)class,
        .comm_name = name,
        .collnet_enable = DP_NCCL_UNSET,
        .cta_policy = DP_NCCL_UNSET,
        .shrink_share = DP_NCCL_UNSET,
        .nvls_ctas = DP_NCCL_UNSET,
    };
}

/* id: NULL splits the one that does not block. */
static int init_link(struct dp_nccl_links *l, struct dp_nccl_link *link,
                     const struct dp_nccl_id *id)
{
    const int own = dp_comm_rank(l->host), rank = link->sends ? 0 : 1;
    char name[64];

    snprintf(name, sizeof(name), "dualpipe %s %d to %d", channel_names[link->channel],
             link->sends ? own : link->peer, link->sends ? link->peer : own);
    struct dp_nccl_comm_config config = make_config(l, link, !id, name);
    const int result =
        id ? l->nccl.CommInitRankConfig(&link->comms[0], 2, *id, rank, &config)
           : l->nccl.CommSplit(link->comms[0], 0, rank, &link->comms[1], &config);
    return check_link(l, link, result, "connecting");
}

static int split_all(struct dp_nccl_links *l, int64_t until_ns)
{
    int err = dp_nccl_check(&l->nccl, l->nccl.GroupStart(), "beginning to split");

    if (err)
        return err;
    for (int i = 0; i < l->count && !err; i++)
        err = init_link(l, &l->links[i], NULL);
    int end = dp_nccl_check(&l->nccl, l->nccl.GroupEnd(), "splitting");
    err = err ? err : end;
    return err ? err : settle_all(l, "connecting", until_ns);
}

static bool is_peer(const struct dp_nccl_links *l, int rank)
{
    return l->peers[rank].sends || l->peers[rank].receives;
}

static int init_peer(struct dp_nccl_links *l, int peer)
{
    struct dp_nccl_id ids[2][DP_NCCL_CHANNELS];
    int err = exchange_ids(l, peer, ids);

    for (int i = 0; i < l->count && !err; i++) {
        struct dp_nccl_link *link = &l->links[i];
        if (link->peer == peer)
            err = init_link(l, link, &ids[link->sends][link->channel]);
    }
    return err;
}

static int wait_until_idle(struct dp_nccl_links *l, int64_t until_ns)
{
    int err = 0;

    for (int i = 0; i < l->count && !err; i++) {
        unsigned backoff_us = 0;
        err = dp_device_event_record(l->idle, l->links[i].stream);
        while (!err && (err = dp_device_event_test(l->idle)) == DP_EAGAIN) {
            err = dp_comm_progress(l->host);
            if (!err)
                err = dp_comm_poll(l->host);
            if (!err && dp_now_ns() > until_ns)
                err = dp_fail(DP_ETIMEDOUT, "NCCL: no first message %s rank %d within %.1f s",
                              l->links[i].sends ? "to" : "from", l->links[i].peer,
                              (double)dp_comm_deadline(l->host) / DP_NS_PER_S);
            dp_backoff(&backoff_us);
        }
    }
    return err;
}

/* NCCL connects two ranks when the first message goes between them, and that one would wait for the
 * other rank. */
static int send_first(struct dp_nccl_links *l, int64_t until_ns)
{
    struct dp_nccl_message *messages = calloc((size_t)l->count, sizeof(*messages));

    if (!messages)
        return dp_fail(DP_ENOMEM, "NCCL: no memory for %d first messages", l->count);
    for (int i = 0; i < l->count; i++)
        messages[i].link = &l->links[i];
    int err = call_all(l, messages, (size_t)l->count);
    free(messages);
    if (!err)
        err = settle_all(l, "starting a message", until_ns);
    return err ? err : wait_until_idle(l, until_ns);
}

static int init_all(struct dp_nccl_links *l, int64_t until_ns)
{
    int err = dp_nccl_check(&l->nccl, l->nccl.GroupStart(), "beginning to connect");

    if (err)
        return err;
    for (int r = 0; r < dp_comm_size(l->host) && !err; r++)
        err = is_peer(l, r) ? init_peer(l, r) : 0;
    int end = dp_nccl_check(&l->nccl, l->nccl.GroupEnd(), "connecting");
    err = err ? err : end;
    return err ? err : settle_all(l, "connecting", until_ns);
}

int dp_nccl_links_connect(struct dp_nccl_links *l)
{
    int (*const parts[])(struct dp_nccl_links *l, int64_t until_ns) = {init_all, send_first,
                                                                       split_all, send_first};
    const int64_t until_ns = deadline(l);
    int err = l->count ? l->dev->ops->enter(l->dev) : 0;

    if (err || !l->count)
        return err;
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]) && !err; i++)
        err = parts[i](l, until_ns);
    if (!err)
        err = register_again(l);
    l->dev->ops->leave(l->dev);
    return err;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Every rank says what it has, before any of them waits for NCCL. */
struct readiness {
    int32_t error, version;
};

static int compare(const struct dp_nccl_links *l, const struct readiness *all, int err)
{
    for (int r = 0; r < dp_comm_size(l->host) && !err; r++) {
        if (all[r].error)
            err = dp_fail(all[r].error, "NCCL: rank %d cannot use it: %s", r,
                          dp_strerror(all[r].error));
        else if (all[r].version != l->nccl.version)
            err = dp_fail(DP_EMISMATCH, "NCCL: rank %d has version %d, this one %d", r,
                          all[r].version, l->nccl.version);
    }
    return err;
}

static int check_ready(struct dp_nccl_links *l, int err)
{
    const struct readiness mine = {.error = err, .version = l->nccl.version};
    struct readiness *all = calloc((size_t)dp_comm_size(l->host), sizeof(*all));

    if (!all)
        return dp_fail(DP_ENOMEM, "NCCL: no memory to ask all ranks");
    int asked = dp_comm_allgather(l->host, &mine, all, sizeof(mine));
    err = asked ? asked : compare(l, all, err);
    free(all);
    return err;
}

static int mark_peer(struct dp_nccl_links *l, const struct dp_nccl_peer *peer)
{
    const int size = dp_comm_size(l->host), own = dp_comm_rank(l->host);

    if (peer->rank < 0 || peer->rank >= size || peer->rank == own)
        return dp_fail(DP_EINVAL,
                       "NCCL: peer %d: expected a rank from 0 to %d other than the own, %d",
                       peer->rank, size - 1, own);
    if ((peer->sends | peer->receives) > DP_NCCL_ALL_CHANNELS)
        return dp_fail(DP_EINVAL,
                       "NCCL: channels 0x%x of peer %d: expected those of activations, gradients "
                       "and reductions, 0x%x at most",
                       peer->sends | peer->receives, peer->rank, DP_NCCL_ALL_CHANNELS);
    l->peers[peer->rank].sends |= peer->sends;
    l->peers[peer->rank].receives |= peer->receives;
    return 0;
}

static int mark_peers(struct dp_nccl_links *l, const struct dp_nccl_config *config)
{
    const int size = dp_comm_size(l->host), own = dp_comm_rank(l->host);
    int err = 0;

    for (int i = 0; i < config->peer_count && config->peers && !err; i++)
        err = mark_peer(l, &config->peers[i]);
    for (int r = 0; r < size; r++) {
        l->peers[r].rank = r;
        if (!config->peers && r != own)
            l->peers[r].sends = l->peers[r].receives = DP_NCCL_ALL_CHANNELS;
    }
    return err;
}

/* What a rank sends to another one that one must receive, and the other way round. */
static int compare_peers(const struct dp_nccl_links *l)
{
    const int size = dp_comm_size(l->host);
    struct dp_nccl_peer *all = calloc((size_t)size * (size_t)size, sizeof(*all));

    if (!all)
        return dp_fail(DP_ENOMEM, "NCCL: no memory to ask %d ranks", size);
    int err = dp_comm_allgather(l->host, l->peers, all, (size_t)size * sizeof(*all));
    for (int a = 0; a < size && !err; a++)
        for (int b = 0; b < size && !err; b++)
            if (all[a * size + b].sends != all[b * size + a].receives)
                err = dp_fail(DP_EMISMATCH,
                              "NCCL: rank %d sends to rank %d on the channels 0x%x, which receives "
                              "on 0x%x",
                              a, b, all[a * size + b].sends, all[b * size + a].receives);
    free(all);
    return err;
}

/* Number the links; channels 0 to 2, of each what is received first. */
static void number_links(struct dp_nccl_links *l)
{
    for (int i = 0; i < dp_comm_size(l->host) * DP_NCCL_ENDS; i++) {
        const struct dp_nccl_peer *peer = &l->peers[i / DP_NCCL_ENDS];
        const int channel = i % DP_NCCL_ENDS / 2;
        const unsigned channels = i % 2 ? peer->sends : peer->receives;
        l->at[i] = channels >> channel & 1 ? l->count++ : -1;
    }
}

static int make_link(struct dp_nccl_links *l, int end)
{
    const int at = l->at[end];

    if (at < 0)
        return 0;
    l->links[at] = (struct dp_nccl_link){.peer = end / DP_NCCL_ENDS,
                                         .channel = end % DP_NCCL_ENDS / 2,
                                         .sends = end % 2,
                                         .scratch = l->scratch + at};
    return dp_device_stream_new(l->dev, DP_PRIORITY_HIGH, &l->links[at].stream);
}

static int make_links(struct dp_nccl_links *l)
{
    const int ends = dp_comm_size(l->host) * DP_NCCL_ENDS;

    number_links(l);
    const size_t count = (size_t)l->count;
    l->count = 0; /* until there are as many */
    l->links = calloc(count + 1, sizeof(*l->links));
    if (!l->links)
        return dp_fail(DP_ENOMEM, "NCCL: no memory for %zu links", count);
    l->count = (int)count;
    int err = dp_device_alloc(l->dev, DP_MEMORY_DEVICE, count, (void **)&l->scratch);
    if (!err)
        err = dp_device_event_new(l->dev, &l->idle);
    for (int i = 0; i < ends && !err; i++)
        err = make_link(l, i);
    return err;
}

static int prepare(struct dp_nccl_links *l, const struct dp_nccl_config *config)
{
    const size_t size = (size_t)dp_comm_size(l->host);
    int err = dp_nccl_load(&l->nccl);

    if (err)
        return err;
    l->peers = calloc(size, sizeof(*l->peers));
    l->at = calloc(size * DP_NCCL_ENDS, sizeof(*l->at));
    if (!l->peers || !l->at)
        return dp_fail(DP_ENOMEM, "NCCL: no memory for %zu ranks", size);
    return mark_peers(l, config);
}

int dp_nccl_links_init(struct dp_nccl_links *l, struct dp_comm *host,
                       const struct dp_nccl_config *config)
{
    l->host = host;
    l->dev = config->device;
    int err = check_ready(l, prepare(l, config));
    if (!err)
        err = compare_peers(l);
    if (!err)
        err = check_ready(l, make_links(l));
    if (!err)
        err = dp_nccl_links_connect(l);
    /* NCCL stays loaded, so buffers may outlive the links. */
    if (!err)
        dp_device_set_source(l->dev, (struct dp_device_source){l->nccl.MemAlloc, l->nccl.MemFree});
    return err;
}

/* ---- ending ---------------------------------------------------------------------------------- */

static bool is_connected(const struct dp_nccl_links *l)
{
    return l->count && l->links[0].comms[0];
}

/* In one group: one after the other, each could wait for the kernels of the next. Those that block have
 * another than those that do not. NCCL (2.28) leaks the job of a group of none. */
static void for_all(struct dp_nccl_links *l, int which, int (*end)(struct dp_nccl_comm *comm),
                    const char *what)
{
    bool any = false;

    for (int i = 0; i < l->count; i++) {
        if (!l->links[i].comms[which])
            continue;
        if (!any)
            l->nccl.GroupStart();
        any = true;
        check_link(l, &l->links[i], end(l->links[i].comms[which]), what);
    }
    if (any)
        dp_nccl_check(&l->nccl, l->nccl.GroupEnd(), "%s", what);
}

static void forget_comms(struct dp_nccl_links *l)
{
    for (int i = 0; i < l->count; i++)
        memset(l->links[i].comms, 0, sizeof(l->links[i].comms));
    for (struct dp_nccl_memory *m = l->memory; m; m = m->next)
        memset(m->handles, 0, (size_t)l->count * sizeof(m->handles[0]));
}

static void abort_all(struct dp_nccl_links *l)
{
    for_all(l, 1, l->nccl.CommAbort, "aborting");
    for (int i = 0; i < l->count; i++)
        l->links[i].comms[1] = NULL;
    for_all(l, 0, l->nccl.CommAbort, "aborting");
    for_all(l, 1, l->nccl.CommAbort, "aborting"); /* splits that have come since */
}

static int end_streams(struct dp_nccl_links *l)
{
    int err = 0;

    for (int i = 0; i < l->count && !err; i++) {
        if (!l->links[i].stream)
            continue;
        err = dp_device_event_record(l->idle, l->links[i].stream);
        if (!err)
            err = dp_device_event_wait(l->idle, END_NS);
    }
    return err;
}

int dp_nccl_links_abort(struct dp_nccl_links *l)
{
    if (is_connected(l) && !l->dev->ops->enter(l->dev)) {
        abort_all(l);
        forget_comms(l);
        l->dev->ops->leave(l->dev);
    }
    return end_streams(l);
}

/* Those that block wait for their kernels without a deadline. */
static void finalize(struct dp_nccl_links *l)
{
    if (end_streams(l)) {
        abort_all(l);
    } else {
        for_all(l, 1, l->nccl.CommDestroy, "closing");
        for_all(l, 0, l->nccl.CommFinalize, "finishing");
        for (int i = 0; i < l->count; i++)
            l->links[i].comms[1] = NULL;
        if (settle_all(l, "finishing", dp_now_ns() + END_NS))
            for_all(l, 0, l->nccl.CommAbort, "aborting");
        else
            for_all(l, 0, l->nccl.CommDestroy, "closing");
    }
    forget_comms(l);
}

void dp_nccl_links_fini(struct dp_nccl_links *l)
{
    if (!l->dev)
        return;
    while (l->memory)
        dp_nccl_links_unregister(l, l->memory->ptr);
    if (is_connected(l) && !l->dev->ops->enter(l->dev)) {
        finalize(l);
        l->dev->ops->leave(l->dev);
    }
    for (int i = 0; i < l->count; i++)
        dp_device_stream_free(l->links[i].stream);
    dp_device_event_free(l->idle);
    dp_device_free(l->dev, DP_MEMORY_DEVICE, l->scratch);
    free(l->links);
    free(l->at);
    free(l->peers);
}
