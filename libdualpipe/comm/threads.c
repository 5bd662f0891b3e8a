/* SPDX-License-Identifier: Apache-2.0
 *
 * threads.c - ranks that are threads of one process: a fifo for each sender, receiver and channel
 * (fifo.h), and for each rank an event counter that wakes it (thread_event.h).
 */
#include "base/clock.h"
#include "base/fail.h"
#include "comm/abort_record.h"
#include "comm/comm_core.h"
#include "comm/comm_ops.h"
#include "comm/fifo.h"
#include "comm/settings.h"
#include "comm/thread_event.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

struct thread_rank {
    atomic_bool left, died; /* died: as a test wants it */
    bool came;              /* to the reset under way; under the group's lock */
    atomic_uint looks;      /* that the rank has taken in its calls */
    _Atomic int64_t busy_until, waiting_since; /* waiting_since: of group.waiting_for */
    _Atomic uint64_t doing;                    /* see dp_comm_note */
    struct dp_thread_event event;
};

struct group {
    int size;
    struct dp_fifo_table fifos;
    struct thread_rank *ranks; /* [size] */
    atomic_int *waiting_for;   /* [size] */
    atomic_int left_count;
    struct dp_abort_record abort_record;
    pthread_mutex_t lock; /* for what follows */
    pthread_cond_t all_came;
    unsigned resets;
    int came_count, members;
};

/* Receives from any rank on a channel. */
struct any_receives {
    struct any_receives *next;
    int channel, next_sender;
    struct dp_transfer *head, **end;
};

struct thread_comm {
    struct dp_comm base;
    struct group *group;
    struct any_receives *any;
    unsigned events_seen;
    int left_seen; /* of left_count */
    bool finished; /* after an abort: no request of this rank is left */
};

static struct thread_comm *of(struct dp_comm *comm)
{
    return (struct thread_comm *)comm;
}

static void for_own_fifos(struct dp_comm *comm, int first, int end,
                          void (*fn)(struct dp_fifo *fifo, bool sending))
{
    dp_fifo_table_for_rank(&of(comm)->group->fifos, comm->rank, first, end, fn);
}

/* ---- sleeping ------------------------------------------------------------------------------ */

static void wake_all(struct group *g)
{
    for (int i = 0; i < g->size; i++)
        dp_thread_event_wake(&g->ranks[i].event);
}

static void threads_sleep(struct dp_comm *comm, int64_t until_ns)
{
    dp_thread_event_sleep(&of(comm)->group->ranks[comm->rank].event, of(comm)->events_seen,
                          until_ns);
}

/* ---- transfers ------------------------------------------------------------------------------ */

static int make_fifo(struct group *g, int sender, int receiver, int channel, struct dp_fifo **out)
{
    int err = dp_fifo_table_make(&g->fifos, sender, receiver, channel, out);

    /* A rank that closes marks the fifos that there are, after it has said that it leaves. */
    if (!err && (atomic_load(&g->ranks[sender].left) || atomic_load(&g->ranks[receiver].left)))
        dp_fifo_leave(*out, atomic_load(&g->ranks[sender].left));
    return err;
}

static int start(struct dp_comm *comm, int sender, int receiver, int channel, struct dp_transfer *t)
{
    struct group *g = of(comm)->group;
    struct dp_fifo *fifo = dp_fifo_table_find(&g->fifos, sender, receiver, channel);
    int err = fifo ? 0 : make_fifo(g, sender, receiver, channel, &fifo);
    bool met;

    if (!err)
        err = dp_fifo_start(fifo, t, &met);
    /* A receive from any rank has no place in a fifo that the sender would see. */
    if (!err && (met || t->is_send))
        dp_thread_event_wake(&g->ranks[t->is_send ? receiver : sender].event);
    return err;
}

/* ---- receives from any rank ------------------------------------------------------------------ */

/* Those of a channel in the order of their calls; a rank looks through its own only. */
static struct any_receives *find_any(struct thread_comm *c, int channel)
{
    for (struct any_receives *any = c->any; any; any = any->next)
        if (any->channel == channel)
            return any;
    return NULL;
}

static struct any_receives *make_any(struct thread_comm *c, int channel)
{
    struct any_receives *any = find_any(c, channel);

