/* SPDX-License-Identifier: Apache-2.0 */
#include "train/streamed.h"

#include <dualpipe/schedule.h>

#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

enum { WINDOWS = 2 };
static const int64_t deadline_ns = INT64_C(60) * 1000000000;

struct meter {
    int64_t begun_ns;
    _Atomic int64_t busy_ns;
};

/* Which values: the group of a slot's stage. */
struct use {
    int slot, group;
};

struct window {
    real *at;
    struct dp_device_event *ready; /* the last copy into it or out of it */
    struct use holds;              /* group -1: nothing */
};

/* The uses of a step, in order: those of the last one say what comes next. */
struct trace {
    struct use *uses;
    size_t count, room, at;
};

struct slot {
    struct streamed *st;
    struct gpt_stage *stage;
    int index;
};

struct streamed {
    struct dp_device *dev;
    struct dp_device_stream *up, *down;
    real *memory;
    struct window values[WINDOWS], grads[WINDOWS];
    int value_now, grad_now; /* in use */
    DLTensor *const *list;   /* of the gradients in grads[grad_now] */
    int list_count;
    struct trace traces[2]; /* evaluation, training */
    bool training;
    struct slot slots[DP_MAX_SLOTS];
    struct meter meters[2]; /* up, down */
    int64_t wait_ns;
    int failed;
};

static int64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void begin_meter(void *user)
{
    ((struct meter *)user)->begun_ns = now_ns();
}

static void end_meter(void *user)
{
    struct meter *m = user;

    atomic_fetch_add_explicit(&m->busy_ns, now_ns() - m->begun_ns, memory_order_relaxed);
}

static void note(struct streamed *st, int err)
{
    if (!st->failed)
        st->failed = err;
}

static void wait_for(struct streamed *st, struct dp_device_event *event)
{
    int64_t begun_ns = now_ns();

    note(st, dp_device_event_wait(event, deadline_ns));
    st->wait_ns += now_ns() - begun_ns;
}

static bool same(struct use a, struct use b)
{
    return a.slot == b.slot && a.group == b.group;
}

/* ---- values ---------------------------------------------------------------------------------- */

static void load(struct streamed *st, struct window *w, struct use use)
{
    const struct gpt_stage *g = st->slots[use.slot].stage;
    int count, first = gpt_group_tensors(g, use.group, &count);
    const struct tensor *t = &g->params.tensors[first], *last = t + count - 1;
    size_t reals = last->offset + tensor_count(last) - t->offset;

    w->holds = use;
    note(st, dp_device_call(st->up, begin_meter, &st->meters[0]));
    note(st, dp_device_copy(st->up, w->at, g->weights + t->offset, reals * sizeof(real)));
    note(st, dp_device_call(st->up, end_meter, &st->meters[0]));
    note(st, dp_device_event_record(w->ready, st->up));
}

/* Add a use to the trace; the one that came after it the last time, or NULL. */
static const struct use *follow(struct streamed *st, struct use use)
{
    struct trace *t = &st->traces[st->training];

    if (t->at == t->room) {
        size_t room = t->room ? 2 * t->room : 256;
        struct use *uses = realloc(t->uses, room * sizeof(*uses));
        if (!uses) {
            note(st, DP_ENOMEM);
            return NULL;
        }
        t->uses = uses;
        t->room = room;
    }
    if (t->at < t->count && !same(t->uses[t->at], use))
        t->count = t->at; /* another order than the last time */
    t->uses[t->at++] = use;
    if (t->count < t->at)
        t->count = t->at;
    return t->at < t->count ? &t->uses[t->at] : NULL;
}

