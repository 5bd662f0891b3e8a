/* SPDX-License-Identifier: Apache-2.0
 *
 * net_plugin.h - a plugin that has been loaded and initialized.
 */
#ifndef DP_TOOLS_BENCH_NET_PLUGIN_H
#define DP_TOOLS_BENCH_NET_PLUGIN_H

#include "bench/net.h"

#include "nccl-plugin/net/caller.h"

struct net_plugin {
    const struct net_caller *net;
    void *ctx;
    struct net_facts facts;
};

/* Of the side's contender, with the device that --device names. What is wrong is in side->why:
 * DP_EINVAL for what the user has asked for, DP_ENODEV, DP_EIO. */
int net_load(struct net_side *side, struct net_plugin *plugin);

/* A call of the plugin has failed: its name, its result and the plugin's last warning. DP_EIO. */
int net_refused(struct net_side *side, const char *call, ncclResult_t result);

#endif
