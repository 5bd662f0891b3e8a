/* SPDX-License-Identifier: Apache-2.0
 *
 * loops_set.h - the loops over elements of ops.h, for one instruction set: loops.c includes it for each,
 * with TARGET and NAME(x) defined. No guard, as it is included more than once.
 */

/* The float one has no branch and no call, so that loops around it become vector instructions: 2^n
 * times a polynomial of what is left, within 2 units in the last place; 0 below -87, never infinite.
 * NaN stays. */
TARGET static inline real NAME(exp_of)(real x)
{
#ifdef GPT_DOUBLE
    return exp(x);
#else
    const float log2e = 1.44269504f, ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
    const float most = 88.0f, least = -87.0f, shift = 12582912.0f; /* 1.5 * 2^23: rounds */
    const float z = x > least ? (x < most ? x : most) : least; /* of NaN, too */
    const float n = (z * log2e + shift) - shift;
    const float r = z - n * ln2_high - n * ln2_low;
    float p = 1.9875691500e-4f;
    union { int32_t bits; float value; } power = {.bits = ((int32_t)n + 127) * (1 << 23)};

    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1;
    return x != x ? x : x < least ? 0 : p * power.value;
#endif
}

TARGET static void NAME(add)(size_t count, const real *y, real *x)
{
#pragma omp simd
    for (size_t i = 0; i < count; i++)
        x[i] += y[i];
}

TARGET static void NAME(multiply)(size_t count, const real *y, real *x)
{
#pragma omp simd
    for (size_t i = 0; i < count; i++)
        x[i] *= y[i];
}

TARGET static void NAME(norm_forward)(size_t width, const real *x, const real *gain,
                                      const real *bias, real *y, real *xhat, real *rstd)
{
    real sum = 0, squares = 0;

#pragma omp simd reduction(+ : sum)
    for (size_t j = 0; j < width; j++)
        sum += x[j];
    const real mean = sum / (real)width;
#pragma omp simd reduction(+ : squares)
    for (size_t j = 0; j < width; j++)
        squares += (x[j] - mean) * (x[j] - mean);
    const real scale = 1 / sqrt(squares / (real)width + norm_epsilon);
#pragma omp simd
    for (size_t j = 0; j < width; j++) {
        xhat[j] = (x[j] - mean) * scale;
        y[j] = xhat[j] * gain[j] + bias[j];
    }
    *rstd = scale;
}

/* With g = dy gain: dx = rstd (g - mean(g) - xhat mean(g xhat)). */
TARGET static void NAME(norm_backward)(size_t width, const real *dy, const real *gain,
                                       const real *xhat, real rstd, real *dx)
{
    real sum = 0, along = 0;

#pragma omp simd reduction(+ : sum, along)
    for (size_t j = 0; j < width; j++) {
        sum += dy[j] * gain[j];
        along += dy[j] * gain[j] * xhat[j];
    }
    sum /= (real)width;
    along /= (real)width;
#pragma omp simd
    for (size_t j = 0; j < width; j++)
        dx[j] += rstd * (dy[j] * gain[j] - sum - xhat[j] * along);
}

TARGET static void NAME(norm_weight)(size_t width, const real *dy, const real *xhat, real *dgain,
                                     real *dbias)
{
#pragma omp simd
    for (size_t j = 0; j < width; j++) {
        dgain[j] += dy[j] * xhat[j];
        dbias[j] += dy[j];
    }
}

/* x becomes exp(x - the largest of x); returns their sum. */
TARGET static real NAME(exp_row)(size_t count, real *x, const real *from, real *most)
{
    real largest = from[0], sum = 0;

#pragma omp simd reduction(max : largest)
    for (size_t j = 0; j < count; j++)
        largest = from[j] > largest ? from[j] : largest;
#pragma omp simd reduction(+ : sum)
    for (size_t j = 0; j < count; j++) {
        x[j] = NAME(exp_of)(from[j] - largest);
        sum += x[j];
    }
    *most = largest;
    return sum;
}

TARGET static void NAME(scale)(size_t count, real factor, real *x)
{
#pragma omp simd
    for (size_t j = 0; j < count; j++)
        x[j] *= factor;
}

/* From the gradient of probabilities to that of the scores, in place. */
TARGET static void NAME(softmax_backward)(size_t count, const real *p, real *d)
{
    real along = 0;

#pragma omp simd reduction(+ : along)
    for (size_t j = 0; j < count; j++)
        along += p[j] * d[j];
#pragma omp simd
    for (size_t j = 0; j < count; j++)
        d[j] = p[j] * (d[j] - along);
}

/* The tanh form (Hendrycks and Gimpel, 2016): x (1 + tanh u) / 2, u = sqrt(2/pi) (x + 0.044715
 * x^3); (1 + tanh u) / 2 is the logistic function of 2u, so one exp gives value and slope. */
TARGET static void NAME(gelu_forward)(size_t count, real *x, real *y)
{
    const real a = (real)0.7978845608028654, b = (real)0.044715;

#pragma omp simd
    for (size_t i = 0; i < count; i++) {
        const real z = x[i], square = z * z;
        const real gate = 1 / (1 + NAME(exp_of)(-2 * a * z * (1 + b * square)));
        y[i] = z * gate;
        x[i] = gate + 2 * a * z * (1 + 3 * b * square) * gate * (1 - gate);
    }
}

static const struct loops NAME(loops) = {
    NAME(add),           NAME(multiply),    NAME(scale),   NAME(norm_forward),
    NAME(norm_backward), NAME(norm_weight), NAME(exp_row), NAME(softmax_backward),
    NAME(gelu_forward),
};
