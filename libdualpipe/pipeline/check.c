/* SPDX-License-Identifier: Apache-2.0
 *
 * check.c - is a config valid? All that needs no other rank.
 */
#include "base/internal.h"
#include "pipeline/internal.h"
#include "pipeline/setup.h"
#include "schedule/internal.h"

#include "base/fail.h"
#include "base/sized.h"
#include "base/tensor.h"
#include "pipeline/border.h"
#include "pipeline/plan.h"
#include "schedule/build.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

int dp_config_rank(const struct dp_pipeline_config *config)
{
    const struct dp_schedule *s = config->schedule;

    for (int r = 0; r < s->ranks && config->comm; r++)
        if (s->group_rank[r] == dp_comm_rank(config->comm))
            return r;
    return 0;
}

bool dp_config_adds_sums(const struct dp_pipeline_config *config, const struct dp_schedule *s)
{
    return !config->unsummed_copies && !s->forward_only && s->streams > 1 &&
           !dp_schedule_has(s, DP_OP_REDUCE);
}

static int find_slot(const struct dp_schedule *s, int rank, bool (*is_it)(const struct dp_slot *))
{
    for (int slot = 0; slot < dp_schedule_slot_count(s, rank); slot++)
        if (is_it(dp_schedule_slot(s, rank, slot)))
            return slot;
    return -1;
}

int dp_config_first_slot(const struct dp_schedule *s, int rank)
{
    return find_slot(s, rank, dp_slot_is_first);
}

int dp_config_last_slot(const struct dp_schedule *s, int rank)
{
    return find_slot(s, rank, dp_slot_is_last);
}

/* ---- schedule and comm ---------------------------------------------------------------------- */

static int check_comm(const struct dp_pipeline_config *config)
{
    int ranks = config->schedule->ranks;

    if (!config->comm && ranks > 1)
        return dp_fail(DP_ESTATE, "comm: NULL, expected one of %d ranks", ranks);
    if (config->comm && dp_comm_size(config->comm) != ranks)
        return dp_fail(DP_EINVAL, "comm: %d ranks, expected the schedule's %d",
                       dp_comm_size(config->comm), ranks);
    return 0;
}

/* What sums the slots that have no mirror to be summed with? */
static int check_reduces(const struct dp_pipeline_config *config)
{
    const struct dp_reduce_ops *ops = config->reduce;
    const struct dp_schedule *s = config->schedule;

    if (ops && (!ops->launch || !ops->test || !ops->wait))
        return dp_fail(DP_EINVAL, "reduce: expected launch, test and wait, all three");
    if (ops)
        DP_RESERVED(ops, "reduce");
    if (ops && config->execution == DP_EXECUTE_MESSAGES)
        return dp_fail(DP_EUNSUPPORTED, "reduce: expected NULL where messages drive the ranks, which "
                                        "carry out no REDUCE");
    for (int rank = 0; !ops && rank < s->ranks; rank++)
        for (size_t i = s->first[rank]; i < s->first[rank + 1]; i++) {
            if (s->ops[i].kind != DP_OP_REDUCE)
                continue;
            const int mirror = dp_schedule_slot(s, rank, (int)s->ops[i].slot)->mirror;
            if (mirror < 0 || mirror == rank)
                return dp_fail(DP_EINVAL,
                               "schedule: a REDUCE of slot %u of rank %d, which has no mirror, "
                               "expected reduce operations in the config",
                               s->ops[i].slot, rank);
        }
    return 0;
}

static int check_schedule(const struct dp_pipeline_config *config)
{
    const struct dp_schedule *s = config->schedule;
    int err = dp_schedule_check(s, NULL, NULL);

    if (!err)
        err = check_reduces(config);
    if (err)
        return err;
    if (s->stages >= UINT16_MAX)
        return dp_fail(DP_EUNSUPPORTED, "schedule: %d stages, expected fewer than %d", s->stages,
                       UINT16_MAX);
    for (int rank = 0; rank < s->ranks; rank++) {
        int first = 0, last = 0;
        for (int slot = 0; slot < dp_schedule_slot_count(s, rank); slot++) {
            first += dp_slot_is_first(dp_schedule_slot(s, rank, slot));
            last += dp_slot_is_last(dp_schedule_slot(s, rank, slot));
        }
        if (first > 1 || last > 1)
            return dp_fail(DP_EUNSUPPORTED,
                           "schedule: rank %d holds %d first and %d last stages, expected at most "
                           "one of each",
                           rank, first, last);
    }
    return 0;
}

