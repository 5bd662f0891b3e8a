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

/* ---- intervals ------------------------------------------------------------------------------- */

/* Which of many overlapping ranges comes first at a point: the ranges are cut into
 * disjoint intervals once, and then a question is a binary search.
 *
 *      range 0           [8 ............. 63]
 *      range 1    [0 ......... 31]
 *                 0      8              64
 *      intervals  |  1   |      0       |  none */

/* Zeroed memory holds no range. */
struct dp_intervals {
    size_t count;
    int64_t *starts; /* ascending, the first is 0; an interval ends where the next one starts */
    int32_t *owners; /* of each: its first range, or -1 */
};

/* ranges[count], the first has precedence; owners are indices into it. DP_ENOMEM. */
int dp_intervals_init(struct dp_intervals *in, const struct dp_tuning_range *ranges, size_t count);
void dp_intervals_fini(struct dp_intervals *in);

/* The owner at point >= 0; -1: none. The loop has no branch to predict. */
static inline int32_t dp_intervals_find(const struct dp_intervals *in, int64_t point)
{
    const int64_t *at = in->starts;

    if (!in->count)
        return -1;
    for (size_t left = in->count; left > 1;) {
        size_t half = left / 2;
        at = at[half] <= point ? at + half : at;
        left -= half;
    }
    return in->owners[at - in->starts];
}

#endif
