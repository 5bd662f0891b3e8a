/* SPDX-License-Identifier: Apache-2.0 */
#include <dualpipe/checkpoint.h>

#include "base/fail.h"
#include "base/tensor.h"
#include "checkpoint/crc32c.h"
#include "checkpoint/state.h"

#include <stdlib.h>
#include <string.h>

enum { CHUNK = 1 << 20 };

/* A tensor to be written, and what the header says of it. */
struct source {
    struct dp_header_tensor said;
    const DLTensor *tensor;
};

/* ---- the bytes of a tensor -------------------------------------------------------------------- */

/* Give visit the bytes of a tensor, row by row, in pieces: those in place that are long enough, others
 * gathered in `room`. */
typedef int visit_fn(void *user, const char *data, size_t len);

static int each_piece(const DLTensor *t, char *room, visit_fn *visit, void *user)
{
    struct dp_stream s = dp_stream_of(t);
    const size_t size = s.element_bytes, most = CHUNK / size;
    size_t left = (size_t)dp_tensor_numel(t);
    int err = 0;

    while (left && !err) {
        char *at;
        size_t n = left < most ? left : most, run = dp_stream_run(&s, &at);
        if (run >= n) {
            dp_stream_advance(&s, n);
        } else {
            dp_stream_gather(&s, n, room);
            at = room;
        }
        err = visit(user, at, n * size);
        left -= n;
    }
    return err;
}

static int add_to_checksum(void *user, const char *data, size_t len)
{
    uint32_t *sum = user;

    *sum = dp_crc32c(*sum, data, len);
    return 0;
}

static int write_piece(void *user, const char *data, size_t len)
{
    return dp_atomic_write(user, data, len);
}

/* ---- the table -------------------------------------------------------------------------------- */

static int check_tensor(const char *path, const struct dp_named_tensor *n)
{
    char text[DP_TENSOR_TEXT];
    const char *fault = dp_tensor_fault(&n->tensor), *name = n->name ? n->name : "(null)";

    if (fault)
        return dp_fail(DP_EINVAL, "checkpoint '%s': tensor '%s' %s", path, name, fault);
    if (!dp_header_type_name(n->tensor.dtype))
        return dp_fail(DP_EUNSUPPORTED, "checkpoint '%s': tensor '%s' is %s, a type that the format "
                       "does not have", path, name, dp_tensor_text(&n->tensor, text));
    if (!dp_tensor_on_host(&n->tensor))
        return dp_fail(DP_EUNSUPPORTED, "checkpoint '%s': tensor '%s' lies on device %d:%d, expected "
                       "host memory", path, name, (int)n->tensor.device.device_type,
                       n->tensor.device.device_id);
    return 0;
}

/* Large elements first, so that every tensor is aligned to its elements; then by name, so that the
 * same tensors make the same file. */
static int compare_sources(const void *a, const void *b)
{
    const struct source *s = a, *t = b;

    if (s->said.dtype.bits != t->said.dtype.bits)
        return s->said.dtype.bits < t->said.dtype.bits ? 1 : -1;
    return strcmp(s->said.name ? s->said.name : "", t->said.name ? t->said.name : "");
}

static int list_sources(const char *path, const struct dp_named_tensor *tensors, int32_t count,
                        char *room, struct source *out)
{
    uint64_t at = 0;
    int err = 0;

    for (int32_t i = 0; i < count && !err; i++) {
        const DLTensor *t = &tensors[i].tensor;
        err = check_tensor(path, &tensors[i]);
        out[i] = (struct source){{tensors[i].name, t->dtype, t->ndim, t->shape, 0, 0, true, 0}, t};
    }
    if (err)
        return err;
    qsort(out, (size_t)count, sizeof(*out), compare_sources);
    for (int32_t i = 0; i < count; i++) {
        const DLTensor *t = out[i].tensor;
        out[i].said.begin = at;
        at += (uint64_t)dp_tensor_numel(t) * dp_tensor_element_bytes(t);
        out[i].said.end = at;
        each_piece(t, room, add_to_checksum, &out[i].said.checksum);
    }
    return 0;
}

/* ---- the file --------------------------------------------------------------------------------- */

static int write_file(const char *path, const struct source *sources, int32_t count,
                      const char *header, size_t len, char *room)
{
    const uint64_t n = len; /* little-endian, as are all machines that this is built for */
    struct dp_atomic_file f;
    int err = dp_atomic_begin(&f, path);

    if (!err)
        err = dp_atomic_write(&f, &n, sizeof(n));
    if (!err)
        err = dp_atomic_write(&f, header, len);
    for (int32_t i = 0; i < count && !err; i++)
        err = each_piece(sources[i].tensor, room, write_piece, &f);
    return dp_atomic_end(&f, err);
}

static int build_header(const char *path, const struct source *sources, int32_t count,
                        const char *json, char **text, size_t *len)
{
    struct dp_header_tensor *said = calloc((size_t)count + 1, sizeof(*said));
    int err;

    if (!said)
        return dp_fail(DP_ENOMEM, "checkpoint '%s': no memory for %d tensors", path, count);
    for (int32_t i = 0; i < count; i++)
        said[i] = sources[i].said;
    err = dp_header_write(path, said, (size_t)count, json, text, len);
    free(said);
    return err;
}

int dp_checkpoint_write(const char *path, const struct dp_named_tensor *tensors, int32_t count,
                        const char *json)
{
    struct source *sources;
    char *room, *header = NULL;
    size_t len;
    int err;

    if (!path || !*path || count < 0 || (count && !tensors))
        return dp_fail(DP_EINVAL, "checkpoint '%s': a list of %d tensors at %p",
                       path ? path : "(null)", count, (const void *)tensors);
    sources = calloc((size_t)count + 1, sizeof(*sources));
    room = malloc(CHUNK);
    err = sources && room ? 0 : dp_fail(DP_ENOMEM, "checkpoint '%s': no memory", path);
    if (!err)
        err = list_sources(path, tensors, count, room, sources);
    if (!err)
        err = build_header(path, sources, count, json, &header, &len);
    if (!err)
        err = write_file(path, sources, count, header, len, room);
    if (header)
        free(header);
    free(sources);
    free(room);
    return err;
}
