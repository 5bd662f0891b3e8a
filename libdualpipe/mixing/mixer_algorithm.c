/* SPDX-License-Identifier: Apache-2.0
 *
 * mixer_algorithm.c - with which weights a bucket takes what came, and local SGD beside D-PSGD. It
 * keeps two blocks, memory[]: x after the last round, and the outer momentum.
 */
#include "base/fail.h"
#include "base/internal.h"
#include "base/tensor.h"
#include "mixing/combine.h"
#include "mixing/internal.h"
#include "mixing/mixer_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STALENESS_MAX = 1024 };

static const char *const names[DP_MIXER_ALGORITHMS] = {"d-psgd", "local-sgd"};

const char *dp_mixer_algorithm_name(enum dp_mixer_algorithm algorithm)
{
    return (unsigned)algorithm < DP_MIXER_ALGORITHMS ? names[algorithm] : NULL;
}

/* ---- what cannot be ---------------------------------------------------------------------------- */

static int check_local(const struct dp_mixer_config *c)
{
    const bool local = c->algorithm == DP_MIXER_LOCAL_SGD;

    if (local ? c->local_steps < 1 : c->local_steps != 0)
        return dp_fail(DP_EINVAL, "%s with %d local steps, expected %s",
                       names[c->algorithm], c->local_steps,
                       local ? "at least 1" : "0");
    if (local ? !(c->outer_rate > 0) || isinf(c->outer_rate) : c->outer_rate != 0)
        return dp_fail(DP_EINVAL, "%s with an outer rate of %g, expected %s",
                       names[c->algorithm], c->outer_rate,
                       local ? "a number above 0" : "0");
    if (local ? !(c->outer_momentum >= 0 && c->outer_momentum < 1) : c->outer_momentum != 0)
        return dp_fail(DP_EINVAL, "%s with an outer momentum of %g, expected %s",
                       names[c->algorithm], c->outer_momentum,
                       local ? "0 or more, below 1" : "0");
    return 0;
}

static int check_types(const struct dp_mixer_config *c)
{
    for (int32_t i = 0; i < c->count; i++) {
        const struct dp_parameter *p = &c->parameters[i];
        if (p->flags & DP_PARAMETER_FROZEN)
            continue;
        if (c->compression && p->value->dtype.bits < 32)
            return dp_fail(DP_EUNSUPPORTED,
                           "compression int8 of parameter '%s', expected float32 or float64", p->name);
        if (c->algorithm && (p->value->dtype.bits < 32 || !p->grad ||
                             !dp_tensor_same_dtype(p->value, p->grad)))
            return dp_fail(DP_EUNSUPPORTED,
                           "%s with parameter '%s', expected a value and a gradient of "
                           "float32 or float64, both the same",
                           names[c->algorithm], p->name);
    }
    return 0;
}

/* What differences are defined for. */
static int check_differences(const struct dp_mixer_config *c, const char *what)
{
    if (c->algorithm != DP_MIXER_DPSGD)
        return dp_fail(DP_EINVAL, "%s with %s, expected d-psgd", what, names[c->algorithm]);
    if (c->graph->push_sum)
        return dp_fail(DP_EINVAL, "%s over mixing graph %s, expected one without push-sum", what,
                       c->graph->name);
    if (c->compat)
        return dp_fail(DP_EINVAL, "%s with compat, expected one of the two", what);
    return 0;
}

static int check_staleness(const struct dp_mixer_config *c)
{
    int32_t round, i, j;

    if (c->staleness < 0 || c->staleness > STALENESS_MAX)
        return dp_fail(DP_EINVAL, "staleness: %d rounds, expected 0 to %d", c->staleness,
                       STALENESS_MAX);
    int err = c->staleness ? check_differences(c, "staleness") : 0;
    if (err || !c->staleness)
        return err;
    if (c->compression)
        return dp_fail(DP_EINVAL, "staleness with compression int8, expected one of the two");
    if (dp_graph_is_symmetric(c->graph, &round, &i, &j))
        return 0;
    return dp_fail(DP_EINVAL,
                   "staleness over mixing graph %s, in which workers %d and %d give each other "
                   "%g and %g in round %d, expected the same",
                   c->graph->name, i, j, dp_graph_weight(c->graph, round, j, i),
                   dp_graph_weight(c->graph, round, i, j), round);
}

int dp_mixer_check_method(const struct dp_mixer_config *c)
{
    if (!dp_mixer_algorithm_name(c->algorithm))
        return dp_fail(DP_EINVAL, "algorithm of mixing: %d, expected 0 to %d", (int)c->algorithm,
                       DP_MIXER_ALGORITHMS - 1);
    if ((unsigned)c->compression > DP_COMPRESSION_INT8)
        return dp_fail(DP_EINVAL, "compression: %d, expected 0 or 1", (int)c->compression);
    int err = check_local(c);
    if (!err && c->algorithm && (c->compat || c->graph->push_sum))
        err = dp_fail(DP_EINVAL, "%s %s, expected d-psgd", names[c->algorithm],
                      c->compat ? "with compat" : "over a graph of push-sum");
    if (!err)
        err = check_staleness(c);
    if (!err && c->compression)
        err = check_differences(c, "compression int8");
    return err ? err : check_types(c);
}

