/* SPDX-License-Identifier: Apache-2.0
 *
 * segments.h - a stage as a list of segments, each of which uses one resource: compute, or
 * communication (the dispatch of tokens to experts, an all-gather of a sharded weight). In an overlapped
 * pair the segments of the forward are interleaved with those of the backward, so that the one computes
 * while the other communicates.
 *
 *      compute         F attention   B experts     F experts    B attention
 *      communication   B combine     F dispatch    B dispatch   F combine
 *
 * The order is the best that there is for two lists whose segments come one after the other and for
 * resources that carry out one segment at a time, by the costs that the segments say. It is found
 * once for each two stages and carried out by two threads: the pipeline's own computes, one of the
 * library communicates. On CUDA two streams do it instead, and the pipeline's thread queues all of it.
 *
 *      dp_segment_worker_new(&worker);
 *      struct dp_segmented_stage mine = {.worker = worker, .forward = f, .forward_count = 4,
 *                                        .backward = b, .backward_count = 5, .user = &layers};
 *      struct dp_stage stage = {.ops = dp_segment_stage_ops(), .user = &mine, ...};
 *
 *      on CUDA, once the pipeline is made and before its first step:
 *      dp_segment_streams_new(device, dp_pipeline_stream(pipe), &mine.streams);
 *
 * Source: two jobs in a job shop (Akers, "A Graphical Approach to Production Scheduling Problems",
 * Operations Research 4, 1956); the interleaving of attention, dispatch, experts and combine in the
 * DeepSeek-V3 technical report.
 */
#ifndef DUALPIPE_SEGMENTS_H
#define DUALPIPE_SEGMENTS_H

#include <dualpipe/device.h>
#include <dualpipe/stage.h>

#ifdef __cplusplus
extern "C" {
#endif

enum dp_resource { DP_RESOURCE_COMPUTE, DP_RESOURCE_COMMUNICATION, DP_RESOURCES };

/* "compute", "communication". */
DP_PUBLIC const char *dp_resource_name(enum dp_resource resource);

/* What a segment works on: the arguments of the stage's callback. */
struct dp_segment_call {
    const struct dp_stage_call *stage; /* its stream is that of the segment's resource */
    const DLTensor *in;   /* forward */
    DLTensor *out;        /* forward */
    const DLTensor *gout; /* backward; NULL for the weight part of a backward that was split */
    DLTensor *gin;        /* the same */
};

enum { DP_SEGMENTS_MAX = 64 }; /* of a list */

struct dp_segment {
    enum dp_resource resource;
    int64_t cost_ns; /* how long it takes, more or less; only the proportions matter */
    bool weight;     /* of a backward: belongs to the weight part, which a schedule may put off */
    /* Carry it out: 0 or a negative errno. In an overlapped pair a segment of communication is called
     * by the worker's thread, at the same time as one of compute of the other list; else all are called
     * by the thread that runs the step. Skip connections (dp_skip_stash and the others) belong in
     * segments of compute. */
    int (*run)(void *user, const struct dp_segment_call *call);
};

/* Where a segment of two lists stands. */
struct dp_segment_place {
    int list, index; /* list 0 or 1 */
    int64_t start_ns;
};

/* The best order of two lists: places[a_count + b_count], by start; *makespan_ns is the time from the
 * first start to the last end. No order takes less. DP_EINVAL, naming list and segment: more than
 * DP_SEGMENTS_MAX, a negative cost, no such resource. Any thread; takes no memory. */
DP_PUBLIC int dp_segments_order(const struct dp_segment *a, int a_count, const struct dp_segment *b,
                                int b_count, struct dp_segment_place *places,
                                int64_t *makespan_ns);

/* The thread that communicates. One is enough for all stages of a rank; one step at a time uses it. It
 * must outlive the pipelines of its stages. DP_ENOMEM; DP_EIO if no thread can be started. */
struct dp_segment_worker;
DP_PUBLIC int dp_segment_worker_new(struct dp_segment_worker **out);
DP_PUBLIC void dp_segment_worker_free(struct dp_segment_worker *worker);

/* Two streams of a CUDA device: compute, the pipeline's (dp_pipeline_stream), and one of its own, of
 * high priority, for communication. In an overlapped pair a segment waits by an event for the one before
 * in its list where that is in the other stream, and what the pipeline queues after the pair waits for
 * both; the host waits for nothing. Enough for all stages of a rank. It must outlive their last step,
 * and go before the device does. DP_EUNSUPPORTED: the device is the host; DP_ENOMEM, DP_EIO. */
struct dp_segment_streams;
DP_PUBLIC int dp_segment_streams_new(struct dp_device *dev, struct dp_device_stream *compute,
                                     struct dp_segment_streams **out);
/* What it was given to do is finished first. streams may be NULL. */
DP_PUBLIC void dp_segment_streams_free(struct dp_segment_streams *streams);

/* The `user` of a stage with dp_segment_stage_ops(). Must stay as it is while a step is under way. A
 * forward runs its list from first to last. A full backward does too; one for the input only runs the
 * segments that are not `weight`, and the weight part the others. */
struct dp_segmented_stage {
    struct dp_segment_worker *worker;   /* may be NULL where there are streams */
    const struct dp_segment *forward, *backward;
    int forward_count, backward_count;
    void *user;        /* handed to every segment */
    int64_t *times_ns; /* [forward_count + backward_count] out: the shortest time of each so far, 0
                        * before the first, to queue it where there are streams; NULL: not wanted */
    struct dp_segment_streams *streams; /* NULL: threads carry pairs out */
};

/* Callbacks for such stages. A failure of a segment ends the pair: segments that have begun end, no
 * other begins. Errors of dp_segments_order fail the callback, too, and so does a pair whose stage has
 * neither a worker nor streams. */
DP_PUBLIC const struct dp_stage_ops *dp_segment_stage_ops(void);

#ifdef __cplusplus
}
#endif
#endif
