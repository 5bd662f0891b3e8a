/* SPDX-License-Identifier: Apache-2.0
 *
 * host.h - the host device inside: its streams, and the workers that carry them out.
 *
 * A stream is a ring of ops, counted from 0: `given` so far by its owner, `done` so far by the
 * workers. An event is such a count of one stream, so recording it costs nothing, and a stream that
 * waits for it waits for ops that were given before its own: there is always an op that can go on.
 *
 *      ring    . . . c c W c . .        c copy or zero, W wait for another stream's count
 *              done ---^     ^--- given
 *
 * A stream is in one list at a time: of those with something to copy (ready), of those that wait
 * for another stream (that stream's waiters), or in none (idle, or its last pieces are being
 * copied).
 */
#ifndef DP_DEVICE_HOST_H
#define DP_DEVICE_HOST_H

#include "device/device.h"

#include <pthread.h>
#include <stdatomic.h>

enum op_kind { OP_COPY, OP_ZERO, OP_WAIT };

struct op {
    enum op_kind kind;
    char *dst;
    const char *src;
    size_t bytes;
    struct dp_device_stream *other; /* OP_WAIT: until its done is at least count */
    uint64_t count;
};

enum { RING = 128 };
#define NOT_AWAITED  UINT64_MAX
#define HOST_AT_ONCE ((size_t)16 << 10) /* bytes */

struct stream_list {
    struct dp_device_stream *first, **last;
};

struct dp_device_stream {
    struct host *host;
    struct dp_device_stream *next;     /* in the one list it is in */
    struct dp_device_stream *next_all; /* of the host's streams; they live until the host closes */
    bool in_use;
    uint64_t given;        /* written by its owner, under the lock */
    _Atomic uint64_t done; /* written under the lock; pairs with whoever asks about an event */
    size_t handed_out;     /* bytes of the op at `done` that have been given to workers */
    int in_flight;         /* pieces of it that they have not finished */
    struct stream_list waiters;
    uint64_t awaited; /* the least count of done that a sleeping thread waits for; NOT_AWAITED */
    struct op ring[RING];
};

struct dp_device_event {
    struct dp_device_stream *stream; /* NULL: never recorded */
    uint64_t count;
};

struct host {
    struct dp_device base;
    int workers;
    pthread_t threads[DP_HOST_MAX_WORKERS];
    pthread_mutex_t lock; /* of all below and of the streams */
    pthread_cond_t work;  /* there is something ready, or it is time to go */
    pthread_cond_t progress; /* some stream is as far as it is awaited */
    int idle; /* workers that wait for work */
    bool closing;
    struct stream_list ready;
    struct dp_device_stream *streams;
};

int host_workers_start(struct host *host, int workers);
/* Everything given to streams is carried out first. */
void host_workers_stop(struct host *host);

int host_stream_new(struct dp_device *dev, struct dp_device_stream **out);
void host_stream_free(struct dp_device_stream *stream);
void host_stream_give(struct dp_device_stream *stream, const struct op *op);
/* Wait until `count` ops are done, copying meanwhile; deadline_ns on dp_now_ns()'s clock.
 * DP_ETIMEDOUT. */
int host_stream_reach(struct dp_device_stream *stream, uint64_t count, int64_t deadline_ns);

static inline bool host_stream_reached(const struct dp_device_stream *stream, uint64_t count)
{
    return atomic_load_explicit(&stream->done, memory_order_acquire) >= count;
}

/* Is a copy of that size done sooner by the calling thread than by a worker who is woken for it? */
static inline bool host_stream_at_once(const struct dp_device_stream *stream, size_t bytes)
{
    return (bytes <= HOST_AT_ONCE || !stream->host->workers) &&
           host_stream_reached(stream, stream->given);
}

#endif
