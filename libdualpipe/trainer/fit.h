/* SPDX-License-Identifier: Apache-2.0
 *
 * fit.h - what of each rank is on a device that has not room for all of it
 * (dp_trainer_config.offload).
 */
#ifndef DP_TRAINER_FIT_H
#define DP_TRAINER_FIT_H

#include "trainer/model_engine.h"

#include <dualpipe/offload.h>

struct fit {
    struct dp_schedule *training; /* with EVICTs, FETCHes and RECOMPUTEs; NULL: as it was */
    struct dp_offload_choice choice;
    struct device_room *rooms;    /* [ranks] */
};

/* config: of a bare engine of rank 0. All ranks come to the same. DP_ENOMEM names a rank that takes more
 * than offload.device_bytes all the same; *out is then empty. */
int fit_device(const struct model_engine_config *config, struct fit *out);
void fit_fini(struct fit *f);

/* The training schedule of a rank alone whose parameters pass the device: a stage for each layer, or as
 * many as a rank may have, in each of which all micro-batches compute before the next one comes.
 * DP_ENOMEM.
 *
 *      F0.0 F0.1 F0.2  F1.0 F1.1 F1.2  F2.0 B2.0 F2.1 B2.1 F2.2 B2.2  B1.0 B1.1 B1.2  B0.0 B0.1 B0.2
 */
int fit_layers_in_turn(int32_t layers, int32_t microbatches, struct dp_schedule **out);

#endif
