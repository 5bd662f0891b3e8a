/* SPDX-License-Identifier: Apache-2.0 */
#include "schedule/timeline.h"

#include "base/fail.h"

#include <stdlib.h>

static uint32_t last_to_end(const struct dp_timeline *t)
{
    uint32_t last = 0;

    for (uint32_t i = 1; i < t->count; i++)
        if (t->spans[i].end_ns > t->spans[last].end_ns)
            last = i;
    return last;
}

/* From the span that ends last back through what each one waited for. */
int dp_trace_critical_path(struct dp_simulation *sim, const uint32_t *causes)
{
    const struct dp_timeline *t = &sim->timeline;
    uint32_t last = t->count ? last_to_end(t) : DP_NO_SPAN;
    size_t count = 0;

    for (uint32_t i = last; i != DP_NO_SPAN; i = causes[i])
        count++;
    sim->critical = malloc((count + 1) * sizeof(*sim->critical));
    if (!sim->critical)
        return dp_fail(DP_ENOMEM, "no memory for a critical path of %zu ops", count);
    sim->critical_count = count;
    for (uint32_t i = last; i != DP_NO_SPAN; i = causes[i])
        sim->critical[--count] = t->spans[i];
    return 0;
}

void dp_timeline_fini(struct dp_timeline *t)
{
    free(t->spans);
    *t = (struct dp_timeline){0};
}

void dp_simulation_fini(struct dp_simulation *sim)
{
    free(sim->ranks);
    free(sim->critical);
    dp_timeline_fini(&sim->timeline);
    *sim = (struct dp_simulation){0};
}
