/* SPDX-License-Identifier: Apache-2.0
 *
 * tuner_v6.c - the size of a chunk.
 */
#include "nccl-plugin/tuner/tuner.h"
#include "nccl-plugin/tuner/calls.h"

static ncclResult_t get_chunk_size_v6(void *context, ncclFunc_t collType, size_t nBytes,
                                      int algorithm, int protocol, int nChannels, size_t *chunkSize)
{
    (void)nChannels;
    dpn_tuner_chunk(context, collType, nBytes, algorithm, protocol, chunkSize);
    return ncclSuccess;
}

extern const struct ncclTuner_v6 ncclTunerPlugin_v6;
__attribute__((visibility("default"))) const struct ncclTuner_v6 ncclTunerPlugin_v6 = {
    .name = "dualpipe",
    .init = dpn_tuner_init_v5,
    .getCollInfo = dpn_tuner_getCollInfo_v5,
    .finalize = dpn_tuner_destroy_v2,
    .getChunkSize = get_chunk_size_v6,
};
