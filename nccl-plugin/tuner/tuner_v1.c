/* SPDX-License-Identifier: Apache-2.0
 *
 * tuner_v1.c - NCCL 2.19 and 2.20: no context. A question does not say which communicator asks, so
 * one tuner answers for all of them, with rules for any number of ranks and nodes; it is made once,
 * as communicators that overlap must not see two tables.
 */
#include "nccl-plugin/nccl_log.h"
#include "nccl-plugin/tuner/tuner.h"
#include "nccl-plugin/tuner/calls.h"

#include <pthread.h>

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

extern const struct ncclTuner_v1 ncclTunerPlugin_v1;
__attribute__((visibility("default"))) const struct ncclTuner_v1 ncclTunerPlugin_v1 = {
    .name = "dualpipe",
    .init = init_v1,
    .getCollInfo = get_coll_info_v1,
    .destroy = destroy_v1,
};
