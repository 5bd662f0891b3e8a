/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl-plugin/profiler/options.h"

static const struct dp_option table[] = {
    {"TRAFFIC", DP_OPTION_STRING, NULL,
     "add a line of JSON to this file for every rank of a communicator that ends: what it has sent "
     "to "
     "each peer",
     offsetof(struct dpn_profiler_options, traffic), .choices = NULL},
};
const struct dp_option_area dpn_profiler_option_area = {"PROFILER", table,
                                                        sizeof(table) / sizeof(table[0])};
