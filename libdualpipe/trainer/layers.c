/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "base/sized.h"
#include "trainer/stage.h"

#include <stdlib.h>

struct dp_layers {
    struct dp_layers_config config;
    struct model_info model;
    struct place *place;
    struct stage **stages;
    int count;
};

int dp_layers_new_sized(const struct dp_layers_config *config, struct dp_layers **out, size_t size)
{
    DP_TAKE(dp_layers_config, config, size);
    struct dp_layers *l;

    if (!config || !config->model || !out)
        return dp_fail(DP_EINVAL, "no model, or no place for what is made of it");
    if (config->rows < 1)
        return dp_fail(DP_EINVAL, "%lld rows, expected at least 1", (long long)config->rows);
    l = calloc(1, sizeof(*l));
    if (!l)
        return dp_fail(DP_ENOMEM, "no memory for layers");
    l->config = *config;
    int err = model_take(&l->model, config->model);
    if (!err)
        err = place_new(config->device, config->stream, false, &l->place);
    if (err)
        dp_layers_free(l);
    else
        *out = l;
    return err;
}

void dp_layers_free(struct dp_layers *l)
{
    if (!l)
        return;
    for (int i = 0; i < l->count; i++)
        stage_free(l->stages[i]);
    free(l->stages);
    place_free(l->place);
    model_fini(&l->model);
    free(l);
}

int dp_layers_add(struct dp_layers *l, int32_t first, int32_t end, struct dp_stage *out)
{
    struct stage **stages;

    if (!out)
        return dp_fail(DP_EINVAL, "no place for a stage");
    if (first < 0 || end <= first || end > l->model.model.layer_count)
        return dp_fail(DP_EINVAL, "layers %d to %d, expected some of 0 to %d", first, end - 1,
                       l->model.model.layer_count - 1);
    for (int32_t i = first; i < end && !l->config.bare; i++)
        if (l->model.model.layers[i]->norm_count)
            return dp_fail(DP_EUNSUPPORTED,
                           "layer %d has batch norms, whose statistics only a trainer commits", i);
    stages = realloc(l->stages, ((size_t)l->count + 1) * sizeof(struct stage *));
    if (!stages)
        return dp_fail(DP_ENOMEM, "no memory for %d runs of layers", l->count + 1);
    l->stages = stages;
    int err = stage_new(&(struct stage_config){.bare = l->config.bare,
                                               .model = &l->model,
                                               .stage = l->count,
                                               .first_layer = first,
                                               .end_layer = end,
                                               .rows = l->config.rows,
                                               .microbatches = 1,
                                               .seed = l->config.seed,
                                               .dtype = l->config.dtype,
                                               .place = l->place},
                        &stages[l->count]);
    if (err)
        return err;
    struct stage *s = stages[l->count++];
    if (!l->config.bare)
        err = stage_round(s);
    if (!err)
        err = place_wait(l->place);
    *out = stage_view(s);
    return err;
}