/* ---- stages --------------------------------------------------------------------------------- */

static int check_place(const struct dp_parameter *p, const struct dp_device *device, int slot)
{
    const DLDevice has = p->value->device, wants = dp_device_dl(device);

    if (has.device_type == wants.device_type && has.device_id == wants.device_id)
        return 0;
    return dp_fail(DP_EINVAL,
                   "stage in slot %d: parameter '%s' is on device %d:%d, expected the pipeline's, "
                   "%d:%d",
                   slot, p->name, (int)has.device_type, has.device_id, (int)wants.device_type,
                   wants.device_id);
}

static int check_parameters(const struct dp_stage *stage, const struct dp_device *device, int slot)
{
    int err = dp_parameters_check(stage->parameters, stage->parameter_count);

    for (int32_t k = 0; k < stage->parameter_count && !err; k++)
        err = check_place(&stage->parameters[k], device, slot);
    return err;
}

int dp_config_same_parameter(const struct dp_parameter *has, const struct dp_parameter *given)
{
    bool same = !strcmp(has->name, given->name) && !has->grad == !given->grad &&
                dp_tensor_same_dtype(has->value, given->value) &&
                dp_tensor_same_layout(has->value, given->value);

    if (same && has->grad)
        same = dp_tensor_same_dtype(has->grad, given->grad) &&
               dp_tensor_same_layout(has->grad, given->grad);
    return same ? 0
                : dp_fail(DP_EMISMATCH,
                          "parameter '%s': expected '%s', with the same types and "
                          "shapes as before",
                          given->name, has->name);
}

static bool has_op(const struct dp_schedule *s, int rank, int slot, enum dp_op_kind kind)
{
    const struct dp_op *ops = dp_schedule_ops(s, rank);

    for (size_t i = 0; i < dp_schedule_count(s, rank); i++)
        if (ops[i].kind == (uint32_t)kind && ops[i].slot == (uint32_t)slot)
            return true;
    return false;
}

static const char *missing_callback(const struct dp_schedule *s, int rank, int slot,
                                    const struct dp_stage *stage)
{
    if (!stage->ops->forward)
        return "forward";
    if (s->forward_only)
        return NULL;
    if (!stage->ops->backward)
        return "backward";
    if (!stage->ops->weight && !stage->no_split && has_op(s, rank, slot, DP_OP_W))
        return "weight";
    return NULL;
}

static int check_stage(const struct dp_pipeline_config *config, const struct dp_device *device,
                       int rank, int slot)
{
    const struct dp_stage *stage = &config->stages[slot];

    if (!stage->ops)
        return dp_fail(DP_EINVAL, "stage in slot %d: no callbacks (ops is NULL)", slot);
    DP_RESERVED(stage, "stage");
    DP_RESERVED(stage->ops, "callbacks of a stage");
    const char *missing = missing_callback(config->schedule, rank, slot, stage);
    if (missing)
        return dp_fail(DP_EINVAL, "stage in slot %d: no callback %s, which the schedule needs",
                       slot, missing);
    return check_parameters(stage, device, slot);
}

static bool same_memory(const DLTensor *a, const DLTensor *b)
{
    return !a || !b ? a == b : dp_tensor_address(a) == dp_tensor_address(b);
}

/* Two copies of a stage on one rank are one, or the caller sums them: no message does. */
static int check_local_copies(const struct dp_pipeline_config *config, int rank, int slot)
{
    const struct dp_slot *own = dp_schedule_slot(config->schedule, rank, slot);
    const struct dp_stage *a = &config->stages[slot], *b;

    if (config->unsummed_copies || config->schedule->forward_only || own->mirror != rank)
        return 0;
    b = &config->stages[own->mirror_slot];
    bool same = a->parameter_count == b->parameter_count;
    for (int32_t k = 0; k < a->parameter_count && same; k++)
        same = same_memory(a->parameters[k].value, b->parameters[k].value) &&
               same_memory(a->parameters[k].grad, b->parameters[k].grad);
    return same ? 0
                : dp_fail(DP_EUNSUPPORTED,
                          "stage in slot %d: rank %d holds both copies of stage %d, expected the same "
                          "parameters and gradients in slot %d, or unsummed_copies",
                          slot, rank, own->stage, own->mirror_slot);
}