    if (any || !(any = calloc(1, sizeof(*any))))
        return any;
    any->channel = channel;
    any->end = &any->head;
    any->next = c->any;
    c->any = any;
    return any;
}

/* The first receive is for the next rank in turn that has sent a message. */
static bool serve_first(struct thread_comm *c, struct any_receives *any)
{
    const struct group *g = c->group;
    struct dp_transfer *t = any->head;

    for (int i = 0; i < g->size; i++) {
        const int sender = (any->next_sender + i) % g->size;
        struct dp_fifo *fifo = dp_fifo_table_find(&g->fifos, sender, c->base.rank, any->channel);
        bool met;
        if (!fifo || dp_comm_has_lost(&c->base, sender, false) ||
            !dp_fifo_receive_sent(fifo, t, &met))
            continue;
        any->next_sender = (sender + 1) % g->size;
        any->head = t->next;
        if (!any->head)
            any->end = &any->head;
        if (met)
            dp_thread_event_wake(&c->group->ranks[sender].event);
        return true;
    }
    return false;
}

static void serve_any(struct thread_comm *c)
{
    for (struct any_receives *any = c->any; any; any = any->next)
        while (any->head && serve_first(c, any))
            ;
}

static void free_any(struct thread_comm *c)
{
    while (c->any) {
        struct any_receives *any = c->any;
        c->any = any->next;
        free(any);
    }
}

static void drop_any(struct thread_comm *c, int first, int end)
{
    for (struct any_receives *any = c->any; any; any = any->next) {
        if (any->channel < first || any->channel >= end)
            continue;
        for (struct dp_transfer *t = any->head; t; t = t->next)
            atomic_store(&t->state, DP_TRANSFER_LEFT);
        any->head = NULL;
        any->end = &any->head;
    }
}

/* ---- ends ------------------------------------------------------------------------------------ */

/* After an abort: take this rank's requests out of all fifos, and wait until no copy from or to its
 * buffers is running. */
static void finish_requests(struct dp_comm *comm)
{
    if (of(comm)->finished)
        return;
    for_own_fifos(comm, 0, DP_FIFO_TABLE_CHANNELS, dp_fifo_drop);
    drop_any(of(comm), 0, DP_FIFO_TABLE_CHANNELS);
    of(comm)->finished = true;
}

static bool threads_aborted(struct dp_comm *comm, struct dp_abort *why)
{
    return dp_abort_record_get(&of(comm)->group->abort_record, why) ||
           (comm->hooks && comm->hooks->is_excluded(comm, why));
}

static int check_abort(struct dp_comm *comm)
{
    if (!threads_aborted(comm, NULL))
        return 0;
    finish_requests(comm);
    return DP_EABORTED;
}

/* A rank leaves after an abort: the abort counts, which may have come since it was looked for. */
static int explain_left(struct dp_comm *comm, int err)
{
    return err == DP_ECOMM && check_abort(comm) ? DP_EABORTED : err;
}

/* ---- survival -------------------------------------------------------------------------------- */

/* Without memory the peer waits for the message until its deadline. */
static void threads_tell(struct dp_comm *comm, int peer, const void *message, size_t len)
{
    dp_thread_event_post(&of(comm)->group->ranks[peer].event, comm->rank, message, len);
}

/* What a rank has sent before it left counts: the mail is read after the number of those that left.
 */
static void take_mail(struct dp_comm *comm)
{
    struct thread_comm *c = of(comm);
    const int left = atomic_load(&c->group->left_count);
    struct dp_mail *all = dp_thread_event_take(&c->group->ranks[comm->rank].event);

    for (struct dp_mail *mail = all; mail; mail = mail->next)
        comm->hooks->handle(comm, mail->from, mail->bytes, mail->len);
    dp_mail_free(all);
    for (int peer = 0; peer < comm->size && left != c->left_seen; peer++)
        if (atomic_load(&c->group->ranks[peer].left))
            comm->hooks->lose(comm, peer, !atomic_load(&c->group->ranks[peer].died));
    c->left_seen = left;
}

static void end_fifo(struct dp_fifo *fifo, bool sends)
{
    dp_fifo_drop(fifo, sends);
    dp_fifo_leave(fifo, sends);
}

