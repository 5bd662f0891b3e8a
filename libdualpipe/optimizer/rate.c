/* SPDX-License-Identifier: Apache-2.0 */
#include <dualpipe/optimizer.h>

#include "base/fail.h"

#include <math.h>

struct dp_rate dp_rate_defaults(double peak, int64_t warmup, int64_t period)
{
    return (struct dp_rate){
        .kind = DP_RATE_COSINE,
        .peak = peak,
        .last = 1e-6,
        .factor = 1,
        .period = period,
        .warmup = warmup,
        .warmup_factor = 0.01,
    };
}

static bool amount(double x)
{
    return isfinite(x) && x >= 0;
}

int dp_rate_check(const struct dp_rate *r)
{
    const struct {
        const char *what;
        double value;
    } amounts[] = {{"peak", r->peak}, {"last", r->last}, {"factor", r->factor},
                   {"warmup_factor", r->warmup_factor}};

    if ((unsigned)r->kind > DP_RATE_STEP)
        return dp_fail(DP_EINVAL, "rate: kind %d, expected 0 to %d", (int)r->kind, DP_RATE_STEP);
    for (size_t i = 0; i < sizeof(amounts) / sizeof(amounts[0]); i++)
        if (!amount(amounts[i].value))
            return dp_fail(DP_EINVAL, "rate: %s %g, expected a finite number from 0 on",
                           amounts[i].what, amounts[i].value);
    if (r->warmup < 0)
        return dp_fail(DP_EINVAL, "rate: warmup %lld, expected at least 0", (long long)r->warmup);
    if (r->kind != DP_RATE_CONSTANT && r->period < 1)
        return dp_fail(DP_EINVAL, "rate: period %lld, expected at least 1", (long long)r->period);
    return 0;
}

double dp_rate_at(const struct dp_rate *r, int64_t step)
{
    const double pi = 3.14159265358979323846;
    const int64_t k = step - r->warmup;
    double at;

    if (k < 0)
        return r->peak * (r->warmup_factor + (1 - r->warmup_factor) * (double)step / (double)r->warmup);
    at = r->period ? (double)k / (double)r->period : 0;
    switch (r->kind) {
    case DP_RATE_COSINE:
        return r->hold && at > 1 ? r->last : r->last + (r->peak - r->last) * (1 + cos(pi * at)) / 2;
    case DP_RATE_LINEAR:
        return at < 1 ? r->peak + (r->last - r->peak) * at : r->last;
    case DP_RATE_STEP:
        return r->peak * pow(r->factor, (double)(k / r->period));
    default:
        return r->peak;
    }
}
