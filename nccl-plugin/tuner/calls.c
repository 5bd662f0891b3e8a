/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl-plugin/tuner/calls.h"

#include "nccl-plugin/nccl_log.h"
#include "nccl-plugin/tuner/tuner.h"

static ncclResult_t open_tuner(const struct dpn_tuner_config *config, void **context)
{
    struct dpn_tuner *tuner = NULL;
    int err = dpn_tuner_open(config, &tuner);

    *context = tuner;
    return dpn_result(err);
}

ncclResult_t dpn_tuner_init_v2(size_t nRanks, size_t nNodes, ncclDebugLogger_t logFunction,
                               void **context)
{
    return open_tuner(&(struct dpn_tuner_config){nRanks, nNodes, logFunction, false, NULL},
                      context);
}

ncclResult_t dpn_tuner_init_v3(size_t nRanks, size_t nNodes, ncclDebugLogger_t logFunction,
                               void **context)
{
    return open_tuner(&(struct dpn_tuner_config){nRanks, nNodes, logFunction, true, NULL}, context);
}

ncclResult_t dpn_tuner_destroy_v2(void *context)
{
    dpn_tuner_close(context);
    return ncclSuccess;
}

static void choose(void *context, ncclFunc_t function, size_t bytes, int pipe_ops, float **costs,
                   int algorithms, int protocols, int registered, int channels_max, int *channels)
{
    const struct dpn_tuner_question question = {
        .function = function,
        .bytes = bytes,
        .costs = (float *)costs, /* it is one block, whatever its type says */
        .algorithms = algorithms,
        .protocols = protocols,
        .is_registered = registered,
        .pipe_ops = pipe_ops,
        .channels_max = channels_max,
    };

    dpn_tuner_choose(context, &question, channels);
}

ncclResult_t dpn_tuner_getCollInfo_v4(void *context, ncclFunc_t collType, size_t nBytes,
                                      int numPipeOps, float **collCostTable, int numAlgo,
                                      int numProto, int regBuff, int *nChannels)
{
    choose(context, collType, nBytes, numPipeOps, collCostTable, numAlgo, numProto, regBuff,
           DPN_CHANNELS_MAX_V1, nChannels);
    return ncclSuccess;
}

ncclResult_t dpn_tuner_init_v5(void **ctx, uint64_t commId, size_t nRanks, size_t nNodes,
                               ncclDebugLogger_t logFunction,
                               struct ncclNvlDomainInfo_v5 *nvlDomainInfo,
                               struct ncclTunerConstants_v5 *constants)
{
    (void)commId, (void)nvlDomainInfo;
    return open_tuner(&(struct dpn_tuner_config){nRanks, nNodes, logFunction, true, constants},
                      ctx);
}

ncclResult_t dpn_tuner_getCollInfo_v5(void *context, ncclFunc_t collType, size_t nBytes,
                                      int numPipeOps, float **collCostTable, int numAlgo,
                                      int numProto, int regBuff, int *nChannels)
{
    choose(context, collType, nBytes, numPipeOps, collCostTable, numAlgo, numProto, regBuff,
           DPN_CHANNELS_MAX_V5, nChannels);
    return ncclSuccess;
}
