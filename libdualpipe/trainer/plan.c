/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.c - what layouts will take before one runs: layers are measured, and every schedule is carried
 * out by the simulator and measured by the pipeline's own plan.
 */
#include "trainer/batch.h"
#include "trainer/measure.h"
#include "trainer/model_engine.h"
#include "trainer/place.h"
#include "trainer/trainer_state.h"

#include "base/fail.h"
#include "base/sized.h"
#include "schedule/build.h"

#include <math.h>
#include <stdlib.h>

/* What is the same for all layouts. */
struct planner {
    const struct dp_trainer_config *config;
    const struct dp_trainer_machine *machine;
    const struct model_info *model;
    struct stage_times *times; /* [layers + 1] */
    struct place *place;       /* the host, as nothing of a layout is made */
    struct dp_trainer_plan *list;
    int32_t count;
};

/* ---- time ------------------------------------------------------------------------------------ */

/* What a stage takes for a call. */
static double stage_ns(const struct dp_trainer *t, const struct planner *p, int stage, int call)
{
    double ns = 0;

    for (int32_t l = t->first_layer[stage]; l < t->first_layer[stage + 1]; l++)
        ns += (double)p->times[l].ns[call];
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

static double op_ns(const struct dp_trainer *t, const struct planner *p, enum dp_op_kind kind,
                    int stage)
{
    switch (kind) {
    case DP_OP_F:
    case DP_OP_RECOMPUTE:
        return stage_ns(t, p, stage, STAGE_FORWARD);
    case DP_OP_B:
        return stage_ns(t, p, stage, STAGE_BACKWARD) + stage_ns(t, p, stage, STAGE_WEIGHT);
    case DP_OP_I:
        return stage_ns(t, p, stage, STAGE_BACKWARD);
    case DP_OP_W:
        return stage_ns(t, p, stage, STAGE_WEIGHT);
    case DP_OP_REDUCE:
        return p->machine->bytes_per_ns > 0 ? stage_bytes(t, stage) / p->machine->bytes_per_ns : 0;
    default:
        return 0;
    }
}

static void fill_ops(const struct dp_trainer *t, const struct planner *p, int64_t *ns)
{
    const struct dp_schedule *s = t->training;

    for (int rank = 0; rank < s->ranks; rank++)
        for (size_t i = s->first[rank]; i < s->first[rank + 1]; i++) {
            const struct dp_op *op = &s->ops[i];
            double sum = op_ns(t, p, (enum dp_op_kind)op->kind,
                               dp_schedule_slot(s, rank, (int)op->slot)->stage);
            if (op->flags & DP_OP_OVERLAP) /* a pair: its backward, too */
                sum += op_ns(t, p, DP_OP_B, dp_schedule_slot(s, rank, (int)op[1].slot)->stage);
            ns[i] = llround(sum);
        }
}

/* After the pipeline: norms until all ranks have theirs, of the first copy of a stage; then updates, and
 * the slowest rank's lets the next step begin. */
static double update_ns(const struct dp_trainer *t, const struct planner *p)
{
    const struct dp_schedule *s = t->training;
    double norm_ns = 0, most_ns = 0;

    for (int rank = 0; rank < s->ranks; rank++) {
        double norms = 0, updates = 0;
        for (int i = 0; i < dp_schedule_slot_count(s, rank); i++) {
            const struct dp_slot *slot = dp_schedule_slot(s, rank, i);
            norms += slot->stream > 0 ? 0 : stage_ns(t, p, slot->stage, STAGE_NORM);
            updates += stage_ns(t, p, slot->stage, STAGE_UPDATE);
        }
        norm_ns = fmax(norm_ns, norms);
        most_ns = fmax(most_ns, updates);
    }
    return norm_ns + most_ns;
}

/* The largest border between stages. */
static double message_bytes(const struct dp_trainer *t)
{
    const int64_t rows = batch_rows(t->config.rows, t->config.microbatches, 0);
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

/* saved: bytes of a micro-batch in a stage. */
static int predict_time(const struct dp_trainer *t, const struct planner *p, size_t saved,
                        struct dp_trainer_plan *out)
{
    const struct dp_schedule *s = t->training;
    const double host = p->machine->host_bytes_per_ns, copy_ns = host > 0 ? (double)saved / host : 0;
    int64_t *ns = calloc(s->first[s->ranks] + 1, sizeof(*ns));
    struct dp_simulation sim;
    int err = ns ? 0 : dp_fail(DP_ENOMEM, "no memory for the times of a schedule");

    if (!err)
        fill_ops(t, p, ns);
    if (!err)
        err = dp_schedule_simulate(s,
                                   &(struct dp_cost){.op_ns = ns,
                                                     .evict_ns = copy_ns,
                                                     .fetch_ns = copy_ns,
                                                     .link_latency_ns = p->machine->latency_ns,
                                                     .link_bytes_per_ns = p->machine->bytes_per_ns,
                                                     .message_bytes = message_bytes(t)},
                                   0, &sim);
    if (!err) {
        out->step_ns = sim.makespan_ns + llround(update_ns(t, p));
        out->bubble = sim.bubble_ratio;
        dp_simulation_fini(&sim);
    }
    free(ns);
    return err;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static int predict_memory(struct dp_trainer *t, struct dp_trainer_plan *out, size_t *saved)
{
    int err = 0;

    out->rank_bytes = calloc((size_t)out->ranks, sizeof(*out->rank_bytes));
    if (!out->rank_bytes)
        return dp_fail(DP_ENOMEM, "no memory for the bytes of %d ranks", out->ranks);
    for (int rank = 0; rank < out->ranks && !err; rank++) {
        err = trainer_rank_memory(t, rank, &out->rank_bytes[rank], saved);
        out->bytes = out->rank_bytes[rank] > out->bytes ? out->rank_bytes[rank] : out->bytes;
    }
    return err;
}

static int note_cut(const struct dp_trainer *t, struct dp_trainer_plan *out)
{
    out->stages = t->training->stages;
    out->layers_of_stage = calloc((size_t)out->stages, sizeof(*out->layers_of_stage));
    if (!out->layers_of_stage)
        return dp_fail(DP_ENOMEM, "no memory for the cut of %d stages", out->stages);
    for (int32_t i = 0; i < out->stages; i++)
        out->layers_of_stage[i] = t->first_layer[i + 1] - t->first_layer[i];
    return 0;
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

static bool is_two_way(int kind)
{
    return kind == DP_SCHEDULE_DUALPIPE || kind == DP_SCHEDULE_DUALPIPEV;
}

/* Those that the builders take (schedule.h). */
static bool can_be(const struct dp_trainer_config *c, int32_t layers)
{
    const int p = c->schedule.ranks, m = c->microbatches / c->replicas;

    return c->microbatches % c->replicas == 0 && c->rows >= c->microbatches &&
           stages_of(c) <= layers && !(is_two_way(c->schedule.kind) && m < 2 * p) &&
           !(c->schedule.kind == DP_SCHEDULE_DUALPIPE && (p % 2 || m % 2)) &&
           !(c->schedule.kind == DP_SCHEDULE_INTERLEAVED && m % p) &&
           !(c->fixed_order && c->replicas & (c->replicas - 1)) &&
           (p > 1 || c->schedule.kind == DP_SCHEDULE_GPIPE);
}

static void forget(struct dp_trainer_plan *plan)
{
    free(plan->layers_of_stage);
    free(plan->rank_bytes);
}

static int predict(const struct planner *p, const struct dp_trainer_config *config,
                   struct dp_trainer_plan *out)
{
    struct dp_trainer t = {.config = *config, .model = *p->model, .ranks = p->machine->ranks,
                           .place = p->place, .home = p->place};
    size_t saved = 0;
    int err = trainer_take_shape(&t);

    if (!err)
        err = trainer_lay_out(&t);
    *out = (struct dp_trainer_plan){.kind = t.config.schedule.kind,
                                    .ranks = t.config.schedule.ranks,
                                    .replicas = t.config.replicas,
                                    .microbatches = t.config.microbatches,
                                    .slack = t.config.schedule.slack,
                                    .recompute = t.config.schedule.recompute,
                                    .offload = t.config.offload.activations};
    if (!err && out->offload && !dp_schedule_has(t.training, DP_OP_EVICT) &&
        !dp_schedule_has(t.training, DP_OP_RECOMPUTE))
        err = DP_EINVAL; /* the same without it */
    if (!err)
        err = note_cut(&t, out);
    if (!err)
        err = predict_memory(&t, out, &saved);
    if (!err)
        err = predict_time(&t, p, saved, out);
    trainer_free_parts(&t);
    if (err)
        forget(out);
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

static int add_plan(struct planner *p, const struct dp_trainer_plan *plan)
{
    struct dp_trainer_plan *list = realloc(p->list, ((size_t)p->count + 1) * sizeof(*list));
    int32_t at = p->count;

    if (!list)
        return dp_fail(DP_ENOMEM, "no memory for %d plans", p->count + 1);
    for (; at > 0 && is_before(plan, &list[at - 1], p->machine->budget_bytes); at--)
        list[at] = list[at - 1];
    list[at] = *plan;
    p->list = list;
    p->count++;
    return 0;
}

/* There may be no such layout, or none that is small enough. */
static int try_layout(struct planner *p, const struct dp_trainer_config *c)
{
    struct dp_trainer_plan plan;
    int err = can_be(c, p->model->model.layer_count) ? predict(p, c, &plan) : DP_EINVAL;

    if (err == DP_EINVAL || err == DP_EUNSUPPORTED || (err == DP_ENOMEM && c->offload.activations))
        return 0;
    if (!err && (err = add_plan(p, &plan)))
        forget(&plan);
    return err;
}

/* Each way to have less in memory, and the last, within the budget, to offload. */
static int try_modes(struct planner *p, struct dp_trainer_config c)
{
    const size_t budget = trainer_offloads(&c) ? 0 : p->machine->budget_bytes;
    int err = 0;

    for (int mode = 0; mode < DP_RECOMPUTES && !err; mode++) {
        c.schedule.recompute = (enum dp_recompute)mode;
        err = try_layout(p, &c);
    }
    c.schedule.recompute = DP_RECOMPUTE_NEVER;
    c.offload.activations = true;
    c.offload.device_bytes = budget;
    return err || !budget || c.execution == DP_EXECUTE_MESSAGES ? err : try_layout(p, &c);
}

static int try_all(struct planner *p)
{
    const struct dp_trainer_config *config = p->config;
    const int ranks = p->machine->ranks;
    const bool alone = ranks == (config->replicas ? config->replicas : 1); /* P = 1 has no schedule */
    struct dp_trainer_config c = *config;
    int err = 0;

    if (c.balance == DP_BALANCE_GIVEN && !(config->schedule.kind && config->replicas))
        c.balance = DP_BALANCE_COST; /* layouts differ in their stages */
    for (c.replicas = 1; c.replicas <= ranks; c.replicas++)
        for (int kind = DP_SCHEDULE_GPIPE; kind < DP_SCHEDULE_KINDS; kind++) {
            /* These have no effect, or no meaning, for other kinds and a rank alone. */
            const bool slacks = is_two_way(kind) && !alone;
            c.schedule.virtual_stages =
                kind == DP_SCHEDULE_INTERLEAVED ? config->schedule.virtual_stages : 0;
            for (int slack = slacks ? config->schedule.slack : 0; slack <= slacks && !err; slack++) {
                c.schedule.kind = (enum dp_schedule_kind)kind;
                c.schedule.ranks = ranks / c.replicas;
                c.schedule.slack = slack;
                if ((config->replicas && config->replicas != c.replicas) || ranks % c.replicas ||
                    (config->schedule.ranks && config->schedule.ranks != c.schedule.ranks) ||
                    (config->schedule.kind && !alone && kind != (int)config->schedule.kind))
                    continue;
                err = try_modes(p, c);
            }
        }
    return err;
}

static int measure(struct planner *p, struct model_info *m)
{
    const struct dp_trainer_config *c = p->config;
    int err = place_new(NULL, NULL, false, &p->place);

    p->times = calloc((size_t)m->model.layer_count + 1, sizeof(*p->times));
    if (!err && !p->times)
        err = dp_fail(DP_ENOMEM, "no memory for the times of %d layers", m->model.layer_count);
    if (!err)
        err = measure_layers(c, m, p->times);
    return err || c->balance != DP_BALANCE_MEASURED ? err : costs_of_times(m, p->times);
}

void dp_trainer_plan_free(struct dp_trainer_plan *plans, int32_t count)
{
    for (int32_t i = 0; i < count && plans; i++)
        forget(&plans[i]);
    free(plans);
}

int dp_trainer_plan_sized(const struct dp_trainer_config *config, const struct dp_model *model,
                          const struct dp_trainer_machine *machine, struct dp_trainer_plan **out,
                          int32_t *count, size_t size)
{
    DP_TAKE(dp_trainer_config, config, size);
    struct model_info m = {0};
    struct planner p = {.config = config, .machine = machine, .model = &m};

    if (machine->ranks < 1 || config->microbatches < 1 || config->rows < config->microbatches)
        return dp_fail(DP_EINVAL, "ranks: %d, microbatches: %d of rows: %lld, expected 1 or more, and "
                       "rows for all", machine->ranks, config->microbatches, (long long)config->rows);
    if (config->list)
        return dp_fail(DP_EINVAL, "list: set, expected a schedule's kind, or none, as layouts differ in "
                                  "their lists");
    int err = trainer_check_config(config);
    if (!err)
        err = model_take(&m, model);
    if (!err)
        err = measure(&p, &m);
    if (!err)
        err = try_all(&p);
    if (!err && !p.count)
        err = dp_fail(DP_EINVAL, "no layout of %d ranks for %d micro-batches and %d layers",
                      machine->ranks, config->microbatches, m.model.layer_count);
    if (err) {
        dp_trainer_plan_free(p.list, p.count);
    } else {
        *out = p.list;
        *count = p.count;
    }
    place_free(p.place);
    free(p.times);
    model_fini(&m);
    return err;
}
