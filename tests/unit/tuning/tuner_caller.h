/* SPDX-License-Identifier: Apache-2.0
 *
 * tuner_caller.h - calls a tuner plugin of any version as NCCL does, so that a test is written once.
 */
#ifndef DP_TESTS_TUNER_CALLER_H
#define DP_TESTS_TUNER_CALLER_H

#include "nccl-plugin/nccl_abi.h"

#include <stdbool.h>

enum { TUNER_FIRST = 1, TUNER_LAST = 6 };

/* What a version can do. */
static inline bool tuner_has_costs(int version)
{
    return version >= 3;
}

struct tuner_caller {
    int version;
    const void *table; /* ncclTunerPlugin_vN */
    void *context;
    struct ncclTunerConstants_v5 constants; /* in and out, from version 5 on */
};

/* The symbol of the library that dlopen gave. */
bool tuner_find(void *library, int version, struct tuner_caller *caller);
ncclResult_t tuner_init(struct tuner_caller *caller, size_t ranks, size_t nodes,
                        ncclDebugLogger_t logger);
ncclResult_t tuner_destroy(struct tuner_caller *caller);

struct tuner_call {
    ncclFunc_t function;
    size_t bytes;
    int pipe_ops;
    bool has_collnet, has_nvls, is_registered;
    float costs[NCCL_NUM_ALGORITHMS][NCCL_NUM_PROTOCOLS]; /* in and out, from version 3 on */
    /* Out: versions 1 and 2 return it, later ones by the least cost that is not negative. */
    int algorithm, protocol;
    int channels; /* in and out */
};
ncclResult_t tuner_ask(struct tuner_caller *caller, struct tuner_call *call);

/* Version 6. */
ncclResult_t tuner_ask_chunk(struct tuner_caller *caller, const struct tuner_call *call,
                             size_t *chunk);

#endif
