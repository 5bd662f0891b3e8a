/* SPDX-License-Identifier: Apache-2.0
 *
 * A skip's value is kept and sent with a word behind it, which says whether there is one: a stage may
 * put out no value for a micro-batch. Where the CPU does not reach the device's memory there always is.
 *
 *      | tensor ...              | present: uint64 |
 *                                ^ aligned
 */
#include "pipeline/skips.h"

#include "base/fail.h"
#include "base/tensor.h"
#include "pipeline/border.h"
#include "pipeline/steps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the pipeline's -------------------------------------------------------------------------- */

static int32_t *list_of_slot(const struct dp_schedule *s, const struct dp_slot *slot, int32_t *count)
{
    int32_t *list = malloc(((size_t)s->skip_count + 1) * sizeof(*list));

    *count = 0;
    for (int32_t k = 0; list && k < s->skip_count; k++)
        if (s->skips[k].from == slot->stage || s->skips[k].to == slot->stage)
            list[(*count)++] = k;
    if (list)
        list[*count] = -1;
    return list;
}

static int list_slots(struct dp_pipeline_skips *all, int32_t *most)
{
    int32_t count;

    for (int i = 0; i < all->base->slots; i++) {
        all->of_slot[i] = list_of_slot(all->base->config.schedule, dp_base_slot(all->base, i), &count);
        if (!all->of_slot[i])
            return dp_fail(DP_ENOMEM, "no memory for the skips of %d slots", all->base->slots);
        *most = count > *most ? count : *most;
    }
    return 0;
}

static size_t word_at(const struct dp_tensor_spec *spec)
{
    return dp_offset_align(dp_spec_bytes(spec));
}

int dp_pipeline_skips_init(struct dp_pipeline_skips *all, const struct dp_pipeline_base *base)
{
    const struct dp_schedule *s = base->config.schedule;
    const size_t n = (size_t)s->skip_count;
    int32_t most = 0;
    int err = 0;

    all->base = base;
    if (!n)
        return 0;
    all->specs = malloc(n * sizeof(*all->specs));
    all->bytes = calloc(2 * n, sizeof(*all->bytes));
    all->of_slot = calloc((size_t)base->slots + 1, sizeof(*all->of_slot));
    if (!all->specs || !all->bytes || !all->of_slot)
        return dp_fail(DP_ENOMEM, "no memory for %zu skips", n);
    memcpy(all->specs, base->config.skips, n * sizeof(*all->specs));
    all->gradient_bytes = all->bytes + n;
    for (size_t k = 0; k < n; k++) {
        all->bytes[k] = word_at(&all->specs[k]) + sizeof(uint64_t);
        all->gradient_bytes[k] = all->specs[k].no_grad ? 0 : dp_spec_bytes(&all->specs[k]);
    }
    err = list_slots(all, &most);
    for (int i = 0; i < 2 && !err; i++) {
        all->now[i].uses = calloc((size_t)most + 1, sizeof(*all->now[i].uses));
        if (!all->now[i].uses)
            err = dp_fail(DP_ENOMEM, "no memory for %d skips of a stage", most);
    }
    return err;
}

int dp_pipeline_skips_take(struct dp_pipeline_skips *all, int32_t mbs)
{
    const struct dp_schedule *s = all->base->config.schedule;
    const size_t n = (size_t)s->streams * (size_t)s->skip_count * (size_t)mbs;

    if (!n)
        return 0;
    all->absent = calloc(n, sizeof(*all->absent));
    return all->absent ? 0 : dp_fail(DP_ENOMEM, "no memory for the skips of %d micro-batches", mbs);
}

void dp_pipeline_skips_fini(struct dp_pipeline_skips *all)
{
    for (int i = 0; all->of_slot && i < all->base->slots; i++)
        free(all->of_slot[i]);
    for (int i = 0; i < 2; i++)
        free(all->now[i].uses);
    free(all->of_slot);
    free(all->absent);
    free(all->specs);
    free(all->bytes);
    *all = (struct dp_pipeline_skips){0};
}

/* ---- before a callback ----------------------------------------------------------------------- */

static bool is_forward(enum dp_plan_kind kind)
{
    return kind == DP_PLAN_FORWARD || kind == DP_PLAN_RECOMPUTE;
}

static size_t index_of(const struct dp_pipeline_skips *all, const struct dp_stage_skips *at,
                       int32_t skip)
{
    const struct dp_schedule *s = all->base->config.schedule;

    return ((size_t)at->stream * (size_t)s->skip_count + (size_t)skip) * (size_t)s->mb_per_stream +
           at->mb;
}

