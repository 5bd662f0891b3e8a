/* SPDX-License-Identifier: Apache-2.0
 *
 * shm_path.h - path selection for large messages between memory that the two processes do not
 * share: through the ring, or by cross-memory attach. Which is faster differs several times over
 * between machines, sizes, and the cores that the two processes run on: the ring wants cores that
 * share a cache. So the receiver measures every message, and publishes which path the next one of
 * that size shall take.
 *
 *      a path is tried    |||                 |                    |         a share of the time
 *      the best one          |||||||||||||||||  |||||||||||||||||||  ||||    all other messages
 *
 * A try is a few long messages, or many short ones. Its cost decides how often there is one: all
 * tries together take 1/64 of the time.
 */
#ifndef DP_WIRE_SHM_PATH_H
#define DP_WIRE_SHM_PATH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dp_shm_path {
    DP_SHM_CMA,
    DP_SHM_RING,
    DP_SHM_RING_NT, /* the same, copied out with non-temporal stores; for the largest */
    DP_SHM_PATHS
};

/* Sizes are told apart by powers of 4, from DP_SHM_LARGE on; the last class has all that is larger.
 */
enum { DP_SHM_CLASSES = 6 };
unsigned dp_shm_class(size_t len);

/* One for each direction. Zeroed memory knows nothing, and begins with DP_SHM_CMA. */
struct dp_shm_paths {
    struct dp_shm_costs {
        int64_t cost[DP_SHM_PATHS]; /* ns for a MiB; 0: not measured yet */
        int64_t owed_ns;            /* time that the best path serves before the next try */
        int64_t left_bytes;         /* of this try */
        int tried;                  /* last */
        bool is_known;              /* all have been tried once */
        int wanted;                 /* for the next message */
    } classes[DP_SHM_CLASSES];
};

/* A message of len has come by `path` within ns. Returns the path for the next one of that class.
 */
enum dp_shm_path dp_shm_paths_learn(struct dp_shm_paths *paths, size_t len, enum dp_shm_path path,
                                    int64_t ns);

#endif