static real *values(void *user, int group)
{
    const struct slot *s = user;
    struct streamed *st = s->st;
    const struct use use = {s->index, group};

    if (!same(st->values[st->value_now].holds, use))
        st->value_now = (st->value_now + 1) % WINDOWS;
    struct window *w = &st->values[st->value_now];
    if (!same(w->holds, use))
        load(st, w, use);
    const struct use *next = follow(st, use);
    struct window *other = &st->values[(st->value_now + 1) % WINDOWS];
    if (next && !same(*next, use) && !same(other->holds, *next))
        load(st, other, *next);
    wait_for(st, w->ready);
    return w->at;
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* All of list, to the window or back. */
static void copy_grads(struct streamed *st, bool up)
{
    struct dp_device_stream *stream = up ? st->up : st->down;
    struct meter *meter = &st->meters[!up];
    real *at = st->grads[st->grad_now].at;

    note(st, dp_device_call(stream, begin_meter, meter));
    for (int i = 0; i < st->list_count; i++) {
        size_t count = (size_t)(st->list[i]->shape[0] * st->list[i]->shape[1]);
        void *host = gpt_data(st->list[i]);
        note(st, dp_device_copy(stream, up ? at : host, up ? host : at, count * sizeof(real)));
        at += count;
    }
    note(st, dp_device_call(stream, end_meter, meter));
    note(st, dp_device_event_record(st->grads[st->grad_now].ready, stream));
}

static void grads(void *user, int group, DLTensor *const *list, int count, real *out[])
{
    struct streamed *st = ((const struct slot *)user)->st;

    (void)group;
    st->grad_now = (st->grad_now + 1) % WINDOWS;
    struct window *w = &st->grads[st->grad_now];
    st->list = list;
    st->list_count = count;
    note(st, dp_device_stream_wait(st->up, w->ready)); /* what it held has gone down */
    copy_grads(st, true);
    wait_for(st, w->ready);
    for (int i = 0, at = 0; i < count; i++) {
        out[i] = w->at + at;
        at += (int)(list[i]->shape[0] * list[i]->shape[1]);
    }
}

static void grads_done(void *user)
{
    copy_grads(((const struct slot *)user)->st, false);
}

static int finish(void *user)
{
    struct streamed *st = ((const struct slot *)user)->st;

    for (int i = 0; i < WINDOWS; i++)
        wait_for(st, st->grads[i].ready);
    int err = st->failed;
    st->failed = 0;
    return err;
}

static const struct gpt_stream_ops stream_ops = {values, grads, grads_done, finish};

/* ---- new and free ---------------------------------------------------------------------------- */

static size_t window_reals(const struct gpt_config *c)
{
    size_t most = 0;

    for (int group = 0; group < c->layers + 2; group++) {
        size_t count = params_count(c, group, group + 1);
        most = count > most ? count : most;
    }
    return (most + 15) / 16 * 16;
}

size_t streamed_bytes(const struct gpt_config *config)
{
    return 2 * WINDOWS * window_reals(config) * sizeof(real);
}

static int make(struct streamed *st, const struct gpt_config *config)
{
    void *memory = NULL;
    int err = dp_device_alloc(st->dev, DP_MEMORY_DEVICE, streamed_bytes(config), &memory);

    st->memory = memory;
    if (!err)
        err = dp_device_stream_new(st->dev, DP_PRIORITY_NORMAL, &st->up);
    if (!err)
        err = dp_device_stream_new(st->dev, DP_PRIORITY_NORMAL, &st->down);
    for (int i = 0; i < 2 * WINDOWS && !err; i++) {
        struct window *w = i < WINDOWS ? &st->values[i] : &st->grads[i - WINDOWS];
        w->at = st->memory + (size_t)i * window_reals(config);
        w->holds.group = -1;
        err = dp_device_event_new(st->dev, &w->ready);
    }
    return err;
}

int streamed_new(struct dp_device *dev, const struct gpt_config *config, struct streamed **out)
{
    struct streamed *st = calloc(1, sizeof(*st));

    if (!st)
        return DP_ENOMEM;
    st->dev = dev;
    int err = make(st, config);
    if (err)
        streamed_free(st);
    else
        *out = st;
    return err;
}

void streamed_add(struct streamed *st, int slot, struct gpt_stage *stage)
{
    st->slots[slot] = (struct slot){st, stage, slot};
    stage->stream = &stream_ops;
    stage->stream_user = &st->slots[slot];
}

void streamed_begin(struct streamed *st, bool training)
{
    struct trace *t = &st->traces[training];

    for (int i = 0; i < WINDOWS; i++)
        st->values[i].holds.group = -1;
    st->training = training;
    t->at = 0;
}

void streamed_free(struct streamed *st)
{
    if (!st)
        return;
    dp_device_stream_free(st->up);
    dp_device_stream_free(st->down);
    for (int i = 0; i < WINDOWS; i++) {
        dp_device_event_free(st->values[i].ready);
        dp_device_event_free(st->grads[i].ready);
    }
    dp_device_free(st->dev, DP_MEMORY_DEVICE, st->memory);
    free(st->traces[0].uses);
    free(st->traces[1].uses);
    free(st);
}

void streamed_times(const struct streamed *st, struct streamed_times *out)
{
    *out = (struct streamed_times){
        .up_ns = atomic_load_explicit(&st->meters[0].busy_ns, memory_order_relaxed),
        .down_ns = atomic_load_explicit(&st->meters[1].busy_ns, memory_order_relaxed),
        .wait_ns = st->wait_ns,
    };
}
