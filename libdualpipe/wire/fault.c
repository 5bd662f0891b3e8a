/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/fault.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/text.h"
#include "wire/sockets.h"
#include <dualpipe/random.h>

#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>

/* One message at a time is handed to the inner wire, each way. A send that waits for its time keeps
 * it in `moved`, which is of no other use yet. */
struct fault_wire {
    struct dp_wire base;
    struct dp_wire *inner;
    struct dp_wire_fault fault;
    uint64_t drawn, sent;
    struct dp_wire_request send, receive;
    bool sending, receiving;
    bool is_silent;
    int timer; /* when the next send is due; -1: there is none, and a wait for that does not sleep */
};

static struct fault_wire *of(struct dp_wire *wire)
{
    return (struct fault_wire *)wire;
}

/* The next number in [0, 1). */
static float draw(struct fault_wire *w)
{
    float u;

    dp_random_uniform(dp_random_key(w->fault.seed, 0, 0, 0), w->drawn++, &u, 1);
    return u;
}

static void set_times(struct fault_wire *w)
{
    const int64_t now = dp_now_ns();

    for (struct dp_wire_request *r = w->base.sends.head; r; r = r->next)
        if (!r->moved)
            r->moved = (size_t)(now + w->fault.delay_ns +
                                (int64_t)((double)w->fault.jitter_ns * (double)draw(w)));
}

static void cut(struct fault_wire *w)
{
    dp_wire_close(w->inner);
    w->inner = NULL;
    dp_wire_fail(&w->base, DP_ECOMM, "cut on purpose after %llu messages",
                 (unsigned long long)w->sent);
}

/* As a network that drops all: what is sent counts as sent. A message that the inner wire has begun
 * stays where it is. */
static void drop_sends(struct fault_wire *w)
{
    while (!w->sending && w->base.sends.head) {
        w->base.sends.head->moved = w->base.sends.head->len;
        dp_wire_finish_head(&w->base.sends, 0);
    }
}

static void start_send(struct fault_wire *w)
{
    const struct dp_wire_request *req = w->base.sends.head;
    size_t len = req->len;

    if ((int64_t)req->moved > dp_now_ns())
        return;
    if (w->fault.cut && w->sent == w->fault.cut) {
        cut(w);
        return;
    }
    if (w->fault.silent && w->sent == w->fault.silent) {
        w->is_silent = true;
        return;
    }
    if (len && (double)draw(w) < w->fault.shorten)
        len = (size_t)((double)len * (double)draw(w));
    w->sent++;
    w->sending = true;
    dp_wire_isend(w->inner, req->tag, req->buf, len, &w->send);
}

static void flip_bit(struct fault_wire *w, char *buf, size_t len)
{
    size_t bit = (size_t)((double)draw(w) * 8.0 * (double)len);

    buf[bit / 8] = (char)(buf[bit / 8] ^ 1 << bit % 8);
}

static void finish_receive(struct fault_wire *w)
{
    struct dp_wire_request *req = w->base.receives.head;

    w->receiving = false;
    req->moved = w->receive.moved;
    req->tag = w->receive.tag;
    if (!w->receive.status && req->moved && (double)draw(w) < w->fault.flip)
        flip_bit(w, req->buf, req->moved);
    dp_wire_finish_head(&w->base.receives, w->receive.status);
}

/* true: something went forward, and more may. */
static bool move_sends(struct fault_wire *w)
{
    if (w->sending && w->send.status != DP_EAGAIN) {
        w->sending = false;
        dp_wire_finish_head(&w->base.sends, w->send.status);
    }
    if (w->sending || !w->base.sends.head)
        return false;
    start_send(w);
    return w->inner && w->sending && w->send.status != DP_EAGAIN;
}

static bool move_receives(struct fault_wire *w)
{
    if (w->receiving && w->receive.status != DP_EAGAIN)
        finish_receive(w);
    if (w->receiving || !w->base.receives.head)
        return false;
    struct dp_wire_request *req = w->base.receives.head;
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
    set_times(w);
    w->inner->ops->progress(w->inner);
    wire->skip = w->inner->skip;
    wire->buffer_bytes = w->inner->buffer_bytes;
    wire->connected = w->inner->connected;
    while (w->inner && !w->is_silent && move_sends(w))
        ;
    while (w->inner && !w->is_silent && move_receives(w))
        ;
    if (w->is_silent)
        drop_sends(w);
    if (w->inner && w->inner->error)
        dp_wire_fail(wire, w->inner->error, "%s", w->inner->why);
}

static bool fault_has_message(struct dp_wire *wire)
{
    struct fault_wire *w = of(wire);

    return w->inner && !w->is_silent && !w->receiving && !wire->receives.head &&
           w->inner->ops->has_message(w->inner);
}

