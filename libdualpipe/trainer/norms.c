/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/norms.h"

#include "base/tensor.h"

#include <dualpipe/batch_norm.h>

#include <stdio.h>
#include <string.h>

/* ---- as tensors ------------------------------------------------------------------------------ */

static void make_tensor(struct norm_tensor *t, const char *name, const char *what, DLDataType type,
                        void *data, int64_t count)
{
    snprintf(t->name, sizeof(t->name), "%s %s", name, what);
    t->shape = count;
    t->tensor = (DLTensor){
        .data = data, .device = {kDLCPU, 0}, .ndim = count > 0, .dtype = type, .shape = &t->shape};
}

void norm_tensors(const struct engine_norm *n, struct norm_tensor *out)
{
    static const DLDataType float32 = {kDLFloat, 32, 1}, int64 = {kDLInt, 64, 1};
    struct dp_batch_norm *bn = n->norm;

    make_tensor(out++, n->name, "running_mean", float32, bn ? dp_batch_norm_running_mean(bn) : NULL,
                n->channels);
    make_tensor(out++, n->name, "running_variance", float32,
                bn ? dp_batch_norm_running_variance(bn) : NULL, n->channels);
    make_tensor(out, n->name, "commits", int64, bn ? dp_batch_norm_commits(bn) : NULL, 0);
}

/* ---- the end of a step ----------------------------------------------------------------------- */

static size_t export_len(const struct engine_norm *n)
{
    return 1 + 2 * (size_t)n->channels;
}

size_t norms_room(const struct engine_norms *norms, int microbatches)
{
    size_t len = 0;

    for (int32_t i = 0; i < norms->count; i++)
        len += export_len(&norms->list[i]);
    return len * (size_t)microbatches;
}

/* A micro-batch went through a layer on one rank: elsewhere its values are zero, so that a sum, in
 * whatever order, changes none of them. */
static int add_over_ranks(double *values, size_t len, struct dp_comm *comm)
{
    const DLDataType type = {kDLFloat, 64, 1};
    struct dp_request req;

    if (!comm)
        return 0;
    int err = dp_comm_iallreduce(comm, values, values, len, type, DP_REDUCE_SUM, &req);
    return err ? err : dp_comm_wait(comm, &req, -1);
}

/* Both copies of a stage (DualPipe) note micro-batches of their own stream. */
int norms_sum(const struct engine_norms *norms, int microbatches, struct dp_comm *comm, double *values)
{
    double *at = values;

    memset(values, 0, norms_room(norms, microbatches) * sizeof(*values));
    for (int32_t i = 0; i < norms->count; i++)
        for (int mb = 0; mb < microbatches; mb++, at += export_len(&norms->list[i]))
            if (norms->list[i].norm)
                dp_batch_norm_export(norms->list[i].norm, mb, at);
    return norms->count ? add_over_ranks(values, norms_room(norms, microbatches), comm) : 0;
}

int norms_share(const struct engine_norms *norms, struct dp_comm *comm, int from)
{
    struct norm_tensor own[NORM_TENSORS];
    int err = 0;

    for (int32_t i = 0; i < norms->count; i++) {
        norm_tensors(&norms->list[i], own);
        for (int k = 0; k < NORM_TENSORS && !err; k++)
            err = dp_comm_broadcast(comm, own[k].tensor.data, dp_tensor_bytes(&own[k].tensor), from);
    }
    return err;
}

void norms_commit(const struct engine_norms *norms, int microbatches, const double *values)
{
    for (int32_t i = 0; i < norms->count; i++) {
        struct dp_batch_norm *norm = norms->list[i].norm;
        if (norm && values)
            dp_batch_norm_commit(norm, values, microbatches);
        else if (norm)
            dp_batch_norm_forget(norm);
        if (values)
            values += export_len(&norms->list[i]) * (size_t)microbatches;
    }
}