static void threads_bury(struct dp_comm *comm, int peer)
{
    struct group *g = of(comm)->group;

    for (int channel = 0; channel < atomic_load(&g->fifos.channels); channel++) {
        struct dp_fifo *out = dp_fifo_table_find(&g->fifos, comm->rank, peer, channel);
        struct dp_fifo *in = dp_fifo_table_find(&g->fifos, peer, comm->rank, channel);
        if (out)
            end_fifo(out, true);
        if (in)
            end_fifo(in, false);
    }
    dp_thread_event_wake(&g->ranks[peer].event);
}

static void threads_cancel(struct dp_comm *comm, struct dp_request *req)
{
    struct dp_transfer *t = (struct dp_transfer *)req;

    for (struct any_receives *any = of(comm)->any; any; any = any->next)
        for (struct dp_transfer **at = &any->head; *at; at = &(*at)->next)
            if (*at == t) {
                *at = t->next;
                if (!*at)
                    any->end = at;
                atomic_store(&t->state, DP_TRANSFER_LEFT);
                return;
            }
    struct dp_fifo *fifo = t->fifo;
    end_fifo(fifo, t->is_send);
    dp_thread_event_wake(&of(comm)->group->ranks[t->is_send ? fifo->receiver : fifo->sender].event);
}

static void threads_end_channels(struct dp_comm *comm, int first, int count)
{
    for_own_fifos(comm, first, first + count, end_fifo);
    drop_any(of(comm), first, first + count);
}

/* All threads know of each other's end, and have their mail. */
static struct dp_peers *threads_survive(struct dp_comm *comm)
{
    (void)comm;
    return NULL;
}

static void threads_note_busy(struct dp_comm *comm, int rank, int64_t ns)
{
    atomic_store(&of(comm)->group->ranks[rank].busy_until, dp_now_ns() + ns);
}

static uint64_t threads_doing(struct dp_comm *comm, int rank)
{
    return atomic_load(&of(comm)->group->ranks[rank].doing);
}

static const struct dp_survival_ops threads_survival = {
    .survive = threads_survive,
    .tell = threads_tell,
    .note_busy = threads_note_busy,
    .doing = threads_doing,
    .bury = threads_bury,
    .cancel = threads_cancel,
    .end_channels = threads_end_channels,
};

/* ---- messages -------------------------------------------------------------------------------- */

static int threads_isend(struct dp_comm *comm, int peer, int channel, uint64_t tag,
                         const void *buf, size_t len, struct dp_request *req)
{
    struct dp_transfer *t = (struct dp_transfer *)req;
    int err = check_abort(comm);

    if (err)
        return err;
    *t = (struct dp_transfer){.buf = (char *)buf, .len = len, .tag = tag, .is_send = true};
    return explain_left(comm, start(comm, comm->rank, peer, channel, t));
}

static int threads_irecv(struct dp_comm *comm, int peer, int channel, uint64_t tag, void *buf,
                         size_t len, struct dp_request *req)
{
    struct dp_transfer *t = (struct dp_transfer *)req;
    const struct any_receives *any = find_any(of(comm), channel);
    int err = check_abort(comm);

    if (err)
        return err;
    if (any && any->head)
        return dp_fail(DP_EINVAL,
                       "a receive from rank %d while one from any rank is pending on "
                       "its channel",
                       peer);
    *t = (struct dp_transfer){.buf = buf, .len = len, .tag = tag};
    return explain_left(comm, start(comm, peer, comm->rank, channel, t));
}

static int threads_irecv_any(struct dp_comm *comm, int peer, int channel, void *buf, size_t room,
                             struct dp_request *req)
{
    struct dp_transfer *t = (struct dp_transfer *)req;
    int err = check_abort(comm);

    if (err)
        return err;
    *t = (struct dp_transfer){.buf = buf, .len = room, .is_any = true};
    if (peer >= 0)
        return explain_left(comm, start(comm, peer, comm->rank, channel, t));
    struct any_receives *any = make_any(of(comm), channel);
    if (!any)
        return dp_fail(DP_ENOMEM, "no memory for receives from any rank");
    atomic_init(&t->state, DP_TRANSFER_WAITING);
    *any->end = t;
    any->end = &t->next;
    serve_any(of(comm));
    return 0;
}

static void threads_received(struct dp_comm *comm, const struct dp_request *req,
                             struct dp_received *out)
{
    const struct dp_transfer *t = (const struct dp_transfer *)req;

