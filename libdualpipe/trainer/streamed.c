/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/streamed.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/tensor.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { GRADS = 2, LEAST_VALUES = 2 };
static const int64_t timeout_ns = INT64_C(60000000000);

struct window {
    char *at;
    struct dp_device_event *ready; /* the last copy into it or out of it */
    struct dp_device_event *done;  /* the last compute with it, where that is queued */
    const DLTensor *holds;         /* values: whose; NULL: nothing */
    uint64_t used;                 /* the last time, counted in layers */
    bool is_rounded;               /* the copies behind the values are of these */
};

/* The layers of a step, without those that follow themselves: the last step says what comes next. */
struct use {
    const DLTensor *values;
    int32_t count;
};

struct trace {
    struct use *uses;
    size_t count, room, at;
};

/* How long copies of a direction were at work, where a thread of the host's carries them out. */
struct meter {
    int64_t begun_ns;
    _Atomic int64_t busy_ns;
};

struct streamed {
    struct place *place;
    struct dp_device_stream *up, *down;
    struct meter meters[2]; /* up, down */
    int64_t wait_ns;
    struct trace traces[2]; /* of evaluations, of training */
    struct trace *trace;
    void *memory;
    DLDataType rounds; /* to this type; bits 0: not */
    size_t bytes;      /* of values in a window */
    struct window *values, grads[GRADS]; /* [value_count] */
    int32_t value_count;
    uint64_t time;
    struct window *value, *grad; /* of this layer; grad NULL: it adds to none */
    DLTensor list[DP_LAYER_PARAMETERS], rounded[DP_LAYER_PARAMETERS]; /* its values */
    struct window *sum;          /* gradients that have not gone down yet, */
    int32_t sum_count;           /* so many; 0: none */
    DLTensor homes[DP_LAYER_PARAMETERS]; /* and where they go */
};

static size_t room_of(const DLTensor *t)
{
    return place_aligned(dp_tensor_bytes(t));
}

size_t streamed_bytes(const DLTensor *values, int32_t count)
{
    size_t bytes = 0;

    for (int32_t k = 0; k < count; k++)
        bytes += room_of(&values[k]);
    return bytes;
}

/* ---- what waits for what --------------------------------------------------------------------- */

/* Compute comes after the event: that of the host, which is this thread, or what is queued. */
static int await(struct streamed *st, struct dp_device_event *event)
{
    const int64_t begun_ns = dp_now_ns();

    if (place_stream(st->place))
        return dp_device_stream_wait(place_stream(st->place), event);
    const int err = dp_device_event_wait(event, timeout_ns);
    st->wait_ns += dp_now_ns() - begun_ns;
    return err;
}

/* What is queued now has ended with the window. */
static int note_done(struct streamed *st, struct window *w)
{
    struct dp_device_stream *stream = place_stream(st->place);

    return stream ? dp_device_event_record(w->done, stream) : 0;
}

static void begin_meter(void *user)
{
    ((struct meter *)user)->begun_ns = dp_now_ns();
}

static void end_meter(void *user)
{
    struct meter *m = user;

    atomic_fetch_add_explicit(&m->busy_ns, dp_now_ns() - m->begun_ns, memory_order_relaxed);
}

