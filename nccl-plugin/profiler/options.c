/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl-plugin/profiler/options.h"

static const struct dp_option table[] = {
    {"STAT", DP_OPTION_BOOL, "0",
     "count what travels over the network, over which rail, and what it waits for, for `dualpipe "
     "stat` to show",
     offsetof(struct dpn_profiler_options, stat), .choices = NULL},
    {"STAT_DIR", DP_OPTION_STRING, NULL,
     "where the counters of processes are, a directory of mode 0700; /dev/shm/dualpipe-UID as a "
     "rule",
     offsetof(struct dpn_profiler_options, stat_dir), .choices = NULL},
    {"TRACE", DP_OPTION_STRING, NULL,
     "when the process ends, add to this file what NCCL did when: JSON for ui.perfetto.dev",
     offsetof(struct dpn_profiler_options, trace), .choices = NULL},
    {"TRACE_EVENTS", DP_OPTION_INT, "65536", "of a process, the trace has the last so many events",
     offsetof(struct dpn_profiler_options, trace_events), .min = 1, .max = 1 << 24},
    {"TRAFFIC", DP_OPTION_STRING, NULL,
     "add a line of JSON to this file for every rank of a communicator that ends: what it has sent "
     "to each peer",
     offsetof(struct dpn_profiler_options, traffic), .choices = NULL},
};
const struct dp_option_area dpn_profiler_option_area = {"PROFILER", table,
                                                        sizeof(table) / sizeof(table[0])};
