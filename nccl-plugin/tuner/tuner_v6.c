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

/* NCCL limits chunks to its buffers only where there is a getChunkSize, so without a table of rules
 * there is none. The table is an option, so this is the same for all ranks and communicators. */
extern struct ncclTuner_v6 ncclTunerPlugin_v6;

static ncclResult_t init_v6(void **ctx, uint64_t commId, size_t nRanks, size_t nNodes,
                            ncclDebugLogger_t logFunction,
                            struct ncclNvlDomainInfo_v5 *nvlDomainInfo,
                            struct ncclTunerConstants_v5 *constants)
{
    const ncclResult_t result =
        dpn_tuner_init_v5(ctx, commId, nRanks, nNodes, logFunction, nvlDomainInfo, constants);

    if (!result && dpn_tuner_has_table(*ctx))
        __atomic_store_n(&ncclTunerPlugin_v6.getChunkSize, get_chunk_size_v6, __ATOMIC_RELEASE);
    return result;
}

__attribute__((visibility("default"))) struct ncclTuner_v6 ncclTunerPlugin_v6 = {
    .name = "dualpipe",
    .init = init_v6,
    .getCollInfo = dpn_tuner_getCollInfo_v5,
    .finalize = dpn_tuner_destroy_v2,
};
