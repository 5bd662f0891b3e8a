/* SPDX-License-Identifier: Apache-2.0
 *
 * tuner_v2.c - a context for each communicator.
 */
#include "nccl-plugin/tuner/tuner.h"
#include "nccl-plugin/tuner/calls.h"

static ncclResult_t get_coll_info_v2(void *context, ncclFunc_t collType, size_t nBytes,
                                     int collNetSupport, int nvlsSupport, int numPipeOps,
                                     int *algorithm, int *protocol, int *nChannels)
{
    dpn_tuner_choose_without_costs(context, collType, nBytes, numPipeOps, collNetSupport,
                                   nvlsSupport, algorithm, protocol, nChannels);
    return ncclSuccess;
}

extern const struct ncclTuner_v2 ncclTunerPlugin_v2;
__attribute__((visibility("default"))) const struct ncclTuner_v2 ncclTunerPlugin_v2 = {
    .name = "dualpipe",
    .init = dpn_tuner_init_v2,
    .getCollInfo = get_coll_info_v2,
    .destroy = dpn_tuner_destroy_v2,
};
