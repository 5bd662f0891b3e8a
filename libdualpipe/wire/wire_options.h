/* SPDX-License-Identifier: Apache-2.0
 *
 * wire_options.h - DUALPIPE_WIRE_*: options of all wires. Read whenever a wire is created.
 */
#ifndef DP_WIRE_WIRE_OPTIONS_H
#define DP_WIRE_WIRE_OPTIONS_H

#include "base/options.h"

struct dp_wire_options {
    bool cma;
    bool measure;
    int64_t tcp_buffer_kib; /* 0: the kernel's choice; -1: ours */
    int64_t tcp_sockets;    /* 0: by route */
};

extern const struct dp_option_area dp_wire_option_area;

#endif