static int measure(struct streamed *st, bool up, bool begins)
{
    if (place_stream(st->place)) /* the copy would wait until the host has carried out the call */
        return 0;
    return dp_device_call(up ? st->up : st->down, begins ? begin_meter : end_meter,
                          &st->meters[up ? 0 : 1]);
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Tensors of the host to a window, or back; those without data have their place. */
static int copy(struct streamed *st, struct window *w, const DLTensor *host, int32_t count, bool up)
{
    struct dp_device_stream *stream = up ? st->up : st->down;
    char *at = w->at;
    int err = dp_device_stream_wait(stream, w->done);

    if (!err)
        err = measure(st, up, true);

    for (int32_t k = 0; k < count && !err; k++) {
        char *there = host[k].data ? dp_tensor_address(&host[k]) : NULL;
        if (there)
            err = dp_device_copy(stream, up ? at : there, up ? there : at, dp_tensor_bytes(&host[k]));
        at += room_of(&host[k]);
    }
    if (!err)
        err = measure(st, up, false);
    return err ? err : dp_device_event_record(w->ready, stream);
}

/* The window that has these values, or the one that was used the longest ago. */
static int load(struct streamed *st, const DLTensor *values, int32_t count, struct window **out)
{
    struct window *w = &st->values[0];

    for (int32_t i = 0; i < st->value_count; i++) {
        if (st->values[i].holds == values) {
            *out = &st->values[i];
            return 0;
        }
        if (st->values[i].used < w->used)
            w = &st->values[i];
    }
    w->holds = values;
    w->is_rounded = false;
    *out = w;
    return copy(st, w, values, count, true);
}

/* As the tensors, in the window. */
static void lay_out(const struct streamed *st, const struct window *w, const DLTensor *host,
                    int32_t count, DLTensor *out)
{
    char *at = w->at;

    for (int32_t k = 0; k < count; k++) {
        out[k] = host[k];
        out[k].data = host[k].data ? at : NULL;
        out[k].byte_offset = 0;
        out[k].device = place_dl(st->place);
        at += room_of(&host[k]);
    }
}

/* ---- a layer --------------------------------------------------------------------------------- */

static bool are_homes(const struct streamed *st, const DLTensor *grads, int32_t count)
{
    bool same = count == st->sum_count;

    for (int32_t k = 0; k < count && same; k++)
        same = grads[k].data == st->homes[k].data && grads[k].byte_offset == st->homes[k].byte_offset;
    return same;
}

static int put_down(struct streamed *st)
{
    const int32_t count = st->sum_count;

    st->sum_count = 0;
    return count ? copy(st, st->sum, st->homes, count, false) : 0;
}

/* Gradients stay while calls add to the same ones, and go down when others come. */
static int bring_grads(struct streamed *st, struct dp_layer_call *call, int32_t count)
{
    bool any = false;
    int err = 0;

    for (int32_t k = 0; k < count; k++)
        any = any || (call->grads[k].data && call->grads[k].device.device_type == kDLCPU);
    st->grad = NULL;
    if (!any)
        return 0;
    if (!are_homes(st, call->grads, count)) {
        err = put_down(st);
        st->sum = &st->grads[st->sum == st->grads];
        if (!err)
            err = dp_device_stream_wait(st->up, st->sum->ready); /* what it held has gone down */
        if (!err)
            err = note_done(st, st->sum); /* what is queued may add to gradients of the host, too */
        memcpy(st->homes, call->grads, (size_t)count * sizeof(*st->homes));
        if (!err)
            err = copy(st, st->sum, st->homes, count, true);
        st->sum_count = err ? 0 : count;
    }
    st->grad = st->sum;
    lay_out(st, st->grad, st->homes, count, call->grads);
    return err;
}

/* Add a layer to the trace, if it is another one; the one that came after it the last time. */
static struct use follow(struct trace *t, struct use use)
{
    const bool is_new = !t->at || t->uses[t->at - 1].values != use.values;

    if (is_new && t->at < t->room) {
        if (t->at < t->count && t->uses[t->at].values != use.values)
            t->count = t->at; /* another order than the last time */
        t->uses[t->at++] = use;
        t->count = t->count < t->at ? t->at : t->count;
    }
    return t->at < t->count ? t->uses[t->at] : (struct use){0};
}

/* Copies for the layer behind its values, once after each load. */
static int round_values(struct streamed *st, struct window *w, struct dp_layer_call *call, int32_t count)
{
    const bool is_done = w->is_rounded;

    if (!st->rounds.bits)
        return 0;
    w->is_rounded = true;
    for (int32_t k = 0; k < count; k++) {
        st->rounded[k] = st->list[k];
        st->rounded[k].dtype = st->rounds;
        st->rounded[k].data = w->at + st->bytes + ((char *)st->list[k].data - w->at) / 2;
    }
    call->rounded = st->rounded;
    return is_done ? 0
                   : place_round(st->place, streamed_bytes(st->list, count) / sizeof(float),
                                 (const float *)(void *)w->at, st->rounds,
                                 (uint16_t *)(void *)(w->at + st->bytes));
}

int streamed_enter(struct streamed *st, struct dp_layer_call *call, int32_t count)
{
    struct window *w = NULL, *after = NULL;
    int err = load(st, call->values, count, &w);

    if (err)
        return err;
    w->used = ++st->time;
    st->value = w;
    const struct use next = follow(st->trace, (struct use){call->values, count});
    err = bring_grads(st, call, count);
    if (!err && next.values)
        err = load(st, next.values, next.count, &after);
    if (after)
        after->used = st->time;
    if (!err)
        err = await(st, w->ready);
    if (!err && st->grad)
        err = await(st, st->grad->ready);
    lay_out(st, w, call->values, count, st->list);
    call->values = st->list;
    return err ? err : round_values(st, w, call, count);
}

int streamed_leave(struct streamed *st)
{
    const int err = note_done(st, st->value);

    return err || !st->grad ? err : note_done(st, st->grad);
}

int streamed_settle(struct streamed *st)
{
    int err = put_down(st);

    for (int i = 0; i < GRADS && !err; i++)
        err = await(st, st->grads[i].ready);
    return err;
}

void streamed_times(const struct streamed *st, int64_t *up_ns, int64_t *down_ns, int64_t *wait_ns)
{
    *up_ns = atomic_load_explicit(&st->meters[0].busy_ns, memory_order_relaxed);
    *down_ns = atomic_load_explicit(&st->meters[1].busy_ns, memory_order_relaxed);
    *wait_ns = st->wait_ns;
}

void streamed_begin(struct streamed *st, bool training)
{
    st->trace = &st->traces[training];
    st->trace->at = 0;
    st->sum_count = 0;
    for (int32_t i = 0; i < st->value_count; i++)
        st->values[i].holds = NULL;
}

/* ---- making one ------------------------------------------------------------------------------ */

/* All of them have room for what is rounded, too. */
static size_t window_bytes(size_t values, DLDataType rounds)
{
    return rounds.bits ? place_aligned(3 * values / 2) : values;
}

size_t streamed_least(size_t largest_bytes, DLDataType rounds)
{
    return (GRADS + LEAST_VALUES) * window_bytes(largest_bytes, rounds);
}

static int make_window(struct streamed *st, int32_t i, size_t bytes)
{
    struct window *w = i < GRADS ? &st->grads[i] : &st->values[i - GRADS];
    int err = dp_device_event_new(place_any_device(st->place), &w->ready);

    w->at = (char *)st->memory + (size_t)i * bytes;
    return err ? err : dp_device_event_new(place_any_device(st->place), &w->done);
}

static int make(struct streamed *st, size_t bytes, size_t uses)
{
    struct dp_device *dev = place_any_device(st->place);
    int err = dp_device_alloc(dev, DP_MEMORY_DEVICE, (size_t)(GRADS + st->value_count) * bytes,
                              &st->memory);

    if (!err)
        err = dp_device_stream_new(dev, DP_PRIORITY_NORMAL, &st->up);
    if (!err)
        err = dp_device_stream_new(dev, DP_PRIORITY_NORMAL, &st->down);
    for (int32_t i = 0; i < GRADS + st->value_count && !err; i++)
        err = make_window(st, i, bytes);
    for (int i = 0; i < 2 && !err; i++) {
        struct trace *t = &st->traces[i];
        t->room = uses;
        t->uses = calloc(uses + 1, sizeof(*t->uses));
        err = t->uses ? 0 : dp_fail(DP_ENOMEM, "no memory for the order of %zu layers", uses);
    }
    return err;
}

int streamed_new(struct place *place, const struct streamed_config *config, struct streamed **out)
{
    const size_t bytes = window_bytes(config->largest_bytes, config->rounds);
    const size_t fit = config->budget_bytes / bytes;
    const size_t most = config->layers > LEAST_VALUES ? (size_t)config->layers : LEAST_VALUES;
    struct streamed *st = calloc(1, sizeof(*st));

    if (!st)
        return dp_fail(DP_ENOMEM, "no memory for streamed layers");
    st->place = place;
    st->rounds = config->rounds;
    st->bytes = config->largest_bytes;
    st->trace = &st->traces[0];
    st->value_count = fit <= GRADS + LEAST_VALUES ? LEAST_VALUES
                      : fit - GRADS < most        ? (int32_t)fit - GRADS
                                                  : (int32_t)most;
    st->values = calloc((size_t)st->value_count, sizeof(*st->values));
    const int err = st->values ? make(st, bytes, config->uses)
                               : dp_fail(DP_ENOMEM, "no memory for %d windows", st->value_count);
    if (err)
        streamed_free(st);
    else
        *out = st;
    return err;
}

static void free_window(struct window *w)
{
    dp_device_event_free(w->ready);
    dp_device_event_free(w->done);
}

void streamed_free(struct streamed *st)
{
    if (!st)
        return;
    dp_device_stream_free(st->up);
    dp_device_stream_free(st->down);
    for (int i = 0; i < GRADS; i++)
        free_window(&st->grads[i]);
    for (int32_t i = 0; i < st->value_count && st->values; i++)
        free_window(&st->values[i]);
    place_release(st->place, DP_MEMORY_DEVICE, st->memory);
    free(st->values);
    free(st->traces[0].uses);
    free(st->traces[1].uses);
    free(st);
}
