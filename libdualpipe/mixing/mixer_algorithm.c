/* SPDX-License-Identifier: Apache-2.0
 *
 * mixer_algorithm.c - with which weights a bucket takes what came, and what other algorithms than
 * D-PSGD do with it. Their blocks, memory[]:
 *
 *      gradient tracking      y, and the gradient of the update before
 *      exact diffusion        what the optimizer made of x in the update before
 *      local SGD              x after the last round, and the outer momentum
 */
#include "base/fail.h"
#include "base/tensor.h"
#include "mixing/combine.h"
#include "mixing/mixer_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const struct dp_mixer_method dp_mixer_methods[DP_MIXER_ALGORITHMS] = {
    [DP_MIXER_DPSGD] = {"d-psgd", .factor = 1},
    [DP_MIXER_GRADIENT_TRACKING] = {"gradient-tracking",
                                    {"tracker", "gradient"},
                                    1,
                                    .tracks = true},
    [DP_MIXER_EXACT_DIFFUSION] = {"exact-diffusion", {"adapted", NULL}, 0.5, .settles = true},
    [DP_MIXER_LOCAL_SGD] = {"local-sgd", {"anchor", "outer-momentum"}, 1, .settles = true},
};

const char *dp_mixer_algorithm_name(enum dp_mixer_algorithm algorithm)
{
    return (unsigned)algorithm < DP_MIXER_ALGORITHMS ? dp_mixer_methods[algorithm].name : NULL;
}

/* ---- what cannot be ---------------------------------------------------------------------------- */

static int check_local(const struct dp_mixer_config *c)
{
    const bool local = c->algorithm == DP_MIXER_LOCAL_SGD;

    if (local ? c->local_steps < 1 : c->local_steps != 0)
        return dp_fail(DP_EINVAL, "%s with %d local steps, expected %s",
                       dp_mixer_methods[c->algorithm].name, c->local_steps,
                       local ? "at least 1" : "0");
    if (local ? !(c->outer_rate > 0) || isinf(c->outer_rate) : c->outer_rate != 0)
        return dp_fail(DP_EINVAL, "%s with an outer rate of %g, expected %s",
                       dp_mixer_methods[c->algorithm].name, c->outer_rate,
                       local ? "a number above 0" : "0");
    if (local ? !(c->outer_momentum >= 0 && c->outer_momentum < 1) : c->outer_momentum != 0)
        return dp_fail(DP_EINVAL, "%s with an outer momentum of %g, expected %s",
                       dp_mixer_methods[c->algorithm].name, c->outer_momentum,
                       local ? "0 or more, below 1" : "0");
    return 0;
}

static int check_symmetric(const struct dp_graph *g)
{
    if (g->period != 1)
        return dp_fail(DP_EINVAL,
                       "exact-diffusion with mixing graph %s of %d rounds, expected one of a "
                       "single round, for instance complete or torus",
                       g->name, g->period);
    for (int32_t i = 0; i < g->workers; i++)
        for (int32_t j = 0; j < i; j++)
            if (fabs(dp_graph_weight(g, 0, i, j) - dp_graph_weight(g, 0, j, i)) > 1e-12)
                return dp_fail(DP_EINVAL,
                               "exact-diffusion with mixing graph %s, in which workers %d and "
                               "%d give each other %g and %g, expected the same",
                               g->name, i, j, dp_graph_weight(g, 0, j, i),
                               dp_graph_weight(g, 0, i, j));
    return 0;
}

static int check_types(const struct dp_mixer_config *c)
{
    for (int32_t i = 0; i < c->count; i++) {
        const struct dp_parameter *p = &c->parameters[i];
        if (p->flags & DP_PARAMETER_FROZEN)
            continue;
        if (p->value->dtype.bits < 32 || !p->grad || !dp_tensor_same_dtype(p->value, p->grad))
            return dp_fail(DP_EUNSUPPORTED,
                           "%s with parameter '%s', expected a value and a gradient of "
                           "float32 or float64, both the same",
                           dp_mixer_methods[c->algorithm].name, p->name);
    }
    return 0;
}

