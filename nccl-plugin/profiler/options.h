/* SPDX-License-Identifier: Apache-2.0
 *
 * options.h - DUALPIPE_PROFILER_*.
 */
#ifndef DPN_PROFILER_OPTIONS_H
#define DPN_PROFILER_OPTIONS_H

#include "base/options.h"

struct dpn_profiler_options {
    const char *traffic; /* NULL: none */
};

extern const struct dp_option_area dpn_profiler_option_area;

#endif
