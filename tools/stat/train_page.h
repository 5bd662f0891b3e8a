/* SPDX-License-Identifier: Apache-2.0
 *
 * train_page.h - what a process of `dualpipe train` tells while it trains, in a page (base/page_file.h):
 * tools/train/watcher.c writes it, `dualpipe stat` reads it.
 *
 *      rows: the rank | what holds the others up, as far as it is known here
 *
 * Labels: the job, which is the same in all of its processes, the rank, the process and the schedule; of
 * a row that leads there, a sentence. What changes from step to step is written as one change of the
 * head's; `live` changes at any time.
 */
#ifndef DP_TOOLS_STAT_TRAIN_PAGE_H
#define DP_TOOLS_STAT_TRAIN_PAGE_H

#include "base/page_file.h"

/* The values of a row; of the last step, as far as they are known. Each as JSON has it. */
#define TRAIN_VALUES(X)                                                                            \
    X(TRAIN_RANK, "rank", "", BEFORE, 1)                                                           \
    X(TRAIN_PROCESSES, "processes", "", GAUGE, 1)                                                  \
    X(TRAIN_RANKS, "pipeline_ranks", "", GAUGE, 1)                                                 \
    X(TRAIN_REPLICAS, "replicas", "", GAUGE, 1)                                                    \
    X(TRAIN_MICROBATCHES, "microbatches", "", GAUGE, 1)                                            \
    X(TRAIN_STEPS, "steps", "", GAUGE, 1) /* to be done */                                         \
    X(TRAIN_STEP, "step", "", COUNTER, 1)                                                          \
    X(TRAIN_LOSS, "loss", "", REAL, 1)                                                             \
    X(TRAIN_HELD_OUT, "held_out", "", REAL, 1)                                                     \
    X(TRAIN_RATE, "tokens_per_second", "", REAL, 1)                                                \
    X(TRAIN_ALL_BUBBLE, "all_bubble", "", REAL, 1) /* of all ranks; on the first rank only */      \
    X(TRAIN_OPENED_NS, "opened_ns", "ns", GAUGE, 1) /* the page */                                 \
    X(TRAIN_PIPELINE_RANK, "pipeline_rank", "", GAUGE, 1)                                          \
    X(TRAIN_ENDED, "ended_ns", "ns", SINCE, 1)                                                     \
    X(TRAIN_BUBBLE, "bubble", "", REAL, 1)                                                         \
    X(TRAIN_STEP_MS, "step_ms", "ms", REAL, 1)                                                     \
    X(TRAIN_COMPUTE_MS, "compute_ms", "ms", REAL, 1)                                               \
    X(TRAIN_WAITED_MS, "waited_ms", "ms", REAL, 1)                                                 \
    X(TRAIN_WAITED_FOR, "waited_for", "", REAL, 1) /* a rank, longest, */                          \
    X(TRAIN_WAITED_FOR_MS, "waited_for_ms", "ms", REAL, 1)                                         \
    X(TRAIN_SLOW_COUNT, "slow", "", GAUGE, 1) /* rows of sentences */                              \
    /* as struct dp_live has them */                                                               \
    X(TRAIN_DOING, "doing", "", GAUGE, 1)                                                          \
    X(TRAIN_WAITING_NS, "waiting_ns", "ns", SINCE, 1)                                              \
    X(TRAIN_WAITING_FOR, "waiting_for", "", GAUGE, 1)                                              \
    X(TRAIN_SENT, "sent_bytes", "B", COUNTER, 1)                                                   \
    X(TRAIN_RECEIVED, "received_bytes", "B", COUNTER, 1)

enum { TRAIN_SLOW = 4, TRAIN_TEXT = 160 };

DP_PAGE_DEFINE(train, TRAIN_VALUES, 1 + TRAIN_SLOW, .option = "--stat-dir", .suffix = ".train",
               .magic = "dptrain", .name = "a training job");

#endif
