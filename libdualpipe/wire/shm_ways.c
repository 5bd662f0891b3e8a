/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/shm_ways.h"

#include "base/copy.h"
#include "wire/shm.h"

enum {
    /* What is tried at a time: the ring shows what it can do when all of it has been used a few times;
     * and the sender may be a message ahead. */
    STRETCH_BYTES = 8 * DP_SHM_SLOTS * DP_SHM_SLOT_BYTES,
    STRETCH_MESSAGES = 3,
    SHARE = 64, /* the tries take one part in so many of the time */
    HOPELESS = 2, /* a way that takes so many times as long as the best need not be tried to the end */
    SLOWER = 8  /* a message that took longer than usual counts as one part in so many ... */
};
/* ... and as twice as long at most, so that one which was held up changes little. A quicker one counts
 * whole. */

unsigned dp_shm_class(size_t len)
{
    unsigned class = 0;

    while (class + 1 < DP_SHM_CLASSES && len >= (size_t)DP_SHM_LARGE << (2 * class + 2))
        class++;
    return class;
}

/* The same for all of a class. */
static int count_ways(size_t len)
{
    return len < DP_COPY_LARGE ? DP_SHM_RING_PAST : DP_SHM_WAYS;
}

static void measure(int64_t *usual, int64_t cost)
{
    int64_t more = cost - *usual;

    if (!*usual || more < 0)
        *usual = cost;
    else
        *usual += (more < *usual ? more : *usual) / SLOWER;
}

/* At least one has come. */
static int find_best(const struct dp_shm_costs *c, int ways)
{
    int best = -1;

    for (int i = 0; i < ways; i++)
        if (c->cost[i] && (best < 0 || c->cost[i] < c->cost[best]))
            best = i;
    return best;
}

/* The ways other than the best one, in turns; at first all of them. That one is asked for does not mean
 * that it comes: some messages are on their way already, and the sender may be unable to. */
static int next_try(struct dp_shm_costs *c, int best, size_t len, int ways)
{
    const int64_t messages = STRETCH_MESSAGES * (int64_t)len;

    do
        c->tried = (c->tried + 1) % ways;
    while (c->tried == best && c->is_known);
    c->is_known = c->is_known || c->tried == ways - 1;
    c->left_bytes = messages > STRETCH_BYTES ? messages : STRETCH_BYTES;
    return c->tried;
}

static int choose(struct dp_shm_costs *c, int came, size_t len, int64_t ns, int ways)
{
    const int best = find_best(c, ways);

    c->owed_ns += came == best ? -ns : SHARE * ns;
    c->left_bytes -= (int64_t)len;
    if (came == c->wanted && c->cost[came] / HOPELESS > c->cost[best])
        c->left_bytes = 0;
    if (c->left_bytes > 0)
        return c->wanted;
    if (c->is_known && c->owed_ns > 0)
        return best;
    return next_try(c, best, len, ways);
}

enum dp_shm_way dp_shm_ways_learn(struct dp_shm_ways *ways, size_t len, enum dp_shm_way way,
                                  int64_t ns)
{
    struct dp_shm_costs *c = &ways->classes[dp_shm_class(len)];
    const int64_t mib = 1 << 20, bytes = (int64_t)len;

    measure(&c->cost[way], (int64_t)((double)ns * (double)mib / (double)bytes) + 1);
    const int64_t usual_ns = (int64_t)((double)c->cost[way] * (double)bytes / (double)mib) + 1;
    c->wanted = choose(c, (int)way, len, usual_ns, count_ways(len));
    return (enum dp_shm_way)c->wanted;
}
