/* SPDX-License-Identifier: Apache-2.0
 *
 * host.h - the host device inside: its streams, and the workers that carry them out.
 *
 * A stream is a ring of ops, counted from 0: `given` so far by its owner, `done` so far by the
 * workers. An event is such a count of one stream, so recording it costs nothing, and a stream that
 * waits for it waits for ops that were given before its own: there is always an op that can go on.
 *
 *      ring    . . . c c W c . .        c copy, zero or call, W wait for another stream's count
 *              done ---^     ^--- given
 *
 * A stream is in one list at a time: of those with something to do (ready, by priority), of those that
 * wait for another stream (that stream's waiters), of those whose copy is done sooner than the link
 * would have been (late), or in none (idle, or its last pieces are being copied).
 */
#ifndef DP_DEVICE_HOST_H
#define DP_DEVICE_HOST_H

#include "device/device_ops.h"

#include <pthread.h>
#include <stdatomic.h>

enum op_kind { OP_COPY, OP_ZERO, OP_CALL, OP_WAIT };
enum direction { LOCAL = -1, UP, DOWN, DIRECTIONS }; /* of a copy, over the link */
enum { PRIORITIES = DP_PRIORITY_HIGH - DP_PRIORITY_LOW + 1 };

struct op {
    enum op_kind kind;
    char *dst;
    const char *src;
    size_t bytes;
    enum direction direction;
    void (*fn)(void *user);
    void *user;
    struct host_stream *other; /* OP_WAIT: until its done is at least count */
    uint64_t count;
    int64_t given_ns; /* on a device with a link */
};

enum { RING = 128 };
#define NOT_AWAITED  UINT64_MAX
#define HOST_AT_ONCE ((size_t)16 << 10) /* bytes */

struct stream_list {
    struct host_stream *first, **last;
};

struct host_stream {
    struct dp_device_stream base;
    struct host *host;
    int level; /* of the ready lists: 0 is the most urgent */
    struct host_stream *next;     /* in the one list it is in */
    struct host_stream *next_all; /* of the host's streams; they live until the host closes */
    bool in_use;
    uint64_t given;        /* written by its owner, under the lock */
    _Atomic uint64_t done; /* written under the lock; pairs with the tests of events */
    size_t handed_out;     /* bytes of the op at `done` that have been given to workers */
    int in_flight;         /* pieces of it that they have not finished */
    int64_t finish_ns;     /* when the link is done with it; 0: not on the link */
    int64_t free_ns;       /* on a device with a link: from when on its first op could begin, unless it
                            * was given later */
    struct stream_list waiters;
    uint64_t awaited; /* the least count of done that a sleeping thread waits for; NOT_AWAITED */
    struct op ring[RING];
};

struct host_event {
    struct dp_device_event base;
    struct host_stream *stream; /* NULL: never recorded */
    uint64_t count;
    int64_t reached_ns; /* of a timed one: written by a call in the stream */
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
    struct stream_list ready[PRIORITIES];
    struct dp_host_link link;
    bool linked;                  /* copies have directions */
    int64_t free_ns[DIRECTIONS];  /* when the link is free again */
    struct host_stream *late;     /* by finish_ns */
    struct host_stream *streams;
};

int host_workers_start(struct host *host, int workers);
/* Everything given to streams is carried out first. */
void host_workers_stop(struct host *host);

int host_stream_new(struct host *host, enum dp_device_priority priority, struct host_stream **out);
void host_stream_free(struct host_stream *stream);
void host_stream_give(struct host_stream *stream, const struct op *op);
/* Wait until `count` ops are done, copying meanwhile; deadline_ns on dp_now_ns()'s clock.
 * DP_ETIMEDOUT. */
int host_stream_reach(struct host_stream *stream, uint64_t count, int64_t deadline_ns);

/* Which way a copy goes. */
enum direction host_link_direction(struct host *host, const void *dst, const void *src);

static inline bool host_stream_reached(const struct host_stream *stream, uint64_t count)
{
    return atomic_load_explicit(&stream->done, memory_order_acquire) >= count;
}

/* Is a copy of that size done sooner by the calling thread than by a worker that is woken for it? */
static inline bool host_stream_at_once(const struct host_stream *stream, size_t bytes)
{
    return ((bytes <= HOST_AT_ONCE && !stream->host->linked) || !stream->host->workers) &&
           host_stream_reached(stream, stream->given);
}

#endif
