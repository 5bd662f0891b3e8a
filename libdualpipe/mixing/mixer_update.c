/* SPDX-License-Identifier: Apache-2.0
 *
 * mixer_update.c - an iteration: gradients come in, buckets are mixed, updated and sent. Local SGD
 * keeps two blocks of a bucket, memory[]: x after the last round, and the outer momentum.
 */
#include "base/fail.h"
#include "base/internal.h"
#include "base/tensor.h"
#include "mixing/combine.h"
#include "mixing/internal.h"
#include "mixing/mixer_state.h"
#include "optimizer/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* torch's clip_grad_norm_ */
#define CLIP_EPSILON 1e-6

/* ---- what comes, of any algorithm ---------------------------------------------------------------- */

/* A worker's own value and what came are multiplied with these. */
struct weights {
    double keep, take;
};

static struct weights find_weights(struct dp_mixer *m, struct dp_mixer_bucket *b)
{
    struct dp_exchange *x = &b->exchange;
    const struct dp_graph *g = m->config.graph;
    const int32_t self = dp_comm_rank(m->config.comm);
    const double a = m->config.compat ? m->config.factor : b->factor;
    const int64_t round = m->config.compat ? m->iterations : x->round;

    if (!b->pending || dp_round_is_alone(g, x->round, self))
        return (struct weights){1, 0};
    if (dp_exchange_adds(x))
        return (struct weights){1, a};
    double own = dp_round_self(g, round, self);
    if (dp_graph_group(g, x->round, self)) {
        own -= x->includes_self || m->config.compat ? dp_round_share(g, round, self) : 0;
        own += m->config.compat && !x->includes_self ? dp_round_share(g, x->round, self) : 0;
    }
    struct weights w = {(1 - a) + a * own, a};
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

static int call_hook(struct dp_mixer *m, struct dp_mixer_bucket *b)
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

/* An update, mixing included, by the bucket's optimizer or the caller's. */
static int apply(struct dp_mixer *m, struct dp_mixer_bucket *b, struct dp_optimizer_step *step)
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

static void take_outer_step(const struct dp_mixer_config *c, const struct piece *p)
{
    sum(p, p->momentum, c->outer_momentum, p->momentum, 1, p->anchor);
    sum(p, p->momentum, 1, p->momentum, -1, p->value);
    sum(p, p->anchor, 1, p->anchor, -c->outer_rate, p->momentum);
    memcpy(p->value, p->anchor, p->bytes);
}

static int settle_bucket(struct dp_mixer *m, struct dp_mixer_bucket *b)
{
    int err = dp_exchange_wait(&b->exchange);

    if (!err)
        err = call_hook(m, b);
    if (err)
        return err;
    const struct weights w = find_weights(m, b);
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
            err = settle_bucket(m, &m->buckets[i]);
    return err;
}

/* An update; *send: an exchange begins with it, in *round. */
static int update_locally(struct dp_mixer *m, struct dp_mixer_bucket *b,
                            struct dp_optimizer_step *step, int64_t *round, bool *send)
{
    *round = b->updates / m->config.local_steps;
    *send = (b->updates + 1) % m->config.local_steps == 0;
    const double share = dp_round_share(m->config.graph, *round, dp_comm_rank(m->config.comm));
    int err = b->pending ? settle_bucket(m, b) : 0;