static int check_stages(const struct dp_pipeline_config *config, const struct dp_device *device)
{
    int rank = dp_config_rank(config), err = 0;
    int slots = dp_schedule_slot_count(config->schedule, rank);

    if (!config->stages && slots)
        return dp_fail(DP_EINVAL, "stages: NULL, expected one for each of %d slots", slots);
    for (int slot = 0; slot < slots && !err; slot++)
        err = check_stage(config, device, rank, slot);
    for (int slot = 0; slot < slots && !err; slot++)
        err = check_local_copies(config, rank, slot);
    return err;
}

/* ---- borders, labels, loss ------------------------------------------------------------------- */

/* An end of the model that this rank does not hold need not be declared. */
static bool is_needed(const struct dp_pipeline_config *config, int border)
{
    const struct dp_schedule *s = config->schedule;
    int rank = dp_config_rank(config);

    if (config->borders[border].count)
        return true;
    if (config->opaque_ends && (border == 0 || border == s->stages))
        return false;
    return border == 0 ? dp_config_first_slot(s, rank) >= 0
                       : border < s->stages || dp_config_last_slot(s, rank) >= 0;
}

static int check_labels(const struct dp_pipeline_config *config)
{
    char what[32];
    int err = 0;

    if (!config->labels)
        return 0;
    if (config->labels->count < 1 || config->labels->count > DP_MAX_TENSORS)
        return dp_fail(DP_EINVAL, "labels: %d tensors, expected 1 to %d", config->labels->count,
                       DP_MAX_TENSORS);
    for (int k = 0; k < config->labels->count && !err; k++) {
        snprintf(what, sizeof(what), "label %d", k);
        err = dp_spec_check(&config->labels->tensors[k], what);
        if (!err)
            err = dp_extents_check_spec(&config->labels->tensors[k], config->max_extents, what);
    }
    return err;
}

static int check_border_extents(const struct dp_pipeline_config *config, int border)
{
    char what[64];
    int err = 0;

    for (int k = 0; k < config->borders[border].count && !err; k++) {
        snprintf(what, sizeof(what), "border %d, tensor %d", border, k);
        err = dp_extents_check_spec(&config->borders[border].tensors[k], config->max_extents, what);
    }
    return err;
}

/* Nothing of the caller's passes through the pipeline. */
static int check_opaque_ends(const struct dp_pipeline_config *config)
{
    const int ends[] = {0, config->schedule->stages};

    for (int i = 0; i < 2; i++)
        if (config->borders[ends[i]].count)
            return dp_fail(DP_EINVAL, "opaque_ends: border %d has %d tensors, expected none", ends[i],
                           config->borders[ends[i]].count);
    if (config->labels || config->loss)
        return dp_fail(DP_EINVAL, "opaque_ends: %s given, expected NULL",
                       config->labels ? "labels" : "loss");
    return 0;
}

static int check_borders(const struct dp_pipeline_config *config)
{
    const struct dp_schedule *s = config->schedule;
    int err = 0;

    if (!config->borders)
        return dp_fail(DP_ESTATE, "borders: not declared, expected %d", s->stages + 1);
    if (config->opaque_ends)
        err = check_opaque_ends(config);
    for (int i = 0; i <= s->stages && !err; i++)
        if (is_needed(config, i))
            err = dp_border_check(&config->borders[i], i);
    for (int i = 0; i <= s->stages && !err; i++)
        err = check_border_extents(config, i);
    return err ? err : check_labels(config);
}

static int check_skips(const struct dp_pipeline_config *config)
{
    const struct dp_schedule *s = config->schedule;
    char what[DP_SKIP_NAME_LEN + 16];
    int err = 0;

    if (s->skip_count && !config->skips)
        return dp_fail(DP_EINVAL, "skips: NULL, expected the tensors of the schedule's %d",
                       s->skip_count);
    for (int k = 0; k < s->skip_count && !err; k++) {
        snprintf(what, sizeof(what), "skip '%s'", s->skips[k].name);
        err = dp_spec_check(&config->skips[k], what);
        if (!err)
            err = dp_extents_check_spec(&config->skips[k], config->max_extents, what);
    }
    return err;
}

