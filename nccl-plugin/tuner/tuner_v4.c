/* SPDX-License-Identifier: Apache-2.0
 *
 * tuner_v4.c - whether buffers are registered.
 */
#include "nccl-plugin/tuner/calls.h"

extern const struct ncclTuner_v4 ncclTunerPlugin_v4;
__attribute__((visibility("default"))) const struct ncclTuner_v4 ncclTunerPlugin_v4 = {
    .name = "dualpipe",
    .init = dpn_tuner_init_v3,
    .getCollInfo = dpn_tuner_getCollInfo_v4,
    .destroy = dpn_tuner_destroy_v2,
};
