/* SPDX-License-Identifier: Apache-2.0
 *
 * streams.h - the streams of a streamed model: its compute, its updates, its copies in both directions,
 * and the threads that serve them.
 */
#ifndef DPO_STREAMS_H
#define DPO_STREAMS_H

#include <dualpipe/device.h>

#include <stdatomic.h>

/* Copies of one stream are done in order. An urgent one waits for a chunk of others, not for all. */
enum { DPO_UP, DPO_UP_URGENT, DPO_DOWN, DPO_COPY_STREAMS };
enum { DPO_COPY_MAX_AFTER = 3 };

struct dpo_streams {
    struct dp_device *dev;
    int64_t timeout_ns;
    bool check; /* bring what is on the device to the host once more after every copy, and compare */
    bool host;  /* compute in the calling thread, when it is time */
    int node;   /* whose CPUs copy and update; -1: any */
    struct dp_device_stream *given; /* to compute in; NULL: one of their own */
    struct dp_device_stream *compute, *update, *copies[DPO_COPY_STREAMS];
    struct dp_device_event *done;
    char *compare[DPO_COPY_STREAMS]; /* check: a chunk of what is on the device */
    char *poison;                    /* check: a chunk of NaNs */
    _Atomic int wrong;               /* chunks that have not arrived as they were sent */
};

struct dpo_copy {
    int stream;
    void *dst;
    const void *src; /* NULL, with `check`: fill dst with bytes 0xFF, NaNs of every type */
    size_t bytes;
    /* Begin when all these, as they are recorded now, are reached; NULL: none. */
    struct dp_device_event *after[DPO_COPY_MAX_AFTER];
    struct dp_device_event *record; /* behind the copy */
};

/* After an error close them all the same. */
int dpo_streams_open(struct dpo_streams *s);
/* What is in them is finished first. */
void dpo_streams_close(struct dpo_streams *s);
/* The device's threads to the CPUs of this node; and the calling one, in calls that a driver makes
 * in threads of its own. */
void dpo_streams_bind(struct dpo_streams *s, int node);
void dpo_thread_bind(const struct dpo_streams *s);

/* Queues it in chunks. DP_EIO. */
int dpo_copy(struct dpo_streams *s, const struct dpo_copy *copy);
/* Wait for all copies. DP_ETIMEDOUT; DP_EIO where one was wrong. */
int dpo_copies_wait(struct dpo_streams *s);
/* Wait for all of a stream, no longer than the deadline. */
int dpo_wait(struct dpo_streams *s, struct dp_device_stream *stream);

#endif
