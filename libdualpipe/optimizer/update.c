/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/update.h"

#include "base/fp16.h"

#include <math.h>
#include <string.h>

/* ---- numbers -------------------------------------------------------------------------------- */

static bool decoupled(enum dp_optimizer_kind kind)
{
    return kind == DP_OPTIMIZER_ADAMW || kind == DP_OPTIMIZER_ACCUM_ADAMW;
}

static bool accumulates(enum dp_optimizer_kind kind)
{
    return kind == DP_OPTIMIZER_ACCUM_ADAM || kind == DP_OPTIMIZER_ACCUM_ADAMW;
}

struct dp_numbers dp_numbers_of(const struct dp_optimizer_config *config,
                                const struct dp_optimizer_group *group,
                                const struct dp_optimizer_step *step, int64_t t)
{
    const bool accum = accumulates(config->kind);
    const int64_t k = accum ? config->accumulation : 1, e = (t + k - 1) / k;
    const double rate = step->rate * group->rate_factor, decay = group->weight_decay;
    struct dp_numbers n = {
        .scale = step->scale,
        .decay = decoupled(config->kind) ? 0 : decay,
        .keep = decoupled(config->kind) && decay > 0 ? 1 - rate * decay : 1,
        .rate = rate,
        .momentum = config->momentum,
        .nesterov = config->nesterov,
        .beta1 = config->beta1,
        .beta2 = config->beta2,
        .epsilon = config->epsilon,
        .bias1 = 1 - pow(config->beta1, (double)e),
        .bias2 = 1 - pow(config->beta2, (double)e),
        .share = 1.0 / (double)k,
        .fold = accum && t % k == 0,
    };

    n.step = rate / n.bias1;
    if (accum)
        n.bias2 = sqrt(n.bias2);
    return n;
}

int dp_optimizer_states(const struct dp_optimizer_config *config)
{
    if (config->kind == DP_OPTIMIZER_SGD)
        return config->momentum > 0;
    return accumulates(config->kind) ? 3 : 2;
}

const char *dp_optimizer_state_name(const struct dp_optimizer_config *config, int array)
{
    static const char *const moments[] = {"mean", "square", "accumulated"};

    if (array == dp_optimizer_states(config))
        return "master";
    return config->kind == DP_OPTIMIZER_SGD ? "momentum" : moments[array];
}

/* ---- types ---------------------------------------------------------------------------------- */

static const struct dp_kernels *kernels_for(bool as_double)
{
    const struct dp_kernel_set *set = dp_kernel_set_best();

    return as_double ? set->float64 : set->float32;
}

size_t dp_real_bytes(DLDataType type)
{
    return type.bits / 8;
}

static bool same_type(DLDataType type, bool as_double)
{
    return type.bits == (as_double ? 64 : 32);
}

void dp_real_load(DLDataType type, size_t count, const void *from, void *x, bool as_double)
{
    const struct dp_kernels *k = kernels_for(as_double);

    if (same_type(type, as_double))
        memcpy(x, from, count * dp_real_bytes(type));
    else if (type.bits == 64)
        for (size_t i = 0; i < count; i++)
            ((float *)x)[i] = (float)((const double *)from)[i];
    else if (type.bits == 32)
        for (size_t i = 0; i < count; i++)
            ((double *)x)[i] = (double)((const float *)from)[i];
    else
        (type.code == kDLBfloat ? k->load_bfloat16 : k->load_float16)(count, x, from);
}

void dp_real_store(DLDataType type, size_t count, void *to, const void *x, bool as_double)
{
    const struct dp_kernels *k = kernels_for(as_double);

    if (same_type(type, as_double))
        memcpy(to, x, count * dp_real_bytes(type));
    else if (type.bits == 64)
        for (size_t i = 0; i < count; i++)
            ((double *)to)[i] = (double)((const float *)x)[i];
    else if (type.bits == 32)
        for (size_t i = 0; i < count; i++)
            ((float *)to)[i] = (float)((const double *)x)[i];
    else
        (type.code == kDLBfloat ? k->store_bfloat16 : k->store_float16)(count, to, x);
}

/* ---- blocks --------------------------------------------------------------------------------- */

/* One block of a range: the arrays at its first element, and buffers for those of another type. */
struct block {
    size_t count;
    bool as_double;
    char *value, *grad, *buffer;
    void *x;                /* what is updated: the value or its master */
    void *state[DP_STATES];
};

static struct block block_at(const struct dp_update_range *r, size_t at)
{
    const bool as_double = r->value_type.bits == 64;
    const size_t left = r->count - at, real_bytes = as_double ? sizeof(double) : sizeof(float);
    struct block b = {
        .count = left < DP_UPDATE_BLOCK ? left : DP_UPDATE_BLOCK,
        .as_double = as_double,
        .value = (char *)r->value + at * dp_real_bytes(r->value_type),
        .grad = (char *)r->grad + at * dp_real_bytes(r->grad_type),
        .buffer = r->buffer ? (char *)r->buffer + at * dp_real_bytes(r->value_type) : NULL,
    };

    b.x = r->master ? (void *)(r->master + at) : b.value;
    for (int i = 0; i < DP_STATES; i++)
        b.state[i] = r->state[i] ? (char *)r->state[i] + at * real_bytes : NULL;
    return b;
}

/* A block's elements as REALs: in place, or converted into `room`. */
static const void *reals(const struct block *b, DLDataType type, const void *from, double *room)
{
    if (same_type(type, b->as_double))
        return from;
    dp_real_load(type, b->count, from, room, b->as_double);
    return room;
}

static dp_update_fn *update_of(const struct dp_optimizer_config *config, const struct dp_kernels *k)
{
    if (config->kind == DP_OPTIMIZER_SGD)
        return config->momentum > 0 ? k->sgd_momentum : k->sgd;
    return accumulates(config->kind) ? k->accum : k->adam;
}

static void copy_out(const struct dp_kernels *k, const struct block *b, DLDataType type, double put,
                     double *room)
{
    if (same_type(type, b->as_double)) {
        k->scale(b->count, b->buffer, b->x, put);
        return;
    }
    k->scale(b->count, room, b->x, put);
    dp_real_store(type, b->count, b->buffer, room, b->as_double);
}

void dp_update_range(const struct dp_optimizer_config *config, const struct dp_numbers *numbers,
                     const struct dp_optimizer_step *step, const struct dp_update_range *r)
{
    const struct dp_kernels *k = kernels_for(r->value_type.bits == 64);
    const struct dp_optimizer_mix *mix = r->buffer ? step->mix : NULL;
    dp_update_fn *update = update_of(config, k);
    double room[DP_UPDATE_BLOCK];

    for (size_t at = 0; at < r->count; at += DP_UPDATE_BLOCK) {
        struct block b = block_at(r, at);
        if (mix)
            k->mix(b.count, b.x, reals(&b, r->value_type, b.buffer, room), mix->keep, mix->take);
        if (!step->skip)
            update(numbers, b.count, b.x, reals(&b, r->grad_type, b.grad, room), b.state);
        if (!step->skip && numbers->fold)
            k->fold(numbers, b.count, b.state);
        if (step->zero_grads)
            memset(b.grad, 0, b.count * dp_real_bytes(r->grad_type));
        if (mix)
            copy_out(k, &b, r->value_type, mix->put, room);
        if (r->master)
            dp_real_store(r->value_type, b.count, b.value, b.x, false);
    }
}
