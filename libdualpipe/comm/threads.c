/* SPDX-License-Identifier: Apache-2.0
 *
 * threads.c - ranks that are threads of one process.
 *
 * Each (sender, receiver, channel) is a lane: a queue of the sends that no receive has met yet, or
 * of the receives that no send has met; never both. Who comes second copies, straight from one
 * caller's buffer to the other's:
 *
 *      rank 0   isend A     isend B                    lane 0 -> 1:   A   A B   B   (empty)
 *      rank 1                         irecv a  irecv b                     copies A to a, B to b
 *
 * A short message that comes before its receive is put aside in the lane, so that its send is done
 * at once. Nothing is allocated after dp_comm_threads_new.
 *
 * A transfer lives in the caller's request. It may go away as soon as its state says that it is
 * finished, so that storing the state is always the last thing that the other side does to it.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "comm/blame.h"
#include "comm/settings.h"

#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHORT_BYTES = 1024, SHORT_COUNT = 4 };

enum state { WAITING, DONE, LEFT /* the peer has closed its comm */ };

struct transfer {
    struct transfer *next;
    char *buf; /* of a send only read */
    size_t len, met_len;
    uint64_t tag, met_tag; /* met_*: of a receive, what the message really had */
    struct lane *lane;
    atomic_int state;
    bool is_send, put_aside;
};
_Static_assert(sizeof(struct transfer) <= sizeof(struct dp_request), "a transfer is a request");

/* A short message and its bytes, in the order of the lane's queue. */
struct aside {
    struct transfer transfer;
    char bytes[SHORT_BYTES];
};

struct lane {
    pthread_mutex_t lock; /* held for a few instructions, or the copy of a short message */
    struct transfer *head, **end;
    int sender, receiver;
    unsigned asides_put, asides_taken;
    bool closed;
    atomic_int copying; /* a transfer taken out of the queue is still being read or written */
    struct aside *asides;
};

/* What a rank sleeps on. Everybody who changes something for the rank counts up. */
struct bell {
    pthread_mutex_t lock;
    pthread_cond_t rung;
    atomic_uint rings;
    atomic_bool sleeping;
    char padding[64];
};

struct group {
    int size;
    struct lane *lanes; /* [sender][receiver][channel] */
    struct aside *asides;
    struct bell *bells;
    atomic_int *waiting_for;
    struct dp_blame blame;
    pthread_mutex_t lock; /* for what follows */
    pthread_cond_t all_came;
    unsigned resets;
    bool *came; /* to the reset under way */
    int came_count, members;
};

struct thread_comm {
    struct dp_comm base;
    struct group *group;
    unsigned rings_seen;
    bool finished; /* after an abort: no request of this rank is left */
};

static struct thread_comm *of(struct dp_comm *comm)
{
    return (struct thread_comm *)comm;
}

static struct lane *lane_at(const struct group *g, int sender, int receiver, int channel)
{
    return &g->lanes[((size_t)sender * (size_t)g->size + (size_t)receiver) * DP_CHANNELS +
                     (size_t)channel];
}

/* ---- sleeping ------------------------------------------------------------------------------ */

/* Pairs with sleep: either the sleeper sees the new count, or the ringer sees that it sleeps. */
static void ring(struct bell *bell)
{
    atomic_fetch_add(&bell->rings, 1);
    if (!atomic_load(&bell->sleeping))
        return;
    pthread_mutex_lock(&bell->lock);
    pthread_cond_signal(&bell->rung);
    pthread_mutex_unlock(&bell->lock);
}

static void ring_all(struct group *g)
{
    for (int i = 0; i < g->size; i++)
        ring(&g->bells[i]);
}

static struct timespec to_timespec(int64_t ns)
{
    return (struct timespec){.tv_sec = ns / DP_NS_PER_S, .tv_nsec = ns % DP_NS_PER_S};
}

static void threads_sleep(struct dp_comm *comm, int64_t until_ns)
{
    struct bell *bell = &of(comm)->group->bells[comm->rank];
    const struct timespec until = to_timespec(until_ns);
    int err = 0;

    pthread_mutex_lock(&bell->lock);
    atomic_store(&bell->sleeping, true);
    while (!err && atomic_load(&bell->rings) == of(comm)->rings_seen)
        err = pthread_cond_timedwait(&bell->rung, &bell->lock, &until);
    atomic_store(&bell->sleeping, false);
    pthread_mutex_unlock(&bell->lock);
}

/* ---- lanes; the lock is held ------------------------------------------------------------------- */

static void push(struct lane *lane, struct transfer *t)
{
    t->next = NULL;
    *lane->end = t;
    lane->end = &t->next;
}

static struct transfer *pop(struct lane *lane)
{
    struct transfer *t = lane->head;

    lane->head = t->next;
    if (!lane->head)
        lane->end = &lane->head;
    return t;
}

