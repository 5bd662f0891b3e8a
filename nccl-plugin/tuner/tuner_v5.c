/* SPDX-License-Identifier: Apache-2.0
 *
 * tuner_v5.c - more is known when a communicator is made, more channels.
 */
#include "nccl-plugin/tuner/calls.h"

extern const struct ncclTuner_v5 ncclTunerPlugin_v5;
__attribute__((visibility("default"))) const struct ncclTuner_v5 ncclTunerPlugin_v5 = {
    .name = "dualpipe",
    .init = dpn_tuner_init_v5,
    .getCollInfo = dpn_tuner_getCollInfo_v5,
    .finalize = dpn_tuner_destroy_v2,
};
