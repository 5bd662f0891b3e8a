/* SPDX-License-Identifier: Apache-2.0
 *
 * areas.c - the option areas of the profiler plugin. libdualpipe has a list of its own.
 */
#include "nccl-plugin/profiler/options.h"

const struct dp_option_area *const dp_option_areas[] = {
    &dp_log_option_area,
    &dpn_profiler_option_area,
};
const size_t dp_option_area_count = sizeof(dp_option_areas) / sizeof(dp_option_areas[0]);
