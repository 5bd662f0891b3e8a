/* SPDX-License-Identifier: Apache-2.0 */
#include "device/host.h"

#include "base/clock.h"
#include "base/copy.h"
#include "base/fail.h"
#include "base/thread.h"

#include <stdlib.h>
#include <string.h>

/* From the first size on a copy is cut in pieces, of a size between the two others. */
static const size_t cut_from = (size_t)1 << 20;
static const size_t least_piece = (size_t)512 << 10, most_piece = (size_t)4 << 20;

struct piece {
    struct host_stream *stream;
    enum op_kind kind;
    char *dst;
    const char *src;
    size_t bytes, whole;
    void (*fn)(void *user);
    void *user;
};

static void carry_out(const struct piece *piece)
{
    if (piece->kind == OP_CALL)
        piece->fn(piece->user);
    else if (piece->kind == OP_ZERO)
        memset(piece->dst, 0, piece->bytes);
    else
        dp_copy_piece(piece->dst, piece->src, piece->bytes, piece->whole);
}

/* ---- the link -------------------------------------------------------------------------------- */

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

/* Give the link the first op of s: when it will be done; 0: it has nothing to do with it. */
static int64_t give_to_link(const struct host_stream *s, const struct op *op)
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

/* The first op of s has been carried out, but the link is not done with it. */
static void hold(struct host_stream *s)
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

/* ---- lists of streams; from here to the workers the host's lock is held ---------------------- */

static void append(struct stream_list *list, struct host_stream *s)
{
    s->next = NULL;
    if (list->first)
        *list->last = s;
    else
        list->first = s;
    list->last = &s->next;
}

static struct host_stream *take_first(struct stream_list *list)
{
    struct host_stream *s = list->first;

    if (s)
        list->first = s->next;
    return s;
}

static void append_all(struct stream_list *list, struct stream_list *from)
{
    struct host_stream *s;

    while ((s = take_first(from)))
        append(list, s);
}

/* ---- streams --------------------------------------------------------------------------------- */

static struct op *first_op(struct host_stream *s)
{
    uint64_t done = atomic_load_explicit(&s->done, memory_order_relaxed);

    return done < s->given ? &s->ring[done % RING] : NULL;
}

static void count_done(struct host_stream *s)
{
    uint64_t before = atomic_fetch_add_explicit(&s->done, 1, memory_order_release);

    if (before + 1 >= s->awaited) {
        s->awaited = NOT_AWAITED;
        pthread_cond_broadcast(&s->host->progress);
    }
}

static void make_ready(struct host_stream *s)
{
    append(&s->host->ready[s->level], s);
    if (s->host->idle)
        pthread_cond_signal(&s->host->work);
}

/* What a stream waits for may have been done before the last op of the other one was: later is safe. */
static void wait_until_free(struct host_stream *s, const struct host_stream *other)
{
    if (other->free_ns > s->free_ns)
        s->free_ns = other->free_ns;
}

/* Pass the waits at the head of s that are over. Whether there were any. */
static bool pass_waits(struct host_stream *s)
{
    bool passed = false;
    struct op *op;

    while ((op = first_op(s)) && op->kind == OP_WAIT && host_stream_reached(op->other, op->count)) {
        wait_until_free(s, op->other);
        count_done(s);
        passed = true;
    }
    return passed;
}

/* s, which is in no list, has a new first op: find its list, and that of every stream that was
 * waiting for it. */
static void settle(struct host_stream *s)
{
    struct stream_list todo = {0};

    append(&todo, s);
    for (struct host_stream *t; (t = take_first(&todo));) {
        if (pass_waits(t) || t == s)
            append_all(&todo, &t->waiters);
        struct op *op = first_op(t);
        if (op)
            op->kind == OP_WAIT ? append(&op->other->waiters, t) : make_ready(t);
    }
}

static size_t piece_size(const struct host *host, size_t bytes)
{
    size_t hands = (size_t)host->workers + 1; /* the waiting thread copies, too */
    size_t size = bytes / (4 * hands);

    if (bytes < cut_from)
        return bytes;
    size = size < least_piece ? least_piece : size > most_piece ? most_piece : size;
    return (size + 4095) & ~(size_t)4095;
}

/* The list of the most urgent stream that has something to do; NULL: none has. */
static struct stream_list *most_urgent(struct host *host)
{
    for (int level = 0; level < PRIORITIES; level++)
        if (host->ready[level].first)
            return &host->ready[level];
    return NULL;
}

/* The same for a thread that waits: it has no time for a call, which may take for ever. */
static struct stream_list *most_urgent_copy(struct host *host)
{
    for (int level = 0; level < PRIORITIES; level++)
        if (host->ready[level].first && first_op(host->ready[level].first)->kind != OP_CALL)
            return &host->ready[level];
    return NULL;
}

/* The next piece of the stream that is first in turn; what is left of it goes to the end. */
static struct piece take_piece(struct host *host, struct stream_list *ready)
{
    struct host_stream *s = take_first(ready);
    struct op *op = first_op(s);
    size_t at = s->handed_out, left = op->bytes - at, size = piece_size(host, op->bytes);

    if (!at)
        s->finish_ns = give_to_link(s, op);
    size = size < left ? size : left;
    s->handed_out += size;
    s->in_flight++;
    if (size < left)
        append(ready, s);
    if (host->idle && most_urgent(host))
        pthread_cond_signal(&host->work);
    return (struct piece){.stream = s,
                          .kind = op->kind,
                          .dst = op->dst + at,
                          .src = op->src ? op->src + at : NULL,
                          .bytes = size,
                          .whole = op->bytes,
                          .fn = op->fn,
                          .user = op->user};
}

