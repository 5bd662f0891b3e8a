/* SPDX-License-Identifier: Apache-2.0 */
#include "tuning/model.h"

#include "base/fail.h"

#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

/* Every point where some range starts or has just ended, and 0; ascending, each once. */
static size_t list_starts(const struct dp_tuning_range *ranges, size_t count, int64_t *starts)
{
    size_t n = 0, kept = 1;

    starts[n++] = 0;
    for (size_t i = 0; i < count; i++) {
        starts[n++] = ranges[i].least;
        if (ranges[i].most < INT64_MAX)
            starts[n++] = ranges[i].most + 1;
    }
    qsort(starts, n, sizeof(*starts), by_value);
    for (size_t i = 1; i < n; i++)
        if (starts[i] != starts[kept - 1])
            starts[kept++] = starts[i];
    return kept;
}

/* The index of a start that is in the list. */
static size_t index_of(const struct dp_intervals *in, int64_t start)
{
    const int64_t *found = bsearch(&start, in->starts, in->count, sizeof(start), by_value);

    return (size_t)(found - in->starts);
}

/* The first interval from i on without an owner. next[i] == i: it is one; else look from next[i] on,
 * and halve the way for later questions. */
static size_t next_free(size_t *next, size_t i)
{
    while (next[i] != i) {
        next[i] = next[next[i]];
        i = next[i];
    }
    return i;
}

static void give(struct dp_intervals *in, const struct dp_tuning_range *range, int32_t owner,
                 size_t *next)
{
    size_t end = range->most < INT64_MAX ? index_of(in, range->most + 1) : in->count;

    for (size_t i = next_free(next, index_of(in, range->least)); i < end; i = next_free(next, i)) {
        in->owners[i] = owner;
        next[i] = i + 1;
    }
}

/* Neighbours with one owner become one interval. */
static void merge(struct dp_intervals *in)
{
    size_t kept = 1;

    for (size_t i = 1; i < in->count; i++) {
        if (in->owners[i] == in->owners[kept - 1])
            continue;
        in->starts[kept] = in->starts[i];
        in->owners[kept++] = in->owners[i];
    }
    in->count = kept;
}

int dp_intervals_init(struct dp_intervals *in, const struct dp_tuning_range *ranges, size_t count)
{
    size_t most = 2 * count + 1;
    struct dp_intervals made = {.starts = malloc(most * sizeof(*made.starts)),
                                .owners = malloc(most * sizeof(*made.owners))};
    size_t *next = malloc((most + 1) * sizeof(*next));

    if (!made.starts || !made.owners || !next) {
        free(next);
        dp_intervals_fini(&made);
        return dp_fail(DP_ENOMEM, "no memory for the intervals of %zu rules", count);
    }
    made.count = list_starts(ranges, count, made.starts);
    for (size_t i = 0; i <= made.count; i++)
        next[i] = i;
    for (size_t i = 0; i < made.count; i++)
        made.owners[i] = -1;
    for (size_t i = 0; i < count; i++)
        give(&made, &ranges[i], (int32_t)i, next);
    merge(&made);
    free(next);
    *in = made;
    return 0;
}

void dp_intervals_fini(struct dp_intervals *in)
{
    free(in->starts);
    free(in->owners);
    *in = (struct dp_intervals){0};
}
