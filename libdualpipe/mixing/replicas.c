/* SPDX-License-Identifier: Apache-2.0
 *
 * replicas.c - gradients summed over replicas, piece by piece; two pieces are in flight, so that
 * one is added up while the other moves.
 *
 *      step (rank r of 4)   with     a piece
 *      0                    r ^ 1    |  mine  | theirs |    send a half, receive the other, add
 *      1                    r ^ 2    | m |  t |             the same with a half of that
 *                                    one range is the sum of all: the shard
 *      2                    r ^ 2    | . | .  |             receive what the other one has summed
 *      3                    r ^ 1    |   .    |   .    |
 *
 * The first half of the steps scatters sums, the second half gathers them. The pieces of a pair
 * take their steps in turn, a0 b0 a1 b1 ..., so that every replica posts its messages in the same
 * order whatever arrives first.
 *
 * Which ranges move in a step is the same wherever the memory is. A host packs each piece into a
 * block, swaps parts of blocks and adds them up as they come. A device leaves pieces where they
 * are, and all steps are queued at once: the links wait for the stream, messages, the stream waits
 * for the links, the device adds.
 */
#include <dualpipe/replicas.h>

#include "base/fail.h"
#include "base/internal.h"
#include "base/tensor.h"
#include "comm/internal.h"
#include "comm/lines.h"
#include "device/device_ops.h"
#include "mixing/combine.h"
#include "mixing/round.h"
#include <dualpipe/memory.h>
#include <dualpipe/survival.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    HOST_PIECE_ELEMENTS = 256 << 10,
    DEVICE_PIECE_BYTES = 16 << 20,
    PART_ALIGN = 16, /* elements of the part of a host's block */
    WINDOW = 2,
    ELEMENT_MAX = 8,
    BLOCK_ALIGN = 256
};

/* A parameter in the row of all of its types; on a device, of those that follow each other in
 * memory, too. */
struct span {
    const struct dp_parameter *parameter;
    size_t first, elements;
};

enum phase { SCATTERS, GATHERS, PHASES };
/* A set of phases. */
enum operation { /* enum dp_replicas_work */
    IDLE = 0,
    SCATTER = 1 << SCATTERS,
    GATHER = 1 << GATHERS,
    SUM = SCATTER | GATHER
};

/* A run of a row. */
struct piece {
    DLDataType grad, value;
    int32_t first_span; /* the one that holds its first element */
    size_t first, elements;
    size_t summed; /* elements that are summed: on the host with padding */
    struct dp_transfers messages[PHASES]; /* device: of what is in flight */
};

/* Elements first .. first + count - 1 of a piece. */
struct range {
    size_t first, count;
};

/* One message each way. Scattering, what is taken is added to the own elements. */
struct move {
    int peer;
    struct range give, take;
};

/* A piece in flight. */
struct flight {
    struct piece *piece; /* NULL: none */
    int step;
    char *work;    /* the piece's elements */
    char *arrived; /* what is to be added to them */
    int peer;      /* host: that the request is of */
    struct dp_request request;
};

struct shard_tensor {
    char name[224];
    int64_t shape[1];
    const DLTensor *whole; /* gradient that this is a part of, from element `first` on */
    size_t first;
    DLTensor value, grad;
};

struct dp_replicas {
    struct dp_comm *comm;
    struct dp_device *device; /* NULL: the host */
    int rank, size, levels;   /* levels: log2(size), 0: not a power of two */
    int32_t span_count, piece_count, shard_count;
    struct dp_parameter *parameters;
    struct span *spans;
    struct piece *pieces;
    struct dp_round_transfer *messages;
    struct dp_parameter *shard;
    struct shard_tensor *shard_tensors;
    void *memory; /* of flights */
    bool memory_is_shared;

    enum operation operation; /* whose steps are not over, or not queued yet */
    unsigned in_flight;       /* phases */
    struct dp_device_stream *stream;
    int32_t next; /* the first piece that is not in flight yet */
    int turn;     /* of flights: whose step ends next */
    struct flight flights[WINDOW];
};

/* ---- what a step moves ----------------------------------------------------------------------- */

static DLDataType type_of(const struct dp_replicas *r, const struct piece *p)
{
    return r->operation == GATHER ? p->value : p->grad;
}

