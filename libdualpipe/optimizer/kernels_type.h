/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels_type.h - the loops of kernels.h for one type and one instruction set; kernels.c includes it
 * once for each, with these defined:
 *
 *      REAL        float or double         NAME(x)     x with a suffix of type and set
 *      SQRT, FMA   of that type            CONVERT     1: with the hardware's float16
 *      TARGET      the set, as an attribute
 */
static TARGET void NAME(sgd)(const struct dp_numbers *n, size_t count, void *values, const void *grads,
                             void *const *state)
{
    const REAL scale = (REAL)n->scale, decay = (REAL)n->decay, rate = (REAL)n->rate;
    REAL *restrict x = values;
    const REAL *restrict grad = grads;

    (void)state;
#pragma omp simd
    for (size_t i = 0; i < count; i++)
        x[i] = FMA(-rate, FMA(decay, x[i], grad[i] * scale), x[i]);
}

static TARGET void NAME(sgd_momentum)(const struct dp_numbers *n, size_t count, void *values,
                                      const void *grads, void *const *state)
{
    const REAL scale = (REAL)n->scale, decay = (REAL)n->decay, rate = (REAL)n->rate;
    const REAL momentum = (REAL)n->momentum;
    const bool nesterov = n->nesterov;
    REAL *restrict x = values, *restrict velocity = state[0];
    const REAL *restrict grad = grads;

#pragma omp simd
    for (size_t i = 0; i < count; i++) {
        REAL g = FMA(decay, x[i], grad[i] * scale);
        REAL v = momentum * velocity[i] + g;
        REAL ahead = FMA(momentum, v, g);
        velocity[i] = v;
        x[i] = FMA(-rate, nesterov ? ahead : v, x[i]);
    }
}

static TARGET void NAME(adam)(const struct dp_numbers *n, size_t count, void *values, const void *grads,
                              void *const *state)
{
    const REAL scale = (REAL)n->scale, decay = (REAL)n->decay, keep = (REAL)n->keep;
    const REAL rate = (REAL)n->rate, b1 = (REAL)n->beta1, b2 = (REAL)n->beta2;
    const REAL bias1 = (REAL)n->bias1, bias2 = (REAL)n->bias2, tiny = (REAL)n->epsilon;
    REAL *restrict x = values, *restrict mean = state[0], *restrict square = state[1];
    const REAL *restrict grad = grads;

#pragma omp simd
    for (size_t i = 0; i < count; i++) {
        REAL g = grad[i] * scale + decay * x[i];
        REAL m = b1 * mean[i] + (1 - b1) * g;
        REAL v = b2 * square[i] + (1 - b2) * g * g;
        mean[i] = m;
        square[i] = v;
        x[i] = x[i] * keep - rate * (m / bias1 / (SQRT(v / bias2) + tiny));
    }
}

/* Where Decent-DP adds a multiple, its recorded results have the product unrounded: FMA. */
static TARGET void NAME(accum)(const struct dp_numbers *n, size_t count, void *values, const void *grads,
                               void *const *state)
{
    const REAL scale = (REAL)n->scale, decay = (REAL)n->decay, keep = (REAL)n->keep;
    const REAL share = (REAL)n->share;
    const REAL rest1 = (REAL)(1 - n->beta1), rest2 = (REAL)(1 - n->beta2);
    const REAL root2 = (REAL)n->bias2, step = (REAL)n->step, tiny = (REAL)n->epsilon;
    const REAL *restrict mean = state[0], *restrict square = state[1], *restrict grad = grads;
    REAL *restrict x = values, *restrict sum = state[2];

#pragma omp simd
    for (size_t i = 0; i < count; i++) {
        REAL g = FMA(decay, x[i], grad[i] * scale);
        REAL m = FMA(rest1, g, mean[i]), v = FMA(rest2 * g, g, square[i]);
        sum[i] = FMA(share, g, sum[i]);
        x[i] = x[i] * keep + -step * m / (SQRT(v) / root2 + tiny);
    }
}

static TARGET void NAME(fold)(const struct dp_numbers *n, size_t count, void *const *state)
{
    const REAL b1 = (REAL)n->beta1, rest1 = (REAL)(1 - n->beta1);
    const REAL b2 = (REAL)n->beta2, rest2 = (REAL)(1 - n->beta2);
    REAL *restrict mean = state[0], *restrict square = state[1], *restrict sum = state[2];

#pragma omp simd
    for (size_t i = 0; i < count; i++) {
        mean[i] = FMA(rest1, sum[i], mean[i]) * b1;
        square[i] = FMA(rest2 * sum[i], sum[i], square[i]) * b2;
        sum[i] = 0;
    }
}

