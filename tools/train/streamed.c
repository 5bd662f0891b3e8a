/* SPDX-License-Identifier: Apache-2.0 */
#include "train/streamed.h"

#include "clock.h"

#include <dualpipe/schedule.h>

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOWS = 2 };

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
    int first_kept;             /* group, from which on values and gradients are on the device */
    real *values, *grads;       /* of these */
    size_t streamed_reals;      /* of the groups before */
    size_t kept_reals;
};

struct streamed {
    struct dp_device *dev;
    struct dp_device_stream *up, *down;
    real *memory;
    struct window values[WINDOWS], grads[WINDOWS];
    int value_now, grad_now; /* in use */
    DLTensor *const *list;   /* of the gradients in grads[grad_now] */
    int list_count; /* 0: they are where they are added to */
    struct trace traces[2]; /* evaluation, training */
    bool training;
    struct slot slots[DP_MAX_SLOTS];
    struct meter meters[2]; /* up, down */
    int64_t wait_ns;
    int failed;
};

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

    note(st, dp_device_event_wait(event, device_timeout_ns));
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

static real *kept_values(const struct slot *s, int group)
{
    int count, first = gpt_group_tensors(s->stage, group, &count);

    return s->values + (s->stage->params.tensors[first].offset - s->streamed_reals);
}

static real *values(void *user, int group)
{
    const struct slot *s = user;
    struct streamed *st = s->st;
    const struct use use = {s->index, group};

    if (group >= s->first_kept)
        return kept_values(s, group);

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

/* Sums of the fixed order are on the host, also those of groups that stay. */
static bool are_kept(const struct slot *s, DLTensor *const *list, int count)
{
    const real *at = count ? gpt_data(list[0]) : NULL;

    return at && s->kept_reals && at >= s->grads && at < s->grads + s->kept_reals;
}

static void grads(void *user, int group, DLTensor *const *list, int count, real *out[])
{
    const struct slot *s = user;
    struct streamed *st = s->st;

    (void)group;
    st->list_count = 0;
    if (are_kept(s, list, count)) {
        for (int i = 0; i < count; i++)
            out[i] = gpt_data(list[i]);
        return;
    }
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
    struct streamed *st = ((const struct slot *)user)->st;

    if (st->list_count)
        copy_grads(st, false);
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

/* ---- what stays ------------------------------------------------------------------------------ */

size_t streamed_state_bytes(const struct gpt_stage *stage, size_t first)
{
    size_t bytes = 0;

    for (size_t i = first; i < stage->params.tensors_len; i++)
        bytes += 2 * ((tensor_count(&stage->params.tensors[i]) * sizeof(real) + 255) / 256 * 256);
    return bytes;
}

struct streamed_kept param_stream_keep(const struct gpt_stage *stage, double share)
{
    struct streamed_kept k = {.first_group = stage->end_group};
    double left = share * (double)stage->params.count;

    while (share > 0 && k.first_group > stage->first_group) {
        const size_t reals = params_count(&stage->config, k.first_group - 1, k.first_group);
        int count;
        left -= (double)reals;
        if (left < 0)
            break;
        gpt_group_tensors(stage, --k.first_group, &count);
        k.tensors += (size_t)count;
        k.reals += reals;
    }
    k.state_bytes = streamed_state_bytes(stage, stage->params.tensors_len - k.tensors);
    k.bytes = (k.state_bytes + 2 * k.reals * sizeof(real) + 255) / 256 * 256;
    return k;
}

static void move_tensor(const struct slot *s, struct gpt_tensor *t, const struct tensor *param)
{
    const size_t at = param->offset - s->streamed_reals, bytes = tensor_count(param) * sizeof(real);

    memcpy(s->values + at, gpt_data(&t->value), bytes);
    memset(s->grads + at, 0, bytes);
    t->value.data = s->values + at;
    t->grad.data = s->grads + at;
}

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

size_t param_stream_bytes(const struct gpt_config *config)
{
    return 2 * WINDOWS * window_reals(config) * sizeof(real);
}

static int make(struct streamed *st, const struct gpt_config *config)
{
    void *memory = NULL;
    int err = dp_device_alloc(st->dev, DP_MEMORY_DEVICE, param_stream_bytes(config), &memory);

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

int param_stream_new(struct dp_device *dev, const struct gpt_config *config, struct streamed **out)
{
    struct streamed *st = calloc(1, sizeof(*st));

    if (!st)
        return DP_ENOMEM;
    st->dev = dev;
    int err = make(st, config);
    if (err)
        param_stream_free(st);
    else
        *out = st;
    return err;
}

void param_stream_add(struct streamed *st, int slot, struct gpt_stage *stage,
                  const struct streamed_kept *kept, void *memory)
{
    struct slot *s = &st->slots[slot];
    const struct params *p = &stage->params;

    *s = (struct slot){.st = st,
                       .stage = stage,
                       .index = slot,
                       .first_kept = kept->first_group,
                       .streamed_reals = p->count - kept->reals,
                       .kept_reals = kept->reals};
    stage->stream = &stream_ops;
    stage->stream_user = s;
    if (!kept->reals)
        return;
    s->values = (real *)(void *)((char *)memory + kept->state_bytes);
    s->grads = s->values + kept->reals;
    for (size_t i = p->tensors_len - kept->tensors; i < p->tensors_len; i++)
        move_tensor(s, &stage->tensors[i], &p->tensors[i]);
}

void param_stream_begin(struct streamed *st, bool training)
{
    struct trace *t = &st->traces[training];

    for (int i = 0; i < WINDOWS; i++)
        st->values[i].holds.group = -1;
    st->training = training;
    t->at = 0;
}

void param_stream_free(struct streamed *st)
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

void param_stream_times(const struct streamed *st, struct param_stream_times *out)
{
    *out = (struct param_stream_times){
        .up_ns = atomic_load_explicit(&st->meters[0].busy_ns, memory_order_relaxed),
        .down_ns = atomic_load_explicit(&st->meters[1].busy_ns, memory_order_relaxed),
        .wait_ns = st->wait_ns,
    };
}
