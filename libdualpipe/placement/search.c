/* SPDX-License-Identifier: Apache-2.0 */
#include "placement/search.h"

int dp_search_weigh(const struct dp_search *s, const int32_t *gpus, double scale_ns,
                    struct dp_weight *weight)
{
    dp_loads_clear(s->loads, scale_ns);
    for (int32_t i = 0; i < s->traffic->edge_count; i++) {
        const struct dp_edge *edge = &s->traffic->edges[i];
        const struct dp_route *route;
        int err = dp_routes_get(s->routes, gpus[edge->from], gpus[edge->to], &route);
        if (err)
            return err;
        dp_loads_add(s->loads, route, edge->bytes);
    }
    *weight = (struct dp_weight){dp_loads_max(s->loads), s->loads->norm};
    return 0;
}
