/* SPDX-License-Identifier: Apache-2.0
 *
 * batch.h - the micro-batches of a batch that begin, or end, on this rank: rows of all replicas'
 * batch, or what its loader hands over, copied to where the rank trains unless they are there.
 */
#ifndef DP_TRAINER_BATCH_H
#define DP_TRAINER_BATCH_H

#include "trainer/place.h"

#include <dualpipe/pipeline.h>

/* Rows of a micro-batch of the batch of all replicas, and of all those before it. */
int64_t batch_rows(int64_t rows, int32_t microbatches, int32_t mb);
int64_t batch_rows_before(int64_t rows, int32_t microbatches, int32_t mb);

struct batch_part;

struct batch_part_config {
    struct place *place;
    const struct dp_border *border; /* of a micro-batch of the most rows; both stay */
    int32_t microbatches;           /* of all replicas */
    int32_t most;                   /* of the stream */
    const char *what;               /* "inputs", "labels" */
};
int batch_part_new(const struct batch_part_config *config, struct batch_part **out);
void batch_part_free(struct batch_part *p); /* may be NULL */

/* For a step, of the micro-batches first .. first + count - 1: *cut or *loaders, or neither. What
 * the step before was given is over. */
int batch_part_begin(struct batch_part *p, const struct dp_tree *tree,
                     const struct dp_loader *loader, int64_t rows, int32_t first, int32_t count);
/* These take NULL, too: there is none. */
const struct dp_microbatches *batch_part_cut(const struct batch_part *p);
const struct dp_loader *batch_part_loader(const struct batch_part *p);
void batch_part_end(struct batch_part *p);

#endif