/* ---- what comes, of any algorithm ---------------------------------------------------------------- */

struct dp_mixer_weights dp_mixer_weights(struct dp_mixer *m, struct dp_mixer_bucket *b)
{
    struct dp_exchange *x = &b->exchange;
    const struct dp_graph *g = m->config.graph;
    const int32_t self = dp_comm_rank(m->config.comm);
    const double a = m->config.compat ? m->config.factor : b->factor;
    const int64_t round = m->config.compat ? m->iterations : x->round;

    if (!b->pending || dp_round_is_alone(g, x->round, self))
        return (struct dp_mixer_weights){1, 0};
    if (dp_exchange_adds(x))
        return (struct dp_mixer_weights){1, a};
    double own = dp_round_self(g, round, self);
    if (dp_graph_group(g, x->round, self)) {
        own -= x->includes_self || m->config.compat ? dp_round_share(g, round, self) : 0;
        own += m->config.compat && !x->includes_self ? dp_round_share(g, x->round, self) : 0;
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

static int check_callback(const struct dp_mixer *m, const struct dp_mixer_bucket *b,
                          const char *name, int ret)
{
    const char *why = ret ? dp_callback_reason(ret) : "";

    return ret ? dp_fail_quietly(ret, "bucket %d: callback %s failed with %d (%s)%s%s",
                                 (int)(b - m->buckets), name, ret, dp_strerror(ret),
                                 *why ? ": " : "", why)
               : 0;
}

int dp_mixer_call_hook(struct dp_mixer *m, struct dp_mixer_bucket *b)
{
    const struct dp_mixer_config *c = &m->config;
    const int64_t round = c->compat ? m->iterations : b->exchange.round;

    if (!c->pre_average || !b->pending)
        return 0;
    const struct dp_mixer_average_info info = {
        .bucket = (int32_t)(b - m->buckets),
        .round = round,
        .group = dp_graph_group(c->graph, round, dp_comm_rank(c->comm)),
        .parameters = b->numbers,
        .received = b->beside[b->exchange.now],
        .count = b->count,
    };
    return check_callback(m, b, "pre_average", c->pre_average(c->user, &info));
}

/* ---- an update of the caller's ------------------------------------------------------------------ */

static void mix_values(struct dp_mixer_bucket *b, const struct dp_optimizer_mix *mix)
{
    for (int32_t i = 0; mix && i < b->count; i++) {
        const DLTensor *t = b->parameters[i].value;
        void *x = dp_tensor_address(t);
        dp_combine(t->dtype, (size_t)dp_tensor_numel(t), x, x, mix->keep, mix->buffers[i], mix->take);
    }
}

static void put_values(struct dp_mixer_bucket *b, const struct dp_optimizer_mix *mix)
{
    for (int32_t i = 0; mix && i < b->count; i++) {
        const DLTensor *t = b->parameters[i].value;
        dp_combine(t->dtype, (size_t)dp_tensor_numel(t), mix->buffers[i], dp_tensor_address(t),
                   mix->put, NULL, 0);
    }
}

static int scale_gradients(struct dp_mixer_bucket *b, const struct dp_optimizer_step *step)
{
    int err = 0;

    for (int32_t i = 0; step->scale != 1 && !step->skip && i < b->count && !err; i++)
        if (step->present[i])
            err = dp_gradients_scale(&b->parameters[i], 1, step->scale);
    return err;
}

/* What the optimizer does in one sweep. */
static int call_update(struct dp_mixer *m, struct dp_mixer_bucket *b,
                       const struct dp_optimizer_step *step)
{
    struct dp_mixer_update_info info = {.bucket = (int32_t)(b - m->buckets),
                                        .count = b->count,
                                        .parameters = b->numbers,
                                        .present = step->present,
                                        .rate = step->rate,
                                        .skip = step->skip};

    mix_values(b, step->mix);
    int err = scale_gradients(b, step);
    if (!err)
        err = check_callback(m, b, "update", m->config.update(m->config.user, &info));
    if (!err)
        put_values(b, step->mix);
    m->overflow = m->overflow || (info.skip && !step->skip);
    return err;
}

int dp_mixer_apply(struct dp_mixer *m, struct dp_mixer_bucket *b, struct dp_optimizer_step *step)
{
    return m->config.update ? call_update(m, b, step) : dp_optimizer_step(b->optimizer, step);
}

/* ---- local SGD --------------------------------------------------------------------------------- */

/* A parameter in the blocks of its bucket. */
struct piece {
    DLDataType type;
    size_t elements, bytes;
    char *value, *anchor, *momentum, *received;
};

static struct piece piece_of(const struct dp_mixer *m, const struct dp_mixer_bucket *b, int32_t i)
{
    const DLTensor *t = b->parameters[i].value;
    const size_t size = b->type.bits / 8, offset = (size_t)m->cut.offset[b->numbers[i]] * size;
    const size_t elements = (size_t)dp_tensor_numel(t);

    return (struct piece){b->type,
                          elements,
                          elements * size,
                          dp_tensor_address(t),
                          b->memory[0] + offset,
                          b->memory[1] + offset,
                          b->exchange.block[b->exchange.now] + offset};
}

/* out = a x + b y */
static void sum(const struct piece *p, char *out, double a, const char *x, double b, const char *y)
{
    dp_combine(p->type, p->elements, out, x, a, y, b);
}

int dp_mixer_make_memory(struct dp_mixer *m, struct dp_mixer_bucket *b)
{
    for (int k = 0; k < 2; k++) {
        b->memory[k] = calloc(b->elements + 1, b->type.bits / 8);
        if (!b->memory[k])
            return dp_fail(DP_ENOMEM, "no memory for what local-sgd keeps of %zu elements",
                           b->elements);
    }
    for (int32_t i = 0; i < b->count; i++) {
        const struct piece p = piece_of(m, b, i);
        memcpy(p.anchor, p.value, p.bytes);
    }
    return 0;
}

static void take_outer_step(const struct dp_mixer_config *c, const struct piece *p)
{
    sum(p, p->momentum, c->outer_momentum, p->momentum, 1, p->anchor);
    sum(p, p->momentum, 1, p->momentum, -1, p->value);
    sum(p, p->anchor, 1, p->anchor, -c->outer_rate, p->momentum);
    memcpy(p->value, p->anchor, p->bytes);
}

static int settle(struct dp_mixer *m, struct dp_mixer_bucket *b)
{
    int err = dp_exchange_wait(&b->exchange);

    if (!err)
        err = dp_mixer_call_hook(m, b);
    if (err)
        return err;
    const struct dp_mixer_weights w = dp_mixer_weights(m, b);
    for (int32_t i = 0; i < b->count; i++) {
        const struct piece p = piece_of(m, b, i);
        sum(&p, p.value, w.keep, p.value, w.take, p.received);
        take_outer_step(&m->config, &p);
    }
    dp_mixer_note_used(b);
    return 0;
}

int dp_mixer_settle(struct dp_mixer *m)
{
    int err = 0;

    for (int32_t i = 0; i < m->bucket_count && dp_mixer_is_local(m) && !err; i++)
        if (m->buckets[i].pending)
            err = settle(m, &m->buckets[i]);
    return err;
}

int dp_mixer_update_locally(struct dp_mixer *m, struct dp_mixer_bucket *b,
                            struct dp_optimizer_step *step, int64_t *round, bool *send)
{
    *round = b->updates / m->config.local_steps;
    *send = (b->updates + 1) % m->config.local_steps == 0;
    const double share = dp_round_share(m->config.graph, *round, dp_comm_rank(m->config.comm));
    int err = b->pending ? settle(m, b) : 0;

    if (!err)
        err = dp_mixer_apply(m, b, step);
    for (int32_t i = 0; i < b->count && *send && !err; i++) {
        const struct piece p = piece_of(m, b, i);
        dp_combine(p.type, p.elements, p.received, p.value, share, NULL, 0);
    }
    return err;
}

/* ---- what came, without an update --------------------------------------------------------------- */

void dp_mixer_note_used(struct dp_mixer_bucket *b)
{
    b->pending = false;
    b->used++;
    dp_exchange_note_used(&b->exchange);
}

int dp_mixer_wait(struct dp_mixer_bucket *b)
{
    int err = dp_exchange_wait(&b->exchange);

    return err ? err : dp_exchange_drain(&b->exchange);
}

int dp_mixer_use(struct dp_mixer *m, struct dp_mixer_bucket *b)
{
    if (dp_mixer_is_local(m))
        return settle(m, b);
    int err = dp_mixer_call_hook(m, b);
    const struct dp_mixer_weights w = dp_mixer_weights(m, b);
    const struct dp_optimizer_mix mix = {
        .keep = w.keep, .take = w.take, .buffers = b->beside[b->exchange.now]};
    struct dp_optimizer_step step = {.scale = 1, .skip = true, .mix = &mix};
    if (!err && m->config.update)
        mix_values(b, &mix);
    else if (!err)
        err = dp_optimizer_step(b->optimizer, &step);
    if (!err)
        dp_mixer_note_used(b);
    return err;
}