/* Let go of what one side has queued. */
static void drop(struct lane *lane, bool sends)
{
    struct transfer **at = &lane->head;

    while (*at) {
        struct transfer *t = *at;
        if (t->is_send != sends || t->put_aside) {
            at = &t->next;
            continue;
        }
        *at = t->next;
        atomic_store_explicit(&t->state, LEFT, memory_order_release);
    }
    lane->end = at;
}

static bool put_aside(struct lane *lane, const struct transfer *send)
{
    if (send->len > SHORT_BYTES || lane->asides_put - lane->asides_taken == SHORT_COUNT)
        return false;
    struct aside *a = &lane->asides[lane->asides_put++ % SHORT_COUNT];
    a->transfer = *send;
    a->transfer.buf = a->bytes;
    a->transfer.put_aside = true;
    if (send->len)
        memcpy(a->bytes, send->buf, send->len);
    push(lane, &a->transfer);
    return true;
}

/* ---- transfers ------------------------------------------------------------------------------ */

static void copy_message(const struct transfer *send, struct transfer *receive)
{
    receive->met_tag = send->tag;
    receive->met_len = send->len;
    if (send->tag == receive->tag && send->len == receive->len && send->len)
        memcpy(receive->buf, send->buf, send->len);
}

/* Take the first of the other side's transfers and copy. Its owner may be gone right after its state
 * is stored; `copying` keeps the owner from leaving before. */
static void meet(struct group *g, struct lane *lane, struct transfer *mine)
{
    struct transfer *theirs = pop(lane);
    struct transfer *send = mine->is_send ? mine : theirs;
    struct transfer *receive = mine->is_send ? theirs : mine;

    if (theirs->put_aside) {
        copy_message(send, receive);
        lane->asides_taken++;
        pthread_mutex_unlock(&lane->lock);
        atomic_store_explicit(&mine->state, DONE, memory_order_relaxed);
        return;
    }
    atomic_fetch_add_explicit(&lane->copying, 1, memory_order_relaxed);
    pthread_mutex_unlock(&lane->lock);
    copy_message(send, receive);
    atomic_store_explicit(&mine->state, DONE, memory_order_relaxed);
    atomic_store_explicit(&theirs->state, DONE, memory_order_release);
    atomic_fetch_sub_explicit(&lane->copying, 1, memory_order_release);
    ring(&g->bells[mine->is_send ? lane->receiver : lane->sender]);
}

static int start(struct dp_comm *comm, struct lane *lane, struct transfer *t)
{
    struct group *g = of(comm)->group;

    t->lane = lane;
    atomic_init(&t->state, WAITING);
    pthread_mutex_lock(&lane->lock);
    if (lane->head && lane->head->is_send != t->is_send) {
        meet(g, lane, t);
        return 0;
    }
    if (lane->closed) {
        pthread_mutex_unlock(&lane->lock);
        return dp_fail(DP_ECOMM, "rank %d has left the group",
                       t->is_send ? lane->receiver : lane->sender);
    }
    if (t->is_send && put_aside(lane, t))
        atomic_store_explicit(&t->state, DONE, memory_order_relaxed);
    else
        push(lane, t);
    pthread_mutex_unlock(&lane->lock);
    return 0;
}

/* After an abort: take this rank's requests out of all lanes, and wait until nobody copies from or
 * to its buffers. */
static void finish_requests(struct dp_comm *comm)
{
    struct group *g = of(comm)->group;

    if (of(comm)->finished)
        return;
    for (int peer = 0; peer < g->size; peer++)
        for (int channel = 0; channel < DP_CHANNELS; channel++)
            for (int sending = 0; sending < 2; sending++) {
                struct lane *lane = sending ? lane_at(g, comm->rank, peer, channel)
                                            : lane_at(g, peer, comm->rank, channel);
                pthread_mutex_lock(&lane->lock);
                drop(lane, sending);
                pthread_mutex_unlock(&lane->lock);
                while (atomic_load_explicit(&lane->copying, memory_order_acquire))
                    sched_yield();
            }
    of(comm)->finished = true;
}

static int check_abort(struct dp_comm *comm)
{
    if (!dp_blame_get(&of(comm)->group->blame, NULL))
        return 0;
    finish_requests(comm);
    return DP_EABORTED;
}

static int threads_isend(struct dp_comm *comm, int peer, int channel, uint64_t tag,
                         const void *buf, size_t len, struct dp_request *req)
{
    struct transfer *t = (struct transfer *)req;
    int err = check_abort(comm);

    if (err)
        return err;
    *t = (struct transfer){.buf = (char *)buf, .len = len, .tag = tag, .is_send = true};
    return start(comm, lane_at(of(comm)->group, comm->rank, peer, channel), t);
}