static TARGET void NAME(mix)(size_t count, void *values, const void *others, double keep, double take)
{
    const REAL k = (REAL)keep, t = (REAL)take;
    REAL *restrict x = values;
    const REAL *restrict c = others;

#pragma omp simd
    for (size_t i = 0; i < count; i++)
        x[i] = FMA(t, c[i], k * x[i]);
}

static TARGET void NAME(scale)(size_t count, void *to, const void *from, double factor)
{
    const REAL f = (REAL)factor;
    REAL *out = to;
    const REAL *x = from;

#pragma omp simd
    for (size_t i = 0; i < count; i++)
        out[i] = f * x[i];
}

/* Four elements at x as float64. */
#define FOUR(x) __builtin_convertvector(*(const reals *)(x), doubles)

/* With vectors, which stay in registers; sums in an array go through memory each time. */
static TARGET void NAME(squares)(size_t count, const void *values, double *sums)
{
    enum { FOUR_REALS = 4 * sizeof(REAL), ONE_REAL = sizeof(REAL) };
    typedef REAL reals __attribute__((vector_size(FOUR_REALS), aligned(ONE_REAL), may_alias));
    typedef double doubles __attribute__((vector_size(32), aligned(8), may_alias));
    const REAL *restrict x = values;
    doubles *all = (doubles *)sums, a = all[0], b = all[1], c = all[2], d = all[3];
    size_t i = 0;

    for (; i + DP_LANES <= count; i += DP_LANES) {
        doubles p = FOUR(x + i), q = FOUR(x + i + 4), r = FOUR(x + i + 8), s = FOUR(x + i + 12);
        a += p * p;
        b += q * q;
        c += r * r;
        d += s * s;
    }
    all[0] = a, all[1] = b, all[2] = c, all[3] = d;
    for (size_t k = 0; i + k < count; k++)
        sums[k] += (double)x[i + k] * (double)x[i + k];
}
#undef FOUR

static TARGET void NAME(load_bfloat16)(size_t count, void *values, const uint16_t *restrict h)
{
    REAL *restrict x = values;

#pragma omp simd
    for (size_t i = 0; i < count; i++)
        x[i] = (REAL)dp_bfloat16_load(h[i]);
}

static TARGET void NAME(store_bfloat16)(size_t count, uint16_t *restrict h, const void *values)
{
    const REAL *restrict x = values;

#pragma omp simd
    for (size_t i = 0; i < count; i++)
        h[i] = dp_bfloat16_store((float)x[i]);
}

static TARGET void NAME(load_float16)(size_t count, void *values, const uint16_t *restrict h)
{
    REAL *restrict x = values;
    size_t i = 0;

#if CONVERT
    for (; i + 8 <= count; i += 8) {
        float eight[8];
        _mm256_storeu_ps(eight, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(h + i))));
        for (int k = 0; k < 8; k++)
            x[i + (size_t)k] = (REAL)eight[k];
    }
#endif
    for (; i < count; i++)
        x[i] = (REAL)dp_float16_load(h[i]);
}

static TARGET void NAME(store_float16)(size_t count, uint16_t *restrict h, const void *values)
{
    const REAL *restrict x = values;
    size_t i = 0;

#if CONVERT
    for (; i + 8 <= count; i += 8) {
        float eight[8];
        for (int k = 0; k < 8; k++)
            eight[k] = (float)x[i + (size_t)k];
        _mm_storeu_si128((__m128i *)(h + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(eight), _MM_FROUND_TO_NEAREST_INT));
    }
#endif
    for (; i < count; i++)
        h[i] = dp_float16_store((float)x[i]);
}

static const struct dp_kernels NAME(kernels) = {
    .sgd = NAME(sgd),
    .sgd_momentum = NAME(sgd_momentum),
    .adam = NAME(adam),
    .accum = NAME(accum),
    .fold = NAME(fold),
    .mix = NAME(mix),
    .scale = NAME(scale),
    .squares = NAME(squares),
    .load_bfloat16 = NAME(load_bfloat16),
    .load_float16 = NAME(load_float16),
    .store_bfloat16 = NAME(store_bfloat16),
    .store_float16 = NAME(store_float16),
};
