/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/wire_options.h"

#include "wire/tcp.h"

static const struct dp_option table[] = {
    {"CMA", DP_OPTION_BOOL, "1",
     "copy messages of 64 KiB and more by cross-memory attach within a host, where the system "
     "allows it",
     offsetof(struct dp_wire_options, cma), .old_name = "DIRECT"},
    {"MEASURE", DP_OPTION_BOOL, "1",
     "of these, use cross-memory attach only where it is measured to be faster than shared memory",
     offsetof(struct dp_wire_options, measure), .choices = NULL},
    {"TCP_BUFFER", DP_OPTION_INT, "-1",
     "send buffer of a tcp connection, in KiB; 0: the kernel's choice; -1: 1024 within a host, "
     "else 0",
     offsetof(struct dp_wire_options, tcp_buffer_kib), .min = -1, .max = 1 << 20},
    {"TCP_SOCKETS", DP_OPTION_INT, "0",
     "sockets of a tcp connection, which long messages go over together; where both sides say how "
     "many, "
     "the smaller one; 0: 1 within a host, else 4 to 8 by the speed of the link",
     offsetof(struct dp_wire_options, tcp_sockets), .max = DP_TCP_SOCKETS_MAX},
};
const struct dp_option_area dp_wire_option_area = {"WIRE", table, sizeof(table) / sizeof(table[0])};
