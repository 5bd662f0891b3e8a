/* SPDX-License-Identifier: Apache-2.0
 *
 * fabric_config.h - which devices a process has, as the file FAKE_VERBS_DEVICES says:
 *
 *      # comment
 *      device NAME [guid=0xN] [qps=N] [mrs=N] [wrs=N] [cqes=N] [inline=N] [ece=N] [iwarp=1]
 *      port N [link=ethernet|infiniband] [gbps=N] [mtu=N] [lid=N] [net=N] [down=1] [grh=1]
 *      gid INDEX ADDRESS [type=ib|v1|v2] [vlan=N] [ifindex=N]
 *
 * A port belongs to the device above it, a GID to the port above it. ADDRESS is written as of IPv6, or
 * of IPv4 for the GID that stands for it. %h stands for the host's number in the fabric, from 0. What
 * is said of a port the first time in a fabric stays. Without a file there are two devices, fake0 and
 * fake1, of 100 Gbit/s each, RoCE v2 and v1, link-local and IPv4.
 */
#ifndef DP_TESTS_FABRIC_CONFIG_H
#define DP_TESTS_FABRIC_CONFIG_H

#include "fabric.h"

enum { FV_DEVICES = 32, FV_DEVICE_PORTS = 4 };

struct fv_device {
    struct ibv_device ib; /* first, so that a pointer to it is one to this */
    uint64_t guid;
    unsigned qps, mrs, wrs, cqes, inline_bytes;
    uint32_t ece; /* options; 0: the device knows none */
    bool is_dead;
    unsigned qps_used, mrs_used; /* in this process */
    int port_count;
    int ports[FV_DEVICE_PORTS]; /* in the fabric */
};

/* Once per process. Returns how many; a line that makes no sense is said on stderr, and there are none. */
int fv_devices_read(struct fv_device *out);
/* The name of this host in the fabric. */
const char *fv_host(void);

#endif