static size_t bytes_of(const struct dp_replicas *r, const struct piece *p, size_t elements)
{
    return elements * (type_of(r, p).bits / 8);
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* How often a range is halved until each replica has a part; 0: their number is no power of two. */
static int levels_of(int replicas)
{
    int levels = 0;

    while (1 << levels < replicas)
        levels++;
    return 1 << levels == replicas ? levels : 0;
}

/* What this rank holds the newest of after `steps` halvings; and what its partner of the last one
 * holds then. Partners hold the same range before, so that both cut it in the same place. */
static struct range range_after(const struct dp_replicas *r, const struct piece *p, int steps,
                                struct range *partners)
{
    struct range own = {0, p->summed};

    for (int k = 0; k < steps; k++) {
        const size_t lower = (own.count + 1) / 2;
        const struct range halves[2] = {{own.first, lower}, {own.first + lower, own.count - lower}};
        const int upper = r->rank >> k & 1;
        own = halves[upper];
        *partners = halves[!upper];
    }
    return own;
}

/* Of a number of replicas that is no power of two: the part of a piece that rank `index` sums. */
static struct range part_of(const struct dp_replicas *r, const struct piece *p, int index)
{
    const size_t each = (p->summed + (size_t)r->size - 1) / (size_t)r->size;
    const size_t first = least(each * (size_t)index, p->summed);

    return (struct range){first, least(p->summed - first, each)};
}

/* What this rank holds the sum of between the phases. */
static struct range own_range(const struct dp_replicas *r, const struct piece *p)
{
    struct range partners;

    return r->levels ? range_after(r, p, r->levels, &partners) : part_of(r, p, r->rank);
}

/* Other numbers of replicas than powers of two are left to the communicator on the host, which
 * takes one step for an operation. */
static bool is_collective(const struct dp_replicas *r)
{
    return !r->device && !r->levels;
}

static int steps_of_phase(const struct dp_replicas *r)
{
    return r->levels ? r->levels : 1;
}

static int first_step(const struct dp_replicas *r)
{
    return r->operation == GATHER ? steps_of_phase(r) : 0;
}

static int end_of_steps(const struct dp_replicas *r)
{
    const int phases = r->operation == SUM && !is_collective(r) ? 2 : 1;

    return first_step(r) + phases * steps_of_phase(r);
}

static enum phase phase_of(const struct dp_replicas *r, const struct flight *f)
{
    return f->step < steps_of_phase(r) ? SCATTERS : GATHERS;
}

/* With several moves in a step, the k-th rank after this one is met by all as their k-th before. */
static int moves_of_step(const struct dp_replicas *r)
{
    return r->levels ? 1 : r->size - 1;
}

static struct move move_at(const struct dp_replicas *r, const struct flight *f, int k)
{
    const bool scatters = phase_of(r, f) == SCATTERS;
    const int level = scatters ? f->step : 2 * r->levels - 1 - f->step;
    const int peer = r->levels ? r->rank ^ 1 << level : (r->rank + k + 1) % r->size;
    struct range theirs = {0}, own;

    if (r->levels) {
        own = range_after(r, f->piece, level + 1, &theirs);
    } else {
        own = part_of(r, f->piece, r->rank);
        theirs = part_of(r, f->piece, peer);
    }
    return scatters ? (struct move){peer, theirs, own} : (struct move){peer, own, theirs};
}

static char *element_at(const struct dp_replicas *r, const struct flight *f, size_t element)
{
    return f->work + bytes_of(r, f->piece, element);
}

/* Where what the k-th move takes arrives before it is added. */
static char *arrival_at(const struct dp_replicas *r, const struct flight *f, int k)
{
    return f->arrived + (size_t)k * bytes_of(r, f->piece, part_of(r, f->piece, 0).count);
}

static char *place_of(const struct dp_replicas *r, const struct flight *f, const struct move *m,
                      int k)
{
    return phase_of(r, f) == SCATTERS ? arrival_at(r, f, k) : element_at(r, f, m->take.first);
}

/* ---- on the host ----------------------------------------------------------------------------- */

enum direction { LOAD, STORE };

/* A range of a piece, without its padding, between the tensors and the block. */
static void copy_elements(const struct dp_replicas *r, const struct flight *f, struct range range,
                          enum direction direction)
{
    const struct piece *p = f->piece;
    const size_t size = bytes_of(r, p, 1);
    const size_t end = least(range.first + range.count, p->elements);
    const struct span *s = &r->spans[p->first_span];

    for (size_t first = range.first, n; first < end; first += n) {
        const size_t at = p->first + first;
        for (; at >= s->first + s->elements; s++)
            ;
        n = least(end - first, s->first + s->elements - at);
        const struct dp_parameter *from = s->parameter;
        char *tensor = dp_tensor_address(r->operation == GATHER ? from->value : from->grad) +
                       (at - s->first) * size;
        char *block = element_at(r, f, first);
        memcpy(direction == LOAD ? block : tensor, direction == LOAD ? tensor : block, n * size);
    }
}

/* Padding is zero, so that adding it up costs no more than other values do. */
static void load(const struct dp_replicas *r, struct flight *f)
{
    const struct piece *p = f->piece;

    if (r->operation == GATHER) {
        copy_elements(r, f, own_range(r, p), LOAD);
        return;
    }
    copy_elements(r, f, (struct range){0, p->elements}, LOAD);
    memset(element_at(r, f, p->elements), 0, bytes_of(r, p, p->summed - p->elements));
}

static int start_collective(struct dp_replicas *r, struct flight *f)
{
    const struct range own = own_range(r, f->piece);
    const DLDataType type = type_of(r, f->piece);
    char *mine = element_at(r, f, own.first);

    f->peer = -1;
    if (r->operation == SUM)
        return dp_comm_iallreduce(r->comm, f->work, f->work, f->piece->summed, type, DP_REDUCE_SUM,
                                  &f->request);
    if (r->operation == SCATTER)
        return dp_comm_ireduce_scatter(r->comm, f->work, mine, own.count, type, DP_REDUCE_SUM,
                                       &f->request);
    return dp_comm_iallgather(r->comm, mine, f->work, bytes_of(r, f->piece, own.count),
                              &f->request);
}

static int start_swap(struct dp_replicas *r, struct flight *f)
{
    const struct move m = move_at(r, f, 0);
    const uint64_t tag = (uint64_t)(f->piece - r->pieces) << 8 | (uint64_t)f->step;

    f->peer = m.peer;
    return dp_comm_iswap(r->comm, m.peer, DP_CHANNEL_REDUCE, tag, element_at(r, f, m.give.first),
                         place_of(r, f, &m, 0), bytes_of(r, f->piece, m.give.count), &f->request);
}

static int end_request(struct dp_replicas *r, struct flight *f, bool wait)
{
    return wait ? dp_comm_wait(r->comm, &f->request, f->peer) : dp_comm_test(r->comm, &f->request);
}

/* ---- in the order of a stream ---------------------------------------------------------------- */

static char *address_of(const struct dp_replicas *r, const struct piece *p)
{
    const struct span *s = &r->spans[p->first_span];
    const DLTensor *t = r->operation == GATHER ? s->parameter->value : s->parameter->grad;

    return dp_tensor_address(t) + bytes_of(r, p, p->first - s->first);
}

static int post_move(struct dp_replicas *r, struct flight *f, int k)
{
    const struct move m = move_at(r, f, k);
    const uint64_t tag = (uint64_t)(f->piece - r->pieces);
    struct dp_transfers *all = &f->piece->messages[phase_of(r, f)];
    int err = dp_transfers_receive(all, m.peer, tag, place_of(r, f, &m, k),
                                  bytes_of(r, f->piece, m.take.count));

    return err ? err
               : dp_transfers_send(all, m.peer, tag, element_at(r, f, m.give.first),
                                  bytes_of(r, f->piece, m.give.count));
}

/* Behind all that the stream has been given. */
static int queue_moves(struct dp_replicas *r, struct flight *f)
{
    int err = dp_comm_after(r->comm, r->stream);

    if (!err)
        err = dp_comm_begin(r->comm);
    if (err)
        return err;
    for (int k = 0; k < moves_of_step(r) && !err; k++)
        err = post_move(r, f, k);
    const int committed = dp_comm_commit(r->comm);
    return err ? err : committed;
}

/* The stream waits for the messages of the step. */
static int await_moves(struct dp_replicas *r, struct flight *f)
{
    const struct dp_transfers *all = &f->piece->messages[phase_of(r, f)];

    return dp_transfers_await(all, all->count - 2 * moves_of_step(r), r->stream);
}

/* ---- a step ---------------------------------------------------------------------------------- */

static int start_step(struct dp_replicas *r, struct flight *f)
{
    if (r->device)
        return queue_moves(r, f);
    return r->levels ? start_swap(r, f) : start_collective(r, f);
}

/* a + b is the same for both partners. */
static int add(struct dp_replicas *r, const struct piece *p, char *to, const char *from,
               size_t count)
{
    if (r->device)
        return count ? dp_device_add(r->stream, p->grad, to, p->grad, from, count) : 0;
    dp_combine(p->grad, count, to, to, 1, from, 1);
    return 0;
}

/* In the order of ranks rank + 1, rank + 2, ..., rank, which is that of a ring. */
static int add_arrivals(struct dp_replicas *r, struct flight *f)
{
    const struct range own = move_at(r, f, 0).take;
    char *sum = arrival_at(r, f, 0);
    int err = 0;

    for (int k = 1; k < moves_of_step(r) && !err; k++)
        err = add(r, f->piece, sum, arrival_at(r, f, k), own.count);
    return err ? err : add(r, f->piece, element_at(r, f, own.first), sum, own.count);
}

static void end_piece(struct dp_replicas *r, struct flight *f)
{
    const struct range all = {0, f->piece->elements};

    if (!r->device)
        copy_elements(r, f, r->operation == SCATTER ? own_range(r, f->piece) : all, STORE);
    f->piece = NULL;
}

/* What the current step brought, and the next one. DP_EAGAIN while it is not over, unless `wait`.
 */
static int end_step(struct dp_replicas *r, struct flight *f, bool wait)
{
    int err = r->device ? await_moves(r, f) : end_request(r, f, wait);

    if (!err && phase_of(r, f) == SCATTERS && !is_collective(r))
        err = add_arrivals(r, f);
    if (err)
        return err;
    if (++f->step < end_of_steps(r))
        return start_step(r, f);
    end_piece(r, f);
    return 0;
}

static int start_piece(struct dp_replicas *r, struct flight *f)
{
    f->piece = &r->pieces[r->next++];
    f->step = first_step(r);
    if (r->device)
        f->work = address_of(r, f->piece);
    else
        load(r, f);
    return start_step(r, f);
}

/* ---- an operation ---------------------------------------------------------------------------- */

static bool is_behind(const DLTensor *a, const DLTensor *b)
{
    return dp_tensor_address(b) ==
           dp_tensor_address(a) + (size_t)dp_tensor_numel(a) * dp_tensor_element_bytes(a);
}

/* Gradients may have moved since the last sum, on a device those of a row together; the shard is where
 * they are. */
static int follow_gradients(struct dp_replicas *r)
{
    for (int32_t i = 1; i < r->span_count && r->device; i++) {
        const struct dp_parameter *p = r->spans[i].parameter, *before = r->spans[i - 1].parameter;
        if (r->spans[i].first && !is_behind(before->grad, p->grad))
            return dp_fail(DP_EUNSUPPORTED,
                           "the gradient of parameter '%s' has moved away from that of '%s', with "
                           "which the device sums it, expected them to move together",
                           p->name, before->name);
    }
    for (int32_t i = 0; i < r->shard_count; i++) {
        struct shard_tensor *t = &r->shard_tensors[i];
        t->grad.data = dp_tensor_address(t->whole) + t->first * dp_tensor_element_bytes(t->whole);
    }
    return 0;
}

/* The group, in one that survives its ranks the communicator, is of no use once a replica fell out
 * of a sum. */
static void end_for_all(struct dp_comm *comm, int err)
{
    const int failed = dp_comm_survives(comm) ? dp_comm_revoke(comm, err, dp_last_error()) : err;

    if (failed && failed != DP_ETIMEDOUT) /* a wait that ends so has told */
        dp_comm_fail(comm, failed);
}

static int leave(struct dp_replicas *r, int err)
{
    r->operation = IDLE;
    r->in_flight = 0;
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

/* Finish the current step of the piece in turn. When both pieces have finished it, start the next
 * step of both. */
static int take_turn(struct dp_replicas *r, bool wait)
{
    struct flight *f = &r->flights[r->turn];
    int err = f->piece ? end_step(r, f, wait) : 0;

    if (err)
        return err;
    r->turn = (r->turn + 1) % WINDOW;
    if (r->flights[0].piece || r->flights[1].piece)
        return 0;
    if (r->next == r->piece_count)
        r->operation = IDLE;
    return start_pieces(r);
}

static int take_turns(struct dp_replicas *r, bool wait)
{
    int err = 0;

    while (r->operation != IDLE && !err)
        err = take_turn(r, wait);
    return err;
}

int dp_replicas_start(struct dp_replicas *r, enum dp_replicas_work work,
                      struct dp_device_stream *stream)
{
    const enum operation operation = (enum operation)work;

    if (!r->device != !stream)
        return dp_fail(DP_EINVAL, "a sum over replicas %s, expected %s",
                       stream ? "of the host in the order of a stream"
                              : "of a device without a stream",
                       stream ? "none" : "one");
    if (r->device ? r->in_flight & operation : r->in_flight)
        return dp_fail(DP_ESTATE, "a sum over replicas starts while one is in flight, expected "
                                  "dp_replicas_wait first");
    int err = operation == GATHER ? 0 : follow_gradients(r);
    if (err)
        return leave(r, err);
    if (r->size == 1 || !r->piece_count)
        return 0;
    r->operation = operation;
    r->in_flight |= operation;
    r->stream = stream;
    r->next = 0;
    for (int32_t i = 0; i < PHASES * r->piece_count && r->device; i++)
        if (operation & 1 << i % PHASES)
            dp_transfers_clear(&r->pieces[i / PHASES].messages[i % PHASES]);
    err = start_pieces(r);
    if (!err && r->device)
        err = take_turns(r, true);
    return err ? leave(r, err) : 0;
}

/* A device's steps have been queued; its messages are what is left. */
static int go_on(struct dp_replicas *r, bool wait)
{
    int err = take_turns(r, wait);

    for (int32_t i = 0; i < PHASES * r->piece_count && r->in_flight && !err; i++)
        if (r->in_flight & 1U << i % PHASES)
            err = dp_transfers_end(&r->pieces[i / PHASES].messages[i % PHASES], wait, NULL);
    if (!err)
        r->in_flight = 0;
    return err && err != DP_EAGAIN ? leave(r, err) : err;
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

/* On a device pieces stay where they are. */
static bool ends_row(const struct dp_replicas *r, const struct span *last,
                     const struct dp_parameter *p)
{
    return r->device && !(is_behind(last->parameter->grad, p->grad) &&
                          is_behind(last->parameter->value, p->value));
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
            if (elements && at && ends_row(r, &r->spans[r->span_count - 1], p))
                at = 0;
            if (elements)
                r->spans[r->span_count++] = (struct span){p, at, elements};
            at += elements;
            taken[k] = k > i;
        }
    }
}

static int no_memory(int32_t count)
{
    return dp_fail(DP_ENOMEM, "no memory to sum the gradients of %d parameters", count);
}

/* Those of all ranks: where a tensor lies on a device is each one's own. */
static int agree_on_rows(struct dp_replicas *r)
{
    bool *begins = calloc((size_t)r->span_count + 1, sizeof(*begins));
    size_t at = 0;

    if (!begins)
        return no_memory(r->span_count);
    for (int32_t i = 0; i < r->span_count; i++)
        begins[i] = r->spans[i].first == 0;
    int err = dp_stream_agree_on_rows(r->comm, begins, r->span_count);
    for (int32_t i = 0; i < r->span_count && !err; i++) {
        at = begins[i] ? 0 : at;
        r->spans[i].first = at;
        at += r->spans[i].elements;
    }
    free(begins);
    return err;
}

/* Without those that are frozen: they are taken from the beginning. */
static int list_spans(struct dp_replicas *r, int32_t count)
{
    bool *taken = calloc((size_t)count + 1, sizeof(*taken));

    if (!taken)
        return no_memory(count);
    for (int32_t i = 0; i < count; i++)
        taken[i] = r->parameters[i].flags & DP_PARAMETER_FROZEN;
    sort_spans(r, taken, count);
    free(taken);
    return r->device ? agree_on_rows(r) : 0;
}

/* On the host `elements` with padding, so that each replica has a part of the same length. */
static size_t summed_of(const struct dp_replicas *r, size_t elements)
{
    const size_t unit = (size_t)r->size * PART_ALIGN;

    return r->device ? elements : (elements + unit - 1) / unit * unit;
}

static size_t host_piece_bytes(const struct dp_replicas *r)
{
    return summed_of(r, HOST_PIECE_ELEMENTS) * ELEMENT_MAX;
}

/* The pieces of one row, which begins at spans[first] and ends before spans[end]. */
static void cut_row(struct dp_replicas *r, int32_t first, int32_t end)
{
    const struct span *last = &r->spans[end - 1];
    const DLDataType grad = last->parameter->grad->dtype, value = last->parameter->value->dtype;
    const size_t elements = last->first + last->elements;
    const size_t most =
        r->device ? DEVICE_PIECE_BYTES / (grad.bits / 8) : summed_of(r, HOST_PIECE_ELEMENTS);

    for (size_t at = 0; at < elements; at += most) {
        const size_t n = least(most, elements - at);
        for (; at >= r->spans[first].first + r->spans[first].elements; first++)
            ;
        if (r->pieces)
            r->pieces[r->piece_count] = (struct piece){.grad = grad,
                                                       .value = value,
                                                       .first_span = first,
                                                       .first = at,
                                                       .elements = n,
                                                       .summed = summed_of(r, n)};
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

/* ---- the shard ------------------------------------------------------------------------------- */

static DLTensor part_of_tensor(const DLTensor *t, size_t first, int64_t *shape)
{
    return (DLTensor){.data = dp_tensor_address(t) + first * dp_tensor_element_bytes(t),
                      .device = t->device,
                      .ndim = 1,
                      .dtype = t->dtype,
                      .shape = shape};
}

static void add_to_shard(struct dp_replicas *r, const struct dp_parameter *p, size_t first,
                         size_t count)
{
    struct shard_tensor *t = &r->shard_tensors[r->shard_count];

    snprintf(t->name, sizeof(t->name), "%.159s[%zu:%zu]", p->name, first, first + count);
    t->shape[0] = (int64_t)count;
    t->value = part_of_tensor(p->value, first, t->shape);
    t->grad = part_of_tensor(p->grad, first, t->shape);
    t->whole = p->grad;
    t->first = first;
    r->shard[r->shard_count++] = (struct dp_parameter){
        .name = t->name, .flags = p->flags, .value = &t->value, .grad = &t->grad};
}

static void list_shard(struct dp_replicas *r)
{
    for (int32_t i = 0; i < r->piece_count; i++) {
        const struct piece *p = &r->pieces[i];
        const struct range own = own_range(r, p);
        const struct span *s = &r->spans[p->first_span];
        const size_t end = p->first + least(own.first + own.count, p->elements);
        for (size_t first = p->first + own.first, n; first < end; first += n) {
            for (; first >= s->first + s->elements; s++)
                ;
            n = least(end, s->first + s->elements) - first;
            add_to_shard(r, s->parameter, first - s->first, n);
        }
    }
}

const struct dp_parameter *dp_replicas_shard(const struct dp_replicas *r, int32_t *count)
{
    *count = r->shard_count;
    return r->shard;
}

/* ---- new and free ---------------------------------------------------------------------------- */

static int make_blocks(struct dp_replicas *r)
{
    const size_t piece = host_piece_bytes(r), bytes = 2 * WINDOW * piece;
    const size_t shared = dp_comm_shared_bytes(r->comm);

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

/* Half of the largest piece arrives, or a part of it from every other rank. */
static int make_arrivals(struct dp_replicas *r)
{
    size_t most = 0;
    char *arrivals;

    for (int32_t i = 0; i < r->piece_count; i++) {
        const struct piece *p = &r->pieces[i];
        const size_t elements =
            r->levels ? (p->elements + 1) / 2 : part_of(r, p, 0).count * (size_t)(r->size - 1);
        const size_t bytes = elements * (p->grad.bits / 8);
        most = bytes > most ? bytes : most;
    }
    most = (most + BLOCK_ALIGN - 1) / BLOCK_ALIGN * BLOCK_ALIGN;
    int err = dp_stream_arrivals_new(r->comm, r->device, WINDOW * most, &arrivals);
    r->memory = arrivals;
    for (int i = 0; i < WINDOW && !err; i++)
        r->flights[i].arrived = arrivals + (size_t)i * most;
    return err;
}

/* A phase of a piece has a message each way for each move. */
static int make_messages(struct dp_replicas *r)
{
    const size_t each = 2 * (size_t)(moves_of_step(r) * steps_of_phase(r));
    const size_t lists = PHASES * (size_t)r->piece_count;

    r->messages = calloc(lists * each + 1, sizeof(*r->messages));
    for (size_t i = 0; i < lists && r->messages; i++)
        r->pieces[i / PHASES].messages[i % PHASES] =
            (struct dp_transfers){.comm = r->comm, .list = r->messages + i * each};
    return r->messages ? 0 : DP_ENOMEM;
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
    int err = list_spans(r, count);
    if (err)
        return err;
    cut(r);
    const size_t most = room + (size_t)r->piece_count;
    r->pieces = calloc((size_t)r->piece_count + 1, sizeof(*r->pieces));
    r->shard = calloc(most, sizeof(*r->shard));
    r->shard_tensors = calloc(most, sizeof(*r->shard_tensors));
    if (!r->pieces || !r->shard || !r->shard_tensors)
        return no_memory(count);
    cut(r);
    list_shard(r);
    return r->device && make_messages(r) ? no_memory(count) : 0;
}

static int check_on_device(const struct dp_parameter *p, const struct dp_device *device,
                           struct dp_device_stream *stream)
{
    if (!dp_stream_is_on(device, p->grad))
        return dp_fail(
            DP_EUNSUPPORTED,
            "the gradient of parameter '%s' is not in the memory of the device that sums", p->name);
    if (dp_device_add(stream, p->grad->dtype, NULL, p->grad->dtype, NULL, 0))
        return dp_fail(
            DP_EUNSUPPORTED,
            "parameter '%s': the device has no sum of gradients of %d bits, expected one "
            "of CUDA whose driver loads kernels",
            p->name, p->grad->dtype.bits);
    return 0;
}

static int check(const struct dp_replicas *r, const struct dp_parameter *parameters, int32_t count)
{
    int err = dp_parameters_check(parameters, count);

    if (!err && r->device)
        return dp_stream_check(r->comm, r->device, "sums of gradients", parameters, count,
                               check_on_device);
    for (int32_t i = 0; i < count && !err; i++)
        if (!dp_tensor_on_host(parameters[i].value))
            err = dp_fail(DP_EUNSUPPORTED,
                          "parameter '%s' is in the memory of a device, expected the host's, or "
                          "sums on that device",
                          parameters[i].name);
    return err;
}

static int set_up(struct dp_replicas *r, const struct dp_parameter *parameters, int32_t count)
{
    int err = check(r, parameters, count);

    if (err)
        end_for_all(r->comm, err);
    else
        err = dp_agree_on_parameters(r->comm, parameters, count);
    if (err)
        return err;
    err = make_lists(r, parameters, count);
    if (!err && r->size > 1 && r->piece_count)
        err = r->device ? make_arrivals(r) : make_blocks(r);
    if (err)
        end_for_all(r->comm, err);
    return err ? err : dp_comm_share_error(r->comm, 0); /* of a rank that failed above */
}

int dp_replicas_new(const struct dp_parameter *parameters, int32_t count, struct dp_comm *comm,
                    struct dp_device *device, struct dp_replicas **out)
{
    if (!comm)
        return dp_fail(DP_ESTATE, "no communicator, expected an open one");
    struct dp_replicas *r = calloc(1, sizeof(*r));
    if (!r)
        return dp_fail(DP_ENOMEM, "no memory for replicas");
    r->comm = comm;
    r->device = device;
    r->rank = dp_comm_rank(comm);
    r->size = dp_comm_size(comm);
    r->levels = levels_of(r->size);
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
    if (r->device)
        dp_stream_arrivals_free(r->comm, r->device, r->memory);
    else if (r->memory_is_shared)
        dp_shared_free(r->memory);
    else
        free(r->memory);
    free(r->shard);
    free(r->shard_tensors);
    free(r->messages);
    free(r->pieces);
    free(r->spans);
    free(r->parameters);
    free(r);
}

int dp_replicas_nccl_peers(int rank, int size, struct dp_nccl_peer *out)
{
    const unsigned sums = 1U << DP_CHANNEL_REDUCE;
    int count = 0;

    if (!out || size < 1 || rank < 0 || rank >= size)
        return dp_fail(DP_EINVAL, "peers of replica %d of %d: expected one of them, and a place",
                       rank, size);
    for (int peer = 0; peer < size; peer++) {
        const int apart = peer ^ rank;
        const bool is_partner = !levels_of(size) || !(apart & (apart - 1));
        if (peer != rank && is_partner)
            out[count++] = (struct dp_nccl_peer){peer, sums, sums};
    }
    return count;
}
