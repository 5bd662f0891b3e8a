/* SPDX-License-Identifier: Apache-2.0
 *
 * assignment_options.h - DUALPIPE_PLACEMENT, and DUALPIPE_PLACEMENT_*.
 */
#ifndef DP_PLACEMENT_ASSIGNMENT_OPTIONS_H
#define DP_PLACEMENT_ASSIGNMENT_OPTIONS_H

#include "base/options.h"

struct dp_assignment_options {
    const char *file; /* NULL or empty: none */
    bool binds;
    bool numbered; /* process r is worker r, whatever the file has */
};

extern const struct dp_option_area dp_assignment_option_area;

#endif
