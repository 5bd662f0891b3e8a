/* SPDX-License-Identifier: Apache-2.0
 *
 * assignment.c - find workers in an assignment.
 */
#include "base/fail.h"
#include "placement/internal.h"

#include <dualpipe/assignment.h>

#include <stdlib.h>

const char *dp_flow_kind_name(enum dp_flow_kind kind)
{
    static const char *const names[DP_FLOW_KINDS] = {
        "activation", "gradient", "mirror", "mixing", "offload",
    };

    return (unsigned)kind < DP_FLOW_KINDS ? names[kind] : "?";
}

void dp_assignment_free(struct dp_assignment *s)
{
    if (!s)
        return;
    free(s->name);
    free(s->nodes);
    free(s->ports);
    free(s->workers);
    free(s->flows);
    free(s->text);
    free(s);
}

int dp_assignment_check(const struct dp_assignment *s, int replicas, int ranks)
{
    if (s->replicas == replicas && s->ranks == ranks)
        return 0;
    return dp_fail(DP_EINVAL, "%s: places %d x %d workers (replicas x ranks), expected %d x %d",
                   s->name, s->replicas, s->ranks, replicas, ranks);
}

int32_t dp_assignment_find(const struct dp_assignment *s, int process)
{
    for (int32_t w = 0; w < s->worker_count; w++)
        if (s->workers[w].process == process)
            return w;
    return -1;
}

static int compare_processes(const void *a, const void *b)
{
    const struct dp_assigned_worker *const *x = a, *const *y = b;

    return ((*x)->process > (*y)->process) - ((*x)->process < (*y)->process);
}

int dp_assignment_map(const struct dp_assignment *s, int replica, int *map)
{
    if (replica < 0 || replica >= s->replicas)
        return dp_fail(DP_EINVAL, "%s: replica %d, expected one from 0 to %d", s->name, replica,
                       s->replicas - 1);
    const struct dp_assigned_worker **order = malloc((size_t)s->ranks * sizeof(*order));
    if (!order)
        return dp_fail(DP_ENOMEM, "%s: no memory for a map of %d ranks", s->name, s->ranks);
    for (int32_t i = 0; i < s->ranks; i++)
        order[i] = &s->workers[replica * s->ranks + i];
    qsort(order, (size_t)s->ranks, sizeof(*order), compare_processes);
    for (int32_t i = 0; i < s->ranks; i++)
        map[i] = order[i]->rank;
    free(order);
    return 0;
}
