/* SPDX-License-Identifier: Apache-2.0 */
#include "train/statistics.h"

#include <dualpipe/batch_norm.h>

#include <stdio.h>
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

/* ---- as tensors -------------------------------------------------------------------------------
 */

enum { TENSORS = 3 };

int32_t statistics_tensor_count(const struct gpt_stage *stage)
{
    return stage->norms ? TENSORS * (stage->end_block - stage->first_block) : 0;
}

static void make_tensor(struct statistics_tensor *t, int block, const char *what, DLDataType type,
                        void *data, int64_t count)
{
    snprintf(t->name, sizeof(t->name), "block %d %s", block, what);
    t->shape = count;
    t->tensor = (DLTensor){.data = data,
                           .device = {kDLCPU, 0},
                           .ndim = count > 0,
                           .dtype = type,
                           .shape = &t->shape};
}

void statistics_tensors(const struct gpt_stage *stage, struct statistics_tensor *out)
{
    static const DLDataType float32 = {kDLFloat, 32, 1}, int64 = {kDLInt, 64, 1};
    const int64_t width = stage->config.width;

    for (int i = 0; i < stage->end_block - stage->first_block && stage->norms; i++) {
        struct dp_batch_norm *bn = stage->norms[i];
        const int block = stage->first_block + i;
        make_tensor(out++, block, "running_mean", float32, dp_batch_norm_running_mean(bn), width);
        make_tensor(out++, block, "running_variance", float32,
                    dp_batch_norm_running_variance(bn), width);
        make_tensor(out++, block, "commits", int64, dp_batch_norm_commits(bn), 0);
    }
}

/* ---- the end of a step -------------------------------------------------------------------------
 */

int statistics_init(struct statistics *s, const struct engine *engine)
{
    *s = (struct statistics){0};
    if (!engine->config.model || engine->config.norm.compat)
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

int statistics_commit(const struct statistics *s, struct engine *engine, struct dp_comm *all,
                      bool used)
{
    struct dp_comm *comm = engine->config.norm.per_replica ? engine->comm : all;
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

static int take_layer(struct dp_batch_norm *bn, size_t width, struct dp_comm *comm)
{
    dp_batch_norm_forget(bn);
    int err = dp_comm_broadcast(comm, dp_batch_norm_running_mean(bn), width * sizeof(float), 0);
    if (!err)
        err = dp_comm_broadcast(comm, dp_batch_norm_running_variance(bn), width * sizeof(float), 0);
    return err ? err : dp_comm_broadcast(comm, dp_batch_norm_commits(bn), sizeof(int64_t), 0);
}

int statistics_begin_again(struct engine *engine, struct dp_comm *comm)
{
    int err = 0;

    for (int layer = 1; layer <= engine->config.layers && !err; layer++) {
        struct dp_batch_norm *bn = norm_of(engine, layer);
        if (bn)
            err = take_layer(bn, (size_t)engine->config.width, comm);
    }
    return err;
}
