/* SPDX-License-Identifier: Apache-2.0
 *
 * messages.c - entries that send and receive; at the end links and equal copies of stages, which all
 * ranks make once with a pipeline.
 *
 * Where the wire can reach the buffers, a message goes straight from one rank's buffer to the
 * other's. Where it cannot (a CUDA device), it goes through pinned memory of the same layout:
 *
 *      send   compute --event--> outgoing: copy, event ... tested ... isend
 *      recv   irecv ... done, compute: copy, event
 *
 * so that a request of the plan stands for two things one after the other: the copy and the
 * transfer. Nothing but the host's wait for a request, and for a copy whose memory is wanted again,
 * ever blocks.
 *
 * On a stream-ordered communicator (dp_comm_caps) the host waits for neither: it goes through the
 * whole step and hands everything to streams, which wait for each other.
 *
 *      send   compute (or outgoing, staged) ---- after ----> transfer
 *      recv   compute: last use of the memory -- after ----> transfer -- stream_wait --> compute
 *
 * Only at the end of the step the host tests all requests, in the order in which they are needed.
 */
#include "pipeline/state.h"
#include "pipeline/steps.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/tensor.h"
#include "comm/internal.h"
#include "pipeline/border.h"
#include "pipeline/setup.h"
#include "schedule/build.h"

#include <dualpipe/nccl.h>

#include <stdlib.h>

uint64_t dp_messages_tag(const struct dp_pipeline *pipe, int channel, int stage, uint32_t mb)
{
    return pipe->step << 40 | (uint64_t)channel << 36 | (uint64_t)stage << 20 | mb;
}

uint64_t dp_messages_tag_of(const struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    const struct dp_plan_message *m = &op->message;
    return dp_messages_tag(pipe, m->channel + (m->skip ? DP_CHANNELS : 0), m->stage, op->mb);
}

/* The channel on which messages of `channel` travel: one for all where they drive the ranks. */
static int actual_channel(const struct dp_pipeline *pipe, int channel)
{
    return pipe->base.config.execution == DP_EXECUTE_MESSAGES ? DP_CHANNEL_ACTIVATION : channel;
}

static int group_rank(const struct dp_pipeline *pipe, int rank)
{
    return pipe->base.config.schedule->group_rank[rank];
}

static struct dp_message_state *state_of(struct dp_pipeline *pipe, uint32_t request)
{
    return &pipe->messages[request];
}

/* ---- streams, stages and the host ------------------------------------------------------------ */

/* With the step's deadline, and the caller's poll function (dp_comm_set_poll). */
static int wait_for_event(struct dp_pipeline *pipe, struct dp_device_event *event)
{
    struct dp_comm *comm = pipe->base.config.comm;
    const int64_t end_ns = dp_now_ns() + pipe->deadline_ns;

    if (!comm || !dp_comm_polls(comm))
        return dp_device_event_wait(event, pipe->deadline_ns);
    for (;;) {
        int err = dp_device_event_wait(event, DP_NS_PER_MS);
        if (err != DP_ETIMEDOUT || dp_now_ns() >= end_ns)
            return err;
        err = dp_comm_poll(comm);
        if (err)
            return err;
    }
}

int dp_compute_finish(struct dp_pipeline *pipe)
{
    int err = dp_device_event_record(pipe->done, pipe->base.compute);

    return err ? err : wait_for_event(pipe, pipe->done);
}

int dp_compute_sync(struct dp_pipeline *pipe)
{
    return pipe->native_stream ? 0 : dp_compute_finish(pipe);
}

int dp_compute_join(struct dp_pipeline *pipe, struct dp_device_stream *stream,
                    struct dp_device_stream *other)
{
    int err = dp_device_event_record(pipe->done, other);

    return err ? err : dp_device_stream_wait(stream, pipe->done);
}

int dp_compute_copy(struct dp_pipeline *pipe, void *dst, const void *src, size_t len)
{
    int err = dp_device_copy(pipe->base.compute, dst, src, len);

    return err ? err : dp_compute_finish(pipe);
}

void dp_compute_give_back(const struct dp_pipeline *pipe, int slot, void *data)
{
    const struct dp_stage *stage = &pipe->base.stages[slot];

    if (data && stage->ops->given_back)
        stage->ops->given_back(stage->user, data);
}

/* ---- sends ---------------------------------------------------------------------------------- */

