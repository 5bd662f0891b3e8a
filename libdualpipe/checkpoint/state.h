/* SPDX-License-Identifier: Apache-2.0
 *
 * state.h - an open checkpoint: its files, and a table of their tensors by name.
 */
#ifndef DP_CHECKPOINT_STATE_H
#define DP_CHECKPOINT_STATE_H

#include "base/tensor.h"
#include <dualpipe/checkpoint.h>

#include <jansson.h>
#include <stddef.h>

/* ---- header ---------------------------------------------------------------------------------- */

/* The header of a safetensors file: from text to a table of tensors, and back. */

/* The official reader refuses longer ones. */
enum { DP_HEADER_MOST = 100 * 1000 * 1000, DP_HEADER_ALIGN = 64 };

/* A tensor and its place: bytes `begin` to `end` - 1 of the data. */
struct dp_header_tensor {
    const char *name;
    DLDataType dtype;
    int32_t ndim;
    int64_t *shape;
    uint64_t begin, end;
    bool has_checksum;
    uint32_t checksum;
};

struct dp_header {
    json_t *root; /* has the names */
    struct dp_header_tensor *tensors; /* in the order of the data */
    const struct dp_header_tensor **by_name;
    size_t count;
    int64_t *shapes; /* of all tensors */
    const char *json;
};

/* Read a header's text, with a NUL behind it; data_bytes: what is behind it in the file. `path` is
 * for sentences. Everything is checked: that the tensors fill the data without gaps and overlaps, that
 * extents fit the bytes, that the header has its checksum. DP_EINVAL, DP_EUNSUPPORTED (a type),
 * DP_ENOMEM. */
int dp_header_read(const char *path, const char *text, size_t len, uint64_t data_bytes,
                   struct dp_header *out);
void dp_header_fini(struct dp_header *header);
/* NULL: none of that name. */
const struct dp_header_tensor *dp_header_find(const struct dp_header *header, const char *name);

/* The text for tensors whose begin, end and checksum are set, padded so that with the eight bytes
 * before it it ends at a multiple of DP_HEADER_ALIGN. The caller frees. DP_EINVAL if a name or `json`
 * is not what it should be, DP_ENOMEM. */
int dp_header_write(const char *path, const struct dp_header_tensor *tensors, size_t count,
                    const char *json, char **text, size_t *len);

/* "F32" and so on; NULL if the format has no such type. */
const char *dp_header_type_name(DLDataType dtype);

/* A JSON object's text, NULL meaning an empty one. DP_EINVAL with the path. */
int dp_header_check_json(const char *path, const char *json);

/* ---- strided --------------------------------------------------------------------------------- */

/* A tensor of any strides as a stream of its elements, row by row. */

struct dp_stream {
    int ndim;
    size_t element_bytes;
    int64_t shape[DP_TENSOR_MAX_NDIM], strides[DP_TENSOR_MAX_NDIM], index[DP_TENSOR_MAX_NDIM];
    char *base;
};

/* At the first element of a sound tensor in host memory. */
struct dp_stream dp_stream_of(const DLTensor *tensor);

/* Elements that lie one behind another from here on (at least 1, unless it is at the end), and where. */
size_t dp_stream_run(const struct dp_stream *stream, char **at);
/* Go on by `count` elements of that run. */
void dp_stream_advance(struct dp_stream *stream, size_t count);

/* Copy the next `count` elements to `packed`, or from it. */
void dp_stream_gather(struct dp_stream *stream, size_t count, char *packed);
void dp_stream_scatter(struct dp_stream *stream, size_t count, const char *packed);

/* ---- atomic file ----------------------------------------------------------------------------- */

/* A file that gets its name when it is complete and on the disk.
 *
 *      err = dp_atomic_begin(&f, path);
 *      if (!err)
 *          err = dp_atomic_write(&f, data, len);
 *      err = dp_atomic_end(&f, err); */

struct dp_atomic_file {
    const char *path; /* the caller's */
    char *target;     /* without symbolic links: they stay what they are */
    char *partial;    /* NULL: a device or a pipe, which is written in place */
    int fd;
};

/* Create PATH.*.partial, a name that cannot be guessed, and remove what earlier writers left so.
 * DP_EIO, DP_ENOENT, DP_ENOMEM. */
int dp_atomic_begin(struct dp_atomic_file *f, const char *path);
int dp_atomic_write(struct dp_atomic_file *f, const void *data, size_t len);
/* With err 0: sync the file, give it its name, sync its directory. Otherwise remove it. Returns err, or
 * what went wrong now. Must follow a begin, also one that failed. */
int dp_atomic_end(struct dp_atomic_file *f, int err);

/* ---- state ----------------------------------------------------------------------------------- */

struct dp_checkpoint_file {
    char *path, *name; /* name: as the index calls it */
    int fd;
    uint64_t data; /* where the data begin */
    struct dp_header header;
};

struct dp_checkpoint_entry {
    struct dp_checkpoint_tensor tensor;
    const struct dp_checkpoint_file *file;
    uint64_t begin; /* in the file */
};

struct dp_checkpoint {
    struct dp_checkpoint_file **files;
    int32_t file_count;
    struct dp_checkpoint_entry *entries; /* by name */
    int32_t count;
    char *json;
};

/* pread of all of it. DP_EIO; DP_EINVAL if the file ends before. */
int dp_checkpoint_pread(const struct dp_checkpoint_file *file, void *to, size_t len, uint64_t at);

#endif
