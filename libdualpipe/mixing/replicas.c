/* SPDX-License-Identifier: Apache-2.0
 *
 * replicas.c - gradients summed over replicas, piece by piece; two pieces are in flight, so that
 * one is added up while the other moves.
 *
 *      step (rank r of 4)   with     a piece of four parts
 *      0                    r ^ 1    | mine or theirs |               |    swap halves, add
 *      1                    r ^ 2    | m t |                               swap quarters, add
 *                                    one part is the sum of all: the shard
 *      2                    r ^ 2    | . . |                               swap quarters
 *      3                    r ^ 1    | . . . . |                           swap halves
 *
 * The pieces of a pair take their steps in turn, a0 b0 a1 b1 ..., so that every replica posts its
 * swaps in the same order whatever arrives first.
 */
#include <dualpipe/replicas.h>

#include "base/fail.h"
#include "comm/comm_core.h"
#include "base/tensor.h"
#include "mixing/combine.h"
#include "mixing/hash.h"
#include "mixing/shard.h"
#include <dualpipe/memory.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PIECE_ELEMENTS = 256 << 10,
    PART_ALIGN = 16,
    WINDOW = 2,
    ELEMENT_MAX = 8,
    BLOCK_ALIGN = 256
};

/* A parameter in the row of all of its types. */
struct span {
    const struct dp_parameter *parameter;
    size_t first, elements;
};

/* A run of a row. */
struct piece {
    DLDataType grad, value;
    int32_t first_span;           /* the one that holds its first element */
    size_t first, elements, part; /* part: elements of each replica's, padded */
};

enum operation { IDLE, SUM, SCATTER, GATHER };

/* A piece in flight. */
struct flight {
    const struct piece *piece; /* NULL: none */
    int step;
    size_t first, parts; /* in parts: what of `work` this replica holds the newest of */
    int peer;
    char *work, *arrived;
    struct dp_request request;
};

struct dp_replicas {
    struct dp_comm *comm;
    int rank, size, levels; /* levels: log2(size), 0: not a power of two */
    int32_t span_count, piece_count;
    struct dp_parameter *parameters;
    struct span *spans;
    struct piece *pieces;
    struct dp_shard shard;
    void *memory;
    bool memory_is_shared;

    enum operation operation;
    int32_t next; /* the first piece that is not in flight yet */
    int turn;     /* of flights: whose step ends next */
    struct flight flights[WINDOW];
};

/* ---- pieces and memory ----------------------------------------------------------------------- */

static DLDataType type_of(const struct dp_replicas *r, const struct piece *p)
{
    return r->operation == GATHER ? p->value : p->grad;
}