    (void)comm;
    *out = (struct dp_received){.peer = t->fifo->sender, .tag = t->met_tag, .len = t->met_len};
}

static int fail_transfer(struct dp_comm *comm, const struct dp_transfer *t)
{
    if (check_abort(comm))
        return DP_EABORTED;
    if (!t->fifo)
        return dp_fail_quietly(DP_ECOMM, "a receive from any rank was given up");
    const int peer = t->is_send ? t->fifo->receiver : t->fifo->sender;
    if (dp_comm_has_lost(comm, peer, false))
        return comm->hooks->fail(comm, peer);
    if (comm->hooks && !atomic_load(&of(comm)->group->ranks[peer].left))
        return dp_fail_quietly(DP_ECOMM,
                               "an earlier message with rank %d on this channel was given up, and "
                               "with it the channel",
                               peer);
    return dp_fail(DP_ECOMM, "rank %d has left the group", peer);
}

static int threads_test(struct dp_comm *comm, struct dp_request *req)
{
    struct dp_transfer *t = (struct dp_transfer *)req;

    if (comm->hooks)
        take_mail(comm);
    int err = check_abort(comm);
    if (err)
        return err;
    if (of(comm)->any)
        serve_any(of(comm));
    switch (atomic_load_explicit(&t->state, memory_order_acquire)) {
    case DP_TRANSFER_WAITING:
        return DP_EAGAIN;
    case DP_TRANSFER_LEFT:
        return fail_transfer(comm, t);
    }
    return t->is_send ? 0
                      : dp_comm_check_message(t->fifo->sender, t->is_any, t->tag, t->len,
                                              t->met_tag, t->met_len);
}

static bool threads_is_done(struct dp_comm *comm, const struct dp_request *req)
{
    const struct dp_transfer *t = (const struct dp_transfer *)req;

    (void)comm;
    return atomic_load_explicit(&t->state, memory_order_acquire) != DP_TRANSFER_WAITING;
}

/* Only the rank writes its own. */
static void note_look(struct thread_comm *c)
{
    atomic_uint *looks = &c->group->ranks[c->base.rank].looks;

    atomic_store_explicit(looks, atomic_load_explicit(looks, memory_order_relaxed) + 1,
                          memory_order_relaxed);
}

static int threads_progress(struct dp_comm *comm, int waiting_for)
{
    struct thread_comm *c = of(comm);

    note_look(c);
    c->events_seen = atomic_load(&c->group->ranks[comm->rank].event.count);
    if (comm->hooks)
        take_mail(comm);
    serve_any(c);
    if (waiting_for >= 0) /* before the peer, which is read first */
        atomic_store_explicit(&c->group->ranks[comm->rank].waiting_since, comm->wait_began_ns,
                              memory_order_relaxed);
    atomic_store_explicit(&c->group->waiting_for[comm->rank], waiting_for, memory_order_release);
    return check_abort(comm);
}

static int threads_busy(struct dp_comm *comm, int64_t ns)
{
    threads_note_busy(comm, comm->rank, ns);
    return 0;
}

static int64_t threads_busy_until(struct dp_comm *comm)
{
    const struct group *g = of(comm)->group;
    int64_t latest_ns = 0;

    for (int i = 0; i < g->size; i++) {
        const int64_t end_ns = atomic_load(&g->ranks[i].busy_until);
        latest_ns = end_ns > latest_ns ? end_ns : latest_ns;
    }
    return latest_ns;
}

/* ---- failure ------------------------------------------------------------------------------- */

static void copy_chain(const struct group *g, atomic_int *suspects)
{
    for (int i = 0; i < g->size; i++)
        atomic_init(&suspects[i], atomic_load_explicit(&g->waiting_for[i], memory_order_relaxed));
}

/* Whether the last rank of the chain has said meanwhile that it waited by then, too. */
static bool extend_chain(const struct group *g, atomic_int *suspects, int end, int64_t accused_ns)
{
    const int peer = atomic_load_explicit(&g->waiting_for[end], memory_order_acquire);

    if (peer < 0 ||
        atomic_load_explicit(&g->ranks[end].waiting_since, memory_order_relaxed) > accused_ns)
        return false;
    atomic_store(&suspects[end], peer);
    return true;
}

