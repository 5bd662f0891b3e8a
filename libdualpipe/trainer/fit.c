/* SPDX-License-Identifier: Apache-2.0
 *
 * fit.c - a rank's share of a device:
 *
 *      [what stages hold | optimizer's state | room for passing layers | the pipeline's memory]
 *
 * The first two are what they are; the pipeline's memory is made small enough by what leaves it for the
 * host or is computed again (offload.h); layers that pass get what is left then.
 */
#include "trainer/fit.h"

#include "base/fail.h"
#include "schedule/build.h"

#include <stdlib.h>

/* Bare ones of all ranks, and what offload.h wants to know of them. */
struct ranks {
    const struct model_engine_config *config; /* of rank 0 */
    struct engine **engines;                  /* [ranks] */
    size_t *beside, *state;                   /* [ranks] */
};

static struct model_engine_config config_of(const struct ranks *r, int rank)
{
    struct model_engine_config config = *r->config;

    config.rank = rank;
    return config;
}

static int describe_rank(struct ranks *r, int rank)
{
    const struct dp_trainer_config *how = r->config->how;
    const struct model_engine_config config = config_of(r, rank);
    int err = model_engine_new(&config, &r->engines[rank]);

    if (!err && (!how->offload.optimizer || how->offload.parameters))
        err = model_engine_state(r->engines[rank], &how->optimizer, false, &r->state[rank]);
    if (!err)
        r->beside[rank] = model_engine_resident(r->engines[rank]) +
                          model_engine_windows(r->engines[rank], r->config->how->dtype) + r->state[rank];
    return err;
}

static int describe_ranks(struct ranks *r, int count)
{
    int err = 0;

    r->engines = calloc((size_t)count, sizeof(*r->engines));
    r->beside = calloc((size_t)count, sizeof(*r->beside));
    r->state = calloc((size_t)count, sizeof(*r->state));
    if (!r->engines || !r->beside || !r->state)
        err = dp_fail(DP_ENOMEM, "no memory for what %d ranks have on their devices", count);
    for (int rank = 0; rank < count && !err; rank++)
        err = describe_rank(r, rank);
    return err;
}

static void forget_ranks(struct ranks *r, int count)
{
    for (int rank = 0; r->engines && rank < count; rank++)
        model_engine_free(r->engines[rank]);
    free(r->engines);
    free(r->beside);
    free(r->state);
}

static int measure(void *user, const struct dp_schedule *s, int rank, size_t *bytes)
{
    const struct ranks *r = user;
    const struct model_engine_config config = config_of(r, rank);

    return model_engine_planned(r->engines[rank], &config, s, bytes);
}

/* What messages drive keeps all, as another order of theirs would take other memory. */
static int choose_activations(struct ranks *r, int count, struct fit *f)
{
    const struct dp_trainer_config *how = r->config->how;
    const struct dp_offload_activations what = {
        .budget_bytes = how->offload.device_bytes,
        .beside_bytes = r->beside,
        .keep = !how->offload.activations &&
                (count > 1 || dp_schedule_has(r->config->training, DP_OP_RECOMPUTE)),
        .recompute = !how->offload.activations,
        .lead = 1,
        .measure = measure,
        .measure_user = r,
    };

    if (how->execution == DP_EXECUTE_MESSAGES)
        return 0;
    const int err = dp_schedule_copy(r->config->training, &f->training);
    return err ? err : dp_offload_activations(f->training, &what, &f->choice);
}

static int measure_rooms(const struct ranks *r, int count, struct fit *f)
{
    const size_t all = r->config->how->offload.device_bytes, planned = f->choice.peak_bytes;

    f->rooms = calloc((size_t)count, sizeof(*f->rooms));
    if (!f->rooms)
        return dp_fail(DP_ENOMEM, "no memory for the rooms of %d ranks", count);
    for (int rank = 0; rank < count; rank++) {
        const size_t taken =
            r->beside[rank] - model_engine_windows(r->engines[rank], r->config->how->dtype) + planned;
        f->rooms[rank].limit_bytes = all > r->state[rank] ? all - r->state[rank] : 0;
        f->rooms[rank].window_bytes = planned && all > taken ? all - taken : 0;
    }
    return 0;
}

int fit_device(const struct model_engine_config *config, struct fit *out)
{
    const int count = config->training->ranks;
    struct ranks r = {.config = config};
    struct fit f = {0};
    int err = describe_ranks(&r, count);

    if (!err)
        err = choose_activations(&r, count, &f);
    if (!err)
        err = measure_rooms(&r, count, &f);
    forget_ranks(&r, count);
    if (err)
        fit_fini(&f);
    *out = f;
    return err;
}

void fit_fini(struct fit *f)
{
    dp_schedule_free(f->training);
    free(f->rooms);
    *f = (struct fit){0};
}

/* ---- a rank alone ---------------------------------------------------------------------------- */

static void add_stage(struct dp_op_list *ops, enum dp_op_kind kind, int32_t slot, int32_t first,
                      int32_t end)
{
    for (int32_t mb = first; mb < end; mb++)
        dp_op_list_add(ops, (struct dp_op){.kind = kind, .slot = (uint32_t)slot, .mb = (uint32_t)mb});
}

int fit_layers_in_turn(int32_t layers, int32_t microbatches, struct dp_schedule **out)
{
    const struct dp_schedule_spec spec = {
        .kind = DP_SCHEDULE_USER, .ranks = 1, .microbatches = microbatches};
    const int32_t count = layers < DP_MAX_SLOTS ? layers : DP_MAX_SLOTS;
    const size_t first_slot[] = {0, (size_t)count};
    struct dp_slot slots[DP_MAX_SLOTS] = {0};
    struct dp_op_list ops = {0};
    struct dp_schedule *s;

    for (int32_t i = 0; i < count; i++)
        slots[i].stage = slots[i].phase = slots[i].location = i;
    for (int32_t i = 0; i < count - 1; i++)
        add_stage(&ops, DP_OP_F, i, 0, microbatches);
    for (int32_t mb = 0; mb < microbatches; mb++) {
        add_stage(&ops, DP_OP_F, count - 1, mb, mb + 1);
        add_stage(&ops, DP_OP_B, count - 1, mb, mb + 1);
    }
    for (int32_t i = count - 2; i >= 0; i--)
        add_stage(&ops, DP_OP_B, i, 0, microbatches);
    int err = dp_schedule_new_placed(&spec, 1, first_slot, slots, &s);
    if (err) {
        dp_op_list_fini(&ops);
        return dp_fail(err, "no schedule of %d stages on one rank", count);
    }
    s->first[1] = ops.count;
    err = ops.failed ? dp_fail(DP_ENOMEM, "no memory for the ops of %d stages", count)
                     : dp_schedule_take_ops(s, &ops, s->first);
    if (err) {
        dp_op_list_fini(&ops);
        dp_schedule_free(s);
    } else {
        *out = s;
    }
    return err;
}
