/* SPDX-License-Identifier: Apache-2.0
 *
 * compressed.c - differences, rounded to int8, and what workers know of each other.
 */
#include "mixing/exchange.h"

#include "base/fail.h"
#include "mixing/combine.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- int8 -------------------------------------------------------------------------------------- */

/* The loops for one type; scales are floats in both. */
#define CODEC_LOOPS(REAL, ABS)                                                                     \
    static void round_piece_##REAL(size_t count, const REAL *restrict x,                           \
                                   const REAL *restrict reference, float *scale,                   \
                                   int8_t *restrict out)                                           \
    {                                                                                              \
        REAL d[DP_CODEC_SCALED], most = 0, inverse;                                                \
        bool finite = true;                                                                        \
                                                                                                   \
        for (size_t i = 0; i < count; i++) {                                                       \
            d[i] = x[i] - reference[i];                                                            \
            const REAL size = ABS(d[i]);                                                           \
            most = size > most ? size : most;                                                      \
            finite = finite && size <= FLT_MAX;                                                    \
        }                                                                                          \
        *scale = finite ? (float)(most / 127) : NAN;                                               \
        if (*scale < FLT_MIN)                                                                      \
            *scale = 0;                                                                            \
        inverse = finite && *scale > 0 ? 1 / (REAL)*scale : 0;                                     \
        for (size_t i = 0; i < count; i++) {                                                       \
            REAL v = finite ? d[i] * inverse : 0;                                                  \
            v = v > 127 ? 127 : v < -127 ? -127 : v;                                               \
            out[i] = (int8_t)(v + (v < 0 ? (REAL)-0.5 : (REAL)0.5));                               \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    static void add_piece_##REAL(size_t count, float scale, const int8_t *restrict in,             \
                                 REAL *restrict sum)                                               \
    {                                                                                              \
        for (size_t i = 0; i < count; i++)                                                         \
            sum[i] += (REAL)scale * (REAL)in[i];                                                   \
    }

CODEC_LOOPS(float, fabsf)
CODEC_LOOPS(double, fabs)

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

/* sum += what a message says. */
static void add_message(const struct dp_codec *c, const void *message, void *sum)
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
    add_message(c, message, reference);
}

/* ---- what is kept ------------------------------------------------------------------------------ */

static size_t block_bytes(const struct dp_compressed *x)
{
    return (x->codec.elements * x->codec.type.bits / 8 + 63) / 64 * 64;
}

static int allocate_blocks(struct dp_compressed *x)
{
    const size_t bytes = block_bytes(x);
    size_t blocks = 0;

    for (int32_t t = 0; t < x->graph->period; t++)
        blocks += 1 + (size_t)x->rounds[t].count;
    x->memory = calloc(blocks, bytes ? bytes : 1);
    x->blocks = calloc(blocks, sizeof(*x->blocks));
    if (!x->memory || !x->blocks)
        return dp_fail(DP_ENOMEM, "no memory for %zu blocks of what workers know of each other",
                       blocks);
    for (size_t k = 0; k < blocks; k++)
        x->blocks[k] = x->memory + k * bytes;
    blocks = 0;
    for (int32_t t = 0; t < x->graph->period; t++) {
        x->rounds[t].mine = x->blocks[blocks];
        x->rounds[t].theirs = &x->blocks[blocks + 1];
        blocks += 1 + (size_t)x->rounds[t].count;
    }
    return 0;
}

int dp_compressed_init(struct dp_compressed *x, const struct dp_graph *graph, int32_t worker,
                       DLDataType type, size_t elements)
{
    struct dp_neighbor *from =
        calloc((size_t)dp_neighbors_max(graph, worker) + 1, sizeof(*from));

    *x = (struct dp_compressed){.graph = graph, .codec = dp_codec_of(type, elements)};
    x->rounds = calloc((size_t)graph->period, sizeof(*x->rounds));
    x->sent = malloc(x->codec.bytes + 1);
    int err = x->rounds && x->sent && from
                  ? 0
                  : dp_fail(DP_ENOMEM, "no memory for compressed blocks of %zu elements", elements);
    for (int32_t t = 0; t < graph->period && !err; t++)
        x->rounds[t].count = dp_neighbors_from(graph, t, worker, from);
    free(from);
    if (!err)
        err = allocate_blocks(x);
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

/* ---- a round ----------------------------------------------------------------------------------- */

const void *dp_compressed_write(struct dp_compressed *x, int64_t t, const void *block)
{
    dp_codec_write(&x->codec, block, x->rounds[t % x->graph->period].mine, x->sent);
    return x->sent;
}

void dp_compressed_finish(struct dp_compressed *x, int64_t t, const struct dp_neighbor *from,
                          const char *messages, void *out)
{
    const struct dp_compressed_round *r = &x->rounds[t % x->graph->period];
    const struct dp_codec *c = &x->codec;

    memset(out, 0, c->elements * c->type.bits / 8);
    for (int32_t k = 0; k < r->count; k++) {
        add_message(c, messages + (size_t)k * c->bytes, r->theirs[k]);
        dp_add_difference(c->type, c->elements, out, from[k].weight, r->theirs[k], r->mine);
    }
}
