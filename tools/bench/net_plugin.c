/* SPDX-License-Identifier: Apache-2.0
 *
 * net_plugin.c - a net plugin in NCCL's place: the newest table that it has, connections made by
 * turns, at most 8 requests of a connection in flight, only the oldest of them tested.
 */
#include "bench/net_plugin.h"

#include <stdlib.h>
#include <string.h>

enum { TAG = 7 };

/* One direction of a connection, seen from one of its ends. */
struct end {
    bool is_sender;
    void *listener, *comm, *memory;
    char handle[NCCL_NET_HANDLE_MAXSIZE];
    int begun, done; /* of a stream */
    void *requests[NET_WINDOW];
    size_t sizes[NET_WINDOW];
};

struct connections {
    struct net_plugin plugin;
    int out_count, in_count;
    struct end outs[NET_CONNECTIONS_MAX], ins[NET_CONNECTIONS_MAX];
};

/* ---- connecting ------------------------------------------------------------------------------ */

static int listen_all(struct net_side *s, struct connections *l)
{
    for (int i = 0; i < l->in_count; i++) {
        struct end *e = &l->ins[i];
        ncclResult_t result = l->plugin.net->listen(l->plugin.ctx, l->plugin.facts.device_number,
                                                    e->handle, &e->listener);
        if (result)
            return net_refused(s, "listen", result);
    }
    return 0;
}

/* What the other side listens on: NCCL carries the handles by means of its own. */
static int exchange_handles(struct net_side *s, struct connections *l)
{
    static char ours[NET_CONNECTIONS_MAX][NCCL_NET_HANDLE_MAXSIZE];
    static char theirs[NET_CONNECTIONS_MAX][NCCL_NET_HANDLE_MAXSIZE];
    const size_t one = NCCL_NET_HANDLE_MAXSIZE;
    const int peer = dp_comm_rank(s->comm) ^ 1;
    struct dp_request in, out;

    for (int i = 0; i < l->in_count; i++)
        memcpy(ours[i], l->ins[i].handle, one);
    int err = dp_comm_irecv(s->comm, peer, DP_CHANNEL_ACTIVATION, TAG, theirs,
                            one * (size_t)l->out_count, &in);
    if (!err)
        err = dp_comm_isend(s->comm, peer, DP_CHANNEL_ACTIVATION, TAG, ours,
                            one * (size_t)l->in_count, &out);
    if (!err)
        err = dp_comm_wait(s->comm, &in, peer);
    if (!err)
        err = dp_comm_wait(s->comm, &out, peer);
    if (err)
        return net_side_fail(s, err, "%s", dp_last_error());
    for (int i = 0; i < l->out_count; i++)
        memcpy(l->outs[i].handle, theirs[i], one);
    return 0;
}

static int connect_or_accept(struct net_side *s, const struct net_plugin *p, struct end *e)
{
    ncclResult_t result = e->is_sender ? p->net->connect(p->ctx, p->facts.device_number, e->handle,
                                                         &e->comm)
                                       : p->net->accept(e->listener, &e->comm);

    if (result)
        return net_refused(s, e->is_sender ? "connect" : "accept", result);
    if (!e->comm)
        return net_side_idle(s);
    net_side_moved(s);
    result = p->net->reg(e->comm, e->is_sender ? s->out : s->in, s->room, NCCL_PTR_HOST, &e->memory);
    return result ? net_refused(s, "regMr", result) : 0;
}

static int connect_all(struct net_side *s, struct connections *l)
{
    for (int missing = 1; missing;) {
        missing = 0;
        for (int i = 0; i < l->in_count + l->out_count; i++) {
            struct end *e = i < l->in_count ? &l->ins[i] : &l->outs[i - l->in_count];
            int err = e->comm ? 0 : connect_or_accept(s, &l->plugin, e);
            if (err)
                return err;
            missing += !e->comm;
        }
    }
    return 0;
}

void net_close(struct net_side *s)
{
    struct connections *l = s->state;

    for (int i = 0; l && i < l->out_count; i++)
        if (l->outs[i].comm) {
            l->plugin.net->dereg(l->outs[i].comm, l->outs[i].memory);
            l->plugin.net->close_send(l->outs[i].comm);
        }
    for (int i = 0; l && i < l->in_count; i++) {
        if (l->ins[i].comm) {
            l->plugin.net->dereg(l->ins[i].comm, l->ins[i].memory);
            l->plugin.net->close_recv(l->ins[i].comm);
        }
        if (l->ins[i].listener)
            l->plugin.net->close_listen(l->ins[i].listener);
    }
    if (l && l->plugin.ctx)
        l->plugin.net->finalize(l->plugin.ctx);
    free(l);
    s->state = NULL;
}

int net_open(struct net_side *s)
{
    struct connections *l = calloc(1, sizeof(*l));

    if (!l)
        return net_side_fail(s, DP_ENOMEM, "no memory for %d connections", s->connections);
    s->state = l;
    int err = net_load(s, &l->plugin);
    if (err)
        return err;
    l->out_count = s->side ? 1 : s->connections;
    l->in_count = s->side ? s->connections : 1;
    for (int i = 0; i < l->out_count; i++)
        l->outs[i].is_sender = true;
    err = listen_all(s, l);
    if (!err)
        err = exchange_handles(s, l);
    return err ? err : connect_all(s, l);
}

