/* SPDX-License-Identifier: Apache-2.0
 *
 * measure.h - what the layers of a model take on this machine.
 */
#ifndef DP_TRAINER_MEASURE_H
#define DP_TRAINER_MEASURE_H

#include "trainer/model.h"
#include "trainer/stage.h"

/* times[layers + 1], of a micro-batch of the config, whose shape is complete, where it trains, and on
 * the host of its optimizer. The whole model is in memory meanwhile. DP_ENOMEM; errors of callbacks. */
int measure_layers(const struct dp_trainer_config *config, const struct model_info *m,
                   struct stage_times *times);
/* m->costs become what layers take in all. DP_ENOMEM. */
int costs_of_times(struct model_info *m, const struct stage_times *times);

#endif
