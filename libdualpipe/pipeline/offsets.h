/* SPDX-License-Identifier: Apache-2.0
 *
 * offsets.h - offsets in one piece of memory, planned for things whose lifetimes are known
 * beforehand.
 *
 *      bytes
 *        ^   +----+ +---------+
 *        |   | c  | |    e    |        time goes right; two that live at the same time never
 *        |   +----+-+--+------+        share a byte. e comes after c here, and after d:
 *        |   | a  | d  |               "before" of e is {c, d}
 *        +---+----+----+------------> time
 */
#ifndef DP_PIPELINE_OFFSETS_H
#define DP_PIPELINE_OFFSETS_H

#include <dualpipe/dualpipe.h>

#define DP_OFFSET_ALIGN 256 /* bytes; every offset is a multiple */

static inline size_t dp_offset_align(size_t bytes)
{
    return (bytes + DP_OFFSET_ALIGN - 1) / DP_OFFSET_ALIGN * DP_OFFSET_ALIGN;
}

struct dp_lifetime {
    size_t bytes;         /* 0 is legal: takes no memory, offset 0 */
    uint32_t first, last; /* times, both inside the lifetime */
    size_t offset;        /* out */
};

/* For each lifetime, the last owners of any of its bytes: ids[first[i]] .. ids[first[i + 1] - 1].
 * Zeroed memory is a valid empty one. */
struct dp_offset_owners {
    size_t *first;
    uint32_t *ids;
    size_t count, capacity;
};

/* Give every lifetime its offset: first fit, in order of `first`. Where all are of one size the
 * total is the peak of what is alive, the least there can be. DP_ENOMEM. */
int dp_offsets_plan(struct dp_lifetime *lifetimes, size_t count, size_t *total_bytes,
                    struct dp_offset_owners *before);
void dp_offset_owners_fini(struct dp_offset_owners *before);

#endif
