/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl-plugin/tuner/options.h"

static const char *const registered[] = {"ignore", "trust", NULL};

static const struct dp_option table[] = {
    {"LINKS", DP_OPTION_STRING, NULL,
     "intra=GB/s,inter=GB/s,intra_us=US,inter_us=US: the links between the ranks, for the cost model; "
     "placement: the rates of DUALPIPE_PLACEMENT's file",
     offsetof(struct dpn_tuner_options, links), .choices = NULL},
    {"REGISTERED", DP_OPTION_CHOICE, "ignore",
     "trust: all ranks register the same buffers, so rules may ask whether they did",
     offsetof(struct dpn_tuner_options, registered), .choices = registered},
    {"STRICT", DP_OPTION_BOOL, "no",
     "a table that cannot be used fails the communicator; no: NCCL chooses by itself",
     offsetof(struct dpn_tuner_options, is_strict), .choices = NULL},
    {"TABLE", DP_OPTION_STRING, NULL, "the file with the rules, the same on every rank",
     offsetof(struct dpn_tuner_options, table), .choices = NULL},
};
const struct dp_option_area dpn_tuner_option_area = {"TUNER", table,
                                                     sizeof(table) / sizeof(table[0])};
