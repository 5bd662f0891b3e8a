/* SPDX-License-Identifier: Apache-2.0
 *
 * connect.c - what all ranks do once when a pipeline is made.
 *
 * A communicator connects two ranks at their first message, which allocates memory. A step must not,
 * so every link that the schedule uses carries one empty message while the pipeline is made.
 *
 * Two ranks that hold the same stage (DualPipe) start from equal parameters: the copy of stream 0 is
 * sent to that of stream 1, stage by stage and tensor by tensor; from a device whose memory the wire
 * does not reach, in pieces through pinned memory.
 *
 *      stage 0      rank 0 slot 0 ----> rank P-1 slot 1
 *      stage P-1    rank 0 slot 1 <---- rank P-1 slot 0
 */
#include "base/fail.h"
#include "base/tensor.h"
#include "pipeline/setup.h"
#include "pipeline/steps.h"
#include "schedule/build.h"

#include <dualpipe/comm.h>
#include <dualpipe/nccl.h>
#include <dualpipe/pipeline.h>

#include <stdio.h>
#include <stdlib.h>

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

static void add(const struct dp_pipeline *pipe, struct links *l, int peer, int channel, bool sends)
{
    if (peer < 0)
        return;
    channel = dp_messages_channel(pipe, channel);
    for (int i = 0; i < l->count; i++)
        if (l->items[i].peer == peer && l->items[i].channel == channel && l->items[i].sends == sends)
            return;
    l->items[l->count++] = (struct link){.peer = peer, .channel = channel, .sends = sends};
}

static void add_op(const struct dp_pipeline *pipe, const struct dp_op *op, struct links *l)
{
    const struct dp_schedule *s = pipe->config.schedule;

    switch (op->kind) {
    case DP_OP_SEND_F:
        add(pipe, l, dp_pipeline_slot(pipe, op->slot)->next, DP_CHANNEL_ACTIVATION, true);
        return;
    case DP_OP_RECV_F:
        add(pipe, l, dp_pipeline_slot(pipe, op->slot)->prev, DP_CHANNEL_ACTIVATION, false);
        return;
    case DP_OP_SEND_B:
        add(pipe, l, dp_pipeline_slot(pipe, op->slot)->prev, DP_CHANNEL_GRADIENT, true);
        return;
    case DP_OP_RECV_B:
        add(pipe, l, dp_pipeline_slot(pipe, op->slot)->next, DP_CHANNEL_GRADIENT, false);
        return;
    case DP_OP_SEND_SKIP_F:
    case DP_OP_SEND_SKIP_B:
    case DP_OP_RECV_SKIP_F:
    case DP_OP_RECV_SKIP_B:
        add(pipe, l, dp_op_peer(s, dp_pipeline_slot(pipe, op->slot), *op),
            op->kind == DP_OP_SEND_SKIP_F || op->kind == DP_OP_RECV_SKIP_F ? DP_CHANNEL_ACTIVATION
                                                                           : DP_CHANNEL_GRADIENT,
            op->kind == DP_OP_SEND_SKIP_F || op->kind == DP_OP_SEND_SKIP_B);
        return;
    case DP_OP_REDUCE:
        if (pipe->config.reduce)
            return;
        add(pipe, l, dp_pipeline_slot(pipe, op->slot)->mirror, DP_CHANNEL_REDUCE, true);
        add(pipe, l, dp_pipeline_slot(pipe, op->slot)->mirror, DP_CHANNEL_REDUCE, false);
        return;
    default:
        return;
    }
}

/* Where sums with mirrors are carried out beyond the list. */
static void add_sums(const struct dp_pipeline *pipe, struct links *l)
{
    for (uint32_t slot = 0; slot < (uint32_t)pipe->slots; slot++)
        if (dp_slot_has_remote_mirror(dp_pipeline_slot(pipe, (int)slot), pipe->rank))
            add_op(pipe, &(struct dp_op){.kind = DP_OP_REDUCE, .slot = slot}, l);
}

static int start(struct dp_pipeline *pipe, struct link *l)
{
    struct dp_comm *comm = pipe->config.comm;
    const int peer = pipe->config.schedule->group_rank[l->peer];

    if (!l->sends && pipe->config.execution == DP_EXECUTE_MESSAGES)
        return dp_comm_irecv_any(comm, DP_ANY_SOURCE, l->channel, &l->request, 0, &l->request);
    return l->sends ? dp_comm_isend(comm, peer, l->channel, 0, "", 0, &l->request)
                    : dp_comm_irecv(comm, peer, l->channel, 0, &l->request, 0, &l->request);
}

