/* SPDX-License-Identifier: Apache-2.0 */
#include "train/optimizer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;

int optimizer_init(struct optimizer *o, struct gpt_stage *stage)
{
    size_t count = stage->params.count;

    *o = (struct optimizer){
        .stage = stage,
        .mean = calloc(count, sizeof(real)),
        .square = calloc(count, sizeof(real)),
    };
    if (o->mean && o->square)
        return 0;
    optimizer_fini(o);
    return DP_ENOMEM;
}

void optimizer_fini(struct optimizer *o)
{
    free(o->mean);
    free(o->square);
    *o = (struct optimizer){0};
}

/* The numbers of one step, the same for every weight of a tensor. */
struct update {
    real scale, rate, keep; /* keep: what weight decay leaves of a weight */
    real bias1, bias2;      /* the averages begin at zero: how much of them is there by now */
};

static void update_range(const struct update *u, size_t count, const real *grad, real *mean,
                         real *square, real *w)
{
    const real b1 = (real)beta1, b2 = (real)beta2, tiny = (real)epsilon;

    for (size_t i = 0; i < count; i++) {
        real g = grad[i] * u->scale;
        mean[i] = b1 * mean[i] + (1 - b1) * g;
        square[i] = b2 * square[i] + (1 - b2) * g * g;
        real step = mean[i] / u->bias1 / ((real)sqrt(square[i] / u->bias2) + tiny);
        w[i] = w[i] * u->keep - u->rate * step;
    }
}

void optimizer_step(struct optimizer *o, uint64_t step, double rate, double decay, double scale)
{
    struct gpt_stage *g = o->stage;
    struct update u = {
        .scale = (real)scale,
        .rate = (real)rate,
        .bias1 = (real)(1 - pow(beta1, (double)step + 1)),
        .bias2 = (real)(1 - pow(beta2, (double)step + 1)),
    };

    for (size_t i = 0; i < g->params.tensors_len; i++) {
        const struct tensor *t = g->params.tensors + i;
        size_t at = t->offset;
        u.keep = (real)(t->rows > 1 ? 1 - rate * decay : 1);
        update_range(&u, tensor_count(t), g->grads + at, o->mean + at, o->square + at,
                     g->weights + at);
    }
    optimizer_skip(o);
}

void optimizer_skip(struct optimizer *o)
{
    memset(o->stage->grads, 0, o->stage->params.count * sizeof(real));
}

void optimizer_squares(const struct gpt_stage *stage, double *squares)
{
    for (size_t i = 0; i < stage->params.tensors_len; i++) {
        const struct tensor *t = stage->params.tensors + i;
        const real *g = stage->grads + t->offset;
        for (size_t k = 0; k < tensor_count(t); k++)
            squares[t->group] += (double)g[k] * (double)g[k];
    }
}

double optimizer_rate(uint64_t step, uint64_t steps, uint64_t warmup, double peak)
{
    const double pi = 3.14159265358979323846, floor = 0.1;

    if (step < warmup)
        return peak * (double)(step + 1) / (double)warmup;
    double progress = (double)(step - warmup) / (double)(steps - warmup);
    return peak * (floor + (1 - floor) * (1 + cos(pi * progress)) / 2);
}

double optimizer_clip(double norm, double clip)
{
    return clip > 0 && norm > clip ? clip / norm : 1;
}
