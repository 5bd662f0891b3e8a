/* SPDX-License-Identifier: Apache-2.0
 *
 * replicas_stream.c - gradients on a device summed over replicas in the order of a stream, in place.
 * Tensors that follow each other in memory are one run; a run is cut into pieces, two of which are
 * under way.
 *
 *      step (rank r of 4)   with     a piece
 *      0                    r ^ 1    |  mine  | theirs |       send one half, receive the other, add
 *      1                    r ^ 2    | m |  t |                the same with a half of that
 *      2                    r ^ 2    | . | .  |                receive what the other one has summed
 *      3                    r ^ 1    |   .    |   .    |
 *
 * The first half of the steps scatters sums: each replica holds that of its own range, the shard. The
 * second half gathers what replicas hold of their ranges.
 *
 * Nothing here waits. Each step is: the links wait for the stream, messages, the stream waits for
 * the links, the device adds.
 */
#include <dualpipe/replicas.h>

#include "base/fail.h"
#include "base/tensor.h"
#include "device/device_ops.h"
#include "mixing/hash.h"
#include "mixing/in_stream.h"
#include "mixing/shard.h"

#include <stdlib.h>

enum { PIECE_BYTES = 16 << 20, WINDOW = 2 };

/* Elements first .. first + count - 1 of a piece. */
struct range {
    size_t first, count;
};

enum operation { SUM, SCATTER, GATHER };
enum phase { SCATTERS, GATHERS, PHASES }; /* a sum has both, one after the other */

/* A piece of a run of parameters that follow each other in memory. */
struct stream_piece {
    char *grad, *value;
    DLDataType grad_type, value_type;
    size_t elements;
    int32_t parameter; /* the first of the run, whose element `first` is the piece's first */
    size_t first;
    struct dp_stream_messages messages[PHASES]; /* of the operation at hand; room: messages_each */
};

struct dp_replicas_stream {
    struct dp_comm *comm;
    struct dp_device *dev;
    struct dp_device_stream *stream; /* of the operation at hand */
    enum operation operation;
    enum phase phase; /* of its step at hand */
    int rank, size, levels;          /* levels: log2(size), 0: not a power of two */
    struct stream_piece *pieces;
    int32_t piece_count;
    int messages_each;
    struct dp_stream_message *messages;
    char *arrivals; /* [WINDOW] blocks of arrival_bytes */
    size_t arrival_bytes;
    struct dp_shard shard;
    bool in_flight[PHASES];
};

/* ---- ranges ---------------------------------------------------------------------------------- */

static DLDataType type_of(const struct dp_replicas_stream *r, const struct stream_piece *p)
{
    return r->operation == GATHER ? p->value_type : p->grad_type;
}

static size_t element_bytes(const struct dp_replicas_stream *r, const struct stream_piece *p)
{
    return type_of(r, p).bits / 8;
}

static char *address_of(const struct dp_replicas_stream *r, const struct stream_piece *p,
                        size_t element)
{
    return (r->operation == GATHER ? p->value : p->grad) + element * element_bytes(r, p);
}

/* What this rank holds the newest of after `steps` halvings; and what its partner of the last one
 * holds then. Partners hold the same range before, so that both cut it in the same place. */
