/* SPDX-License-Identifier: Apache-2.0
 *
 * move.c - named tensors go from the ranks that hold them to those that need them. All ranks know
 * what each has and wants, so that each finds its own sends and receives, in one order:
 *
 *      has      rank 0: a b     rank 1: b c     rank 2: c
 *      wants    rank 0: a b c   rank 1: -       rank 2: b
 *
 *      rank 0 copies a and b for itself, rank 1 sends it c; rank 0 sends b to rank 2
 *
 * What one has in pieces another may want whole, or in other pieces.
 */
#include <dualpipe/pipeline.h>

#include "base/fail.h"
#include "base/tensor.h"
#include "checkpoint/internal.h"
#include "comm/internal.h"
#include "pipeline/setup.h"

#include <stdlib.h>
#include <string.h>

/* What a rank tells of a tensor. */
struct told {
    uint64_t layout; /* of type and shape; 0: not compact, or not in the host's memory */
    int64_t elements;
    DLDataType type;
    int32_t ndim;
};

/* One tensor of a rank, as all ranks know it. */
struct entry {
    const char *name;
    struct told told;
    struct dp_piece piece;
    int32_t rank, index;
};

/* What a rank tells: a head, then what is told of each tensor, and its name with the 0 at its end. */
struct head {
    int32_t has, wants;
};

struct tables {
    void *text;
    size_t *offsets;
    struct entry *has, *wants; /* has: by name, then rank; wants: by rank, in the rank's order */
    size_t has_count, wants_count, parts; /* parts of those wanted, each from one rank */
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
        const DLTensor *t = &list[i].tensor;
        const struct told told = {layout_of(t), dp_tensor_numel(t), t->dtype, t->ndim};
        const size_t len = strlen(list[i].name) + 1;
        memcpy(at, &told, sizeof(told));
        memcpy(at + sizeof(told), list[i].name, len);
        at += sizeof(told) + len;
    }
    return at;
}

static size_t list_len(const struct dp_named_tensor *list, int32_t count)
{
    size_t len = 0;

    for (int32_t i = 0; i < count; i++)
        len += sizeof(struct told) + strlen(list[i].name) + 1;
    return len;
}

