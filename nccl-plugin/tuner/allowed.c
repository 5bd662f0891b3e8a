/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl-plugin/tuner/allowed.h"

#include "base/options.h"

#include <string.h>
#include <strings.h>

enum { DIRECT_RANKS_MAX = 8 }; /* of a node, for CollNetDirect */

static const char *const algorithm_names[DPN_ALGORITHMS_V1] = {
    "Tree", "Ring", "CollnetDirect", "CollnetChain", "NVLS", "NVLSTree"};
static const char *const protocol_names[NCCL_NUM_PROTOCOLS] = {"LL", "LL128", "Simple"};

/* ---- the variables -------------------------------------------------------------------------- */

static bool has_word(const char *list, const char *word)
{
    for (const char *at = list + (*list == '^'); *at; at += *at == ',') {
        size_t len = strcspn(at, ",");
        if (len == strlen(word) && !strncasecmp(at, word, len))
            return true;
        at += len;
    }
    return false;
}

/* "LL,Simple" admits these, "^LL128" all others; not set: all. */
static bool admits(const char *list, const char *word)
{
    return !list || has_word(list, word) != (*list == '^');
}

void dpn_allowed_read(struct dpn_allowed *allowed)
{
    const char *algorithms = dp_foreign_variable("NCCL_ALGO");
    const char *protocols = dp_foreign_variable("NCCL_PROTO");

    for (int a = 0; a < DPN_ALGORITHMS_V1; a++)
        allowed->algorithms[a] = admits(algorithms, algorithm_names[a]);
    for (int p = 0; p < NCCL_NUM_PROTOCOLS; p++)
        allowed->protocols[p] = admits(protocols, protocol_names[p]);
    if (!protocols || *protocols == '^')
        allowed->protocols[NCCL_PROTO_LL128] = false;
}

/* ---- what there is -------------------------------------------------------------------------- */

static bool is_possible(const struct dpn_support *s, ncclFunc_t function, int algorithm)
{
    const bool all_reduce = function == ncclFuncAllReduce;
    const bool one_of_all = all_reduce || function == ncclFuncAllGather ||
                            function == ncclFuncReduceScatter;

    switch (algorithm) {
    case NCCL_ALGO_RING:
        return true;
    case NCCL_ALGO_TREE:
        return all_reduce;
    case NCCL_ALGO_COLLNET_DIRECT:
        return all_reduce && s->has_collnet && s->nodes && s->ranks <= DIRECT_RANKS_MAX * s->nodes;
    case NCCL_ALGO_COLLNET_CHAIN:
        return all_reduce && s->has_collnet;
    case NCCL_ALGO_NVLS:
        return one_of_all && s->has_nvls && s->nodes == 1;
    case NCCL_ALGO_NVLS_TREE:
        return all_reduce && s->has_nvls && s->nodes > 1;
    default:
        return false;
    }
}

static bool has_protocol(int algorithm, int protocol)
{
    return protocol == NCCL_PROTO_SIMPLE || algorithm == NCCL_ALGO_TREE ||
           algorithm == NCCL_ALGO_RING;
}

void dpn_allowed_costs(const struct dpn_allowed *allowed, const struct dpn_support *support,
                       ncclFunc_t function, float costs[DPN_ALGORITHMS_V1][NCCL_NUM_PROTOCOLS])
{
    for (int a = 0; a < DPN_ALGORITHMS_V1; a++)
        for (int p = 0; p < NCCL_NUM_PROTOCOLS; p++)
            costs[a][p] = allowed->algorithms[a] && allowed->protocols[p] && has_protocol(a, p) &&
                                  is_possible(support, function, a)
                              ? 1
                              : NCCL_ALGO_PROTO_IGNORE;
}
