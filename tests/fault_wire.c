/* SPDX-License-Identifier: Apache-2.0 */
#include "fault_wire.h"

#include "base/fail.h"
#include "comm/comm_core.h"
#include "comm/peers.h"
#include "wire/base.h"

#include <stdlib.h>

/* One message at a time is handed to the inner wire, each way. */
struct fault_wire {
    struct dp_wire_base base;
    struct dp_wire *inner; /* NULL: cut */
    struct dp_wire_request send, receive;
    bool sending, receiving;
    bool is_silent;
    int peer; /* of the world, -1: no link's */
    struct fault_wire *next;
};

static struct fault_wire *wires; /* of this process */
static struct {
    int peer; /* of the world */
    bool silently;
    uint32_t epoch; /* of the peers; 0: no wire had been made */
} broken = {.peer = -1};
static uint32_t last_epoch;

static struct fault_wire *of(struct dp_wire *wire)
{
    return (struct fault_wire *)wire;
}

static void cut(struct fault_wire *w)
{
    dp_wire_close(w->inner);
    w->inner = NULL;
    dp_wire_fail(&w->base.wire, DP_ECOMM, "cut on purpose");
}

/* What is sent counts as sent. A message that the inner wire has begun stays where it is. */
static void drop_sends(struct fault_wire *w)
{
    while (!w->sending && w->base.sends.head) {
        w->base.sends.head->moved = w->base.sends.head->len;
        dp_wire_finish_head(&w->base.sends, 0);
    }
}

/* true: something went forward, and more may. */
static bool move_sends(struct fault_wire *w)
{
    if (w->sending && w->send.status != DP_EAGAIN) {
        w->sending = false;
        dp_wire_finish_head(&w->base.sends, w->send.status);
    }
    const struct dp_wire_request *req = w->base.sends.head;
    if (w->sending || !req)
        return false;
    w->sending = true;
    dp_wire_isend(w->inner, req->tag, req->buf, req->len, &w->send);
    return w->send.status != DP_EAGAIN;
}

static bool move_receives(struct fault_wire *w)
{
    struct dp_wire_request *req = w->base.receives.head;

    if (w->receiving && w->receive.status != DP_EAGAIN) {
        w->receiving = false;
        req->moved = w->receive.moved;
        req->tag = w->receive.tag;
        dp_wire_finish_head(&w->base.receives, w->receive.status);
        req = w->base.receives.head;
    }
    if (w->receiving || !req)
        return false;
    w->receiving = true;
    dp_wire_irecv(w->inner, req->buf, req->len, &w->receive);
    return w->receive.status != DP_EAGAIN;
}

static void fault_progress(struct dp_wire *wire)
{
    struct fault_wire *w = of(wire);

    if (wire->error)
        return;
    if (w->is_silent) {
        drop_sends(w);
        return;
    }
    w->inner->ops->progress(w->inner);
    w->base.skip = ((struct dp_wire_base *)w->inner)->skip;
    w->base.buffer_bytes = ((struct dp_wire_base *)w->inner)->buffer_bytes;
    wire->connected = w->inner->connected;
    while (move_sends(w))
        ;
    while (move_receives(w))
        ;
    if (w->inner->error)
        dp_wire_fail(wire, w->inner->error, "%s", w->inner->why);
}

static bool fault_has_message(struct dp_wire *wire)
{
    struct fault_wire *w = of(wire);

    return w->inner && !w->is_silent && !w->receiving && !w->base.receives.head &&
           w->inner->ops->has_message(w->inner);
}

static bool fault_arm(struct dp_wire *wire, struct pollfd *fd)
{
    struct fault_wire *w = of(wire);

    *fd = (struct pollfd){.fd = -1};
    if (!w->inner || w->is_silent)
        return !wire->error;
    dp_wire_expect(w->inner, w->base.expects);
    return !wire->error && (w->sending || !w->base.sends.head) && w->inner->ops->arm(w->inner, fd);
}

static void fault_disarm(struct dp_wire *wire, short revents)
{
    struct fault_wire *w = of(wire);

    if (w->inner && !w->is_silent)
        w->inner->ops->disarm(w->inner, revents);
}

static void fault_quiesce(struct dp_wire *wire)
{
    struct fault_wire *w = of(wire);

    if (w->inner)
        w->inner->ops->quiesce(w->inner);
}

static void fault_close(struct dp_wire *wire)
{
    struct fault_wire **at = &wires;

    while (*at != of(wire))
        at = &(*at)->next;
    *at = of(wire)->next;
    dp_wire_close(of(wire)->inner);
    free(wire);
}

static const struct dp_wire_ops fault_ops = {
    .name = "fault",
    .progress = fault_progress,
    .has_message = fault_has_message,
    .arm = fault_arm,
    .disarm = fault_disarm,
    .quiesce = fault_quiesce,
    .close = fault_close,
};

int fault_wire_wrap(struct dp_wire *inner, struct dp_wire **out)
{
    struct fault_wire *w = calloc(1, sizeof(*w));

    if (!w) {
        dp_wire_close(inner);
        return dp_fail(DP_ENOMEM, "no memory for a wire");
    }
    dp_wire_init(&w->base, &fault_ops);
    w->inner = inner;
    w->base.wire.connected = inner->connected;
    w->base.buffer_bytes = ((struct dp_wire_base *)inner)->buffer_bytes;
    w->peer = -1;
    w->next = wires;
    wires = w;
    *out = &w->base.wire;
    return 0;
}

void fault_wire_break(struct dp_wire *wire, bool silently)
{
    if (silently)
        of(wire)->is_silent = true;
    else if (!wire->error)
        cut(of(wire));
}

static int wrap_link(const struct dp_peers *peers, const struct dp_link *link, struct dp_wire **wire)
{
    int err = fault_wire_wrap(*wire, wire);

    if (err)
        return err;
    last_epoch = peers->epoch;
    wires->peer = link->peer;
    if (link->peer == broken.peer && (!broken.epoch || broken.epoch == peers->epoch))
        fault_wire_break(*wire, broken.silently);
    return 0;
}

void fault_wires_use(bool on)
{
    dp_peers_wrap = on ? wrap_link : NULL;
}

void fault_wires_break(struct dp_comm *comm, int peer, bool silently)
{
    dp_comm_progress_stop(comm);
    broken.peer = dp_comm_world_rank(comm, peer);
    broken.silently = silently;
    broken.epoch = last_epoch;
    for (struct fault_wire *w = wires; w; w = w->next)
        if (w->peer == broken.peer)
            fault_wire_break(&w->base.wire, silently);
}
