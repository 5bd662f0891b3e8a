/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/measure.h"

#include "base/fail.h"
#include "trainer/batch.h"
#include "trainer/model_engine.h"
#include "trainer/place.h"

#include <stdlib.h>

enum { STEPS = 3 }; /* the first one is slower */

/* One stage with all layers, by a schedule that splits backwards. */
int measure_layers(const struct dp_trainer_config *config, const struct model_info *m,
                   struct stage_times *times)
{
    const struct dp_trainer_config how = {.rows = batch_rows(config->rows, config->microbatches, 0),
                                          .seed = config->seed,
                                          .dtype = config->dtype,
                                          .optimizer = config->optimizer};
    const struct dp_schedule_spec spec = {
        .kind = DP_SCHEDULE_ZB1P, .ranks = 1, .microbatches = 1};
    const int32_t first_layer[] = {0, m->model.layer_count};
    struct model_engine_config of = {.how = &how,
                                     .model = m,
                                     .first_layer = first_layer,
                                     .replica = {.count = 1},
                                     .microbatches = 1};
    struct dp_schedule *training = NULL, *forward = NULL;
    int err = dp_schedule_new(&spec, &training);

    if (!err)
        err = dp_schedule_new_forward(training, &forward);
    if (!err)
        err = place_new(config->device, config->stream, false, &of.place);
    of.training = training;
    of.forward = forward;
    if (!err)
        err = model_engine_measure(&of, STEPS, times);
    place_free(of.place);
    dp_schedule_free(forward);
    dp_schedule_free(training);
    return err;
}

int costs_of_times(struct model_info *m, const struct stage_times *times)
{
    m->costs = calloc((size_t)m->model.layer_count, sizeof(*m->costs));
    if (!m->costs)
        return dp_fail(DP_ENOMEM, "no memory for the costs of layers");
    for (int32_t i = 0; i < m->model.layer_count; i++)
        for (int k = 0; k <= STAGE_WEIGHT; k++)
            m->costs[i] += (double)times[i].ns[k];
    return 0;
}
