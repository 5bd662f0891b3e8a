/* SPDX-License-Identifier: Apache-2.0
 *
 * areas.c - the option areas of the tuner. The net plugin and libdualpipe have lists of their own.
 */
#include "nccl-plugin/tuner/options.h"
#include "placement/assignment_options.h"

const struct dp_option_area *const dp_option_areas[] = {
    &dp_log_option_area,
    &dp_assignment_option_area,
    &dpn_tuner_option_area,
};
const size_t dp_option_area_count = sizeof(dp_option_areas) / sizeof(dp_option_areas[0]);
