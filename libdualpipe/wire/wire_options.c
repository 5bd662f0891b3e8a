/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/wire_options.h"

static const struct dp_option table[] = {
    {"DIRECT", DP_OPTION_BOOL, "1",
     "copy messages of 128 KiB and more straight between processes of one host, where the system "
     "lets them",
     offsetof(struct dp_wire_options, direct), .choices = NULL},
};
const struct dp_option_area dp_wire_option_area = {"WIRE", table, sizeof(table) / sizeof(table[0])};