/* Tensors stay where they are planned; the last one of a message may be shorter. */
size_t dp_messages_len(const struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    const struct dp_slot *slot = dp_pipeline_slot(pipe, op->slot);
    const struct dp_plan_message *m = &op->message;
    bool gradient = m->channel == DP_CHANNEL_GRADIENT;
    int index = gradient || m->skip ? m->stage : m->stage + 1, last;
    const struct dp_layout *layout =
        gradient ? &pipe->layouts[index].gradient : &pipe->layouts[index].activation;
    struct dp_border now;
    size_t global;

    if (!pipe->base.extents || !m->len || m->skip)
        return m->len;
    now = pipe->declared[index];
    global = (size_t)slot->stream * (size_t)pipe->base.config.schedule->mb_per_stream + op->mb;
    dp_extents_apply(&pipe->declared[index], pipe->base.config.max_extents, pipe->base.extents[global],
                     &now);
    for (last = now.count - 1; layout->offset[last] == DP_NOWHERE;)
        last--;
    return layout->offset[last] + dp_spec_bytes(&now.tensors[last]);
}

/* The rank is the only writer. */
static void show_bytes(uint64_t *counter, size_t len)
{
    __atomic_store_n(counter, *counter + len, __ATOMIC_RELAXED);
}

static int order_after(struct dp_pipeline *pipe, struct dp_device_stream *stream)
{
    return pipe->ordered ? dp_comm_after(pipe->base.config.comm, stream) : 0;
}

static int start_send(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    const struct dp_plan_message *m = &op->message;
    void **own = m->skip ? NULL : dp_own_buffer(pipe, op, m->channel);
    const void *from = own && *own ? *own : pipe->wire + m->offset;
    int err = order_after(pipe, pipe->staged ? pipe->outgoing : pipe->base.compute);

    if (err)
        return err;
    if (own && *own) {
        state_of(pipe, m->request)->given = *own;
        state_of(pipe, m->request)->given_slot = op->slot;
        *own = NULL;
    }
    const size_t len = dp_messages_len(pipe, op);
    if (pipe->live)
        show_bytes(&pipe->live->sent_bytes, len);
    return dp_comm_isend(pipe->base.config.comm, group_rank(pipe, m->peer),
                         actual_channel(pipe, m->channel), dp_messages_tag_of(pipe, op), from,
                         len, &state_of(pipe, m->request)->request);
}

/* Copies end in the order they were started: the oldest is the only one worth a test. */
int dp_messages_start_copied(struct dp_pipeline *pipe)
{
    struct dp_step_state *now = &pipe->now;
    int err = 0;

    while (now->first_unsent && !err) {
        const struct dp_plan_op *op = now->first_unsent;
        struct dp_message_state *state = state_of(pipe, op->message.request);
        err = dp_device_event_test(state->copied);
        if (err == DP_EAGAIN)
            return 0;
        now->first_unsent = state->next_unsent;
        if (!err)
            err = start_send(pipe, op);
        state->unsent = false;
    }
    return err;
}

static void queue_send(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    struct dp_step_state *now = &pipe->now;
    struct dp_message_state *state = state_of(pipe, op->message.request);

    state->unsent = true;
    state->next_unsent = NULL;
    if (now->first_unsent)
        state_of(pipe, now->last_unsent->message.request)->next_unsent = op;
    else
        now->first_unsent = op;
    now->last_unsent = op;
}

static int copy_out(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    const struct dp_plan_message *m = &op->message;
    struct dp_device_event *copied = state_of(pipe, m->request)->copied;

    int err = dp_device_event_record(copied, pipe->base.compute);
    if (!err)
        err = dp_device_stream_wait(pipe->outgoing, copied);
    if (!err)
        err = dp_device_copy(pipe->outgoing, pipe->wire + m->offset, pipe->base.memory + m->offset,
                           m->len);
    if (!err)
        err = dp_device_event_record(copied, pipe->outgoing);
    return err;
}

int dp_messages_send(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    if (!pipe->staged)
        return start_send(pipe, op);
    int err = copy_out(pipe, op);
    if (err)
        return err;
    if (pipe->ordered)
        return start_send(pipe, op);
    queue_send(pipe, op);
    return dp_messages_start_copied(pipe);
}

/* ---- receives ------------------------------------------------------------------------------- */

