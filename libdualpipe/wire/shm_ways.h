/* SPDX-License-Identifier: Apache-2.0
 *
 * shm_ways.h - which way large messages take between memory that the two processes do not share: through
 * the ring, or straight. Which is quicker differs several times over from machine to machine, by size,
 * and on one machine with the cores that the two run on: a ring wants cores that share a cache. So the
 * receiver measures every message, and says which way it wants the next one of that size.
 *
 *      a way is tried    |||                 |                    |         a share of the time
 *      the best one         |||||||||||||||||  |||||||||||||||||||  ||||    all other messages
 *
 * A try is a few messages long, or many small ones. It costs what the way costs, so how often there is
 * one goes by that: all tries together take a sixty-fourth part of the time.
 */
#ifndef DP_WIRE_SHM_WAYS_H
#define DP_WIRE_SHM_WAYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dp_shm_way {
    DP_SHM_STRAIGHT,
    DP_SHM_RING,
    DP_SHM_RING_PAST, /* the same, and out of it with stores past the caches; for the largest */
    DP_SHM_WAYS
};

/* Sizes are told apart by powers of 4, from DP_SHM_LARGE on; the last class has all that is larger. */
enum { DP_SHM_CLASSES = 6 };
unsigned dp_shm_class(size_t len);

/* One for each direction. Zeroed memory knows nothing, and begins with DP_SHM_STRAIGHT. */
struct dp_shm_ways {
    struct dp_shm_costs {
        int64_t cost[DP_SHM_WAYS]; /* ns for a MiB; 0: none has come that way yet */
        int64_t owed_ns;           /* that the best way has to serve before another one is tried */
        int64_t left_bytes;        /* of this try */
        int tried;                 /* last */
        bool is_known;             /* all have been tried once */
        int wanted;                /* for the next message */
    } classes[DP_SHM_CLASSES];
};

/* A message of len has come that way within ns: which way the next one of that class is wanted. */
enum dp_shm_way dp_shm_ways_learn(struct dp_shm_ways *ways, size_t len, enum dp_shm_way way,
                                  int64_t ns);

#endif
