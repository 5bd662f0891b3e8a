/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/preload/options.h"

#include "offload/preload/node.h"

static const struct dp_option table[] = {
    {"PINNED", DP_OPTION_BOOL, "1",
     "place pinned memory on the NUMA node nearest to the device of the calling thread",
     offsetof(struct dpo_preload_options, pinned), .choices = NULL},
    {"CHECK", DP_OPTION_BOOL, "1", "count on which node the pages of pinned memory are",
     offsetof(struct dpo_preload_options, check), .choices = NULL},
    {"NODE", DP_OPTION_INT, "-1", "place pinned memory on this NUMA node; -1: the nearest",
     offsetof(struct dpo_preload_options, node), .min = -1, .max = DPO_NODES_MAX - 1},
    {"BIND", DP_OPTION_BOOL, "0",
     "a process that a launcher has started begins on the CPUs and the memory next to its GPU, unless "
     "it is bound already",
     offsetof(struct dpo_preload_options, bind), .choices = NULL},
    /* Off: a job must not be slower, or other, for being observed. Measured on one machine alone
     * (tests/gpu/report-h100.md). */
    {"STAGE", DP_OPTION_BOOL, "0",
     "copy between pageable memory and a device through pinned memory near it, by several threads",
     offsetof(struct dpo_preload_options, stage), .choices = NULL},
    {"STAGE_MIN", DP_OPTION_INT, "16777216", "bytes of the smallest copy that is staged",
     offsetof(struct dpo_preload_options, stage_min), .min = 1, .max = INT64_MAX},
    {"STAGE_THREADS", DP_OPTION_INT, "0",
     "threads that stage, the caller among them; 0: half of its processors, 1 to 4",
     offsetof(struct dpo_preload_options, stage_threads), .min = 0, .max = 16},
    {"STAT", DP_OPTION_BOOL, "0", "count where `dualpipe stat` and `dualpipe run` read it",
     offsetof(struct dpo_preload_options, stat), .choices = NULL},
    {"STAT_DIR", DP_OPTION_STRING, NULL,
     "in this directory instead of /dev/shm/dualpipe-UID, where DUALPIPE_NET_STAT_DIR has to be "
     "the "
     "same",
     offsetof(struct dpo_preload_options, stat_dir), .choices = NULL},
    {"PACE", DP_OPTION_BOOL, "0",
     "let large copies of pinned memory give way to what the net plugin sends "
     "(DUALPIPE_NET_STAT=1)",
     offsetof(struct dpo_preload_options, pace), .choices = NULL},
    {"PACE_MBS", DP_OPTION_INT, "0",
     "with it: MB/s that copies and network have together, each way; 0: not known, and copies have "
     "1000 beside a network",
     offsetof(struct dpo_preload_options, pace_mbs), .min = 0, .max = 10000000},
    {"PACE_NICS", DP_OPTION_STRING, NULL,
     "with it: the NICs on the switch of the GPU, as mlx5_0,mlx5_1; none: all of them",
     offsetof(struct dpo_preload_options, pace_nics), .choices = NULL},
    {"REPORT", DP_OPTION_STRING, NULL,
     "at the end of a process that used CUDA, add its report to this file; -: standard error",
     offsetof(struct dpo_preload_options, report), .choices = NULL},
    {"ROOT", DP_OPTION_STRING, "", "read /sys below this directory",
     offsetof(struct dpo_preload_options, root), .choices = NULL},
};
const struct dp_option_area dpo_preload_option_area = {"PRELOAD", table,
                                                       sizeof(table) / sizeof(table[0])};