/* What was received into this memory before must have left it. */
static int wait_for_copies(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    int err = 0;

    for (uint32_t i = 0; i < op->waits && !err; i++) {
        struct dp_plan_wait wait = pipe->plan.waits[op->first_wait + i];
        err = wait_for_event(pipe, state_of(pipe, wait.request)->copied);
    }
    return err;
}

int dp_messages_recv(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    const struct dp_plan_message *m = &op->message;
    int err = wait_for_copies(pipe, op);

    if (!err)
        err = order_after(pipe, pipe->base.compute);
    if (err)
        return err;
    const size_t len = dp_messages_len(pipe, op);
    if (pipe->live)
        show_bytes(&pipe->live->received_bytes, len);
    return dp_comm_irecv(pipe->base.config.comm, group_rank(pipe, m->peer), m->channel,
                         dp_messages_tag_of(pipe, op), pipe->wire + m->offset, len,
                         &state_of(pipe, m->request)->request);
}

static int copy_in(struct dp_pipeline *pipe, const struct dp_plan_wait *wait)
{
    int err = dp_device_copy(pipe->base.compute, pipe->base.memory + wait->offset,
                             pipe->wire + wait->offset, wait->received);
    if (!err)
        err = dp_device_event_record(state_of(pipe, wait->request)->copied, pipe->base.compute);
    return err;
}

/* ---- waits ---------------------------------------------------------------------------------- */

static int send_first(struct dp_pipeline *pipe)
{
    int err = wait_for_event(pipe, state_of(pipe, pipe->now.first_unsent->message.request)->copied);

    return err ? err : dp_messages_start_copied(pipe);
}

static int wait_for_sending(struct dp_pipeline *pipe, struct dp_message_state *state)
{
    int err = 0;

    while (state->unsent && !err)
        err = send_first(pipe);
    return err;
}

int dp_messages_send_all(struct dp_pipeline *pipe)
{
    int err = 0;

    while (pipe->now.first_unsent && !err)
        err = send_first(pipe);
    return err;
}

/* While messages of this rank wait for their copies, a peer may wait for them: then only test. */
static int wait_busily(struct dp_pipeline *pipe, struct dp_request *request, int64_t until_ns)
{
    int64_t polled_ns = dp_now_ns();
    int err = DP_EAGAIN;

    while (err == DP_EAGAIN && pipe->now.first_unsent) {
        const int64_t now_ns = dp_now_ns();
        int failed = dp_messages_start_copied(pipe);
        if (!failed && now_ns - polled_ns >= DP_NS_PER_MS) {
            failed = dp_comm_poll(pipe->base.config.comm);
            polled_ns = now_ns;
        }
        err = failed ? failed : dp_comm_test(pipe->base.config.comm, request);
        if (err == DP_EAGAIN && now_ns > until_ns)
            err = dp_fail(DP_ETIMEDOUT, "a copy out of device memory did not end within %.1f s",
                          (double)pipe->deadline_ns / DP_NS_PER_S);
    }
    return err;
}

void dp_messages_note_wait(struct dp_pipeline *pipe, int64_t waited_ns, int peer)
{
    if (waited_ns > pipe->now.longest_wait_ns) {
        pipe->now.longest_wait_ns = waited_ns;
        pipe->now.waited_for = peer;
    }
    pipe->now.waited_ns += waited_ns;
}

/* Show those who look on that this rank waits for the peer; since_ns 0: no longer. */
static void show_wait(const struct dp_pipeline *pipe, int64_t since_ns, int peer)
{
    if (!pipe->live)
        return;
    __atomic_store_n(&pipe->live->waiting_for, (int64_t)peer, __ATOMIC_RELAXED);
    __atomic_store_n(&pipe->live->waiting_since_ns, since_ns, __ATOMIC_RELAXED);
}

int dp_messages_wait_request(struct dp_pipeline *pipe, struct dp_request *request, int peer)
{
    int err = dp_comm_test(pipe->base.config.comm, request);

    if (err != DP_EAGAIN)
        return err;
    int64_t start = dp_now_ns();
    show_wait(pipe, start, peer);
    err = wait_busily(pipe, request, start + pipe->deadline_ns);
    if (err == DP_EAGAIN)
        err = dp_comm_wait(pipe->base.config.comm, request, group_rank(pipe, peer));
    show_wait(pipe, 0, peer);
    dp_messages_note_wait(pipe, dp_now_ns() - start, peer);
    return err;
}