static void sleep_a_little(struct dp_comm *comm)
{
    struct thread_comm *c = of(comm);

    note_look(c);
    c->events_seen = atomic_load(&c->group->ranks[comm->rank].event.count);
    threads_sleep(comm, dp_now_ns() + DP_NS_PER_MS);
}

/* Ranks that wait in a circle, or one of them was stopped in its wait: all are woken, and have some
 * time to look. */
static void break_circle(struct dp_comm *comm, int first, atomic_int *suspects)
{
    struct group *g = of(comm)->group;
    const int64_t until_ns = dp_now_ns() + DP_ABORT_GRACE_MS * DP_NS_PER_MS;
    unsigned *before = calloc((size_t)g->size, sizeof(*before));
    bool *answers = calloc((size_t)g->size, sizeof(*answers));
    int left = before && answers ? g->size : 0;

    for (int i = 0; i < left; i++)
        before[i] = atomic_load(&g->ranks[i].looks);
    wake_all(g);
    while (left && !dp_abort_record_get(&g->abort_record, NULL) && dp_now_ns() < until_ns) {
        sleep_a_little(comm);
        left = 0;
        for (int i = 0; i < g->size; i++) {
            answers[i] |= atomic_load(&g->ranks[i].looks) != before[i];
            left += !answers[i];
        }
    }
    if (before && answers)
        dp_abort_record_break(first, suspects, g->size, answers);
    free(before);
    free(answers);
}

/* A rank that has begun to wait a moment ago has not said so yet, as it does not sleep yet: it is
 * given the time to. Without memory, the chain as it is now counts. */
static void find_culprit(struct dp_comm *comm, struct dp_abort *why)
{
    struct group *g = of(comm)->group;
    const int64_t accused_ns = dp_now_ns();
    const int64_t until_ns = accused_ns + DP_ABORT_GRACE_MS * DP_NS_PER_MS;
    atomic_int *suspects = calloc((size_t)g->size, sizeof(*suspects));
    int end;

    if (!suspects) {
        dp_abort_record_follow(why, g->waiting_for, g->size);
        return;
    }
    copy_chain(g, suspects);
    while ((end = dp_abort_record_end(why->rank, suspects, g->size)) >= 0 &&
           !atomic_load(&g->ranks[end].left) && !dp_abort_record_get(&g->abort_record, NULL) &&
           dp_now_ns() < until_ns) {
        if (extend_chain(g, suspects, end, accused_ns))
            continue;
        sleep_a_little(comm);
    }
    if (end < 0 && why->rank >= 0)
        break_circle(comm, why->rank, suspects);
    dp_abort_record_follow(why, suspects, g->size);
    free(suspects);
}

static int threads_abort(struct dp_comm *comm, const struct dp_abort *why)
{
    struct group *g = of(comm)->group;
    struct dp_abort record = *why;

    if (record.error == DP_ETIMEDOUT && record.rank != comm->rank)
        find_culprit(comm, &record);
    if (!record.doing && record.rank >= 0)
        record.doing = atomic_load(&g->ranks[record.rank].doing);
    if (dp_abort_record_put(&g->abort_record, &record))
        wake_all(g);
    return 0;
}

/* All ranks are here and none has a request left: as if new. */
static void begin_anew(struct group *g)
{
    dp_fifo_table_clear(&g->fifos);
    for (int i = 0; i < g->size; i++)
        g->ranks[i].came = false;
    g->came_count = 0;
    g->resets++;
    dp_abort_record_clear(&g->abort_record);
}

static int report_missing(const struct group *g, int64_t waited_ns)
{
    char missing[160] = "";
    size_t len = 0;

    for (int i = 0; i < g->size && len < sizeof(missing) - 1; i++)
        if (!g->ranks[i].came)
            len += (size_t)snprintf(missing + len, sizeof(missing) - len, " %d", i);
    return dp_fail(DP_ETIMEDOUT, "reset: no sign of rank%s within %.1f s", missing,
                   (double)waited_ns / DP_NS_PER_S);
}

