/* SPDX-License-Identifier: Apache-2.0 */
#include "mixing/compressed.h"

#include "base/fail.h"
#include "mixing/combine.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- int8 -------------------------------------------------------------------------------------- */

#define REAL float
#define NAME(x) x##_float
#define ABS fabsf
#define LARGEST FLT_MAX
#include "mixing/codec_type.h"
#undef REAL
#undef NAME
#undef ABS
#undef LARGEST

/* Scales are floats in both. */
#define REAL double
#define NAME(x) x##_double
#define ABS fabs
#define LARGEST FLT_MAX
#include "mixing/codec_type.h"

static size_t scales_of(const struct dp_codec *c)
{
    return (c->elements + DP_CODEC_SCALED - 1) / DP_CODEC_SCALED;
}

struct dp_codec dp_codec_of(DLDataType type, size_t elements)
{
    struct dp_codec c = {.type = type, .elements = elements};

    c.bytes = scales_of(&c) * sizeof(float) + elements;
    return c;
}

void dp_codec_write(const struct dp_codec *c, const void *x, void *reference, void *message)
{
    float *scales = message;
    int8_t *out = (int8_t *)(scales + scales_of(c));

    for (size_t k = 0, at = 0; at < c->elements; k++, at += DP_CODEC_SCALED) {
        const size_t left = c->elements - at, n = left < DP_CODEC_SCALED ? left : DP_CODEC_SCALED;
        if (c->type.bits == 32)
            round_piece_float(n, (const float *)x + at, (const float *)reference + at, scales + k,
                              out + at);
        else
            round_piece_double(n, (const double *)x + at, (const double *)reference + at, scales + k,
                               out + at);
    }
    dp_codec_add(c, message, reference);
}

void dp_codec_add(const struct dp_codec *c, const void *message, void *sum)
{
    const float *scales = message;
    const int8_t *in = (const int8_t *)(scales + scales_of(c));

    for (size_t k = 0, at = 0; at < c->elements; k++, at += DP_CODEC_SCALED) {
        const size_t left = c->elements - at, n = left < DP_CODEC_SCALED ? left : DP_CODEC_SCALED;
        if (c->type.bits == 32)
            add_piece_float(n, scales[k], in + at, (float *)sum + at);
        else
            add_piece_double(n, scales[k], in + at, (double *)sum + at);
    }
}

/* ---- what is kept ------------------------------------------------------------------------------ */

static size_t block_bytes(const struct dp_compressed *x)
{
    return (x->codec.elements * x->codec.type.bits / 8 + 63) / 64 * 64;
}

static size_t count_blocks(struct dp_compressed *x)
{
    size_t blocks = 0;

    for (int32_t t = 0; t < x->graph->period; t++) {
        x->rounds[t].count = dp_neighbors_from(x->graph, t, dp_comm_rank(x->comm), x->from);
        blocks += 1 + (size_t)x->rounds[t].count;
    }
    return blocks;
}

static int allocate_blocks(struct dp_compressed *x)
{
    const size_t blocks = count_blocks(x), bytes = block_bytes(x);
    size_t used = 0;

    x->memory = calloc(blocks, bytes ? bytes : 1);
    x->blocks = calloc(blocks, sizeof(*x->blocks));
    if (!x->memory || !x->blocks)
        return dp_fail(DP_ENOMEM, "no memory for %zu blocks of what workers know of each other",
                       blocks);
    for (size_t k = 0; k < blocks; k++)
        x->blocks[k] = x->memory + k * bytes;
    for (int32_t t = 0; t < x->graph->period; t++) {
        x->rounds[t].mine = x->blocks[used];
        x->rounds[t].theirs = &x->blocks[used + 1];
        used += 1 + (size_t)x->rounds[t].count;
    }
    return 0;
}

static int allocate(struct dp_compressed *x)
{
    const size_t most = (size_t)dp_neighbors_max(x->graph, dp_comm_rank(x->comm)) + 1;

    x->rounds = calloc((size_t)x->graph->period, sizeof(*x->rounds));
    x->sent = malloc(x->codec.bytes + 1);
    x->arrived = malloc(most * x->codec.bytes + 1);
    x->from = calloc(most, sizeof(*x->from));
    x->to = calloc(most, sizeof(*x->to));
    x->requests = calloc(2 * most, sizeof(*x->requests));
    if (x->rounds && x->sent && x->arrived && x->from && x->to && x->requests)
        return allocate_blocks(x);
    return dp_fail(DP_ENOMEM, "no memory for compressed blocks of %zu elements", x->codec.elements);
}