/* Only a wire that has nothing else to wait for: the inner one's descriptor is not polled. */
static bool sleeps_until_due(struct fault_wire *w, struct pollfd *fd)
{
    const int64_t due_ns = (int64_t)w->base.sends.head->moved;
    const struct itimerspec at = {.it_value = {.tv_sec = due_ns / DP_NS_PER_S,
                                               .tv_nsec = due_ns % DP_NS_PER_S}};

    if (w->timer < 0 || dp_wire_listens(&w->base) || due_ns <= dp_now_ns() ||
        timerfd_settime(w->timer, TFD_TIMER_ABSTIME, &at, NULL))
        return false;
    *fd = (struct pollfd){.fd = w->timer, .events = POLLIN};
    return true;
}

static bool fault_arm(struct dp_wire *wire, struct pollfd *fd)
{
    struct fault_wire *w = of(wire);

    *fd = (struct pollfd){.fd = -1};
    if (!w->inner || w->is_silent)
        return !wire->error;
    w->inner->expects = wire->expects;
    if (wire->error)
        return false;
    if (!w->sending && wire->sends.head)
        return sleeps_until_due(w, fd);
    return w->inner->ops->arm(w->inner, fd);
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
    struct fault_wire *w = of(wire);

    dp_wire_close(w->inner);
    dp_fd_close(w->timer);
    free(w);
}

/* It comes to life by being wrapped around another wire only. */
static const struct dp_wire_ops fault_ops = {
    .name = "fault",
    .progress = fault_progress,
    .has_message = fault_has_message,
    .arm = fault_arm,
    .disarm = fault_disarm,
    .quiesce = fault_quiesce,
    .close = fault_close,
};

int dp_wire_fault_wrap(struct dp_wire *inner, const struct dp_wire_fault *fault,
                       struct dp_wire **out)
{
    struct fault_wire *w = calloc(1, sizeof(*w));

    if (!w) {
        dp_wire_close(inner);
        return dp_fail(DP_ENOMEM, "no memory for a wire");
    }
    dp_wire_init(&w->base, &fault_ops);
    w->inner = inner;
    w->fault = *fault;
    w->timer = fault->delay_ns || fault->jitter_ns
                   ? timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)
                   : -1;
    w->base.connected = inner->connected;
    w->base.buffer_bytes = inner->buffer_bytes;
    *out = &w->base;
    return 0;
}

void dp_wire_fault_break(struct dp_wire *wire, bool silently)
{
    struct fault_wire *w = of(wire);

    if (silently)
        w->is_silent = true;
    else if (!wire->error)
        cut(w);
}

/* ---- text ---------------------------------------------------------------------------------- */

static int set_item(const char *name, double value, struct dp_wire_fault *f)
{
    static const char *const names[] = {"seed", "delay_us", "jitter_us", "cut",
                                        "silent", "shorten", "flip"};

    if (!strcmp(name, "seed"))
        f->seed = (uint64_t)value;
    else if (!strcmp(name, "delay_us"))
        f->delay_ns = (int64_t)(value * DP_NS_PER_US);
    else if (!strcmp(name, "jitter_us"))
        f->jitter_ns = (int64_t)(value * DP_NS_PER_US);
    else if (!strcmp(name, "cut"))
        f->cut = (uint64_t)value;
    else if (!strcmp(name, "silent"))
        f->silent = (uint64_t)value;
    else if (!strcmp(name, "shorten") && value <= 1)
        f->shorten = value;
    else if (!strcmp(name, "flip") && value <= 1)
        f->flip = value;
    else {
        const char *near = dp_nearest(name, names, sizeof(names) / sizeof(names[0]));
        return dp_fail(DP_EINVAL,
                       "fault '%s=%g': expected seed, delay_us, jitter_us, cut, silent, or a "
                       "probability shorten or flip%s%s",
                       name, value, near ? "; the nearest is " : "", near ? near : "");
    }
    return 0;
}

int dp_wire_fault_parse(const char *text, struct dp_wire_fault *out)
{
    struct dp_wire_fault fault = {0};
    int err = 0;

    for (const char *at = text; *at && !err; at += *at == ',') {
        char name[16] = "";
        size_t len = strcspn(at, "=,");
        char *end;
        if (len < sizeof(name))
            memcpy(name, at, len);
        double value = at[len] == '=' ? dp_strtod(at + len + 1, &end) : -1;
        if (!(value >= 0) || value > 1e15 || (*end && *end != ','))
            return dp_fail(DP_EINVAL, "fault '%s': expected name=number, ...", at);
        err = set_item(name, value, &fault);
        at = end;
    }
    if (!err)
        *out = fault;
    return err;
}
