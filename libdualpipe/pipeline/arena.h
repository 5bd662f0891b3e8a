/* SPDX-License-Identifier: Apache-2.0
 *
 * arena.h - places in one piece of memory for things whose lives are known beforehand.
 *
 *      bytes
 *        ^   +----+ +---------+
 *        |   | c  | |    e    |        time goes right; two that live at the same time never
 *        |   +----+-+--+------+        share a byte. e comes after c here, and after d:
 *        |   | a  | d  |               "before" of e is {c, d}
 *        +---+----+----+------------> time
 */
#ifndef DP_PIPELINE_ARENA_H
#define DP_PIPELINE_ARENA_H

#include <dualpipe/dualpipe.h>

#define DP_ARENA_ALIGN 256 /* bytes; every offset is a multiple */

static inline size_t dp_arena_align(size_t bytes)
{
    return (bytes + DP_ARENA_ALIGN - 1) / DP_ARENA_ALIGN * DP_ARENA_ALIGN;
}

struct dp_life {
    size_t bytes;         /* 0 is legal: lives nowhere, offset 0 */
    uint32_t first, last; /* times, both inside the life */
    size_t offset;        /* out */
};

/* For each life, who last had any of its bytes: lives ids[first[i]] .. ids[first[i + 1] - 1]. Zeroed
 * memory is a valid empty one. */
struct dp_arena_before {
    size_t *first;
    uint32_t *ids;
    size_t count, capacity;
};

/* Give every life its offset: first fit, in order of `first`. Where all are of one size the total is
 * the peak of what is alive, the least there can be. DP_ENOMEM. */
int dp_arena_pack(struct dp_life *lives, size_t count, size_t *total_bytes,
                  struct dp_arena_before *before);
void dp_arena_before_fini(struct dp_arena_before *before);

#endif