int dp_mixer_check_algorithm(const struct dp_mixer_config *c)
{
    if (!dp_mixer_algorithm_name(c->algorithm))
        return dp_fail(DP_EINVAL, "algorithm of mixing: %d, expected 0 to %d", (int)c->algorithm,
                       DP_MIXER_ALGORITHMS - 1);
    int err = check_local(c);
    if (err || c->algorithm == DP_MIXER_DPSGD)
        return err;
    if (c->compat || c->graph->push_sum)
        return dp_fail(DP_EINVAL, "%s %s, expected d-psgd", dp_mixer_methods[c->algorithm].name,
                       c->compat ? "with compat" : "over a graph of push-sum");
    if (c->algorithm == DP_MIXER_EXACT_DIFFUSION)
        err = check_symmetric(c->graph);
    return err ? err : check_types(c);
}

/* ---- what comes, of any algorithm ---------------------------------------------------------------- */

struct dp_mixer_weights dp_mixer_weights(struct dp_mixer *m, const struct dp_mixer_bucket *b,
                                         struct dp_exchange *x)
{
    const struct dp_graph *g = m->config.graph;
    const int32_t self = dp_comm_rank(m->config.comm);
    const double a = m->config.factor;
    const int64_t round = m->config.compat ? m->iterations : x->round;

    if (!b->pending || dp_exchange_is_alone(g, x->round, self))
        return (struct dp_mixer_weights){1, 0};
    if (dp_exchange_adds(x))
        return (struct dp_mixer_weights){1, a};
    double own = dp_exchange_self(g, round, self);
    if (dp_graph_group(g, x->round, self)) {
        own -= x->includes_self || m->config.compat ? dp_exchange_share(g, round, self) : 0;
        own += m->config.compat && !x->includes_self ? dp_exchange_share(g, x->round, self) : 0;
    }
    struct dp_mixer_weights w = {(1 - a) + a * own, a};
    if (g->push_sum) {
        const double before = x->sent_mass, after = (1 - a) * before + a * x->mass;
        w.keep *= before / after;
        w.take /= after;
        x->mass = after;
    }
    return w;
}

int dp_mixer_call_hook(struct dp_mixer *m, struct dp_mixer_bucket *b)
{
    const struct dp_mixer_config *c = &m->config;
    const int64_t round = c->compat ? m->iterations : b->exchange.round;

    if (!c->pre_average || !b->pending)
        return 0;
    return c->pre_average(c->user, &(struct dp_mixer_average_info){
                                       .bucket = (int32_t)(b - m->buckets),
                                       .round = round,
                                       .group = dp_graph_group(c->graph, round, dp_comm_rank(c->comm)),
                                       .parameters = b->numbers,
                                       .received = b->beside[b->exchange.now],
                                       .count = b->count,
                                   });
}

/* ---- pieces ------------------------------------------------------------------------------------ */

/* A parameter in the blocks of its bucket. */
struct piece {
    DLDataType type;
    size_t elements, bytes;
    char *value, *memory[2], *received, *tracked;
};

static char *at(char *block, size_t offset)
{
    return block ? block + offset : NULL;
}

static struct piece piece_of(const struct dp_mixer *m, const struct dp_mixer_bucket *b, int32_t i)
{
    const DLTensor *t = b->parameters[i].value;
    const size_t size = b->type.bits / 8, offset = (size_t)m->cut.offset[b->numbers[i]] * size;
    const size_t elements = (size_t)dp_tensor_numel(t);

    return (struct piece){b->type,
                          elements,
                          elements * size,
                          dp_tensor_address(t),
                          {at(b->memory[0], offset), at(b->memory[1], offset)},
                          at(b->exchange.block[b->exchange.now], offset),
                          at(b->tracker.block[b->tracker.now], offset)};
}

