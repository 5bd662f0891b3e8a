/* SPDX-License-Identifier: Apache-2.0
 *
 * areas.c - the option areas of all layers and of the plugin, one line each. Not in base, which
 * knows no layer.
 */
#include "base/options.h"
#include "comm/settings.h"
#include "device/device_ops.h"
#include "nccl-plugin/net/options.h"
#include "nccl-plugin/profiler/options.h"
#include "nccl-plugin/tuner/options.h"
#include "offload/preload/options.h"
#include "placement/assignment_options.h"
#include "topology/nvml.h"
#include "wire/wire_options.h"

const struct dp_option_area *const dp_option_areas[] = {
    &dp_log_option_area,
    &dp_comm_option_area,
    &dp_device_option_area,
    &dp_assignment_option_area,
    &dp_topology_option_area,
    &dp_wire_option_area,
    &dpn_net_option_area,
    &dpn_tuner_option_area,
    &dpo_preload_option_area,
    &dpn_profiler_option_area,
};
const size_t dp_option_area_count = sizeof(dp_option_areas) / sizeof(dp_option_areas[0]);
