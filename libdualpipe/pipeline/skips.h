/* SPDX-License-Identifier: Apache-2.0
 *
 * skips.h - the tensors of skip connections that a callback of a stage is handed (stage.h: dp_skip_stash
 * and the others), and what becomes of those it was to fill.
 */
#ifndef DP_PIPELINE_SKIPS_H
#define DP_PIPELINE_SKIPS_H

#include "pipeline/base.h"
#include <dualpipe/stage.h>

/* A skip that begins or ends at the stage which is called. */
struct dp_skip_use {
    int32_t skip;
    bool makes;           /* it begins here */
    bool asked_value, asked_gradient; /* by the callback at hand */
    DLTensor value, gradient;
    int64_t shape[2][DP_MAX_DIMS];
    char *at[2]; /* where value and gradient are kept; NULL: nowhere */
};

/* What dp_stage_call.skips points at. */
struct dp_stage_skips {
    const struct dp_schedule *schedule;
    int stage;
    enum dp_plan_kind kind; /* of the entry */
    int32_t count;
    struct dp_skip_use *uses; /* [most of any slot] */
    int stream;
    uint32_t mb;
    char wrong[300]; /* what the callback did and must not; "": nothing */
};

struct dp_pipeline_skips {
    const struct dp_pipeline_base *base;
    const struct dp_plan_skip *at; /* of the plan at hand */
    struct dp_tensor_spec *specs; /* [skips of the schedule] */
    size_t *bytes, *gradient_bytes; /* of one message of each; a gradient: 0 for none */
    int32_t **of_slot;  /* [slots] numbers of its skips, then -1 */
    bool *absent;       /* [streams * skips * micro-batches] no value was put out */
    struct dp_stage_skips now[2]; /* of a pair, forward and backward */
};

/* Of the config's schedule. DP_ENOMEM. */
int dp_pipeline_skips_init(struct dp_pipeline_skips *all, const struct dp_pipeline_base *base);
/* When it is known how many micro-batches a step may have. DP_ENOMEM. */
int dp_pipeline_skips_take(struct dp_pipeline_skips *all, int32_t mbs);
void dp_pipeline_skips_fini(struct dp_pipeline_skips *all);

/* The tensors for an entry; NULL where its stage has none. */
struct dp_stage_skips *dp_skips_begin(struct dp_pipeline_skips *all, enum dp_plan_kind kind, int slot,
                                      uint32_t mb);
/* After its callback, which returned 0. `wrong` says what it has not taken or filled and should have. */
int dp_skips_end(struct dp_pipeline_skips *all, struct dp_stage_skips *skips);

#endif
