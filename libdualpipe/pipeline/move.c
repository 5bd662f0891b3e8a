/* SPDX-License-Identifier: Apache-2.0
 *
 * move.c - named tensors go from the ranks that hold them to those that need them. All ranks know
 * what each has and wants, so that each finds its own sends and receives, in one order:
 *
 *      has      rank 0: a b     rank 1: b c     rank 2: c
 *      wants    rank 0: a b c   rank 1: -       rank 2: b
 *
 *      rank 0 copies a and b for itself, rank 1 sends it c; rank 0 sends b to rank 2
 */
#include <dualpipe/pipeline.h>

#include "base/fail.h"
#include "base/tensor.h"
#include "comm/internal.h"
#include "pipeline/setup.h"

#include <stdlib.h>
#include <string.h>

/* One tensor of a rank, as all ranks know it. */
struct entry {
    const char *name;
    uint64_t layout; /* of type and shape; 0: not compact, or not in the host's memory */
    int32_t rank, index;
};

/* What a rank tells: a head, then for each tensor its layout and its name with the 0 at its end. */
struct head {
    int32_t has, wants;
};

struct tables {
    void *text;
    size_t *offsets;
    struct entry *has, *wants; /* has: by name, then rank; wants: by rank, in the rank's order */
    size_t has_count, wants_count;
};

/* ---- what each rank has and wants ------------------------------------------------------------ */

static uint64_t layout_of(const DLTensor *t)
{
    uint64_t h = UINT64_C(0xCBF29CE484222325);
    const int64_t type[] = {t->dtype.code, t->dtype.bits, t->dtype.lanes, t->ndim};

    if (!dp_tensor_on_host(t) || !dp_tensor_compact(t))
        return 0;
    for (int i = 0; i < 4; i++)
        h = (h ^ (uint64_t)type[i]) * UINT64_C(0x100000001B3);
    for (int i = 0; i < t->ndim; i++)
        h = (h ^ (uint64_t)t->shape[i]) * UINT64_C(0x100000001B3);
    return h | 1;
}

static char *put_list(char *at, const struct dp_named_tensor *list, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        const uint64_t layout = layout_of(&list[i].tensor);
        const size_t len = strlen(list[i].name) + 1;
        memcpy(at, &layout, sizeof(layout));
        memcpy(at + sizeof(layout), list[i].name, len);
        at += sizeof(layout) + len;
    }
    return at;
}

static size_t list_len(const struct dp_named_tensor *list, int32_t count)
{
    size_t len = 0;

    for (int32_t i = 0; i < count; i++)
        len += sizeof(uint64_t) + strlen(list[i].name) + 1;
    return len;
}

static const char *take_list(const char *at, int rank, int32_t count, struct entry *out)
{
    for (int32_t i = 0; i < count; i++) {
        out[i] = (struct entry){.name = at + sizeof(uint64_t), .rank = rank, .index = i};
        memcpy(&out[i].layout, at, sizeof(uint64_t));
        at = out[i].name + strlen(out[i].name) + 1;
    }
    return at;
}

static struct head head_of(const struct tables *t, int rank)
{
    struct head head;

    memcpy(&head, (const char *)t->text + t->offsets[rank], sizeof(head));
    return head;
}

static int by_name(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    const int order = strcmp(x->name, y->name);

    return order ? order : (x->rank > y->rank) - (x->rank < y->rank);
}

static int read_tables(struct tables *t, int ranks)
{
    size_t has = 0, wants = 0;

    for (int rank = 0; rank < ranks; rank++) {
        has += (size_t)head_of(t, rank).has;
        wants += (size_t)head_of(t, rank).wants;
    }
    t->has = malloc((has + 1) * sizeof(*t->has));
    t->wants = malloc((wants + 1) * sizeof(*t->wants));
    if (!t->has || !t->wants)
        return dp_fail(DP_ENOMEM, "no memory for a table of %zu tensors", has + wants);
    for (int rank = 0; rank < ranks; rank++) {
        const struct head head = head_of(t, rank);
        const char *at = (const char *)t->text + t->offsets[rank] + sizeof(head);
        at = take_list(at, rank, head.has, t->has + t->has_count);
        take_list(at, rank, head.wants, t->wants + t->wants_count);
        t->has_count += (size_t)head.has;
        t->wants_count += (size_t)head.wants;
    }
    qsort(t->has, t->has_count, sizeof(*t->has), by_name);
    return 0;
}

static int gather_tables(struct dp_comm *comm, const struct dp_named_tensor *has, int32_t has_count,
                         const struct dp_named_tensor *wants, int32_t wants_count,
                         struct tables *out)
{
    const struct head head = {has_count, wants_count};
    const size_t len = sizeof(head) + list_len(has, has_count) + list_len(wants, wants_count);
    char *text = malloc(len);

