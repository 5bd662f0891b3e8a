/* SPDX-License-Identifier: Apache-2.0
 *
 * offload_via.h - `dualpipe bench offload --via`: copies over another device's link beside direct ones.
 */
#ifndef DP_TOOLS_BENCH_OFFLOAD_VIA_H
#define DP_TOOLS_BENCH_OFFLOAD_VIA_H

#include "bench/bench.h"

/* Of the command line. */
struct bench_via {
    const char *via;      /* "auto", or a device as dp_device_open takes it; NULL: no such measurement */
    const char *device;   /* the one whose copies these are */
    const char *topology; /* a file or a description; NULL: this machine */
    const char *gpu;      /* in the topology; NULL: the one with the number of `device` */
};

/* An EXIT_ value, for the command. */
int bench_offload_via(const struct bench_via *v, const struct bench_options *options);

#endif
