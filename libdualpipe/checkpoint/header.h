/* SPDX-License-Identifier: Apache-2.0
 *
 * header.h - the header of a safetensors file: from text to a table of tensors, and back.
 */
#ifndef DP_CHECKPOINT_HEADER_H
#define DP_CHECKPOINT_HEADER_H

#include <dualpipe/checkpoint.h>
#include <jansson.h>

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

#endif