static char *address(const struct dp_pipeline_skips *all, size_t offset)
{
    return offset == DP_NOWHERE ? NULL : all->base->memory + offset;
}

/* Its shape, by the extents of the micro-batch. */
static void set_shape(const struct dp_pipeline_skips *all, const struct dp_stage_skips *at,
                      const struct dp_tensor_spec *spec, int64_t *shape)
{
    const struct dp_schedule *s = all->base->config.schedule;
    const int64_t *max = all->base->config.max_extents;

    memcpy(shape, spec->shape, sizeof(spec->shape));
    if (!all->base->extents)
        return;
    const int64_t *now =
        all->base->extents[(size_t)at->stream * (size_t)s->mb_per_stream + at->mb];
    for (int i = 0; i < spec->ndim; i++)
        if (spec->extent[i])
            shape[i] = shape[i] / max[spec->extent[i] - 1] * now[spec->extent[i] - 1];
}

static DLTensor tensor_of(const struct dp_pipeline_skips *all, const struct dp_tensor_spec *spec,
                          void *data, int64_t *shape)
{
    return (DLTensor){.data = data,
                      .device = dp_device_dl(all->base->device),
                      .ndim = spec->ndim,
                      .dtype = spec->dtype,
                      .shape = shape};
}

/* The word behind a value that has come: is there one? */
static bool has_come_absent(const struct dp_pipeline_skips *all, const struct dp_skip_use *use)
{
    uint64_t present = 1;

    if (!all->base->out_of_reach)
        memcpy(&present, use->at[0] + word_at(&all->specs[use->skip]), sizeof(present));
    return !present;
}

static void make_use(struct dp_pipeline_skips *all, const struct dp_stage_skips *skips,
                     struct dp_skip_use *use)
{
    const struct dp_schedule *s = all->base->config.schedule;
    const struct dp_tensor_spec *spec = &all->specs[use->skip];
    const size_t index = index_of(all, skips, use->skip);
    const struct dp_plan_skip *at = &all->at[index];
    const bool forward = is_forward(skips->kind);
    bool *absent = &all->absent[index];

    use->makes = s->skips[use->skip].from == skips->stage;
    use->asked_value = use->asked_gradient = false;
    if (!use->makes)
        use->at[0] = address(all, at->in);
    else
        use->at[0] = address(all, skips->kind == DP_PLAN_RECOMPUTE ? at->again : at->out);
    if (use->makes && !forward)
        use->at[0] = NULL;
    use->at[1] = forward ? NULL : address(all, use->makes ? at->gout : at->gin);
    if (!use->makes && forward)
        *absent = has_come_absent(all, use);
    const bool missing = *absent && !(use->makes && forward);
    for (int i = 0; i < 2; i++)
        set_shape(all, skips, spec, use->shape[i]);
    use->value = tensor_of(all, spec, missing ? NULL : use->at[0], use->shape[0]);
    use->gradient = tensor_of(all, spec, missing ? NULL : use->at[1], use->shape[1]);
}

struct dp_stage_skips *dp_skips_begin(struct dp_pipeline_skips *all, enum dp_plan_kind kind, int slot,
                                      uint32_t mb)
{
    const int32_t *list = all->of_slot ? all->of_slot[slot] : NULL;
    struct dp_stage_skips *skips = &all->now[!is_forward(kind)];

    if (!list || *list < 0)
        return NULL;
    skips->schedule = all->base->config.schedule;
    skips->stage = dp_base_slot(all->base, slot)->stage;
    skips->stream = dp_base_slot(all->base, slot)->stream;
    skips->mb = mb;
    skips->kind = kind;
    skips->wrong[0] = '\0';
    for (skips->count = 0; *list >= 0; list++) {
        struct dp_skip_use *use = &skips->uses[skips->count++];
        use->skip = *list;
        make_use(all, skips, use);
    }
    return skips;
}

/* ---- in a callback --------------------------------------------------------------------------- */

/* What a callback asks for. */
struct wish {
    const char *what; /* the function's name */
    bool makes;       /* of a stage where the skip begins */
    bool in_forward, in_backward, in_weight;
};

static bool is_allowed(const struct wish *wish, enum dp_plan_kind kind)
{
    return is_forward(kind)           ? wish->in_forward
           : kind == DP_PLAN_WEIGHT ? wish->in_weight
                                      : wish->in_backward;
}

static const char *no_namespace(const char *space)
{
    return space ? space : "";
}

