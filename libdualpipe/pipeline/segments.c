/* SPDX-License-Identifier: Apache-2.0
 *
 * segments.c - the best order of two lists of segments on two resources.
 *
 * Draw list a along x and list b along y, by time. Where segments of both need one resource there is an
 * obstacle, a rectangle. An order is a way from (0, 0) to the far corner that goes diagonally while
 * both run, and straight along an obstacle while one waits; the shortest way is the best order.
 *
 *      b ^  . . . ____ .      A way that meets an obstacle passes it by its upper left corner (b's
 *        |  . . .|////|.      segment first) or by its lower right one (a's first). So all turns are at
 *        |  ____ |////|.      corners, points where both lists are between two segments, and the
 *        | |////|/   . .      distance from one to another is the longer of the two lists' times.
 *        | |////|. . . .
 *        +--------------> a
 */
#include <dualpipe/segments.h>

#include "base/fail.h"

#include <stdlib.h>
#include <string.h>

/* "a has done i segments, b has done j". */
struct node {
    int64_t at_ns;
    int16_t from_a, from_b; /* where the shortest way to it comes from */
};

struct lists {
    const struct dp_segment *segments[2];
    int count[2];
    int64_t end_ns[2][DP_SEGMENTS_MAX + 1]; /* [list][k]: of k segments one after the other */
    struct node nodes[DP_SEGMENTS_MAX + 1][DP_SEGMENTS_MAX + 1];
};

const char *dp_resource_name(enum dp_resource resource)
{
    return resource == DP_RESOURCE_COMPUTE         ? "compute"
           : resource == DP_RESOURCE_COMMUNICATION ? "communication"
                                                   : "none";
}

static int take_list(struct lists *l, int list, const struct dp_segment *segments, int count)
{
    if (count < 0 || count > DP_SEGMENTS_MAX)
        return dp_fail(DP_EINVAL, "list %d: %d segments, expected 0 to %d", list, count,
                       DP_SEGMENTS_MAX);
    l->segments[list] = segments;
    l->count[list] = count;
    l->end_ns[list][0] = 0;
    for (int k = 0; k < count; k++) {
        const struct dp_segment *s = &segments[k];
        if (s->cost_ns < 0 || s->cost_ns > INT64_MAX / (4 * DP_SEGMENTS_MAX))
            return dp_fail(DP_EINVAL, "list %d, segment %d: a cost of %lld ns, expected 0 to %lld",
                           list, k, (long long)s->cost_ns,
                           (long long)(INT64_MAX / (4 * DP_SEGMENTS_MAX)));
        if ((unsigned)s->resource >= DP_RESOURCES)
            return dp_fail(DP_EINVAL, "list %d, segment %d: resource %d, expected compute or "
                                      "communication", list, k, (int)s->resource);
        /* None takes no time at all: else two could start at once in two orders. */
        l->end_ns[list][k + 1] = l->end_ns[list][k] + (s->cost_ns ? s->cost_ns : 1);
    }
    return 0;
}

static void reach(struct lists *l, int from_a, int from_b, int a, int b)
{
    const int64_t da = l->end_ns[0][a] - l->end_ns[0][from_a];
    const int64_t db = l->end_ns[1][b] - l->end_ns[1][from_b];
    const int64_t at_ns = l->nodes[from_a][from_b].at_ns + (da > db ? da : db);

    if (at_ns < l->nodes[a][b].at_ns)
        l->nodes[a][b] = (struct node){at_ns, (int16_t)from_a, (int16_t)from_b};
}

/* Run both from there until one wants what the other uses, and go on by either corner. */
static void walk(struct lists *l, int from_a, int from_b)
{
    const int64_t zero_a = l->end_ns[0][from_a], zero_b = l->end_ns[1][from_b];
    int a = from_a, b = from_b;

    while (a < l->count[0] && b < l->count[1]) {
        if (l->segments[0][a].resource == l->segments[1][b].resource) {
            reach(l, from_a, from_b, a, b + 1);
            reach(l, from_a, from_b, a + 1, b);
            return;
        }
        const int64_t a_ends = l->end_ns[0][a + 1] - zero_a, b_ends = l->end_ns[1][b + 1] - zero_b;
        a += a_ends <= b_ends;
        b += b_ends <= a_ends;
    }
    reach(l, from_a, from_b, l->count[0], l->count[1]);
}

static void find_ways(struct lists *l)
{
    for (int a = 0; a <= l->count[0]; a++)
        for (int b = 0; b <= l->count[1]; b++)
            l->nodes[a][b].at_ns = INT64_MAX;
    l->nodes[0][0] = (struct node){0};
    for (int a = 0; a <= l->count[0]; a++)
        for (int b = 0; b <= l->count[1]; b++)
            if (l->nodes[a][b].at_ns < INT64_MAX)
                walk(l, a, b);
}

/* Both run without a pause from one corner of the way to the next. */
static int place_leg(const struct lists *l, const struct node *to, int a, int b,
                     struct dp_segment_place *places)
{
    const int from[2] = {to->from_a, to->from_b}, end[2] = {a, b};
    const int64_t at_ns = l->nodes[from[0]][from[1]].at_ns;
    int count = 0;

    for (int list = 0; list < 2; list++)
        for (int k = from[list]; k < end[list]; k++)
            places[count++] = (struct dp_segment_place){
                list, k, at_ns + l->end_ns[list][k] - l->end_ns[list][from[list]]};
    return count;
}

static int by_start(const void *pa, const void *pb)
{
    const struct dp_segment_place *a = pa, *b = pb;

    if (a->start_ns != b->start_ns)
        return a->start_ns < b->start_ns ? -1 : 1;
    return a->list - b->list;
}

int dp_segments_order(const struct dp_segment *a, int a_count, const struct dp_segment *b,
                      int b_count, struct dp_segment_place *places, int64_t *makespan_ns)
{
    struct lists l;
    int err = take_list(&l, 0, a, a_count), count = 0;

    if (!err)
        err = take_list(&l, 1, b, b_count);
    if (err)
        return err;
    find_ways(&l);
    *makespan_ns = l.nodes[a_count][b_count].at_ns;
    for (int i = a_count, j = b_count; i || j;) {
        const struct node *to = &l.nodes[i][j];
        count += place_leg(&l, to, i, j, places + count);
        i = to->from_a;
        j = to->from_b;
    }
    qsort(places, (size_t)count, sizeof(*places), by_start);
    return 0;
}
