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
                          model_engine_windows(r->engines[rank]) + r->state[rank];
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
        if (r->engines[rank])
            r->engines[rank]->ops->free(r->engines[rank]);
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
static int choose_activations(struct ranks *r, struct fit *f)
{
    const struct dp_trainer_config *how = r->config->how;
    const struct dp_offload_activations what = {
        .budget_bytes = how->offload.device_bytes,
        .beside_bytes = r->beside,
        .keep = !how->offload.activations,
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
            r->beside[rank] - model_engine_windows(r->engines[rank]) + planned;
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
        err = choose_activations(&r, &f);
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