/* All are started before any is waited for, so the order of the ranks does not matter. */
static int exchange(struct dp_pipeline *pipe, struct links *l)
{
    int err = 0;

    for (int i = 0; i < l->count && !err; i++)
        err = start(pipe, &l->items[i]);
    for (int i = 0; i < l->count && !err; i++)
        err = dp_messages_wait_request(pipe, &l->items[i].request, l->items[i].peer);
    return err;
}

/* The requests are about to be freed: none may be left in flight. After an abort none is. */
static int give_up(struct dp_pipeline *pipe, int err)
{
    char first[DP_ABORT_TEXT];

    snprintf(first, sizeof(first), "%s", dp_last_error());
    dp_failure_tell(pipe->config.comm, err);
    dp_comm_progress(pipe->config.comm);
    return dp_fail_quietly(err, "%s", first);
}

int dp_links_make(struct dp_pipeline *pipe)
{
    const struct dp_schedule *s = pipe->config.schedule;
    struct links l = {0};

    if (!pipe->config.comm)
        return 0;
    l.items = calloc(6 * (size_t)dp_schedule_slot_count(s, pipe->rank) +
                         4 * (size_t)s->streams * (size_t)s->skip_count + 1,
                     sizeof(*l.items));
    if (!l.items)
        return dp_fail(DP_ENOMEM, "no memory for the links of a pipeline");
    for (size_t i = 0; i < dp_schedule_count(s, pipe->rank); i++)
        add_op(pipe, &dp_schedule_ops(s, pipe->rank)[i], &l);
    if (dp_config_adds_sums(&pipe->config, s))
        add_sums(pipe, &l);
    int err = exchange(pipe, &l);
    if (err)
        err = give_up(pipe, err);
    free(l.items);
    return err;
}

/* ---- copies of a stage ----------------------------------------------------------------------- */

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
    struct dp_comm *comm = pipe->config.comm;
    int peer = pipe->config.schedule->group_rank[t->slot->mirror];
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

    for (int i = 0; i < dp_schedule_slot_count(pipe->config.schedule, pipe->rank) && !err; i++) {
        const struct dp_slot *slot = dp_pipeline_slot(pipe, i);
        struct transfer t = {slot, &pipe->stages[i], slot->stream == 0, pinned};
        if (slot->stage == stage && slot->mirror >= 0 && slot->mirror != pipe->rank)
            err = move_values(pipe, &t);
    }
    return err;
}

int dp_copies_make_equal(struct dp_pipeline *pipe)
{
    void *pinned = NULL;
    int err = 0;

    if (!pipe->config.comm || pipe->config.schedule->streams < 2 || pipe->config.keep_copies)
        return 0;
    if (pipe->out_of_reach)
        err = dp_device_alloc(pipe->device, DP_MEMORY_PINNED, PIECE_BYTES, &pinned);
    for (int stage = 0; stage < pipe->config.schedule->stages && !err; stage++)
        err = move_stage(pipe, stage, pinned);
    dp_device_free(pipe->device, DP_MEMORY_PINNED, pinned);
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
    const struct dp_slot *slot = dp_schedule_slot(p->schedule, p->rank, (int)op.slot);
    const unsigned activations = 1u << DP_CHANNEL_ACTIVATION;
    const unsigned gradients = 1u << DP_CHANNEL_GRADIENT;

    switch ((enum dp_op_kind)op.kind) {
    case DP_OP_SEND_F:
    case DP_OP_SEND_SKIP_F:
        add_peer(p, dp_op_peer(p->schedule, slot, op), activations, 0);
        return;
    case DP_OP_RECV_F:
    case DP_OP_RECV_SKIP_F:
        add_peer(p, dp_op_peer(p->schedule, slot, op), 0, activations);
        return;
    case DP_OP_SEND_B:
    case DP_OP_SEND_SKIP_B:
        add_peer(p, dp_op_peer(p->schedule, slot, op), gradients, 0);
        return;
    case DP_OP_RECV_B:
    case DP_OP_RECV_SKIP_B:
        add_peer(p, dp_op_peer(p->schedule, slot, op), 0, gradients);
        return;
    default:
        return;
    }
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