    if (!err)
        err = apply(m, b, step);
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

int dp_mixer_use(struct dp_mixer *m, struct dp_mixer_bucket *b)
{
    if (dp_mixer_is_local(m))
        return settle_bucket(m, b);
    int err = call_hook(m, b);
    const struct weights w = find_weights(m, b);
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

/* ---- tied parameters --------------------------------------------------------------------------- */

static void *grad_of(const struct dp_mixer *m, int32_t i)
{
    return dp_tensor_address(m->parameters[i].grad);
}

/* A leader's gradient becomes the sum of its group's, and the others zero. */
static void gather_tied_grads(struct dp_mixer *m, int32_t leader)
{
    const DLTensor *sum = m->parameters[leader].grad;
    const size_t elements = (size_t)dp_tensor_numel(sum);

    for (int32_t i = leader + 1; m->members[leader] > 1 && i < m->config.count; i++) {
        void *to = grad_of(m, leader);
        if (m->leader[i] != leader || grad_of(m, i) == to)
            continue;
        dp_combine(sum->dtype, elements, to, to, 1, grad_of(m, i), 1);
        memset(grad_of(m, i), 0, elements * sum->dtype.bits / 8);
    }
}

void dp_mixer_spread_tied(struct dp_mixer *m)
{
    for (int32_t i = 0; i < m->config.count; i++) {
        const int32_t leader = m->leader[i];
        if (leader < 0 || leader == i)
            continue;
        DLTensor *t = m->parameters[i].value;
        const void *from = dp_tensor_address(m->parameters[leader].value);
        if (dp_tensor_address(t) != from)
            memcpy(dp_tensor_address(t), from,
                   (size_t)dp_tensor_numel(t) * dp_tensor_element_bytes(t));
    }
}

/* ---- one bucket -------------------------------------------------------------------------------- */

/* The seed goes 1, 3, 4, 5, ... */
static int64_t next_round(const struct dp_mixer *m, const struct dp_mixer_bucket *b)
{
    if (!m->config.compat)
        return b->updates;
    return b->updates ? m->iterations + 1 : 1;
}

static double rate_of(const struct dp_mixer *m, const struct dp_mixer_bucket *b)
{
    if (m->has_update)
        return m->set.rate;
    return m->config.schedule ? dp_rate_at(&m->schedule, b->updates) : m->config.rate;
}

static int update(struct dp_mixer *m, struct dp_mixer_bucket *b, int64_t next,
                  struct dp_optimizer_step *step)
{
    const bool uses = b->pending;
    const struct dp_graph *g = m->config.graph;
    struct dp_exchange *x = &b->exchange;
    const int32_t self = dp_comm_rank(m->config.comm);
    const struct weights w = find_weights(m, b);
    const double mass = g->push_sum ? x->mass : 1;
    const struct dp_optimizer_mix mix = {
        .keep = w.keep,
        .take = w.take,
        .put = dp_exchange_adds(x) ? 1 : dp_round_share(g, next, self) * mass,
        .buffers = b->beside[x->now],
    };

    step->rate /= mass;
    step->mix = &mix;
    int err = apply(m, b, step);
    if (uses && !err)
        dp_mixer_note_used(b);
    return err;
}

/* Number of this exchange: the same on both sides, and told apart from all others of a while. */
static uint64_t tag_of(const struct dp_mixer *m, const struct dp_mixer_bucket *b)
{
    return (uint64_t)(b - m->buckets) << 40 | ((uint64_t)b->updates & 0xffffffffff);
}

/* Whether the bucket goes on without what is in flight: its neighbors are late, and not too late. */
static int await_or_pass(struct dp_mixer *m, struct dp_mixer_bucket *b, bool *late)
{
    const int64_t ahead = b->updates - b->exchange.round;
    int err = DP_EAGAIN;

    *late = false;
    if (b->exchange.stale && ahead <= m->config.staleness)
        err = dp_exchange_test(&b->exchange);
    else
        return dp_exchange_wait(&b->exchange);
    *late = err == DP_EAGAIN;
    return *late ? 0 : err;
}

/* It is sent by dp_mixer_step, behind an update that the caller queues meanwhile. */
static int mix_on_device(struct dp_mixer *m, struct dp_mixer_bucket *b, struct dp_optimizer_step *step)
{
    int err = dp_mixer_device_mix(m->on_device, m->config.compat ? m->config.factor : b->factor);

    return err || !m->config.update ? err : apply(m, b, step);
}

/* Mix, update and write what goes next; or leave the mixing for later, with nothing to *send. */
static int mix_and_update(struct dp_mixer *m, struct dp_mixer_bucket *b,
                          struct dp_optimizer_step *step, int64_t next, bool *send)
{
    bool late;
    if (m->on_device) {
        *send = false;
        return mix_on_device(m, b, step);
    }
    int err = await_or_pass(m, b, &late);
    if (!err && late) {
        *send = false;
        return apply(m, b, step);
    }
    if (!err)
        err = call_hook(m, b);
    return err ? err : update(m, b, next, step);
}

static int process(struct dp_mixer *m, struct dp_mixer_bucket *b, double scale, bool skip)
{
    struct dp_optimizer_step step = {.rate = rate_of(m, b),
                                     .scale = scale * (m->has_update ? m->set.scale : 1),
                                     .skip = skip || (m->has_update && m->set.skip),
                                     .present = b->present,
                                     .zero_grads = true};
    int64_t round = next_round(m, b);
    bool send = true;
    int err = dp_mixer_is_local(m) ? update_locally(m, b, &step, &round, &send)
                                   : mix_and_update(m, b, &step, round, &send);

    if (err)
        return err;
    b->updates++;
    if (!send && b->exchange.stale)
        return dp_exchange_pass(&b->exchange, round, tag_of(m, b));
    if (!send)
        return 0;
    b->pending = true;
    b->factor = m->config.factor;
    return dp_exchange_start(&b->exchange, round, tag_of(m, b));
}

/* ---- gradients --------------------------------------------------------------------------------- */

/* What came since the bucket's last update is part of this one. */
static void take_given(struct dp_mixer *m, struct dp_mixer_bucket *b)
{
    for (int32_t i = 0; i < b->count; i++) {
        b->present[i] = m->given[b->numbers[i]];
        m->given[b->numbers[i]] = false;
    }
}

static int sum_squares(struct dp_mixer *m, struct dp_mixer_bucket *b, double *sum)
{
    int err = dp_gradient_squares(b->parameters, b->count, m->squares);

    if (!err)
        *sum += dp_gradient_sum(b->parameters, b->count, b->present, m->squares);
    return err;
}

/* What gradients of this sum of squares, loss scale included, are multiplied with. */
static double scale_of(const struct dp_mixer *m, double squares)
{
    const double loss_scale = m->config.loss_scale ? m->loss_scale.scale : 1;

    return dp_clip_factor(sqrt(squares) / loss_scale, m->config.clip_norm, CLIP_EPSILON) / loss_scale;
}

/* As the seed does: a bucket by itself. */
static int process_alone(struct dp_mixer *m, struct dp_mixer_bucket *b)
{
    const bool scaled = m->config.loss_scale;
    double squares = 0;

    take_given(m, b);
    int err = scaled || m->config.clip_norm > 0 ? sum_squares(m, b, &squares) : 0;
    const bool skip = scaled && !isfinite(squares);

    m->overflow = m->overflow || skip;
    if (!err)
        err = process(m, b, skip ? 1 : scale_of(m, squares), skip);
    if (!err && scaled && b == &m->buckets[m->bucket_count - 1]) {
        dp_loss_scale_update(&m->loss_scale, m->overflow);
        m->overflow = false;
    }
    return err;
}

/* Whether a worker has an overflow. */
static int agree_on_overflow(struct dp_mixer *m, bool *overflow)
{
    const int size = dp_comm_size(m->config.comm);
    const char mine = *overflow;
    int err = dp_comm_allgather(m->config.comm, &mine, m->flags, 1);

    for (int i = 0; i < size && !err; i++)
        *overflow = *overflow || m->flags[i];
    return err;
}

/* All buckets with one factor. */
static int process_together(struct dp_mixer *m)
{
    const bool global = m->config.clip == DP_CLIP_GLOBAL, scaled = m->config.loss_scale;
    double all = 0;
    bool overflow;
    int err = 0;

    for (int32_t i = 0; i < m->bucket_count && !err; i++) {
        take_given(m, &m->buckets[i]);
        err = sum_squares(m, &m->buckets[i], &all);
    }
    overflow = scaled && !isfinite(all);
    if (!err && scaled)
        err = agree_on_overflow(m, &overflow);
    for (; m->next < m->bucket_count && !err; m->next++) {
        double squares = global ? all : 0;
        if (!global && m->config.clip_norm > 0)
            err = sum_squares(m, &m->buckets[m->next], &squares);
        if (!err)
            err = process(m, &m->buckets[m->next], overflow ? 1 : scale_of(m, squares), overflow);
    }
    if (!err && scaled)
        dp_loss_scale_update(&m->loss_scale, overflow || m->overflow);
    m->overflow = false;
    return err;
}

/* Whether updates must wait until all gradients are known. */
static bool waits_for_all(const struct dp_mixer *m)
{
    return (m->config.clip_norm > 0 && m->config.clip == DP_CLIP_GLOBAL) ||
           (m->config.loss_scale && !m->config.compat);
}

/* In order, so that exchanges are the same ones on both sides; complete ones, or all. */
static int process_buckets(struct dp_mixer *m, bool all)
{
    int err = 0;

    if (waits_for_all(m))
        return all ? process_together(m) : 0;
    while (!err && m->next < m->bucket_count) {
        struct dp_mixer_bucket *b = &m->buckets[m->next];
        if (!all && b->came < b->count)
            break;
        m->next++;
        err = process_alone(m, b);
    }
    return err;
}

/* ---- iterations -------------------------------------------------------------------------------- */

void dp_mixer_begin_iteration(struct dp_mixer *m)
{
    memset(m->ready, 0, (size_t)m->config.count * sizeof(*m->ready));
    memset(m->came, 0, (size_t)m->config.count * sizeof(*m->came));
    for (int32_t i = 0; i < m->bucket_count; i++)
        m->buckets[i].came = 0;
    m->next = 0;
}

/* With tied groups of which only some members have a gradient. */
static int finish_updates(struct dp_mixer *m)
{
    for (int32_t i = 0; i < m->config.count; i++)
        if (m->given[i])
            gather_tied_grads(m, i);
    int err = process_buckets(m, true);

    dp_mixer_spread_tied(m);
    if (err || !m->on_device || !m->bucket_count)
        return err;
    m->buckets->factor = m->config.factor;
    return dp_mixer_device_send(m->on_device);
}

static int settle(struct dp_mixer *m)
{
    int err = dp_mixer_settle(m);

    dp_mixer_spread_tied(m);
    return err;
}

static void take_average(struct dp_mixer *m)
{
    for (int32_t i = 0; m->averaged && i < m->bucket_count; i++)
        dp_optimizer_read_values(m->buckets[i].optimizer);
    m->averaged = false;
}

int dp_mixer_forward(struct dp_mixer *m, bool training)
{
    int err = 0;

    if (m->iterations == 1 && !m->started) {
        err = dp_mixer_start(m);
        if (!err)
            err = dp_mixer_leave(m, finish_updates(m));
    }
    if (m->on_device)
        err = dp_mixer_leave(m, dp_mixer_device_wait(m->on_device));
    if (!err && dp_mixer_is_local(m))
        err = dp_mixer_leave(m, settle(m));
    if (err)
        return err;
    if (training && !m->accumulating)
        m->iterations++;
    if (training)
        m->open = true;
    dp_mixer_begin_iteration(m);
    dp_comm_progress_start(m->config.comm);
    return 0;
}

static int check_ready(const struct dp_mixer *m, int32_t i)
{
    if (i < 0 || i >= m->config.count)
        return dp_fail(DP_EINVAL, "gradient of parameter %d, expected 0 to %d", i, m->config.count - 1);
    if (m->leader[i] < 0)
        return dp_fail(DP_EINVAL, "gradient of parameter '%s', which is frozen, expected none",
                       m->parameters[i].name);
    if (m->ready[i])
        return dp_fail(DP_EUNSUPPORTED, "the gradient of parameter '%s' was complete already in this "
                       "iteration: a parameter that is used twice is called ready after its last use",
                       m->parameters[i].name);
    return 0;
}

int dp_mixer_ready(struct dp_mixer *m, int32_t parameter)
{
    int err = check_ready(m, parameter);

    if (err)
        return dp_mixer_leave(m, err);
    const int32_t leader = m->leader[parameter];
    m->ready[parameter] = m->given[leader] = m->any_given = true;
    if (++m->came[leader] < m->members[leader] || m->accumulating)
        return 0;
    if (!m->started) {
        m->trace[m->traced++] = leader;
        return 0;
    }
    if (m->cut.bucket_of[leader] < 0)
        return 0;
    gather_tied_grads(m, leader);
    take_average(m);
    m->buckets[m->cut.bucket_of[leader]].came++;
    err = dp_mixer_leave(m, process_buckets(m, false));
    if (!err)
        dp_comm_progress_start(m->config.comm);
    return err;
}

/* Those that came while accumulating only, or in part, are last in the trace. */
static void complete_trace(struct dp_mixer *m)
{
    for (int32_t i = 0; i < m->config.count; i++)
        if (m->given[i] && m->came[i] < m->members[i])
            m->trace[m->traced++] = i;
}

static bool has_parameters(const struct dp_mixer *m)
{
    bool any = false;

    for (int32_t i = 0; i < m->config.count; i++)
        any = any || m->leader[i] >= 0;
    return any;
}

static int check_step(const struct dp_mixer *m)
{
    if (!m->open)
        return dp_fail(DP_ESTATE, "a step without a forward before");
    if (!m->accumulating && !m->any_given && has_parameters(m))
        return dp_fail(DP_ESTATE, "a step to which no gradient came, expected dp_mixer_ready for each "
                       "parameter whose gradient is complete");
    return 0;
}

int dp_mixer_step(struct dp_mixer *m)
{
    int err = check_step(m);

    if (err)
        return dp_mixer_leave(m, err);
    m->open = false;
    if (!m->accumulating) {
        m->any_given = false;
        if (m->started)
            take_average(m);
        else
            complete_trace(m);
    }
    if (m->started && !m->accumulating)
        err = dp_mixer_leave(m, finish_updates(m));
    if (!err)
        dp_comm_progress_start(m->config.comm);
    return err;
}

int dp_mixer_set_update(struct dp_mixer *m, const struct dp_mixer_update *update)
{
    if (!isfinite(update->rate) || !isfinite(update->scale))
        return dp_mixer_leave(m, dp_fail(DP_EINVAL,
                                         "update of a mixer: rate %g, scale of gradients %g, "
                                         "expected numbers",
                                         update->rate, update->scale));
    m->set = *update;
    m->has_update = true;
    return 0;
}

int dp_mixer_accumulate(struct dp_mixer *m, bool on)
{
    m->accumulating = on;
    return 0;
}
