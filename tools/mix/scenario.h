/* SPDX-License-Identifier: Apache-2.0
 *
 * scenario.h - the options of a run on paper, which simulate and compare share.
 */
#ifndef DP_TOOLS_MIX_SCENARIO_H
#define DP_TOOLS_MIX_SCENARIO_H

#include "mix/mix.h"

struct scenario_args {
    int64_t steps, deaths, staleness;
    double compute_ns, sigma, latency_ns, bandwidth, bytes, slow_links, slow_factor, rate, factor;
    bool in_turn;
    const char *problem;
};

/* The options, as members of a struct that has a struct scenario_args at `offset`. */
enum { SCENARIO_ARGS = 14 };
void scenario_options(size_t offset, struct arg args[SCENARIO_ARGS]);

struct dp_mixing_scenario scenario_of(const struct mix_args *m, const struct scenario_args *a);

#endif
