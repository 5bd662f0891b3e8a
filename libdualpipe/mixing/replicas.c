/* SPDX-License-Identifier: Apache-2.0
 *
 * replicas.c - gradients summed over replicas. What is sent and added is a list of steps of comm's
 * (engine.h), the same wherever the memory is. A host packs gradients into one block after the
 * other, and the engine carries out the steps. A device leaves them where they are, and all steps
 * are queued at once: the links wait for the stream, messages, the stream waits for the links, the
 * device adds.
 */
#include <dualpipe/replicas.h>

#include "base/fail.h"
#include "base/internal.h"
#include "base/tensor.h"
#include "comm/engine.h"
#include "comm/lines.h"
#include "device/device_ops.h"
#include "mixing/internal.h"
#include "mixing/round.h"
#include <dualpipe/memory.h>
#include <dualpipe/survival.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    HOST_SEGMENT_BYTES = 512 << 10,
    DEVICE_SEGMENT_BYTES = 8 << 20,
    HOST_BLOCK_ELEMENTS = HOST_SEGMENT_BYTES,
    ALIGNMENT = 256
};

/* A parameter in the row of all of its types; on a device, of those that follow each other in
 * memory, too. */
struct span {
    const struct dp_parameter *parameter;
    size_t first, elements;
};

/* A run of a row: on a device the whole row. */
struct block {
    DLDataType grad, value;
    int32_t first_span; /* the one that holds its first element */
    size_t first, elements;
    /* Device: of what is in flight, [0] a sum or its first half, [1] its second half: two of each
     * step. */
    struct dp_transfers messages[2];
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
    int size;
    int32_t span_count, block_count;
    int32_t shard_count, held_count; /* own pieces, and behind them those of the rank before */
    struct dp_parameter *parameters;
    struct span *spans;
    struct block *blocks;
    struct dp_round_transfer *messages;
    struct dp_parameter *shard;
    struct shard_tensor *shard_tensors;
    size_t segment_bytes; /* of gradients' elements, or of those that they are added as */
    char *memory;         /* host: of a block; device: what steps receive and add up */
    bool memory_is_shared;

    enum dp_sum_phases phases; /* host: of what is in flight; device: of what is being queued */
    unsigned in_flight;        /* phases */
    struct dp_device_stream *stream;
    int32_t next;              /* block that is in flight, or to be queued */
    struct dp_request request; /* host: of that */
};

/* ---- what is summed -------------------------------------------------------------------------- */

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static DLDataType type_of(const struct dp_replicas *r, const struct block *b)
{
    return r->phases == DP_SUM_GATHER ? b->value : b->grad;
}

static size_t bytes_of(const struct dp_replicas *r, const struct block *b, size_t elements)
{
    return elements * (type_of(r, b).bits / 8);
}

/* A host adds 16 bits in 32. */
static size_t segment_of(const struct dp_replicas *r, const struct block *b)
{
    return r->segment_bytes / (b->grad.bits == 16 && !r->device ? 4 : b->grad.bits / 8);
}

static struct dp_collective_args args_of(const struct dp_replicas *r, const struct block *b,
                                         enum dp_sum_phases phases)
{
    return (struct dp_collective_args){.comm = r->comm,
                                       .rank = dp_comm_rank(r->comm),
                                       .size = r->size,
                                       .count = b->elements,
                                       .phases = phases,
                                       .segment = segment_of(r, b)};
}

/* ---- on the host ----------------------------------------------------------------------------- */

enum direction { LOAD, STORE };

