/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading tensors of an open checkpoint.
 */
#include "checkpoint/state.h"

#include "base/fail.h"
#include "base/tensor.h"
#include "checkpoint/crc32c.h"

#include <stdlib.h>
#include <string.h>

enum { CHUNK = 1 << 20 };

/* ---- finding ---------------------------------------------------------------------------------- */

int32_t dp_checkpoint_count(const struct dp_checkpoint *c)
{
    return c->count;
}

const struct dp_checkpoint_tensor *dp_checkpoint_at(const struct dp_checkpoint *c, int32_t index)
{
    return &c->entries[index].tensor;
}

static int compare_name(const void *name, const void *entry)
{
    return strcmp(name, ((const struct dp_checkpoint_entry *)entry)->tensor.name);
}

static const struct dp_checkpoint_entry *find(const struct dp_checkpoint *c, const char *name)
{
    if (!c->count)
        return NULL;
    return bsearch(name, c->entries, (size_t)c->count, sizeof(*c->entries), compare_name);
}

const struct dp_checkpoint_tensor *dp_checkpoint_find(const struct dp_checkpoint *c, const char *name)
{
    const struct dp_checkpoint_entry *e = find(c, name);

    return e ? &e->tensor : NULL;
}

const char *dp_checkpoint_json(const struct dp_checkpoint *c)
{
    return c->json;
}

static int must_find(const struct dp_checkpoint *c, const char *name,
                     const struct dp_checkpoint_entry **out)
{
    *out = find(c, name);
    if (*out)
        return 0;
    return dp_fail(DP_ENOENT, "checkpoint '%s' has no tensor '%s'",
                   c->file_count ? c->files[0]->path : "(empty)", name);
}

/* The stored tensor as a DLTensor without data. */
static DLTensor described(const struct dp_checkpoint_tensor *t)
{
    return (DLTensor){.ndim = t->ndim, .dtype = t->dtype, .shape = (int64_t *)(uintptr_t)t->shape,
                      .device = {kDLCPU, 0}};
}

static int check_target(const struct dp_checkpoint_tensor *t, const DLTensor *out)
{
    const char *fault = dp_tensor_fault(out);

    if (fault)
        return dp_fail(DP_EINVAL, "checkpoint '%s': what '%s' is to be read into %s", t->file, t->name,
                       fault);
    if (!dp_tensor_on_host(out))
        return dp_fail(DP_EUNSUPPORTED, "checkpoint '%s': '%s' is to be read to device %d:%d, expected "
                       "host memory", t->file, t->name, (int)out->device.device_type,
                       out->device.device_id);
    return 0;
}

static int mismatch(const struct dp_checkpoint_tensor *t, const DLTensor *out)
{
    const DLTensor stored = described(t);
    char is[DP_TENSOR_TEXT], asked[DP_TENSOR_TEXT];

    return dp_fail(DP_EMISMATCH, "checkpoint '%s': tensor '%s' is %s, expected %s", t->file, t->name,
                   dp_tensor_text(&stored, is), dp_tensor_text(out, asked));
}

/* ---- whole tensors ---------------------------------------------------------------------------- */

static int check_sum(const struct dp_checkpoint_tensor *t, uint32_t sum)
{
    if (!t->has_checksum || sum == t->checksum)
        return 0;
    return dp_fail(DP_EINVAL, "checkpoint '%s': tensor '%s' has the checksum %08x, expected %08x: it "
                   "was damaged", t->file, t->name, sum, t->checksum);
}

/* Read all bytes, in pieces into place where they lie one behind another there, otherwise through
 * `room`. out NULL: only to compare the checksum. */
static int read_whole(const struct dp_checkpoint_entry *e, const DLTensor *out, char *room)
{
    struct dp_stream s = {.element_bytes = 1};
    const DLTensor stored = described(&e->tensor);
    size_t left = (size_t)dp_tensor_numel(&stored), size = dp_tensor_element_bytes(&stored);
    uint64_t at = e->begin;
    uint32_t sum = 0;
    int err = 0;

    if (out)
        s = dp_stream_of(out);
    while (left && !err) {
        size_t n = left < CHUNK / size ? left : CHUNK / size;
        char *place = room;
        bool in_place = out && dp_stream_run(&s, &place) >= n;
        if (!in_place)
            place = room;
        err = dp_checkpoint_pread(e->file, place, n * size, at);
        if (err)
            break;
        sum = e->tensor.has_checksum ? dp_crc32c(sum, place, n * size) : 0;
        if (in_place)
            dp_stream_advance(&s, n);
        else if (out)
            dp_stream_scatter(&s, n, room);
        at += n * size;
        left -= n;
    }
    return err ? err : check_sum(&e->tensor, sum);
}

static int with_room(const struct dp_checkpoint_entry *e, const DLTensor *out)
{
    char *room = malloc(CHUNK);
    int err = room ? read_whole(e, out, room)
                   : dp_fail(DP_ENOMEM, "checkpoint '%s': no memory to read it", e->tensor.file);

    free(room);
    return err;
}

int dp_checkpoint_read(const struct dp_checkpoint *c, const char *name, const DLTensor *out)
{
    const struct dp_checkpoint_entry *e;
    int err = must_find(c, name, &e);

    if (!err && !out)
        return with_room(e, NULL);
    if (!err)
        err = check_target(&e->tensor, out);
    if (err)
        return err;
    const DLTensor stored = described(&e->tensor);
    if (!dp_tensor_same_dtype(&stored, out) || !dp_tensor_same_shape(&stored, out))
        return mismatch(&e->tensor, out);
    return with_room(e, out);
}

