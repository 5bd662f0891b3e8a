/* SPDX-License-Identifier: Apache-2.0
 *
 * calls.h - functions of NCCL's tuner tables, named for the first version that has them. They
 * always succeed: NCCL would pass an error on to the application, where its own choice is a good
 * answer too. Only init may fail: if the user wants that, or without memory.
 */
#ifndef DPN_TUNER_CALLS_H
#define DPN_TUNER_CALLS_H

#include "nccl-plugin/nccl_abi.h"

ncclResult_t dpn_tuner_init_v2(size_t nRanks, size_t nNodes, ncclDebugLogger_t logFunction,
                               void **context);
ncclResult_t dpn_tuner_init_v3(size_t nRanks, size_t nNodes, ncclDebugLogger_t logFunction,
                               void **context);
ncclResult_t dpn_tuner_destroy_v2(void *context);
ncclResult_t dpn_tuner_getCollInfo_v4(void *context, ncclFunc_t collType, size_t nBytes,
                                      int numPipeOps, float **collCostTable, int numAlgo,
                                      int numProto, int regBuff, int *nChannels);
ncclResult_t dpn_tuner_init_v5(void **ctx, uint64_t commId, size_t nRanks, size_t nNodes,
                               ncclDebugLogger_t logFunction,
                               struct ncclNvlDomainInfo_v5 *nvlDomainInfo,
                               struct ncclTunerConstants_v5 *constants);
ncclResult_t dpn_tuner_getCollInfo_v5(void *context, ncclFunc_t collType, size_t nBytes,
                                      int numPipeOps, float **collCostTable, int numAlgo,
                                      int numProto, int regBuff, int *nChannels);

#endif
