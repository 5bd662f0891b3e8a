/* SPDX-License-Identifier: Apache-2.0
 *
 * options.h - DUALPIPE_TUNER_*.
 */
#ifndef DPN_TUNER_OPTIONS_H
#define DPN_TUNER_OPTIONS_H

#include "base/options.h"

struct dpn_tuner_options {
    const char *table;      /* path; NULL or empty: none */
    const char *registered; /* ignore, trust */
    const char *links;      /* for dp_tuning_links_parse, or "placement"; NULL or empty: none */
    bool is_strict;
};

extern const struct dp_option_area dpn_tuner_option_area;

#endif
