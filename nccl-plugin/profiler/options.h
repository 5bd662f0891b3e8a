/* SPDX-License-Identifier: Apache-2.0
 *
 * options.h - DUALPIPE_PROFILER_*.
 */
#ifndef DPN_PROFILER_OPTIONS_H
#define DPN_PROFILER_OPTIONS_H

#include "base/options.h"

struct dpn_profiler_options {
    const char *traffic, *trace; /* NULL: none */
    int64_t trace_events;        /* that are kept */
    bool stat;                   /* count, for `dualpipe stat` */
    const char *stat_dir;        /* NULL: see profiler/page.h */
};

extern const struct dp_option_area dpn_profiler_option_area;

/* Those of this process, read once; with a bad one, which is logged, all are as if nothing was set. */
const struct dpn_profiler_options *dpn_profiler_options(void);

#endif
