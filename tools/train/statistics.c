/* SPDX-License-Identifier: Apache-2.0 */
#include "train/statistics.h"

#include <dualpipe/batch_norm.h>

#include <stdlib.h>
#include <string.h>

/* The batch normalisation of a layer, on the rank that holds it; elsewhere NULL. */
static struct dp_batch_norm *norm_of(const struct engine *e, int layer)
{
    for (int i = 0; i < e->stage_count; i++) {
        const struct gpt_stage *g = e->stages[i];
        if (g->norms && layer >= g->first_block && layer < g->end_block)
            return g->norms[layer - g->first_block];
    }
    return NULL;
}

int statistics_init(struct statistics *s, const struct engine *engine)
{
    *s = (struct statistics){0};
    if (!engine->config.model)
        return 0;
    s->len = (size_t)engine->microbatches * (1 + 2 * (size_t)engine->config.width);
    s->values = malloc(s->len * sizeof(*s->values));
    return s->values ? 0 : DP_ENOMEM;
}

void statistics_fini(struct statistics *s)
{
    free(s->values);
    *s = (struct statistics){0};
}

/* A micro-batch went through a layer on one rank: elsewhere its values are zero, so that a sum, in
 * whatever order, changes none of them. */
static int add_over_ranks(const struct statistics *s, struct dp_comm *comm)
{
    const DLDataType type = {kDLFloat, 64, 1};
    struct dp_request req;

    if (!comm)
        return 0;
    int err = dp_comm_iallreduce(comm, s->values, s->values, s->len, type, DP_REDUCE_SUM, &req);
    return err ? err : dp_comm_wait(comm, &req, -1);
}

static int commit_layer(const struct statistics *s, struct dp_batch_norm *bn, int microbatches,
                        struct dp_comm *comm)
{
    memset(s->values, 0, s->len * sizeof(*s->values));
    for (int mb = 0; mb < microbatches && bn; mb++)
        dp_batch_norm_export_of(bn, mb, s->values + (size_t)mb * dp_batch_norm_export_len(bn));
    int err = add_over_ranks(s, comm);
    if (!err && bn)
        dp_batch_norm_commit(bn, s->values, microbatches);
    return err;
}

int statistics_commit(const struct statistics *s, struct engine *engine, struct dp_comm *comm,
                      bool used)
{
    int err = 0;

    for (int layer = 1; layer <= engine->config.layers && s->len && !err; layer++) {
        struct dp_batch_norm *bn = norm_of(engine, layer);
        if (used)
            err = commit_layer(s, bn, engine->microbatches, comm);
        else if (bn)
            dp_batch_norm_forget(bn);
    }
    return err;
}