static void finish_op(struct host_stream *s)
{
    s->handed_out = 0;
    if (s->host->linked)
        s->free_ns = s->finish_ns ? s->finish_ns : dp_now_ns();
    count_done(s);
    settle(s);
}

static void finish_piece(const struct piece *piece)
{
    struct host_stream *s = piece->stream;

    if (--s->in_flight || s->handed_out < piece->whole)
        return;
    if (s->finish_ns)
        hold(s);
    else
        finish_op(s);
}

static void work_once(struct host *host, struct stream_list *ready)
{
    struct piece piece = take_piece(host, ready);

    pthread_mutex_unlock(&host->lock);
    carry_out(&piece);
    pthread_mutex_lock(&host->lock);
    finish_piece(&piece);
}

/* Finish what the link is done with by now. */
static void finish_late(struct host *host)
{
    while (host->late && host->late->finish_ns <= dp_now_ns()) {
        struct host_stream *s = host->late;
        host->late = s->next;
        finish_op(s);
    }
}

/* Sleep until there may be something to do, deadline_ns at the latest. With the lock. */
static void sleep_until(struct host *host, pthread_cond_t *cond, int64_t deadline_ns)
{
    if (host->late && host->late->finish_ns < deadline_ns)
        deadline_ns = host->late->finish_ns;
    struct timespec t = {deadline_ns / DP_NS_PER_S, deadline_ns % DP_NS_PER_S};

    pthread_cond_timedwait(cond, &host->lock, &t);
}

/* ---- workers --------------------------------------------------------------------------------- */

static void *work(void *arg)
{
    struct host *host = arg;

    pthread_mutex_lock(&host->lock);
    for (;;) {
        finish_late(host);
        struct stream_list *ready = most_urgent(host);
        if (ready) {
            work_once(host, ready);
            continue;
        }
        if (host->closing && !host->late)
            break;
        host->idle++;
        sleep_until(host, &host->work, INT64_MAX);
        host->idle--;
    }
    pthread_mutex_unlock(&host->lock);
    return NULL;
}

int host_workers_start(struct host *host, int workers)
{
    int err = 0;

    while (!err && host->workers < workers) {
        err = dp_thread_start("dp-copy", work, host, &host->threads[host->workers]);
        host->workers += !err;
    }
    if (err)
        return dp_fail(DP_ENOMEM, "host: only %d of %d copy workers could be started (%s)",
                       host->workers, workers, strerror(err));
    return 0;
}

void host_workers_stop(struct host *host)
{
    for (struct host_stream *s = host->streams; s; s = s->next_all)
        host_stream_reach(s, s->given, INT64_MAX);
    pthread_mutex_lock(&host->lock);
    host->closing = true;
    pthread_cond_broadcast(&host->work);
    pthread_mutex_unlock(&host->lock);
    while (host->workers > 0)
        pthread_join(host->threads[--host->workers], NULL);
}

/* ---- for host.c ------------------------------------------------------------------------------ */

/* One that was freed, or a new one: events may refer to either for as long as the host is open. */
int host_stream_new(struct host *host, enum dp_device_priority priority, struct host_stream **out)
{
    struct host_stream *s;

    pthread_mutex_lock(&host->lock);
    for (s = host->streams; s && s->in_use; s = s->next_all)
        ;
    if (!s && (s = calloc(1, sizeof(*s)))) {
        s->base.dev = &host->base;
        s->host = host;
        s->awaited = NOT_AWAITED;
        s->next_all = host->streams;
        host->streams = s;
    }
    if (s) {
        s->in_use = true;
        s->level = DP_PRIORITY_HIGH - (int)priority;
    }
    pthread_mutex_unlock(&host->lock);
    if (!s)
        return dp_fail(DP_ENOMEM, "host: no memory for a stream");
    *out = s;
    return 0;
}

void host_stream_free(struct host_stream *s)
{
    if (!s)
        return;
    host_stream_reach(s, s->given, INT64_MAX);
    pthread_mutex_lock(&s->host->lock);
    s->in_use = false;
    pthread_mutex_unlock(&s->host->lock);
}

int host_stream_reach(struct host_stream *s, uint64_t count, int64_t deadline_ns)
{
    struct host *host = s->host;
    int err = 0;

    if (host_stream_reached(s, count))
        return 0;
    pthread_mutex_lock(&host->lock);
    while (!host_stream_reached(s, count) && !err) {
        struct stream_list *ready = most_urgent_copy(host);
        if (dp_now_ns() >= deadline_ns) {
            err = DP_ETIMEDOUT;
        } else if (ready) {
            work_once(host, ready);
        } else {
            s->awaited = count < s->awaited ? count : s->awaited;
            sleep_until(host, &host->progress, deadline_ns);
        }
        finish_late(host);
    }
    pthread_mutex_unlock(&host->lock);
    return err;
}

void host_stream_give(struct host_stream *s, const struct op *op)
{
    struct host *host = s->host;

    if (s->given >= RING)
        host_stream_reach(s, s->given - RING + 1, INT64_MAX); /* the ring is full */
    pthread_mutex_lock(&host->lock);
    bool idle = !first_op(s);
    s->ring[s->given % RING] = *op;
    if (host->linked)
        s->ring[s->given % RING].given_ns = dp_now_ns();
    s->given++;
    if (idle)
        settle(s);
    pthread_mutex_unlock(&host->lock);
}
