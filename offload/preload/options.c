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
    {"REPORT", DP_OPTION_STRING, NULL,
     "at the end of a process that used CUDA, add its report to this file; -: standard error",
     offsetof(struct dpo_preload_options, report), .choices = NULL},
    {"ROOT", DP_OPTION_STRING, "", "read /sys below this directory",
     offsetof(struct dpo_preload_options, root), .choices = NULL},
};
const struct dp_option_area dpo_preload_option_area = {"PRELOAD", table,
                                                       sizeof(table) / sizeof(table[0])};
