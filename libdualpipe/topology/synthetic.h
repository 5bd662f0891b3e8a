/* SPDX-License-Identifier: Apache-2.0
 *
 * synthetic.h - a description of a few words, taken apart (synthetic.c) and built (synthetic_build.c).
 */
#ifndef DP_TOPOLOGY_SYNTHETIC_H
#define DP_TOPOLOGY_SYNTHETIC_H

#include <dualpipe/topology.h>

enum { DP_SYNTHETIC_LEVELS = 16, DP_SYNTHETIC_NAME = 64 };

struct dp_synthetic_level {
    enum dp_topo_kind kind;
    int32_t count;
    bool replaceable; /* came with a usual machine's name */
};

struct dp_synthetic_pcie {
    bool is_given;
    int32_t gen, width; /* both 0: not known */
};

enum dp_synthetic_shape { DP_NVLINK_NONE, DP_NVLINK_SWITCH, DP_NVLINK_MESH, DP_NVLINK_PAIR,
                          DP_NVLINK_DOMAIN };
struct dp_synthetic_nvlink {
    enum dp_synthetic_shape shape;
    int32_t count; /* links in one */
    double rate;   /* of one */
};
enum dp_synthetic_rails { DP_RAILS_DEFAULT, DP_RAILS_PORT, DP_RAILS_ONE, DP_RAILS_NONE };

struct dp_synthetic {
    int32_t hosts;
    int32_t level_count;
    struct dp_synthetic_level levels[DP_SYNTHETIC_LEVELS];
    struct dp_synthetic_pcie pcie, uplink, nicpcie;
    struct dp_synthetic_nvlink nvlink;
    int32_t domain_hosts; /* hosts that share NVSwitches; 0: all */
    double c2c_rate, cpu_rate, net_rate;
    double spine_rate; /* -1: none; 0: as much as a rail's ports together */
    int32_t ports, cpus, sm;
    enum dp_topo_fabric fabric;
    enum dp_synthetic_rails rails;
    uint64_t memory_bytes, gpu_memory_bytes;
    char gpu[DP_SYNTHETIC_NAME], nic[DP_SYNTHETIC_NAME], nicname[DP_SYNTHETIC_NAME];
    char cpumodel[DP_SYNTHETIC_NAME], arch[DP_SYNTHETIC_NAME], vendor[DP_SYNTHETIC_NAME];
    char name[DP_SYNTHETIC_NAME];
};

int dp_synthetic_build(const struct dp_synthetic *s, struct dp_topology **out);

#endif
