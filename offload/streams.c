/* SPDX-License-Identifier: Apache-2.0
 *
 * streams.c - the streams of a streamed model, the CPUs that serve them, and its copies, each queued
 * chunk by chunk:
 *
 *      up, urgent      ....a..
 *      up              b0 b1 b2 b3      a begins after the chunk of b that is at work: the device takes
 *      down            c0 c1 ...        the most urgent stream of a direction after every chunk
 */
#include "config.h" /* GNU extensions: CPU sets */
#include "device/internal.h"

#include "offload/streams.h"

#include "base/bind.h"
#include "base/fail.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CHUNKS = 32, CHUNK = 4 << 20, CHECKED_CHUNK = 64 << 10 };

/* ---- opening --------------------------------------------------------------------------------- */

static int take_chunk(struct dpo_streams *s, char **out)
{
    void *memory = NULL;
    int err = dp_device_alloc(s->dev, DP_MEMORY_PINNED, CHECKED_CHUNK, &memory);

    *out = memory;
    return err;
}

static int prepare_check(struct dpo_streams *s)
{
    int err = take_chunk(s, &s->poison);

    for (int i = 0; i < DPO_COPY_STREAMS && !err; i++)
        err = take_chunk(s, &s->compare[i]);
    if (!err)
        memset(s->poison, 0xFF, CHECKED_CHUNK);
    return err;
}

int dpo_streams_open(struct dpo_streams *s)
{
    int err = s->given ? 0 : dp_device_stream_new(s->dev, DP_PRIORITY_HIGH, &s->compute);

    if (s->given)
        s->compute = s->given;
    if (!err)
        err = dp_device_stream_new(s->dev, DP_PRIORITY_LOW, &s->update);
    for (int i = 0; i < DPO_COPY_STREAMS && !err; i++)
        err = dp_device_stream_new(s->dev, i == DPO_UP_URGENT ? DP_PRIORITY_HIGH : DP_PRIORITY_NORMAL,
                                   &s->copies[i]);
    if (!err)
        err = dp_device_event_new(s->dev, &s->done);
    if (!err)
        s->host = dp_device_dl(s->dev).device_type == kDLCPU;
    return err || !s->check ? err : prepare_check(s);
}

void dpo_streams_close(struct dpo_streams *s)
{
    if (!s->given)
        dp_device_stream_free(s->compute);
    for (int i = 0; i < DPO_COPY_STREAMS; i++)
        dp_device_stream_free(s->copies[i]);
    dp_device_stream_free(s->update);
    dp_device_event_free(s->done);
    for (int i = 0; i < DPO_COPY_STREAMS; i++)
        dp_device_free(s->dev, DP_MEMORY_PINNED, s->compare[i]);
    dp_device_free(s->dev, DP_MEMORY_PINNED, s->poison);
}

/* ---- CPUs ------------------------------------------------------------------------------------ */

void dpo_streams_bind(struct dpo_streams *s, int node)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;

    s->node = node;
    if (node < 0 || !dp_device_bind(s->dev, node))
        return;
    s->node = -1;
    if (!atomic_flag_test_and_set(&said))
        dp_log(DP_LOG_WARN, "offload: copies and updates run on any CPU: %s", dp_last_error());
}

/* A thread of the driver's is bound once for each node. What the system refuses it can do without.
 */
void dpo_thread_bind(const struct dpo_streams *s)
{
    static _Thread_local int bound = -1;
    cpu_set_t cpus, allowed;

    if (s->host || s->node < 0 || s->node == bound)
        return;
    bound = s->node;
    if (sched_getaffinity(0, sizeof(allowed), &allowed) || !dp_node_cpus("", s->node, &cpus))
        return;
    CPU_AND(&cpus, &cpus, &allowed);
    if (CPU_COUNT(&cpus))
        sched_setaffinity(0, sizeof(cpus), &cpus);
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* A chunk on the host, to be compared with what was on the device. */
struct chunk {
    struct dpo_streams *s;
    int stream;
    const char *host;
    size_t bytes;
};

static void compare_chunk(void *user)
{
    struct chunk *c = user;

    if (memcmp(c->s->compare[c->stream], c->host, c->bytes))
        atomic_fetch_add(&c->s->wrong, 1);
    free(c);
}

/* What is on the device is brought to the host once more, behind the copy. */
static int check_chunk(struct dpo_streams *s, int stream, const char *dst, const char *src, size_t bytes)
{
    struct chunk *c = malloc(sizeof(*c));

    if (!c)
        return dp_fail(DP_ENOMEM, "offload: no memory to check a copy");
    *c = (struct chunk){s, stream, stream == DPO_DOWN ? dst : src, bytes};
    int err = dp_device_copy(s->copies[stream], s->compare[stream], stream == DPO_DOWN ? src : dst,
                             bytes);
    if (!err)
        err = dp_device_call(s->copies[stream], compare_chunk, c);
    if (err)
        free(c);
    return err;
}

static size_t chunk_of(const struct dpo_streams *s, size_t bytes)
{
    const size_t least = (bytes + MOST_CHUNKS - 1) / MOST_CHUNKS;

    if (s->check)
        return CHECKED_CHUNK;
    return least < CHUNK ? CHUNK : (least + 255) / 256 * 256;
}

int dpo_copy(struct dpo_streams *s, const struct dpo_copy *copy)
{
    struct dp_device_stream *stream = s->copies[copy->stream];
    const size_t chunk = chunk_of(s, copy->bytes);
    int err = 0;

    for (int i = 0; i < DPO_COPY_MAX_AFTER && !err; i++)
        if (copy->after[i])
            err = dp_device_stream_wait(stream, copy->after[i]);
    for (size_t at = 0; at < copy->bytes && !err; at += chunk) {
        const size_t left = copy->bytes - at, bytes = left < chunk ? left : chunk;
        char *dst = (char *)copy->dst + at;
        const char *src = copy->src ? (const char *)copy->src + at : s->poison;
        err = dp_device_copy(stream, dst, src, bytes);
        if (!err && s->check && copy->src)
            err = check_chunk(s, copy->stream, dst, src, bytes);
    }
    return err || !copy->record ? err : dp_device_event_record(copy->record, stream);
}

/* ---- waiting --------------------------------------------------------------------------------- */

int dpo_wait(struct dpo_streams *s, struct dp_device_stream *stream)
{
    int err = dp_device_event_record(s->done, stream);

    return err ? err : dp_device_event_wait(s->done, s->timeout_ns);
}

int dpo_copies_wait(struct dpo_streams *s)
{
    int err = 0;

    for (int i = 0; i < DPO_COPY_STREAMS; i++) { /* all, so that nothing is in flight after a failure */
        const int waited = dpo_wait(s, s->copies[i]);
        err = err ? err : waited;
    }
    const int wrong = atomic_exchange(&s->wrong, 0);
    return wrong && !err
               ? dp_fail(DP_EIO, "offload: %d chunks of copies have not arrived as they were sent",
                         wrong)
                 : err;
}