static struct dp_skip_use *find_use(const struct dp_stage_call *call, const struct wish *wish,
                                    const char *space, const char *name)
{
    struct dp_stage_skips *skips = call->skips;
    struct dp_skip_use *found = NULL;

    for (int32_t i = 0; skips && i < skips->count && !found; i++) {
        const struct dp_skip *skip = &skips->schedule->skips[skips->uses[i].skip];
        if (skips->uses[i].makes == wish->makes && !strcmp(skip->name, name) &&
            !strcmp(skip->space, no_namespace(space)))
            found = &skips->uses[i];
    }
    if (found && is_allowed(wish, skips->kind))
        return found;
    const char *why = found ? "is not for this callback" : "the stage does not declare";
    if (skips && !skips->wrong[0])
        snprintf(skips->wrong, sizeof(skips->wrong), "%s('%s', '%s'): %s", wish->what,
                 no_namespace(space), name, why);
    return NULL;
}

DLTensor *dp_skip_tensor(const struct dp_stage_call *call, enum dp_skip_end end, const char *space,
                         const char *name)
{
    static const struct wish wishes[] = {
        [DP_SKIP_STASH] = {"dp_skip_stash", true, .in_forward = true},
        [DP_SKIP_POP] = {"dp_skip_pop", false, true, true, true},
        [DP_SKIP_STASH_GRADIENT] = {"dp_skip_stash_gradient", true, false, true, true},
        [DP_SKIP_POP_GRADIENT] = {"dp_skip_pop_gradient", false, .in_backward = true},
    };
    struct dp_skip_use *use = find_use(call, &wishes[end], space, name);

    if (!use)
        return NULL;
    if (end == DP_SKIP_STASH || end == DP_SKIP_POP) {
        use->asked_value = true;
        return &use->value;
    }
    use->asked_gradient = true;
    return &use->gradient;
}

/* ---- after a callback ------------------------------------------------------------------------ */

static void say_not_asked(struct dp_stage_skips *skips, const struct dp_skip_use *use, bool forward)
{
    const struct dp_skip *skip = &skips->schedule->skips[use->skip];

    snprintf(skips->wrong, sizeof(skips->wrong), "skip '%s%s%s' %s here, expected the %s to call %s",
             skip->space, skip->space[0] ? "/" : "", skip->name, use->makes ? "begins" : "ends",
             forward ? "forward" : "backward",
             use->makes ? (forward ? "dp_skip_stash" : "dp_skip_stash_gradient")
                        : (forward ? "dp_skip_pop" : "dp_skip_pop_gradient"));
}

/* What the callback filled may be a buffer of its own. */
static int take_own(struct dp_pipeline_skips *all, const DLTensor *filled, char *to)
{
    if (filled->data == to || !to || !filled->data)
        return 0;
    int err = dp_device_copy(all->base->compute, to, filled->data, dp_tensor_bytes(filled));
    return err ? err : dp_compute_sync(all->base->pipe);
}

static int end_value(struct dp_pipeline_skips *all, struct dp_stage_skips *skips,
                     struct dp_skip_use *use)
{
    const uint64_t present = use->value.data != NULL;

    if (!present && all->base->out_of_reach) {
        snprintf(skips->wrong, sizeof(skips->wrong), "a skip without a value, expected one on a device "
                 "that the CPU does not reach");
        return 0;
    }
    if (skips->kind == DP_PLAN_FORWARD)
        all->absent[index_of(all, skips, use->skip)] = !present;
    if (!all->base->out_of_reach && use->at[0])
        memcpy(use->at[0] + word_at(&all->specs[use->skip]), &present, sizeof(present));
    return take_own(all, &use->value, use->at[0]);
}

/* Without a gradient after all: zeros. */
static int end_gradient(struct dp_pipeline_skips *all, struct dp_skip_use *use)
{
    if (use->gradient.data || !use->at[1])
        return take_own(all, &use->gradient, use->at[1]);
    int err = dp_device_zero(all->base->compute, use->at[1],
                             all->gradient_bytes[use->skip]);
    return err ? err : dp_compute_sync(all->base->pipe);
}

int dp_skips_end(struct dp_pipeline_skips *all, struct dp_stage_skips *skips)
{
    const bool forward = is_forward(skips->kind);
    int err = 0;

    if (skips->kind == DP_PLAN_WEIGHT)
        return 0;
    for (int32_t i = 0; i < skips->count && !err && !skips->wrong[0]; i++) {
        struct dp_skip_use *use = &skips->uses[i];
        const bool wanted = forward || use->gradient.data;
        if (wanted && !(forward ? use->asked_value : use->asked_gradient))
            say_not_asked(skips, use, forward);
        else if (forward && use->makes)
            err = end_value(all, skips, use);
        else if (!forward && !use->makes)
            err = end_gradient(all, use);
    }
    return err;
}
