/* SPDX-License-Identifier: Apache-2.0
 *
 * areas.c - the option areas of all layers, of the plugins and of the preload library, a line each.
 * Not in base, which knows none of them.
 */
#include "base/options.h"
#include "comm/nccl_api.h"
#include "comm/settings.h"
#include "device/device_ops.h"
#include "nccl-plugin/options.h"
#include "offload/preload/options.h"
#include "placement/assignment_bind.h"
#include "topology/nvml.h"
#include "trainer/options.h"
#include "wire/wire.h"

#include <dualpipe/options.h>

static const struct dp_option_area *const areas[] = {
    &dp_log_option_area,
    &dp_comm_option_area,
    &dp_nccl_option_area,
    &dp_device_option_area,
    &dp_assignment_option_area,
    &dp_topology_option_area,
    &dp_wire_option_area,
    &dpn_net_option_area,
    &dpn_tuner_option_area,
    &dpo_preload_option_area,
    &dpn_profiler_option_area,
    &dp_train_option_area,
};

int dp_options_each(dp_option_fn fn, void *user)
{
    return dp_options_show(areas, sizeof(areas) / sizeof(areas[0]), fn, user);
}