static char *memory_of(const struct dp_replicas *r, const struct dp_parameter *p)
{
    return dp_tensor_address(r->operation == GATHER ? p->value : p->grad);
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

enum direction { LOAD, STORE };

/* Elements first .. first + count - 1 of a piece, between the tensors and its block. */
static void copy_elements(const struct dp_replicas *r, const struct flight *f, size_t first,
                          size_t count, enum direction direction)
{
    const struct piece *p = f->piece;
    const size_t size = type_of(r, p).bits / 8;
    const size_t end = least(first + count, p->elements);
    const struct span *s = &r->spans[p->first_span];

    while (first < end) {
        const size_t at = p->first + first;
        for (; at >= s->first + s->elements; s++)
            ;
        const size_t n = least(end - first, s->first + s->elements - at);
        char *tensor = memory_of(r, s->parameter) + (at - s->first) * size;
        char *block = f->work + first * size;
        memcpy(direction == LOAD ? block : tensor, direction == LOAD ? tensor : block, n * size);
        first += n;
    }
}

/* The part of a piece that this replica's shard holds. */
static size_t own_part(const struct dp_replicas *r)
{
    size_t part = 0;

    if (!r->levels)
        return (size_t)r->rank;
    for (int k = 0; k < r->levels; k++)
        part = 2 * part + (size_t)(r->rank >> k & 1);
    return part;
}

/* ---- steps of a piece ------------------------------------------------------------------------ */

/* The steps of halving, and all of them. */
static int halvings(const struct dp_replicas *r)
{
    return r->operation == GATHER ? 0 : r->levels ? r->levels : 1;
}

static int step_count(const struct dp_replicas *r)
{
    if (!r->levels)
        return 1;
    return r->operation == SUM ? 2 * r->levels : r->levels;
}

static bool is_halving(const struct dp_replicas *r, const struct flight *f)
{
    return f->step < halvings(r);
}

/* Which bit of the rank tells the partners of a step apart. */
static int bit_of(const struct dp_replicas *r, const struct flight *f)
{
    return is_halving(r, f) ? f->step : r->levels - 1 - (f->step - halvings(r));
}

static size_t bytes_of_parts(const struct dp_replicas *r, const struct flight *f, size_t parts)
{
    return parts * f->piece->part * (type_of(r, f->piece).bits / 8);
}

static int start_collective(struct dp_replicas *r, struct flight *f)
{
    const struct piece *p = f->piece;
    const DLDataType type = type_of(r, p);
    char *mine = f->work + bytes_of_parts(r, f, (size_t)r->rank);

    f->peer = -1;
    if (r->operation == SUM)
        return dp_comm_iallreduce(r->comm, f->work, f->work, p->part * (size_t)r->size, type,
                                  DP_REDUCE_SUM, &f->request);
    if (r->operation == SCATTER)
        return dp_comm_ireduce_scatter(r->comm, f->work, mine, p->part, type, DP_REDUCE_SUM,
                                       &f->request);
    return dp_comm_iallgather(r->comm, mine, f->work, bytes_of_parts(r, f, 1), &f->request);
}

/* Halving: one half of what is held goes to the partner, for the same half of theirs. Doubling: all
 * of it, for the half beside it. */
static int start_swap(struct dp_replicas *r, struct flight *f)
{
    const int bit = bit_of(r, f);
    const bool upper = r->rank >> bit & 1;
    const uint64_t tag = (uint64_t)(f->piece - r->pieces) << 8 | (uint64_t)f->step;
    const size_t half = is_halving(r, f) ? f->parts / 2 : f->parts;
    size_t give = f->first;
    char *to = f->arrived;

    f->peer = r->rank ^ 1 << bit;
    if (is_halving(r, f))
        give += upper ? 0 : half;
    else
        to = f->work + bytes_of_parts(r, f, upper ? f->first - half : f->first + half);
    return dp_comm_iswap(r->comm, f->peer, DP_CHANNEL_REDUCE, tag,
                         f->work + bytes_of_parts(r, f, give), to, bytes_of_parts(r, f, half),
                         &f->request);
}

/* a + b is the same for both partners. */
static void end_halving(struct dp_replicas *r, struct flight *f)
{
    const size_t half = f->parts / 2;

    f->first += r->rank >> bit_of(r, f) & 1 ? half : 0;
    f->parts = half;
    char *mine = f->work + bytes_of_parts(r, f, f->first);
    const void *in[2] = {mine, f->arrived};
    dp_combine(type_of(r, f->piece), half * f->piece->part, mine, in, (double[]){1, 1}, 2);
}

static void end_doubling(struct dp_replicas *r, struct flight *f)
{
    if (r->rank >> bit_of(r, f) & 1)
        f->first -= f->parts;
    f->parts *= 2;
}

static void end_piece(struct dp_replicas *r, struct flight *f)
{
    const size_t part = f->piece->part;

    if (r->operation == SCATTER)
        copy_elements(r, f, own_part(r) * part, part, STORE);
    else
        copy_elements(r, f, 0, f->piece->elements, STORE);
    f->piece = NULL;
}

static int start_step(struct dp_replicas *r, struct flight *f)
{
    return r->levels ? start_swap(r, f) : start_collective(r, f);
}

/* The request of a step is over: what it brought, and the next one. */
static int end_step(struct dp_replicas *r, struct flight *f)
{
    if (r->levels && is_halving(r, f))
        end_halving(r, f);
    else if (r->levels)
        end_doubling(r, f);
    if (++f->step < step_count(r))
        return start_step(r, f);
    end_piece(r, f);
    return 0;
}

/* Padding is zero, so that adding it up costs no more than other values do. */
static void load_all(struct dp_replicas *r, struct flight *f)
{
    const size_t bytes = f->piece->elements * (type_of(r, f->piece).bits / 8);

    copy_elements(r, f, 0, f->piece->elements, LOAD);
    memset(f->work + bytes, 0, bytes_of_parts(r, f, (size_t)r->size) - bytes);
}

static int start_piece(struct dp_replicas *r, struct flight *f)
{
    const bool gather = r->operation == GATHER;
    const size_t all = (size_t)r->size;

    f->piece = &r->pieces[r->next++];
    f->step = 0;
    f->first = gather ? own_part(r) : 0;
    f->parts = gather ? 1 : all;
    if (gather)
        copy_elements(r, f, own_part(r) * f->piece->part, f->piece->part, LOAD);
    else
        load_all(r, f);
    return start_step(r, f);
}

/* ---- an operation ---------------------------------------------------------------------------- */

/* The group, in one that survives its ranks the communicator, is of no use once a replica fell out of
 * a sum. */
static void end_for_all(struct dp_comm *comm, int err)
{
    const int failed = dp_comm_survives(comm) ? dp_comm_revoke(comm, err, dp_last_error()) : err;

    if (failed && failed != DP_ETIMEDOUT) /* a wait that ends so has told */
        dp_comm_fail(comm, failed);
}

static int leave(struct dp_replicas *r, int err)
{
    r->operation = IDLE;
    for (int i = 0; i < WINDOW; i++)
        r->flights[i].piece = NULL;
    if (err != DP_EABORTED)
        end_for_all(r->comm, err);
    return err;
}

static int start_pieces(struct dp_replicas *r)
{
    int err = 0;

    r->turn = 0;
    for (int i = 0; i < WINDOW && r->next < r->piece_count && !err; i++)
        err = start_piece(r, &r->flights[i]);
    return err;
}

/* Finish the current step of the piece in turn. When both pieces have finished it, start the next step
 * of both. */
static int take_turn(struct dp_replicas *r, bool wait)
{
    struct flight *f = &r->flights[r->turn];
    int err = 0;

    if (f->piece)
        err =
            wait ? dp_comm_wait(r->comm, &f->request, f->peer) : dp_comm_test(r->comm, &f->request);
    if (!err && f->piece)
        err = end_step(r, f);
    if (err)
        return err;
    r->turn = (r->turn + 1) % WINDOW;
    if (r->flights[0].piece || r->flights[1].piece)
        return 0;
    if (r->next == r->piece_count)
        r->operation = IDLE;
    return start_pieces(r);
}

static int go_on(struct dp_replicas *r, bool wait)
{
    int err = 0;

    while (r->operation != IDLE && !err)
        err = take_turn(r, wait);
    return err && err != DP_EAGAIN ? leave(r, err) : err;
}

static int start(struct dp_replicas *r, enum operation operation)
{
    if (r->operation != IDLE)
        return dp_fail(DP_ESTATE,
                       "a sum over replicas starts while one is in flight, expected to wait for "
                       "it first");
    if (r->size == 1 || !r->piece_count)
        return 0;
    r->operation = operation;
    r->next = 0;
    int err = start_pieces(r);
    return err ? leave(r, err) : 0;
}

int dp_replicas_sum(struct dp_replicas *r)
{
    return start(r, SUM);
}

int dp_replicas_scatter(struct dp_replicas *r)
{
    return start(r, SCATTER);
}

int dp_replicas_gather(struct dp_replicas *r)
{
    return start(r, GATHER);
}

int dp_replicas_test(struct dp_replicas *r)
{
    return go_on(r, false);
}

int dp_replicas_wait(struct dp_replicas *r)
{
    return go_on(r, true);
}

/* ---- the cut --------------------------------------------------------------------------------- */

static bool same_types(const struct dp_parameter *a, const struct dp_parameter *b)
{
    return dp_tensor_same_dtype(a->grad, b->grad) && dp_tensor_same_dtype(a->value, b->value);
}

/* Parameters of the same types follow each other, in the order of the list; not those `taken`. */
static void sort_spans(struct dp_replicas *r, bool *taken, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        size_t at = 0;
        for (int32_t k = i; k < count && !taken[i]; k++) {
            const struct dp_parameter *p = &r->parameters[k];
            if (taken[k] || !same_types(p, &r->parameters[i]))
                continue;
            const size_t elements = (size_t)dp_parameter_elements(p);
            if (elements)
                r->spans[r->span_count++] = (struct span){p, at, elements};
            at += elements;
            taken[k] = k > i;
        }
    }
}