/* out = a x + b y */
static void sum(const struct piece *p, char *out, double a, const char *x, double b, const char *y)
{
    dp_combine(p->type, p->elements, out, (const void *const[]){x, y}, (const double[]){a, b}, 2);
}

static void scale(const struct piece *p, char *out, double a, const char *x)
{
    dp_combine(p->type, p->elements, out, (const void *const[]){x}, &a, 1);
}

int dp_mixer_make_memory(struct dp_mixer *m, struct dp_mixer_bucket *b)
{
    for (int k = 0; k < 2 && m->method->memory[k]; k++) {
        b->memory[k] = calloc(b->elements + 1, b->type.bits / 8);
        if (!b->memory[k])
            return dp_fail(DP_ENOMEM, "no memory for what %s keeps of %zu elements",
                           m->method->name, b->elements);
    }
    for (int32_t i = 0; i < b->count && m->method->settles; i++) {
        const struct piece p = piece_of(m, b, i);
        memcpy(p.memory[0], p.value, p.bytes);
    }
    return 0;
}

void dp_mixer_note_used(struct dp_mixer_bucket *b)
{
    b->pending = false;
    b->used++;
    dp_exchange_note_used(&b->exchange);
}

int dp_mixer_wait(struct dp_mixer_bucket *b)
{
    int err = dp_exchange_wait(&b->exchange);

    if (!err)
        err = dp_exchange_drain(&b->exchange);
    return err ? err : dp_exchange_wait(&b->tracker);
}

/* ---- gradient tracking ------------------------------------------------------------------------- */

/* y = W y + g - g', which becomes the gradient. An update that is skipped has g = g', and so has a
 * parameter without a gradient. */
static void track(const struct piece *p, char *grad, double factor, bool skip,
                  struct dp_mixer_weights w)
{
    char *y = p->memory[0], *before = p->memory[1];

    sum(p, y, w.keep, y, w.take, p->tracked);
    if (!skip) {
        sum(p, y, 1, y, -1, before);
        scale(p, before, factor, grad);
        sum(p, y, 1, y, 1, before);
    }
    memcpy(grad, y, p->bytes);
}

int dp_mixer_track(struct dp_mixer *m, struct dp_mixer_bucket *b, struct dp_mixer_sweep *sweep,
                   int64_t next)
{
    const double share = dp_exchange_share(m->config.graph, next, dp_comm_rank(m->config.comm));
    int err = dp_exchange_wait(&b->tracker);

    if (err)
        return err;
    const struct dp_mixer_weights w = dp_mixer_weights(m, b, &b->tracker);
    for (int32_t i = 0; i < b->count; i++) {
        const struct piece p = piece_of(m, b, i);
        track(&p, dp_tensor_address(b->parameters[i].grad), sweep->scale,
              sweep->skip || !b->present[i], w);
        scale(&p, p.tracked, share, p.memory[0]);
    }
    sweep->scale = 1;
    return 0;
}

/* ---- those that settle ------------------------------------------------------------------------- */

/* What came is used up, so that the block is free for x - p'. */
static int diffuse(struct dp_mixer *m, struct dp_mixer_bucket *b,
                   const struct dp_optimizer_step *step, double share)
{
    for (int32_t i = 0; i < b->count; i++) {
        const struct piece p = piece_of(m, b, i);
        sum(&p, p.received, 1, p.value, -1, p.memory[0]);
    }
    int err = dp_optimizer_step(b->optimizer, step);
    for (int32_t i = 0; i < b->count && !err; i++) {
        const struct piece p = piece_of(m, b, i);
        memcpy(p.memory[0], p.value, p.bytes);
        sum(&p, p.value, 1, p.value, 1, p.received);
        scale(&p, p.received, share, p.value);
    }
    return err;
}

