/* SPDX-License-Identifier: Apache-2.0 */
#include "mixing/codec.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>

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