/* Without those that are frozen: they are taken from the beginning. */
static int list_spans(struct dp_replicas *r, int32_t count)
{
    bool *taken = calloc((size_t)count + 1, sizeof(*taken));

    if (!taken)
        return DP_ENOMEM;
    for (int32_t i = 0; i < count; i++)
        taken[i] = r->parameters[i].flags & DP_PARAMETER_FROZEN;
    sort_spans(r, taken, count);
    free(taken);
    return 0;
}

/* Elements of a part such that all of a full piece's are about PIECE_ELEMENTS. */
static size_t part_of(size_t elements, size_t size)
{
    return (elements + size * PART_ALIGN - 1) / (size * PART_ALIGN) * PART_ALIGN;
}

static size_t piece_room(const struct dp_replicas *r)
{
    return part_of(PIECE_ELEMENTS, (size_t)r->size) * (size_t)r->size;
}

/* The pieces of one row, which begins at spans[first] and ends before spans[end]. */
static void cut_row(struct dp_replicas *r, int32_t first, int32_t end)
{
    const struct span *last = &r->spans[end - 1];
    const size_t elements = last->first + last->elements, room = piece_room(r);
    const struct dp_parameter *p = r->spans[first].parameter;

    for (size_t at = 0; at < elements; at += room) {
        const size_t n = least(room, elements - at);
        for (; at >= r->spans[first].first + r->spans[first].elements; first++)
            ;
        if (r->pieces)
            r->pieces[r->piece_count] = (struct piece){.grad = p->grad->dtype,
                                                       .value = p->value->dtype,
                                                       .first_span = first,
                                                       .first = at,
                                                       .elements = n,
                                                       .part = part_of(n, (size_t)r->size)};
        r->piece_count++;
    }
}

