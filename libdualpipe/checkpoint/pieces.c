/* SPDX-License-Identifier: Apache-2.0
 *
 * pieces.c - a tensor that a checkpoint has in pieces, possibly others than are wanted. What reads it
 * and what only looks for it are one.
 */
#include "base/fail.h"
#include "base/tensor.h"
#include "checkpoint/internal.h"

#include <dualpipe/checkpoint.h>

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- pieces ---------------------------------------------------------------------------------- */

/* Of a shape. */
static int64_t elements_of(int32_t ndim, const int64_t *shape)
{
    return dp_tensor_numel(&(DLTensor){.ndim = ndim, .shape = (int64_t *)shape});
}

struct dp_piece dp_piece_of(const char *name, int64_t elements)
{
    const char *bracket = strchr(name, '['), *slash = strrchr(name, '/');
    struct dp_piece p = {slash ? slash : "", (int)strlen(name), 0, elements};

    if (slash)
        p.name_len = (int)(slash - name);
    if (bracket && bracket - name < p.name_len &&
        sscanf(bracket, "[%" SCNd64 ":%" SCNd64 "]", &p.first, &p.end) == 2)
        p.name_len = (int)(bracket - name);
    return p;
}

int dp_piece_compare(const char *a, const struct dp_piece *p, const char *b, const struct dp_piece *q)
{
    const int len = p->name_len < q->name_len ? p->name_len : q->name_len;
    int order = strncmp(a, b, (size_t)len);

    order = order ? order : p->name_len - q->name_len;
    return order ? order : strcmp(p->suffix, q->suffix);
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* Elements first .. end - 1 of NAME from a tensor of the file, into those of `out`. */
static int copy_part(const struct dp_checkpoint *c, const struct dp_checkpoint_tensor *from,
                     const struct dp_piece *has, const DLTensor *out, const struct dp_piece *wants,
                     int64_t first, int64_t end)
{
    const size_t size = out->dtype.bits / 8u;
    DLTensor whole = {.device = {kDLCPU, 0},
                      .ndim = from->ndim,
                      .dtype = from->dtype,
                      .shape = (int64_t *)from->shape,
                      .data = malloc(from->bytes + 1)};
    int err = whole.data ? dp_checkpoint_read(c, from->name, &whole)
                         : dp_fail(DP_ENOMEM, "no memory for the piece '%s'", from->name);

    if (!err)
        memcpy((char *)out->data + (size_t)(first - wants->first) * size,
               (char *)whole.data + (size_t)(first - has->first) * size,
               (size_t)(end - first) * size);
    free(whole.data);
    return err;
}

static bool same_dtype(const struct dp_checkpoint_tensor *t, const DLTensor *out)
{
    return dp_tensor_same_dtype(&(DLTensor){.dtype = t->dtype}, out);
}

/* Pieces do not overlap, so what is missing is what their lengths leave. A count of steps, which
 * has no dimensions, is the same in every piece. Without memory nothing is read. */
static int take_pieces(const struct dp_checkpoint *c, const struct dp_named_tensor *wanted,
                       int64_t *missing)
{
    const DLTensor *out = &wanted->tensor;
    const struct dp_piece wants = dp_piece_of(wanted->name, elements_of(out->ndim, out->shape));
    int err = 0;

    *missing = wants.end - wants.first;
    for (int32_t i = 0; i < dp_checkpoint_count(c) && !err && *missing > 0; i++) {
        const struct dp_checkpoint_tensor *t = dp_checkpoint_at(c, i);
        const struct dp_piece has = dp_piece_of(t->name, elements_of(t->ndim, t->shape));
        if (dp_piece_compare(wanted->name, &wants, t->name, &has) || !same_dtype(t, out))
            continue;
        if (out->ndim == 0) {
            *missing = 0;
            return out->data ? dp_checkpoint_read(c, t->name, out) : 0;
        }
        const int64_t first = wants.first > has.first ? wants.first : has.first;
        const int64_t end = wants.end < has.end ? wants.end : has.end;
        if (first < end && out->data)
            err = copy_part(c, t, &has, out, &wants, first, end);
        *missing -= first < end ? end - first : 0;
    }
    return err;
}

int dp_checkpoint_read_pieces(const struct dp_checkpoint *c, const struct dp_named_tensor *wanted)
{
    const bool whole = dp_checkpoint_find(c, wanted->name);
    int64_t missing = 0;
    int err = whole ? 0 : take_pieces(c, wanted, &missing);

    if (!err && (whole || missing)) /* which says what is */
        err = dp_checkpoint_read(c, wanted->name, &wanted->tensor);
    return err;
}

int64_t dp_checkpoint_missing(const struct dp_checkpoint *c, const struct dp_named_tensor *wanted)
{
    const struct dp_checkpoint_tensor *t = dp_checkpoint_find(c, wanted->name);
    const DLTensor *out = &wanted->tensor;
    int64_t missing = 0;

    if (!t) {
        struct dp_named_tensor none = *wanted;
        none.tensor.data = NULL;
        take_pieces(c, &none, &missing);
        return missing;
    }
    const DLTensor there = {.ndim = t->ndim, .shape = (int64_t *)t->shape};
    return same_dtype(t, out) && dp_tensor_same_shape(&there, out) ? 0 : -1;
}