/* A part of a block, between the tensors and the memory. */
static void copy_elements(const struct dp_replicas *r, const struct block *b, size_t first,
                          size_t count, enum direction direction)
{
    const size_t size = bytes_of(r, b, 1), end = first + count;
    const struct span *s = &r->spans[b->first_span];

    for (size_t n; first < end; first += n) {
        const size_t at = b->first + first;
        for (; at >= s->first + s->elements; s++)
            ;
        n = least(end - first, s->first + s->elements - at);
        const struct dp_parameter *from = s->parameter;
        char *tensor = dp_tensor_address(r->phases == DP_SUM_GATHER ? from->value : from->grad) +
                       (at - s->first) * size;
        char *work = r->memory + first * size;
        memcpy(direction == LOAD ? work : tensor, direction == LOAD ? tensor : work, n * size);
    }
}

/* Between the phases a rank has the parts that it sums. */
static void copy_block(const struct dp_replicas *r, enum direction direction)
{
    const struct block *b = &r->blocks[r->next];
    const struct dp_collective_args args = args_of(r, b, r->phases);
    const bool whole = r->phases != (direction == LOAD ? DP_SUM_GATHER : DP_SUM_SCATTER);
    size_t first = 0, count = b->elements;

    for (int i = 0; whole ? !i : dp_sum_part(&args, i, &first, &count); i++)
        copy_elements(r, b, first, count, direction);
}

static int start_block(struct dp_replicas *r)
{
    const struct block *b = &r->blocks[r->next];

    if (r->next == r->block_count)
        return 0;
    copy_block(r, LOAD);
    return dp_comm_isum(r->comm, r->memory, b->elements, segment_of(r, b), type_of(r, b), r->phases,
                        &r->request);
}

/* DP_EAGAIN while it is not over, unless it waits. */
static int end_on_host(struct dp_replicas *r, bool wait)
{
    int err = 0;

    while (r->next < r->block_count && !err) {
        err = wait ? dp_comm_wait(r->comm, &r->request, -1) : dp_comm_test(r->comm, &r->request);
        if (err)
            return err;
        copy_block(r, STORE);
        r->next++;
        err = start_block(r);
    }
    return err;
}

/* ---- in the order of a stream ---------------------------------------------------------------- */

/* The steps of a block on their way into the stream. */
struct queue {
    struct dp_collective_args args;
    const struct dp_algorithm *list;
    struct dp_transfers *messages;
    int posted, finished;
    struct dp_step window[DP_STEP_WINDOW];
};

static char *address_of(const struct dp_replicas *r, const struct block *b)
{
    const struct span *s = &r->spans[b->first_span];

    return dp_tensor_address(r->phases == DP_SUM_GATHER ? s->parameter->value : s->parameter->grad);
}

/* The next step, if its messages may go now. */
static const struct dp_step *find_next(struct queue *q)
{
    struct dp_step *step = &q->window[q->posted % DP_STEP_WINDOW];

    if (q->posted == q->list->steps(&q->args) || q->posted == q->finished + DP_STEP_WINDOW)
        return NULL;
    q->list->step(&q->args, q->posted, step);
    return step->after <= q->finished ? step : NULL;
}

/* Behind all that the stream has been given. */
static int post_steps(struct dp_replicas *r, struct queue *q)
{
    const struct dp_step *step = find_next(q);
    int err = step ? dp_comm_after(r->comm, r->stream) : 0;

    if (!err && step)
        err = dp_comm_begin(r->comm);
    if (err || !step)
        return err;
    for (; step && !err; step = find_next(q)) {
        const uint64_t tag = (uint64_t)q->posted++;
        err = dp_transfers_receive(q->messages, step->receive_from, tag, step->receive,
                                   step->receive_len);
        if (!err)
            err = dp_transfers_send(q->messages, step->send_to, tag, step->send, step->send_len);
    }
    const int committed = dp_comm_commit(r->comm);
    return err ? err : committed;
}

/* Sums are in place: b is dst. */
static int add(struct dp_replicas *r, const struct dp_step *s, DLDataType type)
{
    int err = 0;

    if (s->action == DP_STEP_NOTHING || !s->count)
        return 0;
    if (s->first && !s->last)
        return dp_device_copy(r->stream, s->acc, s->a, s->count * (type.bits / 8));
    if (!s->first)
        err = dp_device_add(r->stream, type, s->acc, type, s->a, s->count);
    return err || !s->last
               ? err
               : dp_device_add(r->stream, type, s->dst, type, s->first ? s->a : s->acc, s->count);
}