int dp_compressed_init(struct dp_compressed *x, struct dp_comm *comm, const struct dp_graph *graph,
                       DLDataType type, size_t elements)
{
    *x = (struct dp_compressed){.comm = comm, .graph = graph, .codec = dp_codec_of(type, elements)};
    int err = allocate(x);

    if (err)
        dp_compressed_fini(x);
    return err;
}

void dp_compressed_fini(struct dp_compressed *x)
{
    free(x->rounds);
    free(x->memory);
    free(x->blocks);
    free(x->sent);
    free(x->arrived);
    free(x->from);
    free(x->to);
    free(x->requests);
    *x = (struct dp_compressed){0};
}

void dp_compressed_begin(struct dp_compressed *x, const void *values)
{
    const size_t bytes = x->codec.elements * x->codec.type.bits / 8;

    for (int32_t t = 0; t < x->graph->period; t++) {
        memcpy(x->rounds[t].mine, values, bytes);
        for (int32_t k = 0; k < x->rounds[t].count; k++)
            memcpy(x->rounds[t].theirs[k], values, bytes);
    }
}

/* ---- on the way -------------------------------------------------------------------------------- */

static int receive(struct dp_compressed *x, int32_t k, uint64_t tag)
{
    return dp_comm_irecv(x->comm, x->from[k].worker, DP_CHANNEL_REDUCE, tag,
                         x->arrived + (size_t)k * x->codec.bytes, x->codec.bytes, &x->requests[k]);
}

int dp_compressed_start(struct dp_compressed *x, int64_t t, uint64_t tag, const void *block)
{
    const int32_t self = dp_comm_rank(x->comm);
    int err = 0;

    x->round = t;
    x->begun = x->done = 0;
    x->from_count = dp_neighbors_from(x->graph, t, self, x->from);
    x->to_count = dp_neighbors_to(x->graph, t, self, x->to);
    for (int32_t k = 0; k < x->from_count && !err; k++, x->begun += !err)
        err = receive(x, k, tag);
    if (!err && x->to_count)
        dp_codec_write(&x->codec, block, x->rounds[t % x->graph->period].mine, x->sent);
    for (int32_t k = 0; k < x->to_count && !err; k++, x->begun += !err)
        err = dp_comm_isend(x->comm, x->to[k].worker, DP_CHANNEL_REDUCE, tag, x->sent,
                            x->codec.bytes, &x->requests[x->from_count + k]);
    return err;
}

static int next_done(struct dp_compressed *x, bool wait, const struct dp_comm *all)
{
    const int32_t k = x->done - x->from_count;
    const int32_t peer = k < 0 ? x->from[x->done].worker : x->to[k].worker;

    return wait ? dp_neighbor_wait(x->comm, &x->requests[x->done], peer, all)
                : dp_comm_test(x->comm, &x->requests[x->done]);
}

int dp_compressed_arrive(struct dp_compressed *x, bool wait, const struct dp_comm *all)
{
    int err = 0;

    while (x->done < x->begun && !err) {
        err = next_done(x, wait, all);
        x->done += !err;
    }
    if (!err && x->begun < x->from_count + x->to_count)
        err = dp_fail_quietly(DP_ECOMM, "the exchange could not be begun with all neighbors");
    return err;
}

void dp_compressed_finish(struct dp_compressed *x, void *out)
{
    const struct dp_compressed_round *r = &x->rounds[x->round % x->graph->period];
    const struct dp_codec *c = &x->codec;

    memset(out, 0, c->elements * c->type.bits / 8);
    for (int32_t k = 0; k < r->count; k++) {
        dp_codec_add(c, x->arrived + (size_t)k * c->bytes, r->theirs[k]);
        dp_add_difference(c->type, c->elements, out, x->from[k].weight, r->theirs[k], r->mine);
    }
}

size_t dp_compressed_bytes(const struct dp_compressed *x, int64_t t)
{
    return (size_t)dp_neighbors_to(x->graph, t, dp_comm_rank(x->comm), x->to) * x->codec.bytes;
}
