/* SPDX-License-Identifier: Apache-2.0
 *
 * versions.c - what NCCL looks for: ncclTunerPlugin_v1 to _v6. A function's name ends in the first
 * version that has it. They always succeed: NCCL would pass an error on to the application, where
 * its own choice is a good answer too. Only init may fail: if the user wants that, or without
 * memory.
 */
#include "nccl-plugin/nccl_abi.h"
#include "nccl-plugin/nccl_log.h"
#include "nccl-plugin/tuner/tuner.h"

#include <pthread.h>

#define TABLE(version, ...)                                                                        \
    extern const struct ncclTuner_v##version ncclTunerPlugin_v##version;                           \
    __attribute__((visibility("default")))                                                         \
    const struct ncclTuner_v##version ncclTunerPlugin_v##version = {.name = "dualpipe",            \
                                                                    __VA_ARGS__}

/* ---- what several versions have ------------------------------------------------------------- */

static ncclResult_t open_tuner(const struct dpn_tuner_config *config, void **context)
{
    struct dpn_tuner *tuner = NULL;
    int err = dpn_tuner_open(config, &tuner);

    *context = tuner;
    return dpn_result(err);
}

static ncclResult_t init_v2(size_t nRanks, size_t nNodes, ncclDebugLogger_t logFunction,
                            void **context)
{
    return open_tuner(&(struct dpn_tuner_config){nRanks, nNodes, logFunction, false, NULL},
                      context);
}

static ncclResult_t init_v3(size_t nRanks, size_t nNodes, ncclDebugLogger_t logFunction,
                            void **context)
{
    return open_tuner(&(struct dpn_tuner_config){nRanks, nNodes, logFunction, true, NULL}, context);
}

static ncclResult_t destroy_v2(void *context)
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

static ncclResult_t getCollInfo_v4(void *context, ncclFunc_t collType, size_t nBytes,
                                   int numPipeOps, float **collCostTable, int numAlgo, int numProto,
                                   int regBuff, int *nChannels)
{
    choose(context, collType, nBytes, numPipeOps, collCostTable, numAlgo, numProto, regBuff,
           DPN_CHANNELS_MAX_V1, nChannels);
    return ncclSuccess;
}

static ncclResult_t init_v5(void **ctx, uint64_t commId, size_t nRanks, size_t nNodes,
                            ncclDebugLogger_t logFunction,
                            struct ncclNvlDomainInfo_v5 *nvlDomainInfo,
                            struct ncclTunerConstants_v5 *constants)
{
    (void)commId, (void)nvlDomainInfo;
    return open_tuner(&(struct dpn_tuner_config){nRanks, nNodes, logFunction, true, constants},
                      ctx);
}

static ncclResult_t getCollInfo_v5(void *context, ncclFunc_t collType, size_t nBytes,
                                   int numPipeOps, float **collCostTable, int numAlgo, int numProto,
                                   int regBuff, int *nChannels)
{
    choose(context, collType, nBytes, numPipeOps, collCostTable, numAlgo, numProto, regBuff,
           DPN_CHANNELS_MAX_V5, nChannels);
    return ncclSuccess;
}

/* ---- versions ------------------------------------------------------------------------------- */

/* Version 1: NCCL 2.19 and 2.20: no context. A question does not say which communicator asks, so
 * one tuner answers for all of them, with rules for any number of ranks and nodes; it is made once,
 * as communicators that overlap must not see two tables. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct dpn_tuner *shared; /* stays, as a communicator may be asking */

static ncclResult_t init_v1(size_t nRanks, size_t nNodes, ncclDebugLogger_t logFunction)
{
    const struct dpn_tuner_config config = {.logger = logFunction};

    (void)nRanks, (void)nNodes;
    pthread_mutex_lock(&lock);
    int err = shared ? 0 : dpn_tuner_open(&config, &shared);
    pthread_mutex_unlock(&lock);
    return dpn_result(err);
}

static struct dpn_tuner *get_shared(void)
{
    pthread_mutex_lock(&lock);
    struct dpn_tuner *tuner = shared;
    pthread_mutex_unlock(&lock);
    return tuner;
}

static ncclResult_t get_coll_info_v1(ncclFunc_t collType, size_t nBytes, int collNetSupport,
                                     int nvlsSupport, int numPipeOps, int *algorithm, int *protocol,
                                     int *nChannels)
{
    dpn_tuner_choose_without_costs(get_shared(), collType, nBytes, numPipeOps, collNetSupport,
                                   nvlsSupport, algorithm, protocol, nChannels);
    return ncclSuccess;
}

static ncclResult_t destroy_v1(void)
{
    return ncclSuccess;
}

TABLE(1, .init = init_v1, .getCollInfo = get_coll_info_v1, .destroy = destroy_v1);

/* Version 2: a context for each communicator. */
static ncclResult_t get_coll_info_v2(void *context, ncclFunc_t collType, size_t nBytes,
                                     int collNetSupport, int nvlsSupport, int numPipeOps,
                                     int *algorithm, int *protocol, int *nChannels)
{
    dpn_tuner_choose_without_costs(context, collType, nBytes, numPipeOps, collNetSupport,
                                   nvlsSupport, algorithm, protocol, nChannels);
    return ncclSuccess;
}

TABLE(2, .init = init_v2, .getCollInfo = get_coll_info_v2, .destroy = destroy_v2);

/* Version 3: a table of costs instead of one choice. */
static ncclResult_t get_coll_info_v3(void *context, ncclFunc_t collType, size_t nBytes,
                                     int numPipeOps, float **collCostTable, int numAlgo,
                                     int numProto, int *nChannels)
{
    return getCollInfo_v4(context, collType, nBytes, numPipeOps, collCostTable, numAlgo, numProto,
                          0, nChannels);
}

TABLE(3, .init = init_v3, .getCollInfo = get_coll_info_v3, .destroy = destroy_v2);

/* Version 4: whether buffers are registered. */
TABLE(4, .init = init_v3, .getCollInfo = getCollInfo_v4, .destroy = destroy_v2);

/* Version 5: more is known when a communicator is made, more channels. */
TABLE(5, .init = init_v5, .getCollInfo = getCollInfo_v5, .finalize = destroy_v2);

/* Version 6: the size of a chunk. */
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
        init_v5(ctx, commId, nRanks, nNodes, logFunction, nvlDomainInfo, constants);

    if (!result && dpn_tuner_has_table(*ctx))
        __atomic_store_n(&ncclTunerPlugin_v6.getChunkSize, get_chunk_size_v6, __ATOMIC_RELEASE);
    return result;
}

__attribute__((visibility("default"))) struct ncclTuner_v6 ncclTunerPlugin_v6 = {
    .name = "dualpipe",
    .init = init_v6,
    .getCollInfo = getCollInfo_v5,
    .finalize = destroy_v2,
};
