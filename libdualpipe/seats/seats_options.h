/* SPDX-License-Identifier: Apache-2.0
 *
 * seats_options.h - DUALPIPE_PLACEMENT, and DUALPIPE_PLACEMENT_*.
 */
#ifndef DP_SEATS_OPTIONS_H
#define DP_SEATS_OPTIONS_H

#include "base/options.h"

struct dp_seats_options {
    const char *file; /* NULL or empty: none */
    bool binds;
};

extern const struct dp_option_area dp_seats_option_area;

#endif