/* ---- messages -------------------------------------------------------------------------------- */

/* Begin message `at` of an end; false in *begun: the plugin wants to be asked again. */
static int begin(struct net_side *s, struct end *e, size_t size, int connection, int at,
                 bool *begun)
{
    const struct net_caller *net = ((struct connections *)s->state)->plugin.net;
    const int k = at % NET_WINDOW;
    void *data = (e->is_sender ? s->out : s->in) + net_slot(s->room, size, connection, at);
    int tag = TAG;

    e->requests[k] = NULL;
    e->sizes[k] = size;
    ncclResult_t result =
        e->is_sender
            ? net->isend(e->comm, data, size, tag, e->memory, &e->requests[k])
            : net->irecv(e->comm, 1, &data, &e->sizes[k], &tag, &e->memory, &e->requests[k]);
    if (result)
        return net_refused(s, e->is_sender ? "isend" : "irecv", result);
    *begun = e->requests[k];
    return 0;
}

static int test(struct net_side *s, struct end *e, int at, bool *is_done)
{
    const struct net_caller *net = ((struct connections *)s->state)->plugin.net;
    const int k = at % NET_WINDOW;
    int done = 0, got[64];
    got[0] = 0; /* NCCL's are not zeroed either */
    ncclResult_t result = net->test(e->requests[k], &done, got);

    if (result)
        return net_refused(s, "test", result);
    if (done && !e->is_sender && (size_t)got[0] != e->sizes[k])
        return net_side_fail(s, DP_EIO, "%s: %d bytes of a message of %zu have arrived",
                             s->contender->file, got[0], e->sizes[k]);
    *is_done = done;
    return 0;
}

/* One end of a window of messages: begin another if there is room, test the oldest. */
static int move(struct net_side *s, struct end *e, size_t size, int connection, int times)
{
    const int before = e->begun + e->done;
    bool yes = false;
    int err = 0;

    if (e->begun < times && e->begun - e->done < NET_WINDOW) {
        err = begin(s, e, size, connection, e->begun, &yes);
        e->begun += yes;
    }
    yes = false;
    if (!err && e->done < e->begun) {
        err = test(s, e, e->done, &yes);
        e->done += yes;
    }
    if (err)
        return err;
    if (e->begun + e->done == before)
        return net_side_idle(s);
    net_side_moved(s);
    return 0;
}

/* `times` messages on each of the ends. */
static int move_all(struct net_side *s, struct end *ends, int count, size_t size, int times)
{
    int err = 0;

    for (int i = 0; i < count; i++)
        ends[i].begun = ends[i].done = 0;
    for (int left = count; left && !err;) {
        left = 0;
        for (int i = 0; i < count && !err; i++) {
            if (ends[i].done < times)
                err = move(s, &ends[i], size, i, times);
            left += ends[i].done < times;
        }
    }
    return err;
}

/* Everything one way, then a word back: all have come. */
int net_stream(struct net_side *s, size_t size, int connections, int times)
{
    struct connections *l = s->state;
    int err = move_all(s, s->side ? l->ins : l->outs, connections, size, times);

    return err ? err : move_all(s, s->side ? l->outs : l->ins, 1, 1, 1);
}

/* Until so many messages have come, and all that were begun have gone. */
static int finish_both(struct net_side *s, struct end *in, int count, struct end *out)
{
    int err = 0;

    while (!err && (in->done < count || out->done < out->begun)) {
        bool in_done = false, out_done = false;
        if (in->done < count)
            err = test(s, in, in->done, &in_done);
        if (!err && out->done < out->begun)
            err = test(s, out, out->done, &out_done);
        in->done += in_done;
        out->done += out_done;
        if (in_done || out_done)
            net_side_moved(s);
        else if (!err)
            err = net_side_idle(s);
    }
    return err;
}

static int begin_surely(struct net_side *s, struct end *e, size_t size)
{
    bool begun = false;
    int err = 0;

    while (!err && !begun) {
        err = begin(s, e, size, 0, e->begun, &begun);
        if (!err && !begun)
            err = net_side_idle(s);
    }
    net_side_moved(s);
    e->begun += begun;
    return err;
}

/* As many receives as there may be are waiting. */
static int top_up(struct net_side *s, struct end *in, size_t size, int times)
{
    int err = 0;

    while (!err && in->begun < times && in->begun - in->done < NET_WINDOW)
        err = begin_surely(s, in, size);
    return err;
}

/* As NCCL sees to it, receives wait long before the messages to them can have been sent; the next
 * one is begun behind an answer, not before it. */
int net_ping_pong(struct net_side *s, size_t size, int times)
{
    struct connections *l = s->state;
    struct end *in = &l->ins[0], *out = &l->outs[0];
    int err = 0;

    in->begun = in->done = out->begun = out->done = 0;
    for (int i = 0; i < times && !err; i++) {
        if (!s->side)
            err = begin_surely(s, out, size);
        if (!err)
            err = top_up(s, in, size, times);
        if (!err)
            err = finish_both(s, in, i + 1, out);
        if (!err && s->side)
            err = begin_surely(s, out, size);
    }
    return err ? err : finish_both(s, in, times, out);
}