static int check_loss(const struct dp_pipeline_config *config)
{
    const struct dp_schedule *s = config->schedule;
    int rank = dp_config_rank(config);

    if (config->max_loss_values < 0)
        return dp_fail(DP_EINVAL, "max_loss_values: %d, expected at least 0",
                       config->max_loss_values);
    if (config->loss)
        DP_RESERVED(config->loss, "loss");
    if (!isfinite(config->loss_scale))
        return dp_fail(DP_EINVAL, "loss_scale: %g, expected a finite number", config->loss_scale);
    if (dp_config_last_slot(s, rank) < 0 ||
        ((s->forward_only || config->own_gradients || config->opaque_ends) && !config->loss))
        return 0;
    if (!config->loss)
        return dp_fail(DP_EINVAL, "loss: NULL, expected one: rank %d holds the last stage, and the "
                                  "schedule trains", rank);
    if (!config->loss->loss || (!s->forward_only && !config->loss->loss_backward))
        return dp_fail(DP_EINVAL, "loss: no callback %s",
                       config->loss->loss ? "loss_backward" : "loss");
    return 0;
}

static int check_order(const struct dp_pipeline_config *config)
{
    int blocks = config->order_blocks;

    if (!blocks || (blocks >= config->schedule->streams && blocks <= DP_ORDER_MAX_BLOCKS &&
                    !(blocks & (blocks - 1))))
        return 0;
    return dp_fail(DP_EINVAL, "order_blocks: %d, expected a power of two from %d to %d, or 0",
                   blocks, config->schedule->streams, DP_ORDER_MAX_BLOCKS);
}

static int check_execution(const struct dp_pipeline_config *config)
{
    if ((unsigned)config->execution >= DP_EXECUTIONS)
        return dp_fail(DP_EINVAL, "execution: %d, expected 0 (list) or 1 (messages)",
                       (int)config->execution);
    if (config->execution == DP_EXECUTE_LIST)
        return 0;
    if (config->schedule->kind != DP_SCHEDULE_ASYNC)
        return dp_fail(DP_EUNSUPPORTED, "execution by messages: schedule '%s', expected 'async'",
                       dp_schedule_kind_name(config->schedule->kind));
    if (config->unchecked)
        return dp_fail(DP_EINVAL, "execution by messages: unchecked is set, expected the agreement "
                                  "check, which keeps messages of two steps apart");
    return 0;
}

/* The config with one of its schedules alone. */
static int check_one_schedule(const struct dp_pipeline_config *config,
                              const struct dp_device *device)
{
    int err = check_schedule(config);
    if (!err)
        err = check_execution(config);
    if (!err)
        err = check_comm(config);
    if (!err)
        err = check_borders(config);
    if (!err)
        err = check_skips(config);
    if (!err)
        err = check_stages(config, device);
    if (!err)
        err = check_loss(config);
    return err ? err : check_order(config);
}

/* Slots and ranks must be the same, as stages, borders and peers are. */
static int check_also(const struct dp_pipeline_config *config, int index)
{
    const struct dp_schedule *a = config->schedule, *b = config->also[index];

    if (!b)
        return dp_fail(DP_EINVAL, "also[%d]: NULL, expected a schedule", index);
    bool same = a->ranks == b->ranks && a->stages == b->stages && a->streams == b->streams;
    for (int r = 0; r < a->ranks && same; r++)
        same = a->group_rank[r] == b->group_rank[r] && a->first_slot[r + 1] == b->first_slot[r + 1];
    if (same)
        same = !memcmp(a->slots, b->slots, a->first_slot[a->ranks] * sizeof(*a->slots)) &&
               a->skip_count == b->skip_count;
    for (int k = 0; k < a->skip_count && same; k++)
        same = !strcmp(a->skips[k].name, b->skips[k].name) &&
               !strcmp(a->skips[k].space, b->skips[k].space) &&
               a->skips[k].from == b->skips[k].from && a->skips[k].to == b->skips[k].to;
    if (same)
        return 0;
    return dp_fail(DP_EINVAL,
                   "also[%d]: a schedule of other ranks, slots or skips, expected the first's", index);
}

const char *dp_execution_name(enum dp_execution execution)
{
    static const char *const names[DP_EXECUTIONS] = {"list", "messages"};
    return (unsigned)execution < DP_EXECUTIONS ? names[execution] : "?";
}

int dp_config_check(const struct dp_pipeline_config *config, const struct dp_device *device)
{
    struct dp_pipeline_config one = *config;

    if (!config->schedule)
        return dp_fail(DP_EINVAL, "schedule: NULL, expected one");
    if (config->also_count < 0 || (config->also_count && !config->also))
        return dp_fail(DP_EINVAL, "also: %d schedules at %p", config->also_count,
                       (const void *)config->also);
    int err = check_one_schedule(config, device);
    for (int i = 0; i < config->also_count && !err; i++) {
        err = check_also(config, i);
        one.schedule = config->also[i];
        if (!err)
            err = check_one_schedule(&one, device);
    }
    return err;
}