/* The wire, or the stream behind the message, does not read the stage's buffer any more. */
static void give_back(struct dp_pipeline *pipe, struct dp_message_state *state)
{
    void *data = state->given;

    state->given = NULL;
    dp_compute_give_back(pipe, state->given_slot, data);
}

static int wait_for_one(struct dp_pipeline *pipe, const struct dp_plan_wait *wait)
{
    struct dp_message_state *state = state_of(pipe, wait->request);
    int err = wait_for_sending(pipe, state);

    if (!err && pipe->ordered)
        err = dp_comm_stream_wait(pipe->base.config.comm, &state->request, pipe->base.compute);
    else if (!err)
        err = dp_messages_wait_request(pipe, &state->request, wait->peer);
    if (!err && pipe->staged && wait->received)
        err = copy_in(pipe, wait);
    if (!err && state->given)
        give_back(pipe, state);
    return err;
}

int dp_messages_wait(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    int err = 0;

    for (uint32_t i = 0; i < op->waits && !err; i++)
        err = wait_for_one(pipe, &pipe->plan.waits[op->first_wait + i]);
    return err;
}

/* Ordered: streams have waited for the others. */
int dp_messages_finish(struct dp_pipeline *pipe)
{
    const size_t first = pipe->ordered ? 0 : pipe->plan.last_wait;
    int err = 0;

    for (size_t i = first; i < pipe->plan.wait_count && !err; i++) {
        const struct dp_plan_wait *wait = &pipe->plan.waits[i];
        struct dp_message_state *state = state_of(pipe, wait->request);
        err = pipe->ordered ? dp_messages_wait_request(pipe, &state->request, wait->peer)
                            : wait_for_one(pipe, wait);
        if (!err && state->given)
            give_back(pipe, state);
    }
    return err;
}

void dp_messages_forget(struct dp_pipeline *pipe)
{
    for (uint32_t i = 0; i < pipe->plan.requests; i++) {
        pipe->messages[i].unsent = false;
        give_back(pipe, &pipe->messages[i]);
    }
    pipe->now.first_unsent = pipe->now.last_unsent = NULL;
}

/* ---- links -----------------------------------------------------------------------------------
 * A communicator connects two ranks at their first message, which allocates memory. A step must not,
 * so every link that the schedule uses carries one empty message while the pipeline is made. */

/* One direction of one channel to one peer. */
struct link {
    int peer; /* pipeline rank */
    int channel;
    bool sends;
    struct dp_request request;
};

struct links {
    int count;
    struct link *items; /* room for two of each slot's op with messages, or its reduction, and for
                         * those of skips */
};

static void add_link(const struct dp_pipeline *pipe, struct links *l, int peer, int channel, bool sends)
{
    if (peer < 0)
        return;
    channel = actual_channel(pipe, channel);
    for (int i = 0; i < l->count; i++)
        if (l->items[i].peer == peer && l->items[i].channel == channel && l->items[i].sends == sends)
            return;
    l->items[l->count++] = (struct link){.peer = peer, .channel = channel, .sends = sends};
}

static int channel_of(enum dp_op_kind kind)
{
    return kind == DP_OP_SEND_F || kind == DP_OP_RECV_F || kind == DP_OP_SEND_SKIP_F ||
                   kind == DP_OP_RECV_SKIP_F
               ? DP_CHANNEL_ACTIVATION
               : DP_CHANNEL_GRADIENT;
}

static void add_op(const struct dp_pipeline *pipe, struct dp_op op, struct links *l)
{
    const enum dp_op_kind kind = (enum dp_op_kind)op.kind;
    const struct dp_slot *slot = dp_pipeline_slot(pipe, op.slot);

    if (dp_op_is_message(kind))
        add_link(pipe, l, dp_op_peer(pipe->base.config.schedule, slot, op), channel_of(kind),
                 dp_op_is_send(kind));
    if (kind != DP_OP_REDUCE || pipe->base.config.reduce)
        return;
    add_link(pipe, l, slot->mirror, DP_CHANNEL_REDUCE, true);
    add_link(pipe, l, slot->mirror, DP_CHANNEL_REDUCE, false);
}