/* Count the pieces; with r->pieces set also list them there. */
static void cut(struct dp_replicas *r)
{
    int32_t first = 0;

    r->piece_count = 0;
    for (int32_t i = 1; i <= r->span_count; i++)
        if (i == r->span_count || r->spans[i].first == 0) {
            cut_row(r, first, i);
            first = i;
        }
}

static void list_shard(struct dp_replicas *r)
{
    for (int32_t i = 0; i < r->piece_count; i++) {
        const struct piece *p = &r->pieces[i];
        const struct span *s = &r->spans[p->first_span];
        size_t first = p->first + least(own_part(r) * p->part, p->elements);
        const size_t end = p->first + least((own_part(r) + 1) * p->part, p->elements);
        while (first < end) {
            for (; first >= s->first + s->elements; s++)
                ;
            const size_t n = least(end, s->first + s->elements) - first;
            dp_shard_add(&r->shard, s->parameter, first - s->first, n);
            first += n;
        }
    }
}

const struct dp_parameter *dp_replicas_shard(const struct dp_replicas *r, int32_t *count)
{
    *count = r->shard.count;
    return r->shard.list;
}

/* ---- new and free ---------------------------------------------------------------------------- */

static int make_memory(struct dp_replicas *r)
{
    const size_t piece = piece_room(r) * ELEMENT_MAX, bytes = 2 * WINDOW * piece;
    const size_t shared = dp_comm_shared_bytes(r->comm);

    if (!r->piece_count || r->size == 1)
        return 0;
    r->memory_is_shared = shared && bytes >= shared && !dp_shared_alloc(bytes, -1, &r->memory);
    if (!r->memory_is_shared)
        r->memory = aligned_alloc(BLOCK_ALIGN, bytes);
    if (!r->memory)
        return dp_fail(DP_ENOMEM, "no memory for sums of gradients, %zu bytes", bytes);
    for (int i = 0; i < WINDOW; i++) {
        r->flights[i].work = (char *)r->memory + (size_t)(2 * i) * piece;
        r->flights[i].arrived = r->flights[i].work + piece;
    }
    return 0;
}

