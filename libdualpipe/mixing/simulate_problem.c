/* SPDX-License-Identifier: Apache-2.0 */
#include "mixing/simulate.h"

#include <math.h>

/* What a gradient is a factor times: for the quadratic the distance, for the logistic the features of
 * the datum of this step. */
static double logistic_factor(const struct simulation *v, int32_t i, int64_t datum, const double *x)
{
    const double *a = v->target + ((size_t)i * DATA + (size_t)datum) * (size_t)v->d;
    const double label = v->label[i * DATA + datum];
    double dot = 0;

    for (int32_t k = 0; k < v->d; k++)
        dot += a[k] * x[k];
    return -label / (1 + exp(label * dot));
}

void dp_simulation_descend(struct simulation *v, int64_t t, int32_t i, const double *x, double *out)
{
    const double rate = v->s.rate;

    if (v->s.problem == DP_MIXING_LOGISTIC) {
        const double *a = v->target + ((size_t)i * DATA + (size_t)(t % DATA)) * (size_t)v->d;
        const double factor = logistic_factor(v, i, t % DATA, x);
        for (int32_t k = 0; k < v->d; k++)
            out[k] -= rate * factor * a[k];
        for (int32_t k = 0; v->watch && k < v->d; k++)
            v->grads[k] += factor * a[k];
        return;
    }
    const double *target = v->target + (size_t)i * (size_t)v->d;
    for (int32_t k = 0; k < v->d; k++)
        out[k] -= rate * v->curve[k] * (x[k] - target[k]);
    for (int32_t k = 0; v->watch && k < v->d; k++)
        v->grads[k] += v->curve[k] * (x[k] - target[k]);
}

double dp_simulation_loss(const struct simulation *v, int32_t i, const double *x)
{
    double sum = 0;

    if (v->s.problem == DP_MIXING_LOGISTIC) {
        for (int64_t datum = 0; datum < DATA; datum++) {
            const double *a = v->target + ((size_t)i * DATA + (size_t)datum) * (size_t)v->d;
            double dot = 0;
            for (int32_t k = 0; k < v->d; k++)
                dot += a[k] * x[k];
            sum += log1p(exp(-v->label[i * DATA + datum] * dot)) / DATA;
        }
        return sum;
    }
    for (int32_t k = 0; k < v->d; k++) {
        const double away = x[k] - v->target[(size_t)i * (size_t)v->d + (size_t)k];
        sum += 0.5 * v->curve[k] * away * away;
    }
    return sum;
}

static double draw(const struct simulation *v, uint64_t index)
{
    return dp_simulation_normal(dp_simulation_uniform(v->s.seed, OF_TARGET, index));
}

static void make_quadratic(struct simulation *v)
{
    const int32_t d = v->s.dimensions;

    for (int32_t k = 0; k < d; k++)
        v->curve[k] = 0.25 + 0.75 * (k + 1) / d;
    for (int32_t i = 0; i < v->n; i++)
        for (int32_t k = 0; k < d; k++)
            v->target[(size_t)i * (size_t)v->d + (size_t)k] =
                1 + draw(v, (uint64_t)i * (uint64_t)d + (uint64_t)k);
}

/* Nine in ten data of a worker are of one class. */
static void make_logistic(struct simulation *v)
{
    for (int32_t i = 0; i < v->n; i++)
        for (int32_t datum = 0; datum < DATA; datum++) {
            const size_t number = (size_t)i * DATA + (size_t)datum;
            const bool usual = dp_simulation_uniform(v->s.seed, OF_LABEL, number) < 0.9;
            v->label[number] = usual == (i % 2 == 0) ? 1 : -1;
            for (int32_t k = 0; k < v->s.dimensions; k++)
                v->target[number * (size_t)v->d + (size_t)k] =
                    0.5 * v->label[number] +
                    draw(v, number * 64 + (uint64_t)k);
        }
}

void dp_simulation_make_problem(struct simulation *v)
{
    if (v->s.problem == DP_MIXING_LOGISTIC)
        make_logistic(v);
    else
        make_quadratic(v);
}
