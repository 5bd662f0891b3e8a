/* SPDX-License-Identifier: Apache-2.0
 *
 * checkpoint.h - saved state: named tensors in files of the safetensors format, which other programs
 * read as well, with a checksum for each tensor.
 *
 *      8 bytes     length of the header, little-endian
 *      header      JSON: for each tensor its type, shape and place; and what is said below
 *      data        the tensors, row by row, without gaps
 *
 * Beside the tensors the header's "__metadata__" holds, as strings: "dualpipe.crc32c", an object with
 * the CRC-32C (Castagnoli) of each tensor's bytes as eight hexadecimal digits;
 * "dualpipe.header_crc32c", that of the header itself with these eight digits as zeros; and
 * "dualpipe.json", what the caller has to say. An index has "dualpipe.index_crc32c" in its "metadata",
 * that of all else in it, written without blanks and with its keys sorted. Files without them can be
 * read, unchecked.
 *
 * Each rank writes what it holds into a file of its own, under new names each time, and then one of
 * them writes an index, which makes them one checkpoint. What is read is found by logical name,
 * whichever file it is in, whole or in pieces, so that a run may go on under another layout.
 *
 * A file that is being written has ".partial" behind its name; it is synced before it gets the name
 * and its directory after that. So whatever happens, under the name there is either the old file or the
 * new one, and both are whole. One process at a time may write one name.
 *
 * Tensors are in host memory, of any strides. Threads: a checkpoint is read by any threads at once.
 *
 * Errors: DP_EINVAL (a bad argument; a file that is malformed, cut off or damaged: the sentence names
 * the file, the tensor and what was expected), DP_EMISMATCH (another type or shape than asked for),
 * DP_ENOENT (no such file or tensor), DP_EUNSUPPORTED (memory that the host does not reach, a type that
 * the format does not have), DP_EIO (the system failed, a full disk included), DP_ENOMEM.
 *
 * Source: github.com/huggingface/safetensors, "Format".
 */
#ifndef DUALPIPE_CHECKPOINT_H
#define DUALPIPE_CHECKPOINT_H

#include <dualpipe/parameter.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- writing -------------------------------------------------------------------------------- */

/* Write tensors with distinct names to a file. json: a JSON object with what else is to be known (a
 * step, a seed), or NULL. */
DP_PUBLIC int dp_checkpoint_write(const char *path, const struct dp_named_tensor *tensors,
                                  int32_t count, const char *json);

/* Write an index of such files, which lie in the same directory as it; names without a '/'. Its
 * format is that of "model.safetensors.index.json". A tensor that is in several of them (copies of a
 * stage) must be the same in all, DP_EMISMATCH; it is read from the first. Call it when all ranks have
 * written. */
DP_PUBLIC int dp_checkpoint_write_index(const char *path, const char *const *files, int32_t count,
                                        const char *json);

/* ---- reading -------------------------------------------------------------------------------- */

struct dp_checkpoint;

/* Open a file or an index: reads and checks the headers, no tensor yet. The files stay open. */
DP_PUBLIC int dp_checkpoint_open(const char *path, struct dp_checkpoint **out);
DP_PUBLIC void dp_checkpoint_close(struct dp_checkpoint *checkpoint);

/* One tensor of it; all pointers last until it is closed. */
struct dp_checkpoint_tensor {
    const char *name;
    DLDataType dtype;
    int32_t ndim;
    const int64_t *shape;
    uint64_t bytes;
    bool has_checksum;
    uint32_t checksum; /* CRC-32C */
    const char *file;  /* where it is */
};

/* In the order of their names. */
DP_PUBLIC int32_t dp_checkpoint_count(const struct dp_checkpoint *checkpoint);
DP_PUBLIC const struct dp_checkpoint_tensor *
dp_checkpoint_at(const struct dp_checkpoint *checkpoint, int32_t index);
/* NULL: there is none of that name. */
DP_PUBLIC const struct dp_checkpoint_tensor *
dp_checkpoint_find(const struct dp_checkpoint *checkpoint, const char *name);
/* What was given as json: of the index, or of the file that was opened; "{}" if nothing was. */
DP_PUBLIC const char *dp_checkpoint_json(const struct dp_checkpoint *checkpoint);

/* Read a whole tensor into `out`, of its type and shape, and check it; NULL: only compare its checksum,
 * if it has one. If it fails, what is in `out` is not to be used. */
DP_PUBLIC int dp_checkpoint_read(const struct dp_checkpoint *checkpoint, const char *name,
                                 const DLTensor *out);
/* The same of a tensor that is there whole or in pieces: "NAME[first:end]/mean" has the elements first
 * to end - 1 of "NAME/mean" in the order of memory, as the optimizer of a shard names them (replicas.h).
 * What is wanted may be such a piece, too, of other elements. */
DP_PUBLIC int dp_checkpoint_read_pieces(const struct dp_checkpoint *checkpoint,
                                        const struct dp_named_tensor *wanted);
#ifdef __cplusplus
}
#endif
#endif
