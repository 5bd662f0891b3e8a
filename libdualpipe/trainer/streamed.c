/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/streamed.h"

#include "base/fail.h"
#include "base/tensor.h"

#include <dualpipe/device.h>

#include <stdlib.h>

enum { ALIGNMENT = 256, GRADS = 2, LEAST_VALUES = 2, MOST_VALUES = 4096 };
static const int64_t timeout_ns = INT64_C(60000000000);

struct window {
    char *at;
    struct dp_device_event *ready; /* the last copy into it or out of it */
    const DLTensor *holds;         /* values: whose; NULL: nothing */
    uint64_t used;                 /* the last time, counted in layers */
};

struct streamed {
    struct dp_device *dev;
    struct dp_device_stream *up, *down;
    void *memory;
    struct window *values, grads[GRADS]; /* [value_count] */
    int32_t value_count;
    uint64_t time;
    struct window *grad; /* of this layer; NULL: it adds to none */
    DLTensor list[DP_LAYER_PARAMETERS];       /* its values */
    DLTensor host_grads[DP_LAYER_PARAMETERS];
};

static size_t room_of(const DLTensor *t)
{
    return (dp_tensor_bytes(t) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

size_t streamed_bytes(const DLTensor *values, int32_t count)
{
    size_t bytes = 0;

    for (int32_t k = 0; k < count; k++)
        bytes += room_of(&values[k]);
    return bytes;
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Tensors of the host to a window, or back; those without data have their place. */
static int copy(struct dp_device_stream *stream, struct window *w, const DLTensor *host,
                int32_t count, bool up)
{
    char *at = w->at;
    int err = 0;

    for (int32_t k = 0; k < count && !err; k++) {
        char *there = host[k].data ? dp_tensor_address(&host[k]) : NULL;
        if (there)
            err = dp_device_copy(stream, up ? at : there, up ? there : at, dp_tensor_bytes(&host[k]));
        at += room_of(&host[k]);
    }
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
    *out = w;
    return copy(st->up, w, values, count, true);
}

/* As the tensors, in the window. */
static void lay_out(const struct window *w, const DLTensor *host, int32_t count, DLTensor *out)
{
    char *at = w->at;

    for (int32_t k = 0; k < count; k++) {
        out[k] = host[k];
        out[k].data = host[k].data ? at : NULL;
        out[k].byte_offset = 0;
        at += room_of(&host[k]);
    }
}

/* ---- a layer --------------------------------------------------------------------------------- */

static int bring_grads(struct streamed *st, struct dp_layer_call *call, int32_t count)
{
    bool any = false;

    for (int32_t k = 0; k < count; k++) {
        st->host_grads[k] = call->grads[k];
        any = any || call->grads[k].data;
    }
    st->grad = any ? &st->grads[st->time % GRADS] : NULL;
    if (!any)
        return 0;
    int err = dp_device_stream_wait(st->up, st->grad->ready); /* what it held has gone down */
    if (!err)
        err = copy(st->up, st->grad, st->host_grads, count, true);
    if (!err)
        err = dp_device_event_wait(st->grad->ready, timeout_ns);
    lay_out(st->grad, st->host_grads, count, call->grads);
    return err;
}

int streamed_enter(struct streamed *st, struct dp_layer_call *call, int32_t count,
                   const DLTensor *next, int32_t next_count)
{
    struct window *w = NULL, *after = NULL;
    int err = load(st, call->values, count, &w);

    if (err)
        return err;
    w->used = ++st->time;
    if (next && next_count)
        err = load(st, next, next_count, &after);
    if (after)
        after->used = st->time;
    if (!err)
        err = dp_device_event_wait(w->ready, timeout_ns);
    lay_out(w, call->values, count, st->list);
    call->values = st->list;
    return err ? err : bring_grads(st, call, count);
}

int streamed_leave(struct streamed *st, int32_t count)
{
    return st->grad ? copy(st->down, st->grad, st->host_grads, count, false) : 0;
}

int streamed_finish(struct streamed *st)
{
    int err = 0;

    for (int i = 0; i < GRADS && !err; i++)
        err = dp_device_event_wait(st->grads[i].ready, timeout_ns);
    return err;
}

void streamed_begin(struct streamed *st)
{
    for (int32_t i = 0; i < st->value_count; i++)
        st->values[i].holds = NULL;
}

/* ---- making one ------------------------------------------------------------------------------ */

static int make_window(struct streamed *st, int32_t i, size_t bytes)
{
    struct window *w = i < GRADS ? &st->grads[i] : &st->values[i - GRADS];

    w->at = (char *)st->memory + (size_t)i * bytes;
    return dp_device_event_new(st->dev, &w->ready);
}

static int make(struct streamed *st, size_t bytes)
{
    int err = dp_device_host_open(2, &st->dev);

    if (!err)
        err = dp_device_alloc(st->dev, DP_MEMORY_DEVICE, (size_t)(GRADS + st->value_count) * bytes,
                              &st->memory);
    if (!err)
        err = dp_device_stream_new(st->dev, DP_PRIORITY_NORMAL, &st->up);
    if (!err)
        err = dp_device_stream_new(st->dev, DP_PRIORITY_NORMAL, &st->down);
    for (int32_t i = 0; i < GRADS + st->value_count && !err; i++)
        err = make_window(st, i, bytes);
    return err;
}

int streamed_new(size_t bytes, size_t budget, struct streamed **out)
{
    const size_t least = (GRADS + LEAST_VALUES) * bytes, fit = bytes ? budget / bytes : 0;
    struct streamed *st;

    if (budget && budget < least)
        return dp_fail(DP_ENOMEM,
                       "offload.device_bytes: %zu, expected %zu or more: %d times the values of "
                       "the largest layer", budget, least, GRADS + LEAST_VALUES);
    st = calloc(1, sizeof(*st));
    if (!st)
        return dp_fail(DP_ENOMEM, "no memory for streamed layers");
    st->value_count = fit > MOST_VALUES ? MOST_VALUES
                      : fit             ? (int32_t)fit - GRADS
                                        : LEAST_VALUES;
    st->values = calloc((size_t)st->value_count, sizeof(*st->values));
    const int err = st->values ? make(st, bytes)
                               : dp_fail(DP_ENOMEM, "no memory for %d windows", st->value_count);
    if (err)
        streamed_free(st);
    else
        *out = st;
    return err;
}

void streamed_free(struct streamed *st)
{
    if (!st)
        return;
    dp_device_stream_free(st->up);
    dp_device_stream_free(st->down);
    for (int i = 0; i < GRADS; i++)
        dp_device_event_free(st->grads[i].ready);
    for (int32_t i = 0; i < st->value_count && st->values; i++)
        dp_device_event_free(st->values[i].ready);
    if (st->dev)
        dp_device_free(st->dev, DP_MEMORY_DEVICE, st->memory);
    dp_device_close(st->dev);
    free(st->values);
    free(st);
}