/* Where sums with mirrors are carried out beyond the list. */
static void add_sums(const struct dp_pipeline *pipe, struct links *l)
{
    for (int slot = 0; slot < pipe->base.slots; slot++)
        if (dp_slot_has_remote_mirror(dp_pipeline_slot(pipe, slot), pipe->base.rank))
            add_op(pipe, (struct dp_op){.kind = DP_OP_REDUCE, .slot = (uint8_t)slot}, l);
}

static int start_link(struct dp_pipeline *pipe, struct link *l)
{
    struct dp_comm *comm = pipe->base.config.comm;
    const int peer = pipe->base.config.schedule->group_rank[l->peer];

    if (!l->sends && pipe->base.config.execution == DP_EXECUTE_MESSAGES)
        return dp_comm_irecv_any(comm, DP_ANY_SOURCE, l->channel, &l->request, 0, &l->request);
    return l->sends ? dp_comm_isend(comm, peer, l->channel, 0, "", 0, &l->request)
                    : dp_comm_irecv(comm, peer, l->channel, 0, &l->request, 0, &l->request);
}

/* All are started before any is waited for, so the order of the ranks does not matter. */
static int exchange(struct dp_pipeline *pipe, struct links *l)
{
    int err = 0;

    for (int i = 0; i < l->count && !err; i++)
        err = start_link(pipe, &l->items[i]);
    for (int i = 0; i < l->count && !err; i++)
        err = dp_messages_wait_request(pipe, &l->items[i].request, l->items[i].peer);
    return err;
}

/* The requests are about to be freed: none may be left in flight. After an abort none is. */
static int give_up(struct dp_pipeline *pipe, int err)
{
    char first[DP_ABORT_TEXT];

    snprintf(first, sizeof(first), "%s", dp_last_error());
    dp_failure_tell(pipe->base.config.comm, err);
    dp_comm_progress(pipe->base.config.comm);
    return dp_fail_quietly(err, "%s", first);
}

int dp_links_make(struct dp_pipeline *pipe)
{
    const struct dp_schedule *s = pipe->base.config.schedule;
    struct links l = {0};

    if (!pipe->base.config.comm)
        return 0;
    l.items = calloc(6 * (size_t)dp_schedule_slot_count(s, pipe->base.rank) +
                         4 * (size_t)s->streams * (size_t)s->skip_count + 1,
                     sizeof(*l.items));
    if (!l.items)
        return dp_fail(DP_ENOMEM, "no memory for the links of a pipeline");
    for (size_t i = 0; i < dp_schedule_count(s, pipe->base.rank); i++)
        add_op(pipe, dp_schedule_ops(s, pipe->base.rank)[i], &l);
    if (dp_config_adds_sums(&pipe->base.config, s))
        add_sums(pipe, &l);
    int err = exchange(pipe, &l);
    if (err)
        err = give_up(pipe, err);
    free(l.items);
    return err;
}

/* ---- copies of a stage -----------------------------------------------------------------------
 * Two ranks that hold the same stage (DualPipe) start from equal parameters: the copy of stream 0 is
 * sent to that of stream 1, stage by stage and tensor by tensor; from a device whose memory the wire
 * does not reach, in pieces through pinned memory.
 *
 *      stage 0      rank 0 slot 0 ----> rank P-1 slot 1
 *      stage P-1    rank 0 slot 1 <---- rank P-1 slot 0
 */

enum { PIECE_BYTES = 256 << 10 };

/* The copy of a stage that this rank sends or receives. */
struct transfer {
    const struct dp_slot *slot;
    const struct dp_stage *stage;
    bool sending;
    char *pinned; /* [PIECE_BYTES], or NULL: the wire reaches the values */
};

static int move_piece(struct dp_pipeline *pipe, const struct transfer *t, int32_t k, char *value,
                      size_t len)
{
    struct dp_comm *comm = pipe->base.config.comm;
    int peer = pipe->base.config.schedule->group_rank[t->slot->mirror];
    uint64_t tag = dp_messages_tag(pipe, DP_CHANNEL_REDUCE, t->slot->stage, (uint32_t)k & 0xFFFFF);
    void *at = t->pinned ? t->pinned : value;
    struct dp_request request;
    int err = t->sending && t->pinned ? dp_compute_copy(pipe, at, value, len) : 0;

    if (!err)
        err = t->sending ? dp_comm_isend(comm, peer, DP_CHANNEL_REDUCE, tag, at, len, &request)
                         : dp_comm_irecv(comm, peer, DP_CHANNEL_REDUCE, tag, at, len, &request);
    if (!err)
        err = dp_messages_wait_request(pipe, &request, t->slot->mirror);
    return !err && !t->sending && t->pinned ? dp_compute_copy(pipe, value, at, len) : err;
}

