/* SPDX-License-Identifier: Apache-2.0
 *
 * data.h - the bytes to learn from: files one after the other, a tenth of them held out.
 *
 * So that the held-out part is like the rest, the bytes are cut into chunks, and the end of every
 * chunk is held out:
 *
 *      |-------- train --------|-held-|-------- train --------|-held-| ...
 *
 * A batch is made of windows of context + 1 bytes that lie within one such part, at places drawn
 * from the seed and the step alone.
 */
#ifndef DP_TRAIN_DATA_H
#define DP_TRAIN_DATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A whole step's data, the same on every rank: sequence after sequence, each of `context` bytes, and
 * the labels: labels[i] is the byte that follows tokens[i]. */
struct batch {
    uint8_t *tokens, *labels;
};

/* Held-out losses are of so many batches. */
enum { HELD_OUT_BATCHES = 4 };

struct data {
    uint8_t *bytes;
    size_t len, window;          /* window: context + 1 */
    size_t chunks, chunk_len, held_len;
    uint64_t seed, digest; /* digest: of the bytes, to tell one text from another */
};

enum data_part { DATA_TRAIN, DATA_HELD_OUT };

/* Read the files. false: one line on standard error has said which file is wrong and what was
 * expected. */
bool data_open(const char *const *paths, size_t count, int context, uint64_t seed,
               struct data *data);
void data_close(struct data *data);

/* Fill `sequences` rows of the batch. Batch `number` of a part is always the same. */
void data_batch(const struct data *data, enum data_part part, uint64_t number, int sequences,
                struct batch *batch);

/* Nats per byte of a guess that knows how frequent each label is, and nothing else. */
double data_entropy(const struct data *data);

#endif
