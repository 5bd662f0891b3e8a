/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.c - what layouts will take before one runs: layers are measured, and every schedule is carried
 * out by the simulator and measured by the pipeline's own plan.
 */
#include "trainer/measure.h"
#include "trainer/model_engine.h"
#include "trainer/place.h"
#include "trainer/trainer_state.h"

#include "base/fail.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- time ------------------------------------------------------------------------------------ */

/* What a slot's stage takes for a call. */
static double stage_ns(const struct dp_trainer *t, const struct stage_times *times, int stage,
                       int call)
{
    double ns = 0;

    for (int32_t l = t->first_layer[stage]; l < t->first_layer[stage + 1]; l++)
        ns += (double)times[l].ns[call];
    return ns;
}

static double stage_bytes(const struct dp_trainer *t, int stage)
{
    const int32_t *first = t->model.first;
    double bytes = 0;

    for (int32_t k = first[t->first_layer[stage]]; k < first[t->first_layer[stage + 1]]; k++)
        bytes += (double)t->model.parameters[k].bytes;
    return bytes;
}

static double op_ns(const struct dp_trainer *t, const struct stage_times *times,
                    const struct dp_trainer_machine *machine, enum dp_op_kind kind, int stage)
{
    switch (kind) {
    case DP_OP_F:
    case DP_OP_RECOMPUTE:
        return stage_ns(t, times, stage, STAGE_FORWARD);
    case DP_OP_B:
        return stage_ns(t, times, stage, STAGE_BACKWARD) + stage_ns(t, times, stage, STAGE_WEIGHT);
    case DP_OP_I:
        return stage_ns(t, times, stage, STAGE_BACKWARD);
    case DP_OP_W:
        return stage_ns(t, times, stage, STAGE_WEIGHT);
    case DP_OP_REDUCE:
        return machine->bytes_per_ns > 0 ? stage_bytes(t, stage) / machine->bytes_per_ns : 0;
    default:
        return 0;
    }
}

static void fill_ops(const struct dp_trainer *t, const struct stage_times *times,
                     const struct dp_trainer_machine *machine, int64_t *ns)
{
    const struct dp_schedule *s = t->training;

    for (int rank = 0; rank < s->ranks; rank++)
        for (size_t i = s->first[rank]; i < s->first[rank + 1]; i++) {
            const struct dp_op *op = &s->ops[i];
            double sum = op_ns(t, times, machine, (enum dp_op_kind)op->kind,
                               dp_schedule_slot(s, rank, (int)op->slot)->stage);
            if (op->overlap) /* a pair: its backward, too */
                sum += op_ns(t, times, machine, DP_OP_B,
                             dp_schedule_slot(s, rank, (int)op[1].slot)->stage);
            ns[i] = llround(sum);
        }
}

/* The largest border between stages. */
static double message_bytes(const struct dp_trainer *t)
{
    const int64_t rows = (t->config.rows + t->config.microbatches - 1) / t->config.microbatches;
    double most = 0;

    for (int i = 1; i < t->training->stages; i++) {
        struct dp_border b;
        double bytes = 0;
        model_border(t->model.layers[t->first_layer[i] - 1]->out, rows, &b);
        for (int k = 0; k < b.count; k++)
            bytes += (double)model_spec_bytes(&b.tensors[k]);
        most = bytes > most ? bytes : most;
    }
    return most;
}

