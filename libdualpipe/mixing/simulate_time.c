/* SPDX-License-Identifier: Apache-2.0 */
#include "mixing/simulate.h"

#include <math.h>

/* ---- random numbers: a hash of what they are for ------------------------------------------------ */

uint64_t dp_simulation_scramble(uint64_t z) /* splitmix64, Steele et al., 2014 */
{
    z += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* Inside (0, 1). */
static double inside(uint64_t hash)
{
    return ((double)(int64_t)(hash >> 12) + 0.5) * 0x1p-52;
}

double dp_simulation_uniform(uint64_t seed, uint64_t what, uint64_t index)
{
    return inside(dp_simulation_scramble(dp_simulation_scramble(seed ^ what << 48) + index));
}

static double tail(double q)
{
    static const double c[] = {-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00,
                               -2.549732539343734e+00, 4.374664141464968e+00,  2.938163982698783e+00};
    static const double e[] = {7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00,
                               3.754408661907416e+00};

    return (((((c[0] * q + c[1]) * q + c[2]) * q + c[3]) * q + c[4]) * q + c[5]) /
           ((((e[0] * q + e[1]) * q + e[2]) * q + e[3]) * q + 1);
}

/* The inverse of the normal distribution: Acklam's rational approximation, relative error 1.2e-9. */
double dp_simulation_normal(double p)
{
    static const double a[] = {-3.969683028665376e+01, 2.209460984245205e+02,  -2.759285104469687e+02,
                               1.383577518672690e+02,  -3.066479806614716e+01, 2.506628277459239e+00};
    static const double b[] = {-5.447609879822406e+01, 1.615858368580409e+02, -1.556989798598866e+02,
                               6.680131188771972e+01, -1.328068155288572e+01};

    if (p < 0.02425)
        return tail(sqrt(-2 * log(p)));
    if (p > 1 - 0.02425)
        return -tail(sqrt(-2 * log(1 - p)));
    const double q = p - 0.5, r = q * q;
    return (((((a[0] * r + a[1]) * r + a[2]) * r + a[3]) * r + a[4]) * r + a[5]) * q /
           (((((b[0] * r + b[1]) * r + b[2]) * r + b[3]) * r + b[4]) * r + 1);
}

/* ---- time -------------------------------------------------------------------------------------- */

double dp_simulation_quantile(const struct simulation *v, double p)
{
    return v->s.compute_ns * exp(v->s.sigma * dp_simulation_normal(p) - v->sigma_shift);
}

/* Between the tails by the table: it is off by less than 1e-3 of sigma. */
double dp_simulation_compute_time(const struct simulation *v, int32_t i)
{
    const double p = inside(dp_simulation_scramble(v->time_key + (uint64_t)i)), at = p * QUANTILES;
    const int32_t k = (int32_t)at;

    if (k < TAIL || k >= QUANTILES - TAIL)
        return dp_simulation_quantile(v, p);
    return v->quantiles[k] + (at - k) * (v->quantiles[k + 1] - v->quantiles[k]);
}

double dp_simulation_slowness(const struct simulation *v, int32_t i, int32_t j)
{
    const uint64_t low = (uint64_t)(i < j ? i : j), high = (uint64_t)(i < j ? j : i);

    if (v->s.slow_links == 0 ||
        dp_simulation_uniform(v->s.seed, OF_LINK, low << 24 | high) >= v->s.slow_links)
        return 1;
    return v->s.slow_factor;
}

double dp_simulation_transfer_ns(const struct simulation *v, double bytes)
{
    return v->s.bytes_per_ns > 0 ? bytes / v->s.bytes_per_ns : 0;
}

/* As slow as the slowest link of a ring through the members in their order. */
double dp_simulation_group_cost(const struct simulation *v, const int32_t *members, int32_t count)
{
    double slow = 1;
    int32_t steps = 0;

    if (count < 2)
        return 0;
    for (int32_t k = 0; v->s.slow_links > 0 && k < count; k++)
        slow = fmax(slow, dp_simulation_slowness(v, members[k], members[(k + 1) % count]));
    if (count == 2)
        return slow * (v->s.latency_ns + dp_simulation_transfer_ns(v, v->s.message_bytes));
    for (int32_t reached = 1; reached < count; reached *= 2)
        steps += 2;
    return slow * (steps * v->s.latency_ns +
                   2 * (count - 1) * dp_simulation_transfer_ns(v, v->s.message_bytes / count));
}