/* The stream waits for the messages of a step, and adds what came. */
static int finish_step(struct dp_replicas *r, struct queue *q, DLDataType type)
{
    struct dp_round_transfer *messages = q->messages->list + 2 * q->finished;
    int err = dp_comm_stream_wait(r->comm, &messages[0].request, r->stream);

    if (!err)
        err = dp_comm_stream_wait(r->comm, &messages[1].request, r->stream);
    return err ? err : add(r, &q->window[q->finished++ % DP_STEP_WINDOW], type);
}

static int queue_block(struct dp_replicas *r, struct block *b)
{
    const size_t bytes = bytes_of(r, b, 1);
    const struct dp_reducer sizes = {.bytes = bytes, .wide_bytes = bytes};
    struct queue q = {.args = args_of(r, b, r->phases),
                      .messages = &b->messages[r->phases == DP_SUM_GATHER]};
    int err = 0;

    q.list = dp_choose_sum(&q.args);
    q.args.in = q.args.out = address_of(r, b);
    q.args.reducer = &sizes;
    q.args.scratch = r->memory;
    dp_transfers_clear(q.messages);
    while (q.finished < q.list->steps(&q.args) && !err) {
        err = post_steps(r, &q);
        if (!err)
            err = finish_step(r, &q, type_of(r, b));
    }
    return err;
}

/* A gather may still be in flight. */
static int start_on_device(struct dp_replicas *r)
{
    int err = 0;

    for (; r->next < r->block_count && !err; r->next++)
        err = queue_block(r, &r->blocks[r->next]);
    return err;
}

/* The messages are what is left. */
static int end_on_device(struct dp_replicas *r, bool wait)
{
    int err = 0;

    for (int32_t i = 0; i < 2 * r->block_count && !err; i++)
        err = dp_transfers_end(&r->blocks[i / 2].messages[i % 2], wait, NULL);
    return err;
}

/* ---- an operation ---------------------------------------------------------------------------- */

static bool is_behind(const DLTensor *a, const DLTensor *b)
{
    return dp_tensor_address(b) ==
           dp_tensor_address(a) + (size_t)dp_tensor_numel(a) * dp_tensor_element_bytes(a);
}

/* Gradients may have moved since the last sum, on a device those of a row together; the shard is
 * where they are. */
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
    for (int32_t i = 0; i < r->held_count; i++) {
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
    r->in_flight = 0;
    if (err != DP_EABORTED)
        end_for_all(r->comm, err);
    return err;
}

int dp_replicas_start(struct dp_replicas *r, enum dp_replicas_work work,
                      struct dp_device_stream *stream)
{
    const enum dp_sum_phases phases = (enum dp_sum_phases)work;

    if (!r->device != !stream)
        return dp_fail(DP_EINVAL, "a sum over replicas %s, expected %s",
                       stream ? "of the host in the order of a stream"
                              : "of a device without a stream",
                       stream ? "none" : "one");
    if (r->device ? r->in_flight & phases : r->in_flight)
        return dp_fail(DP_ESTATE, "a sum over replicas starts while one is in flight, expected "
                                  "dp_replicas_wait first");
    int err = phases == DP_SUM_GATHER ? 0 : follow_gradients(r);
    if (err)
        return leave(r, err);
    if (r->size == 1 || !r->block_count)
        return 0;
    r->phases = phases;
    r->in_flight |= phases;
    r->stream = stream;
    r->next = 0;
    err = r->device ? start_on_device(r) : start_block(r);
    return err ? leave(r, err) : 0;
}

