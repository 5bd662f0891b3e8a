/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/shm_path.h"

#include "base/copy.h"
#include "wire/shm.h"

enum {
    /* Length of a try: the ring reaches its speed when all of it has been used a few times, and the
     * sender may be a message ahead. */
    STRETCH_BYTES = 8 * DP_SHM_SLOTS * DP_SHM_SLOT_BYTES,
    STRETCH_MESSAGES = 3,
    SHARE = 64,   /* the tries take 1/SHARE of the time */
    HOPELESS = 2, /* a try ends early once it costs HOPELESS times the best */
    SLOWER = 8    /* weight 1/SLOWER of a message that took longer than the average, ... */
};
/* ... which counts as twice as long at most, so that one delayed message changes little. A faster
 * one replaces the average. */

unsigned dp_shm_class(size_t len)
{
    unsigned class = 0;

    while (class + 1 < DP_SHM_CLASSES && len >= (size_t)DP_SHM_LARGE << (2 * class + 2))
        class ++;
    return class;
}

/* The same for all of a class. */
static int count_paths(size_t len)
{
    return len < DP_COPY_LARGE ? DP_SHM_RING_NT : DP_SHM_PATHS;
}

static void measure(int64_t *average, int64_t cost)
{
    int64_t more = cost - *average;

    if (!*average || more < 0)
        *average = cost;
    else
        *average += (more < *average ? more : *average) / SLOWER;
}

/* At least one is measured. */
static int find_best(const struct dp_shm_costs *c, int paths)
{
    int best = -1;

    for (int i = 0; i < paths; i++)
        if (c->cost[i] && (best < 0 || c->cost[i] < c->cost[best]))
            best = i;
    return best;
}

/* The paths other than the best, in turn; at first all of them. A path that is asked for need not
 * be taken: some messages are in flight already, and the sender may be unable to use it. */
static int next_try(struct dp_shm_costs *c, int best, size_t len, int paths)
{
    const int64_t messages = STRETCH_MESSAGES * (int64_t)len;

    do
        c->tried = (c->tried + 1) % paths;
    while (c->tried == best && c->is_known);
    c->is_known = c->is_known || c->tried == paths - 1;
    c->left_bytes = messages > STRETCH_BYTES ? messages : STRETCH_BYTES;
    return c->tried;
}

static int choose(struct dp_shm_costs *c, int came, size_t len, int64_t ns, int paths)
{
    const int best = find_best(c, paths);

    c->owed_ns += came == best ? -ns : SHARE * ns;
    c->left_bytes -= (int64_t)len;
    if (came == c->wanted && c->cost[came] / HOPELESS > c->cost[best])
        c->left_bytes = 0;
    if (c->left_bytes > 0)
        return c->wanted;
    if (c->is_known && c->owed_ns > 0)
        return best;
    return next_try(c, best, len, paths);
}

enum dp_shm_path dp_shm_paths_learn(struct dp_shm_paths *paths, size_t len, enum dp_shm_path path,
                                    int64_t ns)
{
    struct dp_shm_costs *c = &paths->classes[dp_shm_class(len)];
    const int64_t mib = 1 << 20, bytes = (int64_t)len;

    measure(&c->cost[path], (int64_t)((double)ns * (double)mib / (double)bytes) + 1);
    const int64_t average_ns = (int64_t)((double)c->cost[path] * (double)bytes / (double)mib) + 1;
    c->wanted = choose(c, (int)path, len, average_ns, count_paths(len));
    return (enum dp_shm_path)c->wanted;
}
