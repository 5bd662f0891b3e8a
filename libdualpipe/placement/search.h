/* SPDX-License-Identifier: Apache-2.0
 *
 * search.h - which worker on which GPU, every flow on its default route.
 */
#ifndef DP_PLACEMENT_SEARCH_H
#define DP_PLACEMENT_SEARCH_H

#include "placement/routes.h"
#include "placement/traffic.h"

enum { DP_SEARCH_EXACT_WORKERS = 8 };

struct dp_search {
    const struct dp_placement_spec *spec;
    const struct dp_traffic *traffic;
    struct dp_routes *routes;
    struct dp_loads *loads;
    const int32_t *came; /* [workers] GPUs in the order in which the ranks came */
};

/* What an order costs: the slowest link first, then all of them. */
struct dp_weight {
    double slowest_ns, norm;
};
static inline bool dp_weight_is_less(struct dp_weight a, struct dp_weight b)
{
    const double slack = 1e-9 * b.slowest_ns; /* sums in another order differ in their last digits */

    if (a.slowest_ns < b.slowest_ns - slack)
        return true;
    return a.slowest_ns <= b.slowest_ns + slack && a.norm < b.norm * (1 - 1e-9);
}

/* Load all links as gpus[workers] have it; norms of one scale compare. */
int dp_search_weigh(const struct dp_search *s, const int32_t *gpus, double scale_ns,
                    struct dp_weight *weight);

/* search_exact.c: all orders, but for those that cannot become the best. Improves gpus, if that can be
 * done. */
int dp_search_exactly(const struct dp_search *s, int32_t *gpus);
/* search.c: the best of some orders that people would choose, if better than gpus. */
int dp_search_default(const struct dp_search *s, int32_t *gpus);
/* search_swaps.c: exchange workers as long as that helps. */
int dp_search_swaps(const struct dp_search *s, int32_t *gpus);

#endif
