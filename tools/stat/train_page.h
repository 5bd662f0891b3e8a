/* SPDX-License-Identifier: Apache-2.0
 *
 * train_page.h - what a process of `dualpipe train` tells while it trains, in a file of shared
 * memory beside those of the net plugin (nccl-plugin/net/stat_page.h): tools/train/watcher.c writes
 * it, `dualpipe stat` reads it.
 *
 * What changes from step to step is written as one change of the head's; `live` changes at any time.
 * Every change of the layout is a new version.
 */
#ifndef DP_TOOLS_STAT_TRAIN_PAGE_H
#define DP_TOOLS_STAT_TRAIN_PAGE_H

#include "base/page_file.h"

#include <dualpipe/trace.h>

#include <stdint.h>

#define TRAIN_PAGE_KIND                                                                            \
    .option = "--stat-dir", .suffix = ".train", .magic = "dptrain", .version = 2,                  \
    .bytes = sizeof(struct train_page), .name = "a training job"

enum { TRAIN_PAGE_SLOW = 4, TRAIN_PAGE_TEXT = 160, TRAIN_PAGE_NAME = 64 };

/* After a step. Numbers that are not known are NAN. */
struct train_page_step {
    uint64_t step;    /* done */
    int64_t ended_ns; /* CLOCK_MONOTONIC */
    double loss, held_out, tokens_per_second;
    double bubble;            /* of all ranks, when it was measured last; on the first rank only */
    struct dp_rank_pace pace; /* of this rank; step_ns 0: none is known */
    int32_t slow_count;
    char slow[TRAIN_PAGE_SLOW]
             [TRAIN_PAGE_TEXT]; /* what holds the others up, as far as known here */
};

struct train_page {
    struct dp_page_head head;
    uint64_t job; /* the same in all processes of a job */
    int32_t rank, processes, ranks, replicas, microbatches, pipeline_rank;
    int64_t steps; /* to be done */
    char schedule[TRAIN_PAGE_NAME];
    struct train_page_step now;
    struct dp_live live;
};

#endif