/* With the lock, until all have come. A poll function of the caller is called without it. */
static int wait_for_reset(struct dp_comm *comm, unsigned resets)
{
    struct group *g = of(comm)->group;
    const int64_t end_ns = dp_now_ns() + comm->deadline_ns;
    int err = 0;

    while (g->resets == resets && g->members == g->size && !err) {
        const int64_t now_ns = dp_now_ns(), soon_ns = now_ns + DP_NS_PER_MS;
        const struct timespec until =
            dp_thread_timespec(comm->poll && soon_ns < end_ns ? soon_ns : end_ns);
        if (now_ns >= end_ns)
            return report_missing(g, comm->deadline_ns);
        pthread_cond_timedwait(&g->all_came, &g->lock, &until);
        if (!comm->poll)
            continue;
        pthread_mutex_unlock(&g->lock);
        err = dp_comm_poll(comm);
        pthread_mutex_lock(&g->lock);
    }
    if (err || g->resets != resets)
        return g->resets != resets ? 0 : err;
    return dp_fail(DP_ECOMM, "reset: %d of %d ranks have left the group", g->size - g->members,
                   g->size);
}

static int threads_reset(struct dp_comm *comm)
{
    struct group *g = of(comm)->group;

    finish_requests(comm);
    atomic_store_explicit(&g->waiting_for[comm->rank], -1, memory_order_relaxed);
    pthread_mutex_lock(&g->lock);
    const unsigned resets = g->resets;
    g->ranks[comm->rank].came = true;
    if (++g->came_count == g->size) {
        begin_anew(g);
        pthread_cond_broadcast(&g->all_came);
    }
    const int err = wait_for_reset(comm, resets);
    if (!err) {
        of(comm)->finished = false;
    } else {
        g->ranks[comm->rank].came = false;
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
    dp_fifo_table_fini(&g->fifos);
    for (int i = 0; g->ranks && i < g->size; i++)
        dp_thread_event_fini(&g->ranks[i].event);
    pthread_cond_destroy(&g->all_came);
    pthread_mutex_destroy(&g->lock);
    free(g->waiting_for);
    free(g->ranks);
    free(g);
}

static void threads_close_channels(struct dp_comm *comm, int first, int count)
{
    for_own_fifos(comm, first, first + count, dp_fifo_drop);
    drop_any(of(comm), first, first + count);
}

/* What this rank has put aside stays for its receivers; everything else of it is dropped, and a
 * rank that waits for it gets DP_ECOMM. */
static void leave(struct dp_comm *comm)
{
    struct group *g = of(comm)->group;

    of(comm)->finished = false;
    finish_requests(comm);
    atomic_store(&g->ranks[comm->rank].left, true);
    atomic_fetch_add(&g->left_count, 1);
    for_own_fifos(comm, 0, DP_FIFO_TABLE_CHANNELS, dp_fifo_leave);
    wake_all(g);
}

void dp_comm_threads_die(struct dp_comm *comm)
{
    atomic_store(&of(comm)->group->ranks[comm->rank].died, true);
    leave(comm);
}

static void threads_close(struct dp_comm *comm)
{
    struct group *g = of(comm)->group;

    leave(comm);
    free_any(of(comm));
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
    .caps = {.tags = true},
    .isend = threads_isend,
    .irecv = threads_irecv,
    .irecv_any = threads_irecv_any,
    .received = threads_received,
    .close_channels = threads_close_channels,
    .test = threads_test,
    .is_done = threads_is_done,
    .progress = threads_progress,
    .sleep = threads_sleep,
    .busy = threads_busy,
    .busy_until = threads_busy_until,
    .abort = threads_abort,
    .aborted = threads_aborted,
    .reset = threads_reset,
    .survival = &threads_survival,
    .close = threads_close,
};

static struct group *new_group(int size)
{
    struct group *g = calloc(1, sizeof(*g));
    pthread_condattr_t monotonic;

    if (!g)
        return NULL;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->all_came, &monotonic);
    g->size = g->members = size;
    dp_fifo_table_init(&g->fifos, size);
    g->ranks = calloc((size_t)size, sizeof(*g->ranks));
    g->waiting_for = calloc((size_t)size, sizeof(*g->waiting_for));
    for (int i = 0; g->waiting_for && i < size; i++)
        atomic_init(&g->waiting_for[i], -1);
    for (int i = 0; g->ranks && i < size; i++)
        dp_thread_event_init(&g->ranks[i].event, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (g->fifos.tables && g->ranks && g->waiting_for)
        return g;
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
        made[count]->base.doing = &g->ranks[count].doing;
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