static int step_locally(struct dp_mixer *m, struct dp_mixer_bucket *b,
                        const struct dp_optimizer_step *step, double share, bool send)
{
    int err = dp_optimizer_step(b->optimizer, step);

    for (int32_t i = 0; i < b->count && send && !err; i++) {
        const struct piece p = piece_of(m, b, i);
        scale(&p, p.received, share, p.value);
    }
    return err;
}

static void take_outer_step(const struct dp_mixer_config *c, const struct piece *p)
{
    char *anchor = p->memory[0], *momentum = p->memory[1];

    sum(p, momentum, c->outer_momentum, momentum, 1, anchor);
    sum(p, momentum, 1, momentum, -1, p->value);
    sum(p, anchor, 1, anchor, -c->outer_rate, momentum);
    memcpy(p->value, anchor, p->bytes);
}

static int settle(struct dp_mixer *m, struct dp_mixer_bucket *b)
{
    int err = dp_exchange_wait(&b->exchange);

    if (!err)
        err = dp_mixer_call_hook(m, b);
    if (err)
        return err;
    const struct dp_mixer_weights w = dp_mixer_weights(m, b, &b->exchange);
    for (int32_t i = 0; i < b->count; i++) {
        const struct piece p = piece_of(m, b, i);
        sum(&p, p.value, w.keep, p.value, w.take, p.received);
        if (m->config.algorithm == DP_MIXER_LOCAL_SGD)
            take_outer_step(&m->config, &p);
    }
    dp_mixer_note_used(b);
    return 0;
}

int dp_mixer_use(struct dp_mixer *m, struct dp_mixer_bucket *b)
{
    if (m->method->settles)
        return settle(m, b);
    int err = dp_mixer_call_hook(m, b);
    const struct dp_mixer_weights w = dp_mixer_weights(m, b, &b->exchange);
    const struct dp_optimizer_mix mix = {
        .keep = w.keep, .take = w.take, .buffers = b->beside[b->exchange.now]};
    if (!err)
        err = dp_optimizer_step(b->optimizer,
                                &(struct dp_optimizer_step){.scale = 1, .skip = true, .mix = &mix});
    if (!err)
        dp_mixer_note_used(b);
    return err;
}

/* The mean of y must be that of the last gradients, and p' is what x began with. */
void dp_mixer_restart_method(struct dp_mixer *m)
{
    for (int32_t i = 0; i < m->bucket_count; i++) {
        struct dp_mixer_bucket *b = &m->buckets[i];
        if (m->method->tracks)
            memcpy(b->memory[0], b->memory[1], b->elements * b->type.bits / 8);
        for (int32_t k = 0; k < b->count && m->config.algorithm == DP_MIXER_EXACT_DIFFUSION; k++) {
            const struct piece p = piece_of(m, b, k);
            memcpy(p.memory[0], p.value, p.bytes);
        }
    }
}

int dp_mixer_adapt(struct dp_mixer *m, struct dp_mixer_bucket *b,
                   const struct dp_mixer_sweep *sweep, int64_t *next, bool *send)
{
    const struct dp_optimizer_step step = {.rate = sweep->rate,
                                           .scale = sweep->scale,
                                           .skip = sweep->skip,
                                           .present = b->present,
                                           .zero_grads = true};
    const bool local = m->config.algorithm == DP_MIXER_LOCAL_SGD;

    *next = local ? b->updates / m->config.local_steps : b->updates;
    *send = !local || (b->updates + 1) % m->config.local_steps == 0;
    const double share = dp_exchange_share(m->config.graph, *next, dp_comm_rank(m->config.comm));
    int err = b->pending ? settle(m, b) : 0;
    if (err)
        return err;
    return local ? step_locally(m, b, &step, share, *send) : diffuse(m, b, &step, share);
}

int dp_mixer_settle(struct dp_mixer *m)
{
    int err = 0;

    for (int32_t i = 0; i < m->bucket_count && m->method->settles && !err; i++)
        if (m->buckets[i].pending)
            err = settle(m, &m->buckets[i]);
    return err;
}