static int threads_irecv(struct dp_comm *comm, int peer, int channel, uint64_t tag, void *buf,
                         size_t len, struct dp_request *req)
{
    struct transfer *t = (struct transfer *)req;
    int err = check_abort(comm);

    if (err)
        return err;
    *t = (struct transfer){.buf = buf, .len = len, .tag = tag};
    return start(comm, lane_at(of(comm)->group, peer, comm->rank, channel), t);
}

static int threads_test(struct dp_comm *comm, struct dp_request *req)
{
    struct transfer *t = (struct transfer *)req;
    int err = check_abort(comm);

    if (err)
        return err;
    switch (atomic_load_explicit(&t->state, memory_order_acquire)) {
    case WAITING:
        return DP_EAGAIN;
    case LEFT:
        return dp_fail(DP_ECOMM, "rank %d has left the group",
                       t->is_send ? t->lane->receiver : t->lane->sender);
    }
    if (!t->is_send && (t->met_tag != t->tag || t->met_len != t->len))
        return dp_fail(DP_EMISMATCH,
                       "message of rank %d: expected tag %" PRIu64 " and %zu bytes, it has tag "
                       "%" PRIu64 " and %zu bytes",
                       t->lane->sender, t->tag, t->len, t->met_tag, t->met_len);
    return 0;
}

static int threads_progress(struct dp_comm *comm, int waiting_for)
{
    struct thread_comm *c = of(comm);

    c->rings_seen = atomic_load(&c->group->bells[comm->rank].rings);
    atomic_store_explicit(&c->group->waiting_for[comm->rank], waiting_for, memory_order_relaxed);
    return check_abort(comm);
}

/* ---- failure ------------------------------------------------------------------------------- */

static int threads_abort(struct dp_comm *comm, const struct dp_abort *why)
{
    struct group *g = of(comm)->group;
    struct dp_abort record = *why;

    if (record.error == DP_ETIMEDOUT && record.rank != comm->rank)
        dp_blame_follow(&record, g->waiting_for, g->size);
    if (dp_blame_put(&g->blame, &record))
        ring_all(g);
    return 0;
}

static bool threads_aborted(struct dp_comm *comm, struct dp_abort *why)
{
    return dp_blame_get(&of(comm)->group->blame, why);
}

/* All ranks are here and none has a request left: as if new. */
static void begin_anew(struct group *g)
{
    for (size_t i = 0; i < (size_t)g->size * (size_t)g->size * DP_CHANNELS; i++) {
        struct lane *lane = &g->lanes[i];
        pthread_mutex_lock(&lane->lock);
        lane->head = NULL;
        lane->end = &lane->head;
        lane->asides_put = lane->asides_taken = 0;
        pthread_mutex_unlock(&lane->lock);
    }
    for (int i = 0; i < g->size; i++)
        g->came[i] = false;
    g->came_count = 0;
    g->resets++;
    dp_blame_clear(&g->blame);
}

static int say_missing(const struct group *g, int64_t waited_ns)
{
    char missing[160] = "";
    size_t len = 0;

    for (int i = 0; i < g->size && len < sizeof(missing) - 1; i++)
        if (!g->came[i])
            len += (size_t)snprintf(missing + len, sizeof(missing) - len, " %d", i);
    return dp_fail(DP_ETIMEDOUT, "reset: no sign of rank%s within %.1f s", missing,
                   (double)waited_ns / DP_NS_PER_S);
}

static int threads_reset(struct dp_comm *comm)
{
    struct group *g = of(comm)->group;
    const struct timespec until = to_timespec(dp_now_ns() + comm->deadline_ns);
    int err = 0;

    finish_requests(comm);
    atomic_store_explicit(&g->waiting_for[comm->rank], -1, memory_order_relaxed);
    pthread_mutex_lock(&g->lock);
    const unsigned resets = g->resets;
    g->came[comm->rank] = true;
    if (++g->came_count == g->size) {
        begin_anew(g);
        pthread_cond_broadcast(&g->all_came);
    }
    while (g->resets == resets && g->members == g->size && !err)
        err = pthread_cond_timedwait(&g->all_came, &g->lock, &until);
    if (g->resets != resets) {
        err = 0;
        of(comm)->finished = false;
    } else {
        err = err ? say_missing(g, comm->deadline_ns)
                  : dp_fail(DP_ECOMM, "reset: %d of %d ranks have left the group",
                            g->size - g->members, g->size);
        g->came[comm->rank] = false;
        g->came_count--;
    }
    pthread_mutex_unlock(&g->lock);
    return err;
}

/* ---- creation, end -------------------------------------------------------------------------- */

