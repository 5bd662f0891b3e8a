/* SPDX-License-Identifier: Apache-2.0
 *
 * streams.h - the streams of a streamed model, its copies, and the threads that wait for them.
 */
#ifndef DPO_STREAMS_H
#define DPO_STREAMS_H

#include <dualpipe/offload.h>

#include <stdatomic.h>

/* How long a stream has been at work; written in its order. */
enum { DPO_COMPUTE, DPO_UPDATE, DPO_METERS };
struct dpo_meter {
    int64_t begun_ns;
    _Atomic int64_t busy_ns;
};

struct dpo_streams {
    struct dp_device *dev;
    int64_t timeout_ns;
    bool measure;
    bool host; /* compute in the calling thread, when it is time */
    int node;  /* whose CPUs copy and update; -1: any */
    struct dp_device_stream *compute, *update;
    struct dp_copy_engine *copies; /* up and down */
    struct dp_device_event *done;
    struct dpo_meter meters[DPO_METERS];
    int64_t wait_ns; /* of the calling thread */
};

int dpo_streams_open(struct dpo_streams *s);
/* The device's threads to the CPUs of this node; and the calling one, in calls that a driver makes
 * in threads of its own. */
void dpo_streams_bind(struct dpo_streams *s, int node);
void dpo_thread_bind(const struct dpo_streams *s);

/* copy_engine.c: in a paced engine an event that a copy records means something only when the pace
 * has let all of the copy pass. DP_ETIMEDOUT. */
bool dpo_copy_is_queued(const struct dp_copy_engine *engine, const struct dp_device_event *event);
int dpo_copy_wait_queued(struct dp_copy_engine *engine, const struct dp_device_event *event,
                         int64_t timeout_ns);

/* Calls that take the times of a struct dpo_meter; what the stream is given between the
 * two is counted, where it is to be measured. */
void dpo_stamp_begin(void *user);
void dpo_stamp_end(void *user);
int dpo_meter_begin(struct dpo_streams *s, int meter);
int dpo_meter_end(struct dpo_streams *s, int meter);
int64_t dpo_meter_busy_ns(const struct dpo_streams *s, int meter);

/* Let `stream` wait for an event that a copy records. */
int dpo_stream_wait(struct dpo_streams *s, struct dp_device_stream *stream,
                    struct dp_device_event *event);
/* Wait until the pace has let that copy pass. */
int dpo_wait_queued(struct dpo_streams *s, const struct dp_device_event *event);
/* Wait for all of a stream, no longer than the deadline. */
int dpo_wait(struct dpo_streams *s, struct dp_device_stream *stream);

#endif
