/* SPDX-License-Identifier: Apache-2.0
 *
 * hw_counters.h - what a device has counted by itself: packets that came twice or out of order,
 * timeouts, errors. For the log, when something arrived that must not.
 */
#ifndef DPN_VERBS_HW_COUNTERS_H
#define DPN_VERBS_HW_COUNTERS_H

#include "nccl-plugin/verbs/device.h"

/* Log those of the port that are not 0, as the kernel lists them. They count since the device was
 * started, for all that use it. */
void dpn_port_log_counters(const struct dpn_port *port);

#endif