static int no_memory(int32_t count)
{
    return dp_fail(DP_ENOMEM, "no memory to sum the gradients of %d parameters", count);
}

/* The shard has at most a piece of every parameter for every piece, and each may begin in the
 * middle. */
static int make_lists(struct dp_replicas *r, const struct dp_parameter *parameters, int32_t count)
{
    const size_t room = (size_t)count + 1;

    r->parameters = calloc(room, sizeof(*r->parameters));
    r->spans = calloc(room, sizeof(*r->spans));
    if (!r->parameters || !r->spans)
        return no_memory(count);
    if (count)
        memcpy(r->parameters, parameters, (size_t)count * sizeof(*parameters));
    if (list_spans(r, count))
        return no_memory(count);
    cut(r);
    const size_t most = room + (size_t)r->piece_count;
    r->pieces = calloc((size_t)r->piece_count + 1, sizeof(*r->pieces));
    if (!r->pieces || dp_shard_init(&r->shard, most))
        return no_memory(count);
    cut(r);
    list_shard(r);
    return 0;
}

static int check(const struct dp_parameter *parameters, int32_t count)
{
    int err = dp_parameters_check(parameters, count);

    for (int32_t i = 0; i < count && !err; i++)
        if (!dp_tensor_on_host(parameters[i].value))
            err = dp_fail(DP_EUNSUPPORTED,
                          "parameter '%s' is in the memory of a device, expected the "
                          "host's",
                          parameters[i].name);
    return err;
}

static int set_up(struct dp_replicas *r, const struct dp_parameter *parameters, int32_t count)
{
    int err = check(parameters, count);

    if (!err)
        err = make_lists(r, parameters, count);
    if (!err)
        err = make_memory(r);
    if (err) {
        end_for_all(r->comm, err);
        return err;
    }
    return dp_agree_on_parameters(r->comm, parameters, count);
}

int dp_replicas_new(const struct dp_parameter *parameters, int32_t count, struct dp_comm *comm,
                    struct dp_replicas **out)
{
    if (!comm)
        return dp_fail(DP_ESTATE, "no communicator, expected an open one");
    struct dp_replicas *r = calloc(1, sizeof(*r));
    if (!r)
        return dp_fail(DP_ENOMEM, "no memory for replicas");
    r->comm = comm;
    r->rank = dp_comm_rank(comm);
    r->size = dp_comm_size(comm);
    r->levels = dp_shard_levels(r->size);
    int err = set_up(r, parameters, count);
    if (err) {
        dp_replicas_free(r);
        return err;
    }
    *out = r;
    return 0;
}

void dp_replicas_free(struct dp_replicas *r)
{
    if (!r)
        return;
    dp_replicas_wait(r);
    if (r->memory_is_shared)
        dp_shared_free(r->memory);
    else
        free(r->memory);
    dp_shard_fini(&r->shard);
    free(r->pieces);
    free(r->spans);
    free(r->parameters);
    free(r);
}