static int move_values(struct dp_pipeline *pipe, const struct transfer *t)
{
    int err = 0;

    for (int32_t k = 0; k < t->stage->parameter_count && !err; k++) {
        const DLTensor *value = t->stage->parameters[k].value;
        size_t bytes = (size_t)dp_tensor_numel(value) * dp_tensor_element_bytes(value);
        for (size_t at = 0; at < bytes && !err;) {
            size_t left = bytes - at, len = t->pinned && left > PIECE_BYTES ? PIECE_BYTES : left;
            err = move_piece(pipe, t, k, dp_tensor_address(value) + at, len);
            at += len;
        }
    }
    return err;
}

/* All ranks go through the stages in the same order, so that no two wait for each other. */
static int move_stage(struct dp_pipeline *pipe, int stage, char *pinned)
{
    int err = 0;

    for (int i = 0; i < pipe->base.slots && !err; i++) {
        const struct dp_slot *slot = dp_pipeline_slot(pipe, i);
        struct transfer t = {slot, &pipe->base.stages[i], slot->stream == 0, pinned};
        if (slot->stage == stage && slot->mirror >= 0 && slot->mirror != pipe->base.rank)
            err = move_values(pipe, &t);
    }
    return err;
}

int dp_copies_make_equal(struct dp_pipeline *pipe)
{
    const struct dp_pipeline_config *config = &pipe->base.config;
    void *pinned = NULL;
    int err = 0;

    if (!config->comm || config->schedule->streams < 2 || config->keep_copies)
        return 0;
    if (pipe->base.out_of_reach)
        err = dp_device_alloc(pipe->base.device, DP_MEMORY_PINNED, PIECE_BYTES, &pinned);
    for (int stage = 0; stage < config->schedule->stages && !err; stage++)
        err = move_stage(pipe, stage, pinned);
    dp_device_free(pipe->base.device, DP_MEMORY_PINNED, pinned);
    return err;
}

/* ---- links that NCCL is told of -------------------------------------------------------------- */

struct peers {
    const struct dp_schedule *schedule;
    int rank, count;
    struct dp_nccl_peer *list;
};

static void add_peer(struct peers *p, int32_t peer, unsigned sends, unsigned receives)
{
    int i = 0;

    if (peer < 0 || peer == p->rank)
        return;
    const int rank = p->schedule->group_rank[peer];
    while (i < p->count && p->list[i].rank != rank)
        i++;
    if (i == p->count)
        p->list[p->count++] = (struct dp_nccl_peer){.rank = rank};
    p->list[i].sends |= sends;
    p->list[i].receives |= receives;
}

static void add_peer_op(struct peers *p, struct dp_op op)
{
    const enum dp_op_kind kind = (enum dp_op_kind)op.kind;
    const unsigned channel = 1u << channel_of(kind);

    if (dp_op_is_message(kind))
        add_peer(p, dp_op_peer(p->schedule, dp_schedule_slot(p->schedule, p->rank, (int)op.slot), op),
                 dp_op_is_send(kind) ? channel : 0, dp_op_is_send(kind) ? 0 : channel);
}

int dp_pipeline_nccl_peers(const struct dp_schedule *schedule, int rank, struct dp_nccl_peer *out)
{
    if (!schedule || !out || rank < 0 || rank >= schedule->ranks)
        return dp_fail(DP_EINVAL, "peers of rank %d: expected a schedule, a rank of it and a place",
                       rank);
    const unsigned sums = 1u << DP_CHANNEL_REDUCE;
    struct peers p = {.schedule = schedule, .rank = rank, .list = out};

    for (size_t i = 0; i < dp_schedule_count(schedule, rank); i++)
        add_peer_op(&p, dp_schedule_ops(schedule, rank)[i]);
    /* Where nothing is summed, copies of a stage are still made equal when a pipeline is opened. */
    for (int i = 0; i < dp_schedule_slot_count(schedule, rank); i++)
        add_peer(&p, dp_schedule_slot(schedule, rank, i)->mirror, sums, sums);
    return p.count;
}
