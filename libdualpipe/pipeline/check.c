/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/setup.h"

#include "base/fail.h"
#include "pipeline/batch.h"
#include "pipeline/border.h"

#include <math.h>
#include <stdio.h>

int dp_config_rank(const struct dp_pipeline_config *config)
{
    const struct dp_schedule *s = config->schedule;

    for (int r = 0; r < s->ranks && config->comm; r++)
        if (s->group_rank[r] == config->comm->rank)
            return r;
    return 0;
}

static int find_slot(const struct dp_schedule *s, int rank, bool (*is_it)(const struct dp_slot *))
{
    for (int slot = 0; slot < s->slots_per_rank; slot++)
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
        return dp_fail(DP_EINVAL, "comm: NULL, expected one of %d ranks", ranks);
    if (config->comm && config->comm->size != ranks)
        return dp_fail(DP_EINVAL, "comm: %d ranks, expected the schedule's %d", config->comm->size,
                       ranks);
    return 0;
}

static int check_schedule(const struct dp_pipeline_config *config)
{
    const struct dp_schedule *s = config->schedule;
    int err = dp_schedule_check(s, NULL, NULL);

    if (err)
        return err;
    if (s->stages >= UINT16_MAX)
        return dp_fail(DP_EUNSUPPORTED, "schedule: %d stages, expected fewer than %d", s->stages,
                       UINT16_MAX);
    for (int rank = 0; rank < s->ranks; rank++) {
        int first = 0, last = 0;
        for (int slot = 0; slot < s->slots_per_rank; slot++) {
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

static int check_grad(const DLTensor *grad, const struct dp_device *device, int slot, int k)
{
    char dtype[32];

    if (!grad)
        return dp_fail(DP_EINVAL, "stage in slot %d: gradient %d is NULL", slot, k);
    dp_dtype_name(grad->dtype, dtype, sizeof(dtype));
    if (grad->dtype.code != kDLFloat || grad->dtype.lanes != 1 ||
        (grad->dtype.bits != 32 && grad->dtype.bits != 64))
        return dp_fail(DP_EINVAL,
                       "stage in slot %d: gradient %d is %s, expected float32 or float64", slot, k,
                       dtype);
    if (!dp_tensor_is_contiguous(grad))
        return dp_fail(DP_EINVAL, "stage in slot %d: gradient %d is strided, expected contiguous",
                       slot, k);
    if (grad->device.device_type != device->dl.device_type ||
        grad->device.device_id != device->dl.device_id)
        return dp_fail(DP_EINVAL,
                       "stage in slot %d: gradient %d is on device %d:%d, expected the pipeline's, "
                       "%d:%d",
                       slot, k, grad->device.device_type, grad->device.device_id,
                       device->dl.device_type, device->dl.device_id);
    return 0;
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
    int err = 0;

    if (!stage->ops)
        return dp_fail(DP_EINVAL, "stage in slot %d: no callbacks (ops is NULL)", slot);
    const char *missing = missing_callback(config->schedule, rank, slot, stage);
    if (missing)
        return dp_fail(DP_EINVAL, "stage in slot %d: no callback %s, which the schedule needs",
                       slot, missing);
    if (stage->grad_count < 0 || (stage->grad_count && !stage->grads))
        return dp_fail(DP_EINVAL, "stage in slot %d: grad_count %d, grads %s", slot,
                       stage->grad_count, stage->grads ? "given" : "NULL");
    for (int k = 0; k < stage->grad_count && !err; k++)
        err = check_grad(stage->grads[k], device, slot, k);
    return err;
}

static int check_stages(const struct dp_pipeline_config *config, const struct dp_device *device)
{
    int rank = dp_config_rank(config), err = 0;

    if (!config->stages)
        return dp_fail(DP_EINVAL, "stages: NULL, expected one for each of %d slots",
                       config->schedule->slots_per_rank);
    for (int slot = 0; slot < config->schedule->slots_per_rank && !err; slot++)
        err = check_stage(config, device, rank, slot);
    return err;
}

/* ---- borders, labels, loss ------------------------------------------------------------------- */

static int check_batch_dim(const struct dp_tensor_spec *spec, int dim, const char *what)
{
    if (dim < spec->ndim)
        return 0;
    return dp_fail(DP_EINVAL, "%s: %d dimensions, expected more than batch_dim %d", what,
                   spec->ndim, dim);
}

static int check_whole_border(const struct dp_pipeline_config *config, int index)
{
    char what[64];
    int err = 0;

    for (int k = 0; k < config->borders[index].count && !err; k++) {
        snprintf(what, sizeof(what), "border %d, tensor %d", index, k);
        err = check_batch_dim(&config->borders[index].tensors[k], config->batch_dim, what);
    }
    return err;
}

static int check_borders(const struct dp_pipeline_config *config)
{
    const struct dp_schedule *s = config->schedule;
    int err = 0;

    if (!config->borders)
        return dp_fail(DP_ESTATE, "borders: not declared, expected %d", s->stages + 1);
    if (config->batch_dim < 0)
        return dp_fail(DP_EINVAL, "batch_dim: %d, expected at least 0", config->batch_dim);
    for (int i = 0; i <= s->stages && !err; i++)
        err = dp_border_check(&config->borders[i], i);
    if (!err)
        err = check_whole_border(config, 0);
    if (!err && s->return_outputs)
        err = check_whole_border(config, s->stages);
    if (!err && config->label)
        err = dp_spec_check(config->label, "label");
    if (!err && config->label)
        err = check_batch_dim(config->label, config->batch_dim, "label");
    return err;
}

static int check_loss(const struct dp_pipeline_config *config)
{
    const struct dp_schedule *s = config->schedule;
    int rank = dp_config_rank(config);

    if (config->max_loss_values < 0)
        return dp_fail(DP_EINVAL, "max_loss_values: %d, expected at least 0",
                       config->max_loss_values);
    if (!isfinite(config->loss_scale))
        return dp_fail(DP_EINVAL, "loss_scale: %g, expected a finite number", config->loss_scale);
    if (dp_config_last_slot(s, rank) < 0 || (s->forward_only && !config->loss))
        return 0;
    if (!config->loss)
        return dp_fail(DP_EINVAL, "loss: NULL, expected one: rank %d holds the last stage, and the "
                                  "schedule trains", rank);
    if (!config->loss->loss || (!s->forward_only && !config->loss->loss_backward))
        return dp_fail(DP_EINVAL, "loss: no callback %s",
                       config->loss->loss ? "loss_backward" : "loss");
    return 0;
}

int dp_config_check(const struct dp_pipeline_config *config, const struct dp_device *device)
{
    if (!config->schedule)
        return dp_fail(DP_EINVAL, "schedule: NULL, expected one");
    int err = check_schedule(config);
    if (!err)
        err = check_comm(config);
    if (!err)
        err = check_borders(config);
    if (!err)
        err = check_stages(config, device);
    if (!err)
        err = check_loss(config);
    return err;
}