static const char *take_list(const char *at, int rank, int32_t count, struct entry *out)
{
    for (int32_t i = 0; i < count; i++) {
        struct entry *e = &out[i];
        *e = (struct entry){.name = at + sizeof(e->told), .rank = rank, .index = i};
        memcpy(&e->told, at, sizeof(e->told));
        e->piece = dp_piece_of(e->name, e->told.elements);
        if (e->told.ndim && e->piece.end - e->piece.first != e->told.elements) /* [ is but a letter */
            e->piece = (struct dp_piece){"", (int)strlen(e->name), 0, e->told.elements};
        at = e->name + strlen(e->name) + 1;
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
    const int order = dp_piece_compare(x->name, &x->piece, y->name, &y->piece);

    if (order || x->rank != y->rank)
        return order ? order : x->rank - y->rank;
    return x->index - y->index;
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

/* From where a rank gets what it wants from element `at` on: what it has itself, otherwise what the
 * first rank has that has it; NULL: none has. A count of steps, which has no dimensions, is the same in
 * every piece. *at: behind what that one has. */
static const struct entry *find(const struct tables *t, const struct entry *wanted, int64_t *at)
{
    const struct entry key = {.name = wanted->name, .piece = wanted->piece, .rank = -1};
    const struct entry *found = NULL;
    size_t low = 0, high = t->has_count;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (by_name(&t->has[middle], &key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    for (const struct entry *e = t->has + low; e < t->has + t->has_count; e++) {
        if (dp_piece_compare(e->name, &e->piece, wanted->name, &wanted->piece))
            break;
        const bool is_there = !e->told.ndim || wanted->piece.first == wanted->piece.end ||
                              (e->piece.first <= *at && *at < e->piece.end);
        if (is_there && (!found || (e->rank == wanted->rank && found->rank != wanted->rank)))
            found = e;
    }
    *at = found && found->told.ndim && found->piece.end < wanted->piece.end ? found->piece.end
                                                                           : wanted->piece.end;
    return found;
}

static bool is_piece(const struct entry *e)
{
    return (size_t)e->piece.name_len + strlen(e->piece.suffix) != strlen(e->name);
}

static int check_part(const struct entry *from, const struct entry *w)
{
    if (!from)
        return dp_fail(DP_ENOENT, "tensor '%s', which rank %d needs: no rank has it; if those that "
                       "held it have died, only a checkpoint brings it back", w->name, w->rank);
    if (!w->told.layout || !from->told.layout)
        return dp_fail(DP_EINVAL, "tensor '%s' of rank %d: expected a compact one in the host's "
                       "memory", w->name, w->told.layout ? from->rank : w->rank);
    if (memcmp(&w->told.type, &from->told.type, sizeof(w->told.type)) ||
        (!w->told.ndim != !from->told.ndim && w->told.elements != from->told.elements) ||
        (!is_piece(w) && !is_piece(from) && w->told.layout != from->told.layout))
        return dp_fail(DP_EMISMATCH, "tensor '%s': another type or shape on rank %d, which has "
                       "it, than on rank %d, which needs it", w->name, from->rank, w->rank);
    return 0;
}

/* The same on every rank. */
static int check(struct tables *t)
{
    for (size_t i = 0; i < t->wants_count; i++) {
        const struct entry *w = &t->wants[i];
        int64_t at = w->piece.first;
        do {
            const int err = check_part(find(t, w, &at), w);
            if (err)
                return err;
            t->parts++;
        } while (at < w->piece.end);
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

/* Elements first .. end - 1; tag: the number of the part. */
static int start(struct move *m, uint64_t tag, const struct entry *from, const struct entry *to,
                 int64_t first, int64_t end)
{
    const int rank = dp_comm_rank(m->comm);
    const bool sends = from->rank == rank;
    const struct entry *own = sends ? from : to;
    const DLTensor *t = &(sends ? &m->has[from->index] : &m->wants[to->index])->tensor;
    const size_t size = dp_tensor_element_bytes(t);
    const size_t len = t->ndim ? (size_t)(end - first) * size : size;
    char *data = dp_tensor_address(t) + (t->ndim ? (size_t)(first - own->piece.first) * size : 0);
    struct dp_request *request = &m->requests[m->count];
    int err;

    if (from->rank == to->rank) {
        const size_t skipped = t->ndim ? (size_t)(first - to->piece.first) * size : 0;
        memmove(dp_tensor_address(&m->wants[to->index].tensor) + skipped, data, len);
        return 0;
    }
    m->peers[m->count] = sends ? to->rank : from->rank;
    if (sends)
        err = dp_comm_isend(m->comm, to->rank, DP_CHANNEL_CONTROL, tag, data, len, request);
    else
        err = dp_comm_irecv(m->comm, from->rank, DP_CHANNEL_CONTROL, tag, data, len, request);
    m->count += !err;
    return err;
}

static int start_all(struct move *m, const struct tables *t)
{
    const int rank = dp_comm_rank(m->comm);
    uint64_t part = 0;
    int err = 0;

    for (size_t i = 0; i < t->wants_count; i++) {
        const struct entry *w = &t->wants[i];
        int64_t first = w->piece.first, end = first;
        do {
            const struct entry *from = find(t, w, &end);
            if (!err && (from->rank == rank || w->rank == rank))
                err = start(m, part, from, w, first, end);
            part++;
            first = end;
        } while (end < w->piece.end);
    }
    return err;
}

static int move_all(struct move *m, const struct tables *t)
{
    int err = 0;

    m->requests = calloc(t->parts + 1, sizeof(*m->requests));
    m->peers = calloc(t->parts + 1, sizeof(*m->peers));
    if (!m->requests || !m->peers)
        err = dp_fail(DP_ENOMEM, "no memory to move %zu tensors", t->wants_count);
    if (!err)
        err = start_all(m, t);
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
