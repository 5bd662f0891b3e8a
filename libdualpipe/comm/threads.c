/* SPDX-License-Identifier: Apache-2.0
 *
 * threads.c - ranks that are threads of one process: a lane for each sender, receiver and channel,
 * and for each rank a bell that wakes it. Nothing is allocated after dp_comm_threads_new.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "comm/blame.h"
#include "comm/lane.h"
#include "comm/settings.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

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
    struct dp_lane *lanes; /* [sender][receiver][channel] */
    struct dp_lane_aside *asides;
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

static struct dp_lane *lane_at(const struct group *g, int sender, int receiver, int channel)
{
    return &g->lanes[((size_t)sender * (size_t)g->size + (size_t)receiver) * DP_CHANNELS +
                     (size_t)channel];
}

/* To or from a peer. */
static struct dp_lane *own_lane(struct dp_comm *comm, int peer, int channel, bool sending)
{
    const struct group *g = of(comm)->group;

    return sending ? lane_at(g, comm->rank, peer, channel) : lane_at(g, peer, comm->rank, channel);
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

/* ---- transfers ------------------------------------------------------------------------------ */

static int start(struct dp_comm *comm, int sender, int receiver, int channel,
                 struct dp_transfer *t)
{
    struct group *g = of(comm)->group;
    bool met;
    int err = dp_lane_start(lane_at(g, sender, receiver, channel), t, &met);

    if (!err && met)
        ring(&g->bells[t->is_send ? receiver : sender]);
    return err;
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
            for (int sending = 0; sending < 2; sending++)
                dp_lane_drop(own_lane(comm, peer, channel, sending), sending);
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
    struct dp_transfer *t = (struct dp_transfer *)req;
    int err = check_abort(comm);

    if (err)
        return err;
    *t = (struct dp_transfer){.buf = (char *)buf, .len = len, .tag = tag, .is_send = true};
    return start(comm, comm->rank, peer, channel, t);
}

static int threads_irecv(struct dp_comm *comm, int peer, int channel, uint64_t tag, void *buf,
                         size_t len, struct dp_request *req)
{
    struct dp_transfer *t = (struct dp_transfer *)req;
    int err = check_abort(comm);

    if (err)
        return err;
    *t = (struct dp_transfer){.buf = buf, .len = len, .tag = tag};
    return start(comm, peer, comm->rank, channel, t);
}

static int threads_test(struct dp_comm *comm, struct dp_request *req)
{
    struct dp_transfer *t = (struct dp_transfer *)req;
    int err = check_abort(comm);

    if (err)
        return err;
    switch (atomic_load_explicit(&t->state, memory_order_acquire)) {
    case DP_TRANSFER_WAITING:
        return DP_EAGAIN;
    case DP_TRANSFER_LEFT:
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
    for (size_t i = 0; i < (size_t)g->size * (size_t)g->size * DP_CHANNELS; i++)
        dp_lane_clear(&g->lanes[i]);
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
        dp_lane_fini(&g->lanes[i]);
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
            for (int sending = 0; sending < 2; sending++)
                dp_lane_leave(own_lane(comm, peer, channel, sending), sending);
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
                struct dp_lane *lane = lane_at(g, s, r, channel);
                dp_lane_init(lane, s, r,
                             g->asides + (size_t)(lane - g->lanes) * DP_LANE_SHORT_COUNT);
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
    g->asides = calloc(lanes * DP_LANE_SHORT_COUNT, sizeof(*g->asides));
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
        return dp_fail(DP_EINVAL,
                       "%d ranks as threads: expected 1 to 1024 and room for their comms", size);
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
