/* SPDX-License-Identifier: Apache-2.0
 *
 * A communicator connects two ranks at their first message, which allocates memory. A step must not, so
 * every link that the schedule uses carries one empty message while the pipeline is made.
 */
#include "pipeline/failure.h"
#include "pipeline/setup.h"
#include "pipeline/steps.h"

#include "base/fail.h"
#include "schedule/build.h"

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