static struct range range_after(const struct dp_replicas_stream *r, const struct stream_piece *p,
                                int steps, struct range *partners)
{
    struct range own = {0, p->elements};

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
static struct range part_of(const struct dp_replicas_stream *r, const struct stream_piece *p,
                            int index)
{
    const size_t each = (p->elements + (size_t)r->size - 1) / (size_t)r->size;
    const size_t first = each * (size_t)index < p->elements ? each * (size_t)index : p->elements;

    return (struct range){first, p->elements - first < each ? p->elements - first : each};
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* One message each way with a rank, behind all that the stream has been given. */
static int exchange(struct dp_replicas_stream *r, struct stream_piece *p, int peer,
                    struct range give, char *to, struct range take)
{
    const uint64_t tag = (uint64_t)(p - r->pieces);
    struct dp_stream_messages *m = &p->messages[r->phase];
    struct dp_stream_message *receive = &m->list[m->count], *send = receive + 1;

    receive->peer = send->peer = peer;
    int err = dp_comm_irecv(r->comm, peer, DP_CHANNEL_REDUCE, tag, to,
                            take.count * element_bytes(r, p), &receive->request);
    m->count += !err;
    if (!err)
        err = dp_comm_isend(r->comm, peer, DP_CHANNEL_REDUCE, tag, address_of(r, p, give.first),
                            give.count * element_bytes(r, p), &send->request);
    m->count += !err;
    return err;
}

/* The stream waits for the last `count` messages of a piece. */
static int await(struct dp_replicas_stream *r, struct stream_piece *p, int count)
{
    const struct dp_stream_messages *m = &p->messages[r->phase];

    return dp_stream_messages_await(m, m->count - count, r->comm, r->stream);
}

static int add(struct dp_replicas_stream *r, const struct stream_piece *p, char *to,
               const char *from, size_t count)
{
    return count ? dp_device_add(r->stream, p->grad_type, to, p->grad_type, from, count) : 0;
}

static int begin_step(struct dp_replicas_stream *r, struct stream_piece *p, char *arrived, int step)
{
    struct range theirs = {0, 0};
    const bool halves = step < r->levels;
    const int level = halves ? step : 2 * r->levels - 1 - step;
    const struct range own = range_after(r, p, level + 1, &theirs);
    const int peer = r->rank ^ 1 << level;

    return halves ? exchange(r, p, peer, theirs, arrived, own)
                  : exchange(r, p, peer, own, address_of(r, p, theirs.first), theirs);
}

/* mine + theirs has the same bits on both sides. */
static int end_step(struct dp_replicas_stream *r, struct stream_piece *p, const char *arrived,
                    int step)
{
    struct range theirs;
    int err = await(r, p, 2);

    if (err || step >= r->levels)
        return err;
    const struct range own = range_after(r, p, step + 1, &theirs);
    return add(r, p, address_of(r, p, own.first), arrived, own.count);
}

/* ---- numbers of replicas that are no power of two -------------------------------------------- */

static char *place_of_arrival(const struct dp_replicas_stream *r, const struct stream_piece *p,
                              char *arrived, int index)
{
    return arrived + (size_t)index * part_of(r, p, 0).count * element_bytes(r, p);
}

/* The first step sends each rank its part of the own gradients, the second one the sum of the own
 * part. The k-th rank after this one is met by all as their k-th before. */
static int begin_direct(struct dp_replicas_stream *r, struct stream_piece *p, char *arrived,
                        int step)
{
    const struct range own = part_of(r, p, r->rank);
    int err = 0;

    for (int k = 1; k < r->size && !err; k++) {
        const int peer = (r->rank + k) % r->size;
        const struct range theirs = part_of(r, p, peer);
        err = step == 0 ? exchange(r, p, peer, theirs, place_of_arrival(r, p, arrived, k - 1), own)
                        : exchange(r, p, peer, own, address_of(r, p, theirs.first), theirs);
    }
    return err;
}

/* In the order of ranks rank + 1, rank + 2, ..., rank, which is that of a ring. */
static int end_direct(struct dp_replicas_stream *r, struct stream_piece *p, char *arrived, int step)
{
    const struct range own = part_of(r, p, r->rank);
    char *sum = place_of_arrival(r, p, arrived, 0);
    int err = await(r, p, 2 * (r->size - 1));

    for (int k = 2; k < r->size && step == 0 && !err; k++)
        err = add(r, p, sum, place_of_arrival(r, p, arrived, k - 1), own.count);
    if (!err && step == 0)
        err = add(r, p, address_of(r, p, own.first), sum, own.count);
    return err;
}

/* ---- an operation ---------------------------------------------------------------------------- */

static int scatter_steps(const struct dp_replicas_stream *r)
{
    return r->levels ? r->levels : 1;
}

static int first_step(const struct dp_replicas_stream *r)
{
    return r->operation == GATHER ? scatter_steps(r) : 0;
}

static int last_step(const struct dp_replicas_stream *r)
{
    return r->operation == SCATTER ? scatter_steps(r) : 2 * scatter_steps(r);
}

static enum phase phase_of(const struct dp_replicas_stream *r, int step)
{
    return step < scatter_steps(r) ? SCATTERS : GATHERS;
}

/* End step - 1 of a piece, if there is one, and begin `step`, if there is one. */
static int turn(struct dp_replicas_stream *r, struct stream_piece *p, char *arrived, int step)
{
    int err = 0;

    r->phase = phase_of(r, step - 1);
    if (step > first_step(r))
        err = r->levels ? end_step(r, p, arrived, step - 1) : end_direct(r, p, arrived, step - 1);
    if (err || step == last_step(r))
        return err;
    r->phase = phase_of(r, step);
    err = dp_comm_after(r->comm, r->stream);
    if (!err)
        err = dp_comm_begin(r->comm);
    if (err)
        return err;
    err = r->levels ? begin_step(r, p, arrived, step) : begin_direct(r, p, arrived, step);
    int committed = dp_comm_commit(r->comm);
    return err ? err : committed;
}

/* Two pieces take turns, so that one is added up while the other moves. */
static int queue_pieces(struct dp_replicas_stream *r, int32_t first)
{
    int err = 0;

    for (int step = first_step(r); step <= last_step(r); step++)
        for (int32_t i = 0; i < WINDOW && first + i < r->piece_count && !err; i++)
            err = turn(r, &r->pieces[first + i], r->arrivals + (size_t)i * r->arrival_bytes, step);
    return err;
}

static int leave(struct dp_replicas_stream *r, int err)
{
    r->in_flight[SCATTERS] = r->in_flight[GATHERS] = false;
    return dp_stream_leave(r->comm, err);
}

static int begin_phase(struct dp_replicas_stream *r, enum phase phase)
{
    if (r->in_flight[phase])
        return dp_fail(DP_ESTATE, "a sum over replicas is queued while one is in flight, expected "
                                  "dp_replicas_stream_wait first");
    r->in_flight[phase] = r->size > 1;
    for (int32_t i = 0; i < r->piece_count; i++)
        r->pieces[i].messages[phase].count = 0;
    return 0;
}

static int queue(struct dp_replicas_stream *r, enum operation operation,
                 struct dp_device_stream *stream)
{
    const bool was_scattering = r->in_flight[SCATTERS];
    int err = operation == GATHER ? 0 : begin_phase(r, SCATTERS);

    if (!err && operation != SCATTER)
        err = begin_phase(r, GATHERS);
    if (err)
        r->in_flight[SCATTERS] = was_scattering;
    if (err || r->size == 1)
        return err;
    r->stream = stream;
    r->operation = operation;
    for (int32_t i = 0; i < r->piece_count && !err; i += WINDOW)
        err = queue_pieces(r, i);
    return err ? leave(r, err) : 0;
}

int dp_replicas_stream_sum(struct dp_replicas_stream *r, struct dp_device_stream *stream)
{
    return queue(r, SUM, stream);
}

int dp_replicas_stream_scatter(struct dp_replicas_stream *r, struct dp_device_stream *stream)
{
    return queue(r, SCATTER, stream);
}

int dp_replicas_stream_gather(struct dp_replicas_stream *r, struct dp_device_stream *stream)
{
    return queue(r, GATHER, stream);
}

int dp_replicas_stream_wait(struct dp_replicas_stream *r)
{
    int err = 0;

    for (int phase = 0; phase < PHASES && !err; phase++) {
        for (int32_t i = 0; i < r->piece_count && r->in_flight[phase] && !err; i++)
            err = dp_stream_messages_wait(&r->pieces[i].messages[phase], r->comm);
        r->in_flight[phase] = r->in_flight[phase] && err;
    }
    return err ? leave(r, err) : 0;
}

const struct dp_parameter *dp_replicas_stream_shard(const struct dp_replicas_stream *r,
                                                    int32_t *count)
{
    *count = r->shard.count;
    return r->shard.list;
}

/* ---- new and free ---------------------------------------------------------------------------- */

static char *end_of(const DLTensor *t)
{
    return dp_tensor_address(t) + (size_t)dp_tensor_numel(t) * dp_tensor_element_bytes(t);
}

static bool is_behind(const DLTensor *a, const DLTensor *b)
{
    return dp_tensor_same_dtype(a, b) && dp_tensor_address(b) == end_of(a);
}

static bool goes_on(const struct dp_parameter *a, const struct dp_parameter *b)
{
    return is_behind(a->grad, b->grad) && is_behind(a->value, b->value);
}

/* The pieces of a run, which begins with a parameter; listed, once there is a list. */
static void cut(struct dp_replicas_stream *r, const struct dp_parameter *list, int32_t parameter,
                size_t elements)
{
    const DLTensor *grad = list[parameter].grad, *value = list[parameter].value;
    const size_t most = PIECE_BYTES / dp_tensor_element_bytes(grad);

    for (size_t at = 0; at < elements; at += most) {
        if (r->pieces)
            r->pieces[r->piece_count] = (struct stream_piece){
                .grad = dp_tensor_address(grad) + at * dp_tensor_element_bytes(grad),
                .value = dp_tensor_address(value) + at * dp_tensor_element_bytes(value),
                .grad_type = grad->dtype,
                .value_type = value->dtype,
                .elements = elements - at < most ? elements - at : most,
                .parameter = parameter,
                .first = at};
        r->piece_count++;
    }
}

static void cut_all(struct dp_replicas_stream *r, const struct dp_parameter *list, int32_t count)
{
    r->piece_count = 0;
    for (int32_t i = 0; i < count;) {
        const int32_t first = i;
        if (!dp_stream_takes(&list[i++]))
            continue;
        size_t elements = (size_t)dp_parameter_elements(&list[first]);
        for (; i < count && dp_stream_takes(&list[i]) && goes_on(&list[i - 1], &list[i]); i++)
            elements += (size_t)dp_parameter_elements(&list[i]);
        cut(r, list, first, elements);
    }
}

/* Elements first .. end - 1 of the run that begins with a parameter. */
static void add_to_shard(struct dp_replicas_stream *r, const struct dp_parameter *p, size_t first,
                         size_t end)
{
    for (size_t begin = 0; first < end; p++) {
        const size_t behind = begin + (size_t)dp_parameter_elements(p);
        if (first < behind) {
            const size_t last = end < behind ? end : behind;
            dp_shard_add(&r->shard, p, first - begin, last - first);
            first = last;
        }
        begin = behind;
    }
}

static void list_shard(struct dp_replicas_stream *r, const struct dp_parameter *list)
{
    for (int32_t i = 0; i < r->piece_count; i++) {
        const struct stream_piece *p = &r->pieces[i];
        struct range theirs;
        const struct range own = r->levels ? range_after(r, p, r->levels, &theirs)
                                           : part_of(r, p, r->rank);
        add_to_shard(r, &list[p->parameter], p->first + own.first,
                     p->first + own.first + own.count);
    }
}

static int check_grad(const struct dp_parameter *p, const struct dp_device *dev,
                      struct dp_device_stream *stream)
{
    if (!dp_stream_is_on(dev, p->grad))
        return dp_fail(DP_EUNSUPPORTED,
                       "the gradient of parameter '%s' is not in the memory of the device that sums",
                       p->name);
    if (dp_device_add(stream, p->grad->dtype, NULL, p->grad->dtype, NULL, 0))
        return dp_fail(DP_EUNSUPPORTED,
                       "parameter '%s': the device has no sum of gradients of %d bits, expected one "
                       "of CUDA whose driver loads kernels",
                       p->name, p->grad->dtype.bits);
    return 0;
}

static int no_memory(int32_t count)
{
    return dp_fail(DP_ENOMEM, "no memory to sum the gradients of %d parameters", count);
}

/* The shard has at most a piece of every parameter for every piece, and each may begin in the
 * middle. */
static int make_pieces(struct dp_replicas_stream *r, const struct dp_parameter *list, int32_t count)
{
    cut_all(r, list, count);
    r->messages_each = r->levels ? 2 * r->levels : 2 * (r->size - 1);
    const size_t each = (size_t)r->messages_each, pieces = (size_t)r->piece_count;
    r->pieces = calloc(pieces + 1, sizeof(*r->pieces));
    r->messages = calloc(PHASES * pieces * each + 1, sizeof(*r->messages));
    if (!r->pieces || !r->messages || dp_shard_init(&r->shard, (size_t)count + pieces))
        return no_memory(count);
    cut_all(r, list, count);
    for (size_t i = 0; i < PHASES * pieces; i++)
        r->pieces[i / PHASES].messages[i % PHASES].list = r->messages + i * each;
    list_shard(r, list);
    return 0;
}

/* Half of the largest piece arrives, or a part of it from every other rank. */
static int make_arrivals(struct dp_replicas_stream *r)
{
    size_t most = 0;

    for (int32_t i = 0; i < r->piece_count; i++) {
        const struct stream_piece *p = &r->pieces[i];
        const size_t elements =
            r->levels ? (p->elements + 1) / 2 : part_of(r, p, 0).count * (size_t)(r->size - 1);
        const size_t bytes = elements * element_bytes(r, p);
        most = bytes > most ? bytes : most;
    }
    r->arrival_bytes = (most + 255) / 256 * 256;
    return dp_stream_arrivals_new(r->comm, r->dev, WINDOW * r->arrival_bytes, &r->arrivals);
}

static int set_up(struct dp_replicas_stream *r, const struct dp_parameter *list, int32_t count)
{
    int err = dp_parameters_check(list, count);

    if (!err)
        err = dp_stream_check(r->comm, r->dev, "sums of gradients", list, count, check_grad);
    if (!err)
        err = make_pieces(r, list, count);
    if (!err && r->size > 1)
        err = make_arrivals(r);
    if (err) {
        dp_comm_abort(r->comm, err, dp_last_error());
        return err;
    }
    return dp_agree_on_parameters(r->comm, list, count);
}

int dp_replicas_stream_new(const struct dp_parameter *parameters, int32_t count,
                           struct dp_comm *comm, struct dp_device *dev,
                           struct dp_replicas_stream **out)
{
    if (!comm || !dev)
        return dp_fail(DP_ESTATE, "sums over replicas without a %s, expected an open one",
                       comm ? "device" : "communicator");
    struct dp_replicas_stream *r = calloc(1, sizeof(*r));
    if (!r)
        return no_memory(count);
    r->comm = comm;
    r->dev = dev;
    r->rank = dp_comm_rank(comm);
    r->size = dp_comm_size(comm);
    r->levels = dp_shard_levels(r->size);
    int err = set_up(r, parameters, count);
    if (err) {
        dp_replicas_stream_free(r);
        return err;
    }
    *out = r;
    return 0;
}

void dp_replicas_stream_free(struct dp_replicas_stream *r)
{
    if (!r)
        return;
    dp_replicas_stream_wait(r);
    dp_stream_arrivals_free(r->comm, r->dev, r->arrivals);
    dp_shard_fini(&r->shard);
    free(r->messages);
    free(r->pieces);
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
        const bool is_partner = !dp_shard_levels(size) || !(apart & (apart - 1));
        if (peer != rank && is_partner)
            out[count++] = (struct dp_nccl_peer){peer, sums, sums};
    }
    return count;
}