    out->offsets = calloc((size_t)dp_comm_size(comm) + 1, sizeof(*out->offsets));
    if (!text || !out->offsets) {
        free(text);
        return dp_fail(DP_ENOMEM, "no memory for the names of %d tensors", has_count + wants_count);
    }
    memcpy(text, &head, sizeof(head));
    put_list(put_list(text + sizeof(head), has, has_count), wants, wants_count);
    int err = dp_comm_allgatherv(comm, text, len, &out->text, out->offsets);
    free(text);
    return err ? err : read_tables(out, dp_comm_size(comm));
}

static void tables_fini(struct tables *t)
{
    free(t->text);
    free(t->offsets);
    free(t->has);
    free(t->wants);
}

/* ---- from where ------------------------------------------------------------------------------ */

/* The rank's own, otherwise that of the first rank which has it; NULL: none has. */
static const struct entry *find(const struct tables *t, const struct entry *wanted)
{
    const struct entry key = {.name = wanted->name, .rank = wanted->rank};
    const struct entry *own = bsearch(&key, t->has, t->has_count, sizeof(*t->has), by_name);
    size_t low = 0, high = t->has_count;

    if (own)
        return own;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (strcmp(t->has[middle].name, wanted->name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low < t->has_count && !strcmp(t->has[low].name, wanted->name) ? &t->has[low] : NULL;
}

/* The same on every rank. */
static int check(const struct tables *t)
{
    for (size_t i = 0; i < t->wants_count; i++) {
        const struct entry *w = &t->wants[i], *from = find(t, w);
        if (!from)
            return dp_fail(DP_ENOENT, "tensor '%s', which rank %d needs: no rank has it; if those that "
                           "held it have died, only a checkpoint brings it back", w->name, w->rank);
        if (!w->layout || !from->layout)
            return dp_fail(DP_EINVAL, "tensor '%s' of rank %d: expected a compact one in the host's "
                           "memory", w->name, w->layout ? from->rank : w->rank);
        if (w->layout != from->layout)
            return dp_fail(DP_EMISMATCH, "tensor '%s': another type or shape on rank %d, which has "
                           "it, than on rank %d, which needs it", w->name, from->rank, w->rank);
    }
    return 0;
}

/* ---- moving ---------------------------------------------------------------------------------- */

struct move {
    struct dp_comm *comm;
    const struct dp_named_tensor *has, *wants;
    struct dp_request *requests;
    int *peers;
    size_t count;
};

static int start(struct move *m, const struct entry *from, const struct entry *to)
{
    const int rank = dp_comm_rank(m->comm);
    const DLTensor *t = &(from->rank == rank ? &m->has[from->index] : &m->wants[to->index])->tensor;
    const size_t len = (size_t)dp_tensor_numel(t) * dp_tensor_element_bytes(t);
    const uint64_t tag = (uint64_t)to->index;
    struct dp_request *request = &m->requests[m->count];
    int err;

    if (from->rank == to->rank) {
        memmove(dp_tensor_address(&m->wants[to->index].tensor), dp_tensor_address(t), len);
        return 0;
    }
    m->peers[m->count] = from->rank == rank ? to->rank : from->rank;
    if (from->rank == rank)
        err = dp_comm_isend(m->comm, to->rank, DP_CHANNEL_CONTROL, tag, dp_tensor_address(t), len,
                            request);
    else
        err = dp_comm_irecv(m->comm, from->rank, DP_CHANNEL_CONTROL, tag, dp_tensor_address(t), len,
                            request);
    m->count += !err;
    return err;
}

static int move_all(struct move *m, const struct tables *t)
{
    const int rank = dp_comm_rank(m->comm);
    int err = 0;

    m->requests = calloc(t->wants_count + 1, sizeof(*m->requests));
    m->peers = calloc(t->wants_count + 1, sizeof(*m->peers));
    if (!m->requests || !m->peers)
        err = dp_fail(DP_ENOMEM, "no memory to move %zu tensors", t->wants_count);
    for (size_t i = 0; i < t->wants_count && !err; i++) {
        const struct entry *from = find(t, &t->wants[i]);
        if (from->rank == rank || t->wants[i].rank == rank)
            err = start(m, from, &t->wants[i]);
    }
    for (size_t i = 0; i < m->count && !err; i++)
        err = dp_comm_wait(m->comm, &m->requests[i], m->peers[i]);
    if (err) /* so that no request is left */
        dp_failure_tell(m->comm, err);
    free(m->requests);
    free(m->peers);
    return err;
}

int dp_pipeline_move_state(struct dp_comm *comm, const struct dp_named_tensor *has,
                           int32_t has_count, const struct dp_named_tensor *wants,
                           int32_t wants_count)
{
    struct move move = {.comm = comm, .has = has, .wants = wants};
    struct tables tables = {0};

    if (!comm || has_count < 0 || wants_count < 0 || (has_count && !has) || (wants_count && !wants))
        return dp_fail(DP_EINVAL, "state to move: expected a comm and lists of tensors");
    int err = gather_tables(comm, has, has_count, wants, wants_count, &tables);
    if (err) /* of this rank alone, perhaps: the others would wait for its messages */
        dp_failure_tell(comm, err);
    if (!err)
        err = check(&tables);
    if (!err)
        err = move_all(&move, &tables);
    tables_fini(&tables);
    return err;
}
