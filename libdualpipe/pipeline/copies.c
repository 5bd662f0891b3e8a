/* SPDX-License-Identifier: Apache-2.0
 *
 * Two ranks that hold the same stage (DualPipe) start from equal parameters: the copy of stream 0
 * is sent to that of stream 1, stage by stage and tensor by tensor; from a device whose memory the
 * wire does not reach, in pieces through pinned memory.
 *
 *      stage 0      rank 0 slot 0 ----> rank P-1 slot 1
 *      stage P-1    rank 0 slot 1 <---- rank P-1 slot 0
 */
#include "pipeline/steps.h"

#include "base/tensor.h"
#include <dualpipe/comm.h>

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
