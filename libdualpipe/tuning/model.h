/* SPDX-License-Identifier: Apache-2.0
 *
 * model.h - what a collective costs, as a straight line over its size: a latency, by the hops that an
 * algorithm makes, and a time for every byte, by what crosses the narrowest link.
 */
#ifndef DP_TUNING_MODEL_H
#define DP_TUNING_MODEL_H

#include <dualpipe/tuning.h>

struct dp_tuning_line {
    double latency_us; /* negative: there is no such combination */
    double us_per_byte;
};

struct dp_tuning_model {
    bool is_known; /* else nothing else is */
    struct dp_tuning_line lines[DP_TUNING_FUNCTIONS][DP_TUNING_ALGORITHMS][DP_TUNING_PROTOCOLS];
};

/* Zeroed memory where links do not say enough. */
void dp_tuning_model_init(struct dp_tuning_model *m, const struct dp_tuning_links *links,
                          const struct dp_tuning_latencies *latencies, int64_t ranks, int64_t nodes);

static inline double dp_tuning_line_us(const struct dp_tuning_line *line, int64_t bytes)
{
    return line->latency_us + line->us_per_byte * (double)bytes;
}

#endif
