/* SPDX-License-Identifier: Apache-2.0
 *
 * bucket.h - which parameters are exchanged together: pure arithmetic over sizes.
 *
 * A bucket is a run of parameters of one element type, in the order in which their gradients became
 * complete, that is exchanged as one block:
 *
 *      | p7 ...... pad | p6 . pad | p5 ......... pad |  extra  |
 *      ^ aligned       ^ aligned  ^ aligned                    ^ block length
 *
 * Parameters begin at multiples of the alignment, padding is zero. A block is lengthened until no
 * earlier one has its length, so that blocks that met the wrong one would be noticed.
 */
#ifndef DP_MIXING_BUCKET_H
#define DP_MIXING_BUCKET_H

#include <dualpipe/dualpipe.h>

/* What a parameter is cut by. */
struct dp_bucket_item {
    int64_t elements;
    int32_t type; /* any number that tells element types apart */
    int32_t element_bytes;
};

struct dp_bucket_rule {
    double bytes;  /* a bucket ends when it holds that much, padding included */
    bool compat;   /* the seed's alignment, 32 elements; else 256 bytes */
};

struct dp_bucket_cut {
    int32_t first, count; /* order[first] .. order[first + count - 1] */
    int64_t block_elements;
};

struct dp_buckets {
    int32_t count, item_count;
    struct dp_bucket_cut *cuts; /* [count] */
    int32_t *order;             /* [item_count of the trace] items by bucket, then trace */
    int32_t *bucket_of;         /* [items] -1: was not traced */
    int64_t *offset;            /* [items] elements from the begin of the block */
};

/* trace[traced]: distinct items in the order in which they were complete. DP_ENOMEM. */
int dp_buckets_cut(const struct dp_bucket_rule *rule, const struct dp_bucket_item *items,
                   int32_t count, const int32_t *trace, int32_t traced, struct dp_buckets *out);
void dp_buckets_fini(struct dp_buckets *b);

#endif
