/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner_caller.h"

#include <dlfcn.h>
#include <stdio.h>

bool tuner_find(void *library, int version, struct tuner_caller *caller)
{
    char symbol[32];

    snprintf(symbol, sizeof(symbol), "ncclTunerPlugin_v%d", version);
    *caller = (struct tuner_caller){
        .version = version, .table = dlsym(library, symbol),
        .constants.baseLatencies = {{6, 14, 8}, {6, 14, 8}}, /* of tree and ring, about as NCCL's */
    };
    return caller->table;
}

ncclResult_t tuner_init(struct tuner_caller *c, size_t ranks, size_t nodes,
                        ncclDebugLogger_t logger)
{
    struct ncclNvlDomainInfo_v5 domains = {1, (int)ranks, (int)ranks};

    switch (c->version) {
    case 1:
        return ((const struct ncclTuner_v1 *)c->table)->init(ranks, nodes, logger);
    case 2:
        return ((const struct ncclTuner_v2 *)c->table)->init(ranks, nodes, logger, &c->context);
    case 3:
        return ((const struct ncclTuner_v3 *)c->table)->init(ranks, nodes, logger, &c->context);
    case 4:
        return ((const struct ncclTuner_v4 *)c->table)->init(ranks, nodes, logger, &c->context);
    case 5:
        return ((const struct ncclTuner_v5 *)c->table)
            ->init(&c->context, 1, ranks, nodes, logger, &domains, &c->constants);
    default:
        return ((const struct ncclTuner_v6 *)c->table)
            ->init(&c->context, 1, ranks, nodes, logger, &domains, &c->constants);
    }
}

ncclResult_t tuner_destroy(struct tuner_caller *c)
{
    switch (c->version) {
    case 1:
        return ((const struct ncclTuner_v1 *)c->table)->destroy();
    case 2:
        return ((const struct ncclTuner_v2 *)c->table)->destroy(c->context);
    case 3:
        return ((const struct ncclTuner_v3 *)c->table)->destroy(c->context);
    case 4:
        return ((const struct ncclTuner_v4 *)c->table)->destroy(c->context);
    case 5:
        return ((const struct ncclTuner_v5 *)c->table)->finalize(c->context);
    default:
        return ((const struct ncclTuner_v6 *)c->table)->finalize(c->context);
    }
}

static int algorithms_of(int version)
{
    return version < 4 ? NCCL_NUM_ALGORITHMS - 1 : NCCL_NUM_ALGORITHMS;
}

static ncclResult_t ask(struct tuner_caller *c, struct tuner_call *q)
{
    float **costs = (float **)q->costs;
    int algorithms = algorithms_of(c->version), protocols = NCCL_NUM_PROTOCOLS;

    switch (c->version) {
    case 1:
        return ((const struct ncclTuner_v1 *)c->table)
            ->getCollInfo(q->function, q->bytes, q->has_collnet, q->has_nvls, q->pipe_ops,
                          &q->algorithm, &q->protocol, &q->channels);
    case 2:
        return ((const struct ncclTuner_v2 *)c->table)
            ->getCollInfo(c->context, q->function, q->bytes, q->has_collnet, q->has_nvls,
                          q->pipe_ops, &q->algorithm, &q->protocol, &q->channels);
    case 3:
        return ((const struct ncclTuner_v3 *)c->table)
            ->getCollInfo(c->context, q->function, q->bytes, q->pipe_ops, costs, algorithms,
                          protocols, &q->channels);
    case 4:
        return ((const struct ncclTuner_v4 *)c->table)
            ->getCollInfo(c->context, q->function, q->bytes, q->pipe_ops, costs, algorithms,
                          protocols, q->is_registered, &q->channels);
    case 5:
        return ((const struct ncclTuner_v5 *)c->table)
            ->getCollInfo(c->context, q->function, q->bytes, q->pipe_ops, costs, algorithms,
                          protocols, q->is_registered, &q->channels);
    default:
        return ((const struct ncclTuner_v6 *)c->table)
            ->getCollInfo(c->context, q->function, q->bytes, q->pipe_ops, costs, algorithms,
                          protocols, q->is_registered, &q->channels);
    }
}

/* As NCCL does. */
static void take_the_least(int version, struct tuner_call *q)
{
    float least = -1;

    for (int a = 0; a < algorithms_of(version); a++)
        for (int p = 0; p < NCCL_NUM_PROTOCOLS; p++)
            if (q->costs[a][p] >= 0 && (least < 0 || q->costs[a][p] < least)) {
                least = q->costs[a][p];
                q->algorithm = a;
                q->protocol = p;
            }
}

ncclResult_t tuner_ask(struct tuner_caller *c, struct tuner_call *q)
{
    q->algorithm = NCCL_ALGO_UNDEF;
    q->protocol = NCCL_PROTO_UNDEF;
    ncclResult_t result = ask(c, q);
    if (tuner_has_costs(c->version))
        take_the_least(c->version, q);
    return result;
}

ncclResult_t tuner_ask_chunk(struct tuner_caller *c, const struct tuner_call *q, size_t *chunk)
{
    const struct ncclTuner_v6 *t = c->table;

    return t->getChunkSize ? t->getChunkSize(c->context, q->function, q->bytes, q->algorithm,
                                             q->protocol, q->channels, chunk)
                           : ncclSuccess;
}