static int predict_time(const struct dp_trainer *t, const struct stage_times *times,
                        const struct dp_trainer_machine *machine, struct dp_trainer_plan *out)
{
    const struct dp_schedule *s = t->training;
    int64_t *ns = calloc(s->first[s->ranks] + 1, sizeof(*ns));
    struct dp_simulation sim;
    int err = ns ? 0 : dp_fail(DP_ENOMEM, "no memory for the times of a schedule");

    if (!err)
        fill_ops(t, times, machine, ns);
    if (!err)
        err = dp_schedule_simulate(s,
                                   &(struct dp_cost){.op_ns = ns,
                                                     .link_latency_ns = machine->latency_ns,
                                                     .link_bytes_per_ns = machine->bytes_per_ns,
                                                     .message_bytes = message_bytes(t)},
                                   0, &sim);
    if (!err) {
        out->step_ns = sim.makespan_ns;
        out->bubble = sim.bubble_ratio;
        dp_simulation_fini(&sim);
    }
    free(ns);
    return err;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Values of the kind's state for each of a parameter. */
static size_t states_of(const struct dp_optimizer_config *c)
{
    switch (c->kind) {
    case DP_OPTIMIZER_SGD:
        return c->momentum > 0;
    case DP_OPTIMIZER_ADAM:
    case DP_OPTIMIZER_ADAMW:
        return 2;
    default:
        return 3;
    }
}

static int predict_rank(const struct dp_trainer *t, struct place *place, int rank, size_t *bytes)
{
    const struct model_engine_config config = {
        .how = &t->config,
        .model = &t->model,
        .training = t->training,
        .forward = t->forward,
        .first_layer = t->first_layer,
        .replica = {.count = t->config.replicas, .apart = t->graph},
        .place = place,
        .microbatches = t->config.microbatches,
        .order_blocks = t->own_blocks,
        .reduce = t->config.replicas > 1 ? &trainer_reduce_ops : NULL,
        .bare = true,
        .rank = rank};
    const int share =
        t->config.sums == DP_SUMS_SHARDS ? t->config.replicas * t->training->streams : 1;
    struct engine *e;
    size_t values;
    int err = model_engine_new(&config, &e);

    if (err)
        return err;
    err = model_engine_memory(e, &config, bytes, &values);
    if (!err)
        *bytes += states_of(&t->config.optimizer) * values / (size_t)share;
    e->ops->free(e);
    return err;
}

static int predict_memory(const struct dp_trainer *t, struct dp_trainer_plan *out)
{
    struct place *place;
    int err = place_new(NULL, NULL, false, &place);

    if (err)
        return err;
    for (int rank = 0; rank < t->config.schedule.ranks && !err; rank++) {
        size_t bytes = 0;
        err = predict_rank(t, place, rank, &bytes);
        out->bytes = bytes > out->bytes ? bytes : out->bytes;
    }
    place_free(place);
    return err;
}

/* ---- layouts --------------------------------------------------------------------------------- */

static int stages_of(const struct dp_trainer_config *c)
{
    const int v = c->schedule.virtual_stages ? c->schedule.virtual_stages : 2;

    switch (c->schedule.kind) {
    case DP_SCHEDULE_DUALPIPEV:
    case DP_SCHEDULE_ZBV:
        return 2 * c->schedule.ranks;
    case DP_SCHEDULE_INTERLEAVED:
        return v * c->schedule.ranks;
    default:
        return c->schedule.ranks;
    }
}

/* Those that the builders take (schedule.h). */
static bool can_be(const struct dp_trainer_config *c, int32_t layers)
{
    const int p = c->schedule.ranks, m = c->microbatches / c->replicas;
    const bool two_ways =
        c->schedule.kind == DP_SCHEDULE_DUALPIPE || c->schedule.kind == DP_SCHEDULE_DUALPIPEV;

    return c->microbatches % c->replicas == 0 && c->rows >= c->microbatches &&
           stages_of(c) <= layers && !(two_ways && m < 2 * p) &&
           !(c->schedule.kind == DP_SCHEDULE_DUALPIPE && (p % 2 || m % 2)) &&
           !(c->schedule.kind == DP_SCHEDULE_INTERLEAVED && m % p) &&
           !(c->fixed_order && c->replicas & (c->replicas - 1)) &&
           (p > 1 || c->schedule.kind == DP_SCHEDULE_GPIPE);
}

static int predict(const struct dp_trainer_config *config, const struct model_info *m,
                   const struct stage_times *times, const struct dp_trainer_machine *machine,
                   struct dp_trainer_plan *out)
{
    struct dp_trainer t = {.config = *config, .model = *m, .ranks = machine->ranks};
    int err = trainer_take_shape(&t);

    if (!err)
        err = trainer_lay_out(&t);
    *out = (struct dp_trainer_plan){.kind = t.config.schedule.kind,
                                    .ranks = t.config.schedule.ranks,
                                    .replicas = t.config.replicas,
                                    .microbatches = t.config.microbatches,
                                    .recompute = t.config.schedule.recompute};
    if (!err)
        err = predict_time(&t, times, machine, out);
    if (!err)
        err = predict_memory(&t, out);
    trainer_free_parts(&t);
    return err;
}

/* Within the budget before those that are not, the fastest first. */
static bool is_before(const struct dp_trainer_plan *a, const struct dp_trainer_plan *b,
                      size_t budget)
{
    const bool fits[] = {!budget || a->bytes <= budget, !budget || b->bytes <= budget};

    if (fits[0] != fits[1])
        return fits[0];
    return a->step_ns != b->step_ns ? a->step_ns < b->step_ns : a->bytes < b->bytes;
}

struct plans {
    struct dp_trainer_plan *list;
    int32_t room, count;
};

static void add_plan(struct plans *p, const struct dp_trainer_plan *plan, size_t budget)
{
    int32_t at = p->count < p->room ? p->count++ : p->room;

    for (; at > 0 && is_before(plan, &p->list[at - 1], budget); at--)
        if (at < p->room)
            p->list[at] = p->list[at - 1];
    if (at < p->room)
        p->list[at] = *plan;
}

static int try_all(const struct dp_trainer_config *config, const struct model_info *m,
                   const struct stage_times *times, const struct dp_trainer_machine *machine,
                   struct plans *plans)
{
    struct dp_trainer_config c = *config;
    const bool alone = machine->ranks == (c.replicas ? c.replicas : 1); /* P = 1 has no schedule */
    struct dp_trainer_plan plan;
    int err = 0;

    if (c.balance == DP_BALANCE_GIVEN && !(config->schedule.kind && config->replicas))
        c.balance = DP_BALANCE_COST; /* layouts differ in their stages */
    for (c.replicas = 1; c.replicas <= machine->ranks; c.replicas++)
        for (int kind = DP_SCHEDULE_GPIPE; kind < DP_SCHEDULE_ASYNC; kind++)
            for (int mode = 0; mode < DP_RECOMPUTES && !err; mode++) {
                c.schedule.kind = (enum dp_schedule_kind)kind;
                c.schedule.ranks = machine->ranks / c.replicas;
                c.schedule.recompute = (enum dp_recompute)mode;
                if ((config->replicas && config->replicas != c.replicas) ||
                    machine->ranks % c.replicas || !can_be(&c, m->model.layer_count) ||
                    (config->schedule.ranks && config->schedule.ranks != c.schedule.ranks) ||
                    (config->schedule.kind && !alone && kind != (int)config->schedule.kind))
                    continue;
                err = predict(&c, m, times, machine, &plan);
                if (!err)
                    add_plan(plans, &plan, machine->budget_bytes);
                else if (err == DP_EINVAL || err == DP_EUNSUPPORTED)
                    err = 0; /* there is no such layout */
            }
    return err;
}

static int cost_layers(struct model_info *m, const struct stage_times *times)
{
    m->costs = calloc((size_t)m->model.layer_count, sizeof(*m->costs));
    if (!m->costs)
        return dp_fail(DP_ENOMEM, "no memory for the costs of layers");
    costs_of_times(times, m->model.layer_count, m->costs);
    return 0;
}

int dp_trainer_plan(const struct dp_trainer_config *config, const struct dp_model *model,
                    const struct dp_trainer_machine *machine, struct dp_trainer_plan *out,
                    int32_t room, int32_t *count)
{
    struct plans plans = {.list = out, .room = room};
    struct model_info m = {0};
    struct stage_times *times = NULL;

    if (machine->ranks < 1 || room < 1 || config->microbatches < 1 ||
        config->rows < config->microbatches)
        return dp_fail(DP_EINVAL,
                       "ranks: %d, room: %d, microbatches: %d of rows: %lld, expected 1 or more, "
                       "and rows for all", machine->ranks, room, config->microbatches,
                       (long long)config->rows);
    int err = model_take(&m, model);
    if (!err)
        times = calloc((size_t)m.model.layer_count, sizeof(*times));
    if (!err && !times)
        err = dp_fail(DP_ENOMEM, "no memory for the times of %d layers", m.model.layer_count);
    if (!err)
        err = measure_layers(
            config, &m, (config->rows + config->microbatches - 1) / config->microbatches, times);
    if (!err && config->balance == DP_BALANCE_MEASURED)
        err = cost_layers(&m, times);
    if (!err)
        err = try_all(config, &m, times, machine, &plans);
    if (!err && !plans.count)
        err = dp_fail(DP_EINVAL, "no layout of %d ranks for %d micro-batches and %d layers",
                      machine->ranks, config->microbatches, m.model.layer_count);
    if (!err)
        *count = plans.count;
    free(times);
    model_fini(&m);
    return err;
}
