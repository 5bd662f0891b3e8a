/* SPDX-License-Identifier: Apache-2.0 */
#include "mixing/codec.h"

#include "base/fail.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BINS = 1 << 16 };

static uint32_t key_of_float(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits & 0x7fffffff;
}

static uint32_t key_of_double(double x)
{
    uint64_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return (uint32_t)(bits >> 32) & 0x7fffffff;
}

#define REAL float
#define NAME(x) x##_float
#define ABS fabsf
#define LARGEST FLT_MAX
#define KEY key_of_float
#include "mixing/codec_type.h"
#undef REAL
#undef NAME
#undef ABS
#undef LARGEST
#undef KEY

/* Scales are floats in both. */
#define REAL double
#define NAME(x) x##_double
#define ABS fabs
#define LARGEST FLT_MAX
#define KEY key_of_double
#include "mixing/codec_type.h"

/* ---- layout ------------------------------------------------------------------------------------ */

static size_t scales_of(const struct dp_codec *c)
{
    return (c->elements + DP_CODEC_SCALED - 1) / DP_CODEC_SCALED;
}

/* Values begin at a multiple of their size. */
static size_t numbers_bytes(const struct dp_codec *c)
{
    return (c->kept * sizeof(uint32_t) + 7) / 8 * 8;
}

int dp_codec_init(struct dp_codec *c, enum dp_mixer_compression kind, double fraction,
                  DLDataType type, size_t elements)
{
    *c = (struct dp_codec){.kind = kind, .type = type, .elements = elements};
    if (kind == DP_COMPRESSION_INT8) {
        c->bytes = scales_of(c) * sizeof(float) + elements;
        return 0;
    }
    c->kept = (size_t)ceil(fraction * (double)elements);
    c->kept = c->kept > elements ? elements : c->kept;
    c->bytes = numbers_bytes(c) + c->kept * type.bits / 8;
    c->bins = calloc(BINS, sizeof(*c->bins));
    return c->bins ? 0 : dp_fail(DP_ENOMEM, "no memory to find the largest of %zu", elements);
}

void dp_codec_fini(struct dp_codec *c)
{
    free(c->bins);
    *c = (struct dp_codec){0};
}

/* ---- int8 -------------------------------------------------------------------------------------- */

static void write_int8(const struct dp_codec *c, const void *x, const void *reference, char *message)
{
    float *scales = (float *)(void *)message;
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
}

static void add_int8(const struct dp_codec *c, const char *message, void *sum)
{
    const float *scales = (const float *)(const void *)message;
    const int8_t *in = (const int8_t *)(scales + scales_of(c));

    for (size_t k = 0, at = 0; at < c->elements; k++, at += DP_CODEC_SCALED) {
        const size_t left = c->elements - at, n = left < DP_CODEC_SCALED ? left : DP_CODEC_SCALED;
        if (c->type.bits == 32)
            add_piece_float(n, scales[k], in + at, (float *)sum + at);
        else
            add_piece_double(n, scales[k], in + at, (double *)sum + at);
    }
}

/* ---- top-k ------------------------------------------------------------------------------------- */

static void write_largest(const struct dp_codec *c, const void *x, const void *reference,
                          char *message)
{
    uint32_t *numbers = (uint32_t *)(void *)message;
    void *values = message + numbers_bytes(c);

    if (c->type.bits == 32)
        keep_largest_float(c, x, reference, numbers, values);
    else
        keep_largest_double(c, x, reference, numbers, values);
}

static int add_largest(const struct dp_codec *c, const char *message, void *sum)
{
    const uint32_t *numbers = (const uint32_t *)(const void *)message;
    const void *values = message + numbers_bytes(c);
    int err = c->type.bits == 32 ? add_largest_float(c, numbers, values, sum)
                                 : add_largest_double(c, numbers, values, sum);

    return err ? dp_fail(err, "a compressed block names an element beyond its end, %zu",
                         c->elements)
               : 0;
}

/* ---- both -------------------------------------------------------------------------------------- */

void dp_codec_write(const struct dp_codec *c, const void *x, void *reference, void *message)
{
    if (c->kind == DP_COMPRESSION_INT8)
        write_int8(c, x, reference, message);
    else
        write_largest(c, x, reference, message);
    (void)dp_codec_add(c, message, reference);
}

int dp_codec_add(const struct dp_codec *c, const void *message, void *sum)
{
    if (c->kind == DP_COMPRESSION_TOPK)
        return add_largest(c, message, sum);
    add_int8(c, message, sum);
    return 0;
}
