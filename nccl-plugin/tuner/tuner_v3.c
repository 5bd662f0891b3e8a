/* SPDX-License-Identifier: Apache-2.0
 *
 * tuner_v3.c - a table of costs instead of one choice.
 */
#include "nccl-plugin/tuner/calls.h"

static ncclResult_t get_coll_info_v3(void *context, ncclFunc_t collType, size_t nBytes,
                                     int numPipeOps, float **collCostTable, int numAlgo,
                                     int numProto, int *nChannels)
{
    return dpn_tuner_getCollInfo_v4(context, collType, nBytes, numPipeOps, collCostTable, numAlgo,
                                    numProto, 0, nChannels);
}

extern const struct ncclTuner_v3 ncclTunerPlugin_v3;
__attribute__((visibility("default"))) const struct ncclTuner_v3 ncclTunerPlugin_v3 = {
    .name = "dualpipe",
    .init = dpn_tuner_init_v3,
    .getCollInfo = get_coll_info_v3,
    .destroy = dpn_tuner_destroy_v2,
};
