/* SPDX-License-Identifier: Apache-2.0 */
#include "placement/assignment_options.h"

static const struct dp_option table[] = {
    {"", DP_OPTION_STRING, NULL,
     "the file of `dualpipe topo place --format json`, the same on every rank",
     offsetof(struct dp_assignment_options, file), .choices = NULL},
    {"BIND", DP_OPTION_BOOL, "1",
     "keep a rank to the CPUs and the memory of the NUMA node that the placement says",
     offsetof(struct dp_assignment_options, binds), .choices = NULL},
    {"NUMBERED", DP_OPTION_BOOL, "0",
     "ranks are numbered as the placement has them, as `dualpipe run --placement` does under torchrun; "
     "otherwise by the order in which they came",
     offsetof(struct dp_assignment_options, numbered), .choices = NULL},
};
const struct dp_option_area dp_assignment_option_area = {"PLACEMENT", table,
                                                    sizeof(table) / sizeof(table[0])};