static void free_group(struct group *g)
{
    if (!g)
        return;
    for (size_t i = 0; g->lanes && i < (size_t)g->size * (size_t)g->size * DP_CHANNELS; i++)
        pthread_mutex_destroy(&g->lanes[i].lock);
    for (int i = 0; g->bells && i < g->size; i++) {
        pthread_cond_destroy(&g->bells[i].rung);
        pthread_mutex_destroy(&g->bells[i].lock);
    }
    pthread_cond_destroy(&g->all_came);
    pthread_mutex_destroy(&g->lock);
    free(g->came);
    free(g->waiting_for);
    free(g->bells);
    free(g->asides);
    free(g->lanes);
    free(g);
}

/* What this rank has put aside stays for its receivers; all else of it goes, and who waits for it
 * learns that it left. */
static void leave_lanes(struct dp_comm *comm)
{
    struct group *g = of(comm)->group;

    for (int peer = 0; peer < g->size; peer++)
        for (int channel = 0; channel < DP_CHANNELS; channel++)
            for (int sending = 0; sending < 2; sending++) {
                struct lane *lane = sending ? lane_at(g, comm->rank, peer, channel)
                                            : lane_at(g, peer, comm->rank, channel);
                pthread_mutex_lock(&lane->lock);
                lane->closed = true;
                drop(lane, !sending);
                pthread_mutex_unlock(&lane->lock);
            }
}

static void threads_close(struct dp_comm *comm)
{
    struct group *g = of(comm)->group;

    of(comm)->finished = false;
    finish_requests(comm);
    leave_lanes(comm);
    ring_all(g);
    pthread_mutex_lock(&g->lock);
    bool last = --g->members == 0;
    pthread_cond_broadcast(&g->all_came);
    pthread_mutex_unlock(&g->lock);
    if (last)
        free_group(g);
    free(comm);
}

static const struct dp_comm_ops threads_ops = {
    .name = "threads",
    .isend = threads_isend,
    .irecv = threads_irecv,
    .test = threads_test,
    .progress = threads_progress,
    .sleep = threads_sleep,
    .abort = threads_abort,
    .aborted = threads_aborted,
    .reset = threads_reset,
    .close = threads_close,
};

static void init_lanes(struct group *g)
{
    for (int s = 0; s < g->size; s++)
        for (int r = 0; r < g->size; r++)
            for (int channel = 0; channel < DP_CHANNELS; channel++) {
                struct lane *lane = lane_at(g, s, r, channel);
                pthread_mutex_init(&lane->lock, NULL);
                lane->end = &lane->head;
                lane->sender = s;
                lane->receiver = r;
                lane->asides = g->asides + (size_t)(lane - g->lanes) * SHORT_COUNT;
            }
}

static struct group *new_group(int size)
{
    const size_t lanes = (size_t)size * (size_t)size * DP_CHANNELS;
    struct group *g = calloc(1, sizeof(*g));
    pthread_condattr_t monotonic;

    if (!g)
        return NULL;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->all_came, &monotonic);
    g->size = g->members = size;
    g->lanes = calloc(lanes, sizeof(*g->lanes));
    g->asides = calloc(lanes * SHORT_COUNT, sizeof(*g->asides));
    g->bells = calloc((size_t)size, sizeof(*g->bells));
    g->waiting_for = calloc((size_t)size, sizeof(*g->waiting_for));
    g->came = calloc((size_t)size, sizeof(*g->came));
    for (int i = 0; g->waiting_for && i < size; i++)
        atomic_init(&g->waiting_for[i], -1);
    for (int i = 0; g->bells && i < size; i++) {
        pthread_mutex_init(&g->bells[i].lock, NULL);
        pthread_cond_init(&g->bells[i].rung, &monotonic);
    }
    pthread_condattr_destroy(&monotonic);
    if (g->lanes && g->asides && g->bells && g->waiting_for && g->came) {
        init_lanes(g);
        return g;
    }
    free_group(g);
    return NULL;
}

int dp_comm_threads_new(int size, struct dp_comm **comms)
{
    struct dp_comm_settings settings;

    if (size < 1 || size > 1024 || !comms)
        return dp_fail(DP_EINVAL, "%d ranks as threads: expected 1 to 1024 and room for their comms",
                       size);
    int err = dp_options_read(&dp_comm_option_area, &settings);
    if (err)
        return err;

    struct group *g = new_group(size);
    struct thread_comm **made = calloc((size_t)size, sizeof(*made));
    int count = 0;
    while (g && made && count < size && (made[count] = calloc(1, sizeof(**made)))) {
        dp_comm_init(&made[count]->base, &threads_ops, count, size, size, &settings);
        made[count++]->group = g;
    }
    if (count == size) {
        for (int i = 0; i < size; i++)
            comms[i] = &made[i]->base;
    } else {
        err = dp_fail(DP_ENOMEM, "no memory for a group of %d ranks", size);
        while (count--)
            free(made[count]);
        free_group(g);
    }
    free(made);
    return err;
}