static int go_on(struct dp_replicas *r, bool wait)
{
    int err = !r->in_flight ? 0 : r->device ? end_on_device(r, wait) : end_on_host(r, wait);

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

/* On a device gradients stay where they are. */
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

/* The blocks of one row, which begins at spans[first] and ends before spans[end]. */
static void cut_row(struct dp_replicas *r, int32_t first, int32_t end)
{
    const struct span *last = &r->spans[end - 1];
    const DLDataType grad = last->parameter->grad->dtype, value = last->parameter->value->dtype;
    const size_t elements = last->first + last->elements;
    const size_t most = r->device ? elements : HOST_BLOCK_ELEMENTS;

    for (size_t at = 0; at < elements; at += most) {
        for (; at >= r->spans[first].first + r->spans[first].elements; first++)
            ;
        if (r->blocks)
            r->blocks[r->block_count] = (struct block){.grad = grad,
                                                       .value = value,
                                                       .first_span = first,
                                                       .first = at,
                                                       .elements = least(most, elements - at)};
        r->block_count++;
    }
}

/* Count the blocks; with r->blocks set also list them there. */
static void cut(struct dp_replicas *r)
{
    int32_t first = 0;

    r->block_count = 0;
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
    struct shard_tensor *t = &r->shard_tensors[r->held_count];

    snprintf(t->name, sizeof(t->name), "%.159s[%zu:%zu]", p->name, first, first + count);
    t->shape[0] = (int64_t)count;
    t->value = part_of_tensor(p->value, first, t->shape);
    t->grad = part_of_tensor(p->grad, first, t->shape);
    t->whole = p->grad;
    t->first = first;
    r->shard[r->held_count++] = (struct dp_parameter){
        .name = t->name, .flags = p->flags, .value = &t->value, .grad = &t->grad};
}

static void list_part(struct dp_replicas *r, const struct block *b, size_t first, size_t count)
{
    const struct span *s = &r->spans[b->first_span];
    const size_t end = b->first + first + count;

    first += b->first;
    for (size_t n; first < end; first += n) {
        for (; first >= s->first + s->elements; s++)
            ;
        n = least(end, s->first + s->elements) - first;
        add_to_shard(r, s->parameter, first - s->first, n);
    }
}

static void list_shard_of(struct dp_replicas *r, int rank)
{
    size_t first, count;

    for (int32_t i = 0; i < r->block_count; i++) {
        struct dp_collective_args args = args_of(r, &r->blocks[i], DP_SUM_ALL);
        args.rank = rank;
        for (int k = 0; dp_sum_part(&args, k, &first, &count); k++)
            list_part(r, &r->blocks[i], first, count);
    }
}

static void list_shards(struct dp_replicas *r)
{
    const int rank = dp_comm_rank(r->comm);

    list_shard_of(r, rank);
    r->shard_count = r->held_count;
    if (r->size > 1)
        list_shard_of(r, (rank + r->size - 1) % r->size);
}

bool dp_replicas_row(const struct dp_replicas *r, int32_t i, struct dp_mixer_piece *out)
{
    if (i >= r->block_count)
        return false;
    const struct block *b = &r->blocks[i];
    *out = (struct dp_mixer_piece){b->value, b->elements,
                                   dp_tensor_address(r->spans[b->first_span].parameter->value)};
    return true;
}

const struct dp_parameter *dp_replicas_shard(const struct dp_replicas *r, int32_t *count)
{
    *count = r->shard_count;
    return r->shard;
}

const struct dp_parameter *dp_replicas_held(const struct dp_replicas *r, int32_t *count)
{
    *count = r->held_count;
    return r->shard;
}

/* ---- new and free ---------------------------------------------------------------------------- */

static size_t round_up(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static int make_block(struct dp_replicas *r)
{
    const size_t shared = dp_comm_shared_bytes(r->comm);
    size_t most = 0;
    void *memory;

    for (int32_t i = 0; i < r->block_count; i++) {
        const struct block *b = &r->blocks[i];
        const int bits = b->grad.bits > b->value.bits ? b->grad.bits : b->value.bits;
        const size_t bytes = round_up(b->elements * (size_t)bits / 8);
        most = bytes > most ? bytes : most;
    }
    r->memory_is_shared = shared && most >= shared && !dp_shared_alloc(most, -1, &memory);
    r->memory = r->memory_is_shared ? memory : aligned_alloc(ALIGNMENT, most);
    return r->memory ? 0 : dp_fail(DP_ENOMEM, "no memory for sums of gradients, %zu bytes", most);
}

/* What steps of a device receive, and a sum. */
static int make_arrivals(struct dp_replicas *r)
{
    return dp_stream_arrivals_new(r->comm, r->device, (DP_STEP_WINDOW + 1) * r->segment_bytes,
                                  &r->memory);
}

/* No more than half of the longest row. */
static void find_segment(struct dp_replicas *r)
{
    size_t most = 0;

    r->segment_bytes = HOST_SEGMENT_BYTES;
    for (int32_t i = 0; i < r->span_count && r->device; i++) {
        const struct span *s = &r->spans[i];
        const size_t half = (s->first + s->elements + 1) / 2;
        const size_t bytes = round_up(half * (s->parameter->grad->dtype.bits / 8));
        most = bytes > most ? bytes : most;
    }
    if (r->device)
        r->segment_bytes = least(most, DEVICE_SEGMENT_BYTES);
}

static int steps_of(const struct dp_replicas *r, const struct block *b, enum dp_sum_phases phases)
{
    const struct dp_collective_args args = args_of(r, b, phases);

    return dp_choose_sum(&args)->steps(&args);
}

/* A step has a message each way. */
static int make_messages(struct dp_replicas *r)
{
    size_t count = 0;

    for (int32_t i = 0; i < r->block_count; i++)
        count += 2 * (size_t)steps_of(r, &r->blocks[i], DP_SUM_ALL);
    struct dp_round_transfer *at = r->messages = calloc(count + 1, sizeof(*r->messages));
    for (int32_t i = 0; i < r->block_count && at; i++) {
        struct block *b = &r->blocks[i];
        b->messages[0] = (struct dp_transfers){.comm = r->comm, .list = at};
        at += 2 * steps_of(r, b, DP_SUM_SCATTER);
        b->messages[1] = (struct dp_transfers){.comm = r->comm, .list = at};
        at += 2 * steps_of(r, b, DP_SUM_GATHER);
    }
    return at ? 0 : DP_ENOMEM;
}

/* The parts of the blocks that a rank sums. */
static size_t count_parts(const struct dp_replicas *r)
{
    size_t first, count, parts = 0;

    for (int32_t i = 0; i < r->block_count; i++) {
        const struct dp_collective_args args = args_of(r, &r->blocks[i], DP_SUM_ALL);
        for (int k = 0; dp_sum_part(&args, k, &first, &count); k++)
            parts++;
    }
    return parts;
}

/* A shard has at most all parameters, each once more for each part that begins in its middle. */
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
    find_segment(r);
    cut(r);
    r->blocks = calloc((size_t)r->block_count + 1, sizeof(*r->blocks));
    if (!r->blocks)
        return no_memory(count);
    cut(r);
    const size_t most = 2 * (room + count_parts(r));
    r->shard = calloc(most, sizeof(*r->shard));
    r->shard_tensors = calloc(most, sizeof(*r->shard_tensors));
    if (!r->shard || !r->shard_tensors)
        return no_memory(count);
    list_shards(r);
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
    if (!err && r->size > 1 && r->block_count)
        err = r->device ? make_arrivals(r) : make_block(r);
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
    r->size = dp_comm_size(comm);
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
    free(r->blocks);
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
        const bool is_partner = (size & (size - 1)) || !(apart & (apart - 1));
        if (peer != rank && is_partner)
            out[count++] = (struct dp_nccl_peer){peer, sums, sums};
    }
    return count;
}
