/* SPDX-License-Identifier: Apache-2.0
 *
 * host_link.c - the host device's link: when would a real one be done with a copy? The bytes are
 * moved as fast as memory allows; the op counts as done when the link would have been. All with the
 * lock.
 *
 * A real link begins a copy that is queued when what it waits for is done, without a CPU. Here a worker
 * finds that out when it wakes up, some 100 us later on a machine that is idle: the copy counts as begun
 * when it could have been.
 *
 *      copy a  |------------|                copy b was given before the end of a, and
 *      worker  takes a      :  . takes b     is done as if it had been taken here
 *      copy b               |------------|
 */
#include "device/host.h"

#include "base/clock.h"

/* Pseudo-random, up to most_delay_ns. */
static int64_t delay_ns(struct host *host)
{
    uint64_t *state = &host->link.delay_seed;

    if (!host->link.most_delay_ns)
        return 0;
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int64_t)((*state >> 33) % (uint64_t)(host->link.most_delay_ns + 1));
}

enum direction host_link_direction(struct host *host, const void *dst, const void *src)
{
    bool to = host->linked && dp_device_owns(&host->base, dst);
    bool from = host->linked && dp_device_owns(&host->base, src);

    return to == from ? LOCAL : to ? UP : DOWN;
}

static int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

int64_t host_link_finish(const struct host_stream *s, const struct op *op)
{
    if (op->kind != OP_COPY || op->direction == LOCAL)
        return 0;
    struct host *host = s->host;
    double rate = op->direction == UP ? host->link.up_bytes_per_s : host->link.down_bytes_per_s;
    int64_t *free_ns = &host->free_ns[op->direction];
    int64_t start = later(*free_ns, later(s->free_ns, op->given_ns));

    *free_ns = start + delay_ns(host) + (rate > 0 ? (int64_t)((double)op->bytes / rate * 1e9) : 0);
    return *free_ns;
}

void host_link_hold(struct host_stream *s)
{
    struct host_stream **at = &s->host->late;

    while (*at && (*at)->finish_ns <= s->finish_ns)
        at = &(*at)->next;
    s->next = *at;
    *at = s;
    if (at != &s->host->late)
        return;
    pthread_cond_broadcast(&s->host->work); /* all may sleep longer than that */
    pthread_cond_broadcast(&s->host->progress);
}
