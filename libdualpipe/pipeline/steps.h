/* SPDX-License-Identifier: Apache-2.0
 *
 * steps.h - what step.c calls for each entry of a plan. All return 0 or a negative errno that
 * dp_last_error() describes.
 */
#ifndef DP_PIPELINE_STEPS_H
#define DP_PIPELINE_STEPS_H

#include "pipeline/base.h"

/* ---- messages.c ----------------------------------------------------------------------------- */

int dp_messages_recv(struct dp_pipeline *pipe, const struct dp_plan_op *op);
int dp_messages_send(struct dp_pipeline *pipe, const struct dp_plan_op *op);
/* Wait for what the entry waits for, and add up the time in pipe->now. */
int dp_messages_wait(struct dp_pipeline *pipe, const struct dp_plan_op *op);
/* The sends still open at the end of a step. */
int dp_messages_finish(struct dp_pipeline *pipe);
/* After a failure, when no request is open: sends that wait for a copy are not sent any more, and
 * buffers of stages are theirs again. */
void dp_messages_forget(struct dp_pipeline *pipe);
/* Bytes of a message: fewer than planned where extents are smaller. */
size_t dp_messages_len(const struct dp_pipeline *pipe, const struct dp_plan_op *op);
/* Start the sends whose copies have ended. */
int dp_messages_start_copied(struct dp_pipeline *pipe);
/* Before a wait for a peer that does not do that: wait for the copies, too. */
int dp_messages_send_all(struct dp_pipeline *pipe);
/* Wait for one request of this rank. peer: pipeline rank. */
int dp_messages_wait_request(struct dp_pipeline *pipe, struct dp_request *request, int peer);
/* Time in which an op waited for a rank; -1: for several. */
void dp_messages_note_wait(struct dp_pipeline *pipe, int64_t waited_ns, int peer);
/* The tag of a message: the stage that made it, its micro-batch and step. */
uint64_t dp_messages_tag(const struct dp_pipeline *pipe, int channel, int stage, uint32_t mb);
/* That of an entry; a skip's names its number. */
uint64_t dp_messages_tag_of(const struct dp_pipeline *pipe, const struct dp_plan_op *op);

/* ---- compute.c ------------------------------------------------------------------------------ */

/* A step begins: what its ops have in common. */
void dp_compute_begin(struct dp_pipeline *pipe);
/* FORWARD, BACKWARD, INPUT, WEIGHT; a FORWARD with `pair` does op[1], its BACKWARD, too. */
int dp_compute_run(struct dp_pipeline *pipe, const struct dp_plan_op *op);
/* A handle that a stage has left is its own again. */
void dp_compute_drop_handle(struct dp_pipeline *pipe, int slot, int32_t mb);
/* A buffer of the stage in that slot, or NULL, is its own again. */
void dp_compute_give_back(const struct dp_pipeline *pipe, int slot, void *data);
/* The gradients of a slot are to be read. */
int dp_compute_settle(struct dp_pipeline *pipe, int slot);
/* messages.c: where stages run in the calling thread and not in the stream: wait for what the stream
 * was given, which they are about to use. */
int dp_compute_sync(struct dp_pipeline *pipe);
/* Wait for all that the compute stream was given. */
int dp_compute_finish(struct dp_pipeline *pipe);
/* What `stream` is given from now on starts after all that `other` has been given. */
int dp_compute_join(struct dp_pipeline *pipe, struct dp_device_stream *stream,
                    struct dp_device_stream *other);
/* Copy to or from the device, behind the work in its stream, and wait for it. */
int dp_compute_copy(struct dp_pipeline *pipe, void *dst, const void *src, size_t len);
/* Give back all that is loaded, after a step that has failed. */
void dp_load_drop(struct dp_pipeline *pipe);

/* ---- messages.c: once, when a pipeline is made ------------------------------------------------ */

/* Collective: make the links of the schedule, so that no step allocates. */
int dp_links_make(struct dp_pipeline *pipe);
/* Collective: copies of a stage on other ranks get the parameters of the one of stream 0. */
int dp_copies_make_equal(struct dp_pipeline *pipe);

/* ---- tied.c --------------------------------------------------------------------------------- */

/* This rank's tied parameters. queued: messages, and sums of the device, are in the compute stream's
 * order. Also where it fails, out is to be freed. DP_ENOMEM. */
int dp_tied_new(const struct dp_pipeline_base *base, bool queued, struct dp_tied **out);
/* Collective: those of all ranks, which start equal. DP_EMISMATCH, DP_EUNSUPPORTED on every rank.
 */
int dp_tied_find(struct dp_tied *tied);
void dp_tied_free(struct dp_tied *tied);

/* ---- reduce.c ------------------------------------------------------------------------------- */

/* Room for the pieces; freed with the pipeline. DP_ENOMEM. */
int dp_reduce_init(struct dp_pipeline *pipe);
size_t dp_reduce_pieces_bytes(const struct dp_pipeline *pipe);
int dp_reduce_launch(struct dp_pipeline *pipe, int slot);
int dp_reduce_wait(struct dp_pipeline *pipe, int slot);
/* The requests of the step's sums, which streams have waited for; the caller's, where it queues. */
int dp_reduce_finish(struct dp_pipeline *pipe);
/* Move what can be moved of the sums that have been launched. */
int dp_reduce_progress(struct dp_pipeline *pipe);
/* The caller's operations queue sums in a stream. */
bool dp_reduce_is_queued(const struct dp_pipeline *pipe);

/* ---- reduce.c: on this rank ------------------------------------------------------------------ */

/* Of pinned memory that a staged pipeline needs. */
size_t dp_sum_memory_bytes(const struct dp_pipeline *pipe);
/* ADD, SUM, ROUND of the slot's sets of gradients, `from` to `set`. */
int dp_sum_run(struct dp_pipeline *pipe, int slot, enum dp_plan_kind kind, int set, int from);
/* to[n] += from[n], in elements of `bits` (32, 64). */
void dp_sum_add(int bits, void *to, const void *from, size_t n);

/* ---- step.c --------------------------------------------------------------------------------- */

/* The step at hand, or the next one, ends with an error that has been described: tell the other
 * ranks, or describe the failure that ended it here. Returns the error. */
int dp_step_abort(struct dp_pipeline *pipe, int err);
/* The step at hand; NULL: none is. */
const struct dp_step *dp_step_under_way(const struct dp_pipeline *pipe);

/* This rank is about to carry the entry out: what can be moved without waiting is. */
int dp_pipeline_begin_entry(struct dp_pipeline *pipe, const struct dp_plan_op *op);
/* One entry that is no message, whose inputs are there. again: it has been recorded before. */
int dp_pipeline_run_entry(struct dp_pipeline *pipe, const struct dp_plan_op *op, bool again);

/* ---- execution by messages -------------------------------------------------------------------- */

/* Messages that arrive at once from anywhere, each in memory of its own. */
enum { DP_LANDINGS = 2 };

/* What the layer above, asyncpipe/driven.c, does for a pipeline whose config says so. */
struct dp_execution_ops {
    /* Tables of a plan that messages drive, for its program. DP_ENOMEM. */
    int (*init)(const struct dp_pipeline_base *base, struct dp_program *program);
    void (*fini)(struct dp_program *program);
    /* Of the longest message that arrives. */
    size_t (*landing_bytes)(const struct dp_pipeline_base *base);
    /* Carry out the forwards of the step at hand, its backwards, or both. */
    int (*run)(struct dp_driven *driven, bool forwards, bool backwards);
};
extern const struct dp_execution_ops dp_execute_messages;

#endif
