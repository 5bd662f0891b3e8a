/* SPDX-License-Identifier: Apache-2.0
 *
 * seats.c - who sits where.
 */
#include "base/fail.h"

#include <dualpipe/seats.h>

#include <stdlib.h>

const char *dp_flow_kind_name(enum dp_flow_kind kind)
{
    static const char *const names[DP_FLOW_KINDS] = {"activation", "gradient", "mirror", "mixing",
                                                     "offload"};

    return (unsigned)kind < DP_FLOW_KINDS ? names[kind] : "?";
}

void dp_seats_free(struct dp_seats *s)
{
    if (!s)
        return;
    free(s->name);
    free(s->nodes);
    free(s->ports);
    free(s->seats);
    free(s->flows);
    free(s->text);
    free(s);
}

int dp_seats_check(const struct dp_seats *s, int replicas, int ranks)
{
    if (s->replicas == replicas && s->ranks == ranks)
        return 0;
    return dp_fail(DP_EINVAL, "%s: places %d x %d workers (replicas x ranks), expected %d x %d",
                   s->name, s->replicas, s->ranks, replicas, ranks);
}

int32_t dp_seats_find(const struct dp_seats *s, int process)
{
    for (int32_t w = 0; w < s->seat_count; w++)
        if (s->seats[w].process == process)
            return w;
    return -1;
}

static int compare_processes(const void *a, const void *b)
{
    const struct dp_seat *const *x = a, *const *y = b;

    return ((*x)->process > (*y)->process) - ((*x)->process < (*y)->process);
}

int dp_seats_map(const struct dp_seats *s, int replica, int *map)
{
    if (replica < 0 || replica >= s->replicas)
        return dp_fail(DP_EINVAL, "%s: replica %d, expected one from 0 to %d", s->name, replica,
                       s->replicas - 1);
    const struct dp_seat **order = malloc((size_t)s->ranks * sizeof(*order));
    if (!order)
        return dp_fail(DP_ENOMEM, "%s: no memory for a map of %d ranks", s->name, s->ranks);
    for (int32_t i = 0; i < s->ranks; i++)
        order[i] = &s->seats[replica * s->ranks + i];
    qsort(order, (size_t)s->ranks, sizeof(*order), compare_processes);
    for (int32_t i = 0; i < s->ranks; i++)
        map[i] = order[i]->rank;
    free(order);
    return 0;
}
