/* SPDX-License-Identifier: Apache-2.0 */
#include "stream_comm.h"

#include "base/clock.h"
#include "base/fail.h"
#include "comm/comm_ops.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t SYNC_NS = 20 * DP_NS_PER_S, SLEEP_NS = 100 * DP_NS_PER_US;

/* ---- what all ranks share -------------------------------------------------------------------- */

/* A message at one end: work in the stream of its link. */
struct part {
    struct part *next; /* of the sends that wait at a link, or of those that wait for the commit */
    struct part *next_all;
    struct stream_comm *comm;
    struct link *link;
    const struct dp_request *req; /* NULL: free */
    struct dp_device_event *done;
    char *buf, *there; /* the caller's; where the CPU reaches it, that or memory of room bytes */
    void *pinned;
    size_t len, room;
    uint64_t tag;
    int epoch;
    bool launched;
    /* With the group's lock: */
    bool moved;
    int status;
    char text[160];
};

struct stream_group {
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t changed;
    int size;
    int dead; /* the last epoch that was ended by an abort */
    struct rank {
        long started, hold;
    } * ranks;
    struct mailbox {
        struct mailbox *next;
        int from, to, channel;
        struct part *sends; /* in order */
    } * mailboxes;
};

/* One end of a mailbox. */
struct link {
    struct link *next;
    struct mailbox *mailbox;
    bool sends;
    struct dp_device_stream *stream;
};

struct stream_comm {
    struct dp_comm base;
    struct stream_group *group;
    struct dp_comm *host;
    struct dp_device *dev;
    struct link *links;
    struct part *parts; /* all, ever used */
    struct part *batch; /* started since begin */
    struct dp_device_event *after;
    int epoch; /* counts resets */
    bool in_batch, finished;
};

static struct stream_comm *of(const struct dp_comm *comm)
{
    return (struct stream_comm *)(uintptr_t)comm;
}

struct stream_group *stream_group_new(int size)
{
    struct stream_group *g = calloc(1, sizeof(*g));

    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->changed, NULL);
    g->size = size;
    g->dead = -1;
    g->ranks = calloc((size_t)size, sizeof(*g->ranks));
    return g;
}

void stream_group_free(struct stream_group *g)
{
    for (struct mailbox *m = g->mailboxes, *next; m; m = next) {
        next = m->next;
        free(m);
    }
    pthread_cond_destroy(&g->changed);
    pthread_mutex_destroy(&g->lock);
    free(g->ranks);
    free(g);
}

void stream_group_hold(struct stream_group *g, int rank, long started)
{
    pthread_mutex_lock(&g->lock);
    g->ranks[rank].hold = started;
    pthread_mutex_unlock(&g->lock);
}

static struct mailbox *find_mailbox(struct stream_group *g, int from, int to, int channel)
{
    struct mailbox *m;

    pthread_mutex_lock(&g->lock);
    for (m = g->mailboxes; m && (m->from != from || m->to != to || m->channel != channel);)
        m = m->next;
    if (!m) {
        m = calloc(1, sizeof(*m));
        *m = (struct mailbox){.next = g->mailboxes, .from = from, .to = to, .channel = channel};
        g->mailboxes = m;
    }
    pthread_mutex_unlock(&g->lock);
    return m;
}

/* ---- in the stream of a link; the group's lock is held --------------------------------------- */

static bool is_dead(const struct part *p)
{
    return p->epoch <= p->comm->group->dead;
}

static void leave_mailbox(struct mailbox *m, const struct part *p)
{
    struct part **at = &m->sends;

    while (*at && *at != p)
        at = &(*at)->next;
    if (*at)
        *at = p->next;
}

static void send_part(struct part *p)
{
    struct stream_group *g = p->comm->group;
    struct part **at = &p->link->mailbox->sends;

    while (*at)
        at = &(*at)->next;
    p->next = NULL;
    *at = p;
    pthread_cond_broadcast(&g->changed);
    while (!p->moved && !is_dead(p))
        pthread_cond_wait(&g->changed, &g->lock);
    leave_mailbox(p->link->mailbox, p);
}

static void take_message(struct part *p, struct part *from)
{
    if (from->tag == p->tag && from->len == p->len) {
        if (p->len)
            memcpy(p->there, from->there, p->len);
    } else {
        p->status = DP_EMISMATCH;
        snprintf(p->text, sizeof(p->text),
                 "expected tag %" PRIu64 " and %zu bytes, it has tag %" PRIu64 " and %zu bytes",
                 p->tag, p->len, from->tag, from->len);
    }
    from->moved = true;
}

static void receive_part(struct part *p)
{
    struct stream_group *g = p->comm->group;
    struct mailbox *m = p->link->mailbox;
    const struct rank *rank = &g->ranks[m->to];

    while ((!m->sends || rank->started < rank->hold) && !is_dead(p))
        pthread_cond_wait(&g->changed, &g->lock);
    if (is_dead(p))
        return;
    struct part *from = m->sends;
    m->sends = from->next;
    take_message(p, from);
    pthread_cond_broadcast(&g->changed);
}

static void move_part(void *user)
{
    struct part *p = user;
    struct stream_group *g = p->comm->group;

    pthread_mutex_lock(&g->lock);
    if (p->link->sends)
        send_part(p);
    else
        receive_part(p);
    pthread_mutex_unlock(&g->lock);
}

/* ---- abort ----------------------------------------------------------------------------------- */

/* After an abort no stream touches a caller's memory any more. A link's stream may hold more than its
 * messages: a wait for the compute stream stands before a message that was never committed. */
static int finish(struct stream_comm *c)
{
    int err = 0;

    for (struct link *l = c->links; l; l = l->next)
        if (dp_device_event_record(c->after, l->stream) ||
            dp_device_event_wait(c->after, SYNC_NS))
            err = DP_ETIMEDOUT;
    for (struct part *p = c->parts; p; p = p->next_all)
        p->req = NULL;
    c->batch = NULL;
    c->finished = true;
    return err;
}

static int check_abort(struct stream_comm *c)
{
    if (!c->host->ops->aborted(c->host, NULL))
        return 0;
    if (!c->finished)
        finish(c);
    return DP_EABORTED;
}

static int stream_abort(struct dp_comm *comm, const struct dp_abort *why)
{
    struct stream_comm *c = of(comm);
    int err = c->host->ops->abort(c->host, why);

    pthread_mutex_lock(&c->group->lock);
    if (c->group->dead < c->epoch)
        c->group->dead = c->epoch;
    pthread_cond_broadcast(&c->group->changed);
    pthread_mutex_unlock(&c->group->lock);
    return err;
}

static bool stream_aborted(struct dp_comm *comm, struct dp_abort *why)
{
    return of(comm)->host->ops->aborted(of(comm)->host, why);
}

/* The host's reset waits for all, and a rank comes to it when its streams are idle. */
static int stream_reset(struct dp_comm *comm)
{
    struct stream_comm *c = of(comm);
    int err;

    pthread_mutex_lock(&c->group->lock);
    if (c->group->dead < c->epoch)
        c->group->dead = c->epoch;
    pthread_cond_broadcast(&c->group->changed);
    pthread_mutex_unlock(&c->group->lock);
    err = finish(c);
    if (!err)
        err = c->host->ops->reset(c->host);
    c->epoch += !err;
    c->finished = c->finished && err;
    return err;
}

/* ---- starting -------------------------------------------------------------------------------- */

static bool is_for_host(int channel)
{
    const int own = channel % DP_CHANNELS; /* of its communicator */
    return own == DP_CHANNEL_CONTROL || own == DP_CHANNEL_COLLECTIVE;
}

static int find_link(struct stream_comm *c, int peer, int channel, bool sends, struct link **out)
{
    const int own = c->base.rank;
    struct mailbox *m = find_mailbox(c->group, sends ? own : peer, sends ? peer : own, channel);

    for (*out = c->links; *out; *out = (*out)->next)
        if ((*out)->mailbox == m)
            return 0;
    *out = calloc(1, sizeof(**out));
    **out = (struct link){.next = c->links, .mailbox = m, .sends = sends};
    c->links = *out;
    return dp_device_stream_new(c->dev, DP_PRIORITY_NORMAL, &(*out)->stream);
}

static struct part *find_part(const struct stream_comm *c, const struct dp_request *req)
{
    struct part *p = c->parts;

    while (p && p->req != req)
        p = p->next_all;
    return p;
}

/* Room on the host for what the CPU does not reach. */
static int take_room(struct stream_comm *c, struct part *p, void *buf, size_t len)
{
    p->buf = p->there = buf;
    p->len = len;
    if (dp_device_host_accessible(c->dev))
        return 0;
    if (p->room < len) {
        dp_device_free(c->dev, DP_MEMORY_PINNED, p->pinned);
        p->pinned = NULL;
        p->room = 0;
        int err = dp_device_alloc(c->dev, DP_MEMORY_PINNED, len, &p->pinned);
        if (err)
            return err;
        p->room = len;
    }
    p->there = p->pinned;
    return 0;
}

static int take_part(struct stream_comm *c, struct part **out)
{
    struct part *p = find_part(c, NULL);
    int err = 0;

    if (!p) {
        p = calloc(1, sizeof(*p));
        p->comm = c;
        p->next_all = c->parts;
        c->parts = p;
    }
    if (!p->done)
        err = dp_device_event_new(c->dev, &p->done);
    *out = p;
    return err;
}

static int launch(struct stream_comm *c, struct part *p)
{
    struct dp_device_stream *stream = p->link->stream;
    const bool apart = p->there != p->buf && p->len;
    int err = 0;

    if (apart && p->link->sends)
        err = dp_device_copy(stream, p->there, p->buf, p->len);
    if (!err)
        err = dp_device_call(stream, move_part, p);
    if (!err && apart && !p->link->sends)
        err = dp_device_copy(stream, p->buf, p->there, p->len);
    if (!err)
        err = dp_device_event_record(p->done, stream);
    p->launched = !err;
    (void)c;
    return err;
}

static void count_start(struct stream_comm *c)
{
    pthread_mutex_lock(&c->group->lock);
    c->group->ranks[c->base.rank].started++;
    pthread_cond_broadcast(&c->group->changed);
    pthread_mutex_unlock(&c->group->lock);
}

static int start(struct stream_comm *c, struct part *p, struct link *link, uint64_t tag,
                 struct dp_request *req)
{
    int err = dp_device_stream_wait(link->stream, c->after);

    if (err)
        return err;
    p->link = link;
    p->tag = tag;
    p->epoch = c->epoch;
    p->moved = p->launched = false;
    p->status = 0;
    p->req = req;
    count_start(c);
    if (!c->in_batch)
        return launch(c, p);
    struct part **at = &c->batch;
    while (*at)
        at = &(*at)->next;
    p->next = NULL;
    *at = p;
    return 0;
}

static int start_part(struct dp_comm *comm, int peer, int channel, uint64_t tag, void *buf,
                      size_t len, bool sends, struct dp_request *req)
{
    struct stream_comm *c = of(comm);
    struct link *link = NULL;
    struct part *p = NULL;
    int err = check_abort(c);

    ((struct dp_request_head *)req)->collective = NULL;
    if (!err)
        err = find_link(c, peer, channel, sends, &link);
    if (!err)
        err = take_part(c, &p);
    if (!err)
        err = take_room(c, p, buf, len);
    return err ? err : start(c, p, link, tag, req);
}

static int stream_isend(struct dp_comm *comm, int peer, int channel, uint64_t tag, const void *buf,
                        size_t len, struct dp_request *req)
{
    struct dp_comm *host = of(comm)->host;

    return is_for_host(channel)
               ? host->ops->isend(host, peer, channel, tag, buf, len, req)
               : start_part(comm, peer, channel, tag, (void *)(uintptr_t)buf, len, true, req);
}

static int stream_irecv(struct dp_comm *comm, int peer, int channel, uint64_t tag, void *buf,
                        size_t len, struct dp_request *req)
{
    struct dp_comm *host = of(comm)->host;

    return is_for_host(channel) ? host->ops->irecv(host, peer, channel, tag, buf, len, req)
                                : start_part(comm, peer, channel, tag, buf, len, false, req);
}

static int stream_irecv_any(struct dp_comm *comm, int peer, int channel, void *buf, size_t room,
                            struct dp_request *req)
{
    struct dp_comm *host = of(comm)->host;

    if (!is_for_host(channel))
        return dp_fail(DP_EUNSUPPORTED, "a receive of any tag from a stream");
    return host->ops->irecv_any(host, peer, channel, buf, room, req);
}

/* ---- order ----------------------------------------------------------------------------------- */

static int stream_begin(struct dp_comm *comm)
{
    of(comm)->in_batch = true;
    return 0;
}

static int stream_commit(struct dp_comm *comm)
{
    struct stream_comm *c = of(comm);
    int err = 0;

    c->in_batch = false;
    for (struct part *p = c->batch, *next; p && !err; p = next) {
        next = p->next;
        err = launch(c, p);
    }
    c->batch = NULL;
    return err;
}

static int stream_after(struct dp_comm *comm, struct dp_device_stream *stream)
{
    return dp_device_event_record(of(comm)->after, stream);
}

static int stream_stream_wait(struct dp_comm *comm, struct dp_request *req,
                              struct dp_device_stream *stream)
{
    struct stream_comm *c = of(comm);
    struct part *p = find_part(c, req);
    int err = check_abort(c);

    if (err)
        return err;
    if (!p || !p->launched)
        return dp_fail(DP_EINVAL, "a stream waits for a message that %s",
                       p ? "has not been committed" : "is not in a stream");
    return dp_device_stream_wait(stream, p->done);
}

/* ---- testing --------------------------------------------------------------------------------- */

static int stream_test(struct dp_comm *comm, struct dp_request *req)
{
    struct stream_comm *c = of(comm);
    struct part *p = find_part(c, req);
    int err = check_abort(c);

    if (err)
        return err;
    if (!p)
        return c->host->ops->test(c->host, req);
    err = dp_device_event_test(p->done);
    if (err == DP_EAGAIN)
        return err;
    if (!err && p->status)
        err = dp_fail(p->status, "message of rank %d: %s", p->link->mailbox->from, p->text);
    p->req = NULL;
    return err;
}

/* Only messages of collectives are asked for, and what a receive from any rank has got: the host's.
 */
static bool stream_is_done(struct dp_comm *comm, const struct dp_request *req)
{
    return of(comm)->host->ops->is_done(of(comm)->host, req);
}

static void stream_received(struct dp_comm *comm, const struct dp_request *req,
                            struct dp_received *out)
{
    of(comm)->host->ops->received(of(comm)->host, req, out);
}

static int stream_progress(struct dp_comm *comm, int waiting_for)
{
    struct stream_comm *c = of(comm);
    int err = c->host->ops->progress(c->host, waiting_for);

    return err ? check_abort(c) : 0;
}

static void stream_sleep(struct dp_comm *comm, int64_t until_ns)
{
    struct stream_comm *c = of(comm);
    const int64_t soon_ns = dp_now_ns() + SLEEP_NS;

    c->host->ops->sleep(c->host, until_ns < soon_ns ? until_ns : soon_ns);
}

static void stream_close_channels(struct dp_comm *comm, int first, int count)
{
    of(comm)->host->ops->close_channels(of(comm)->host, first, count);
}

static int stream_busy(struct dp_comm *comm, int64_t ns)
{
    return of(comm)->host->ops->busy(of(comm)->host, ns);
}

static int64_t stream_busy_until(struct dp_comm *comm)
{
    return of(comm)->host->ops->busy_until(of(comm)->host);
}

/* ---- open and close -------------------------------------------------------------------------- */

static void stream_close(struct dp_comm *comm)
{
    struct stream_comm *c = of(comm);

    for (struct link *l = c->links, *next; l; l = next) {
        next = l->next;
        dp_device_stream_free(l->stream);
        free(l);
    }
    for (struct part *p = c->parts, *next; p; p = next) {
        next = p->next_all;
        dp_device_event_free(p->done);
        dp_device_free(c->dev, DP_MEMORY_PINNED, p->pinned);
        free(p);
    }
    dp_device_event_free(c->after);
    free(c);
}

static const struct dp_comm_ops stream_ops = {
    .name = "streams",
    .caps = {.device_memory = true, .stream_ordered = true, .tags = true},
    .isend = stream_isend,
    .irecv = stream_irecv,
    .irecv_any = stream_irecv_any,
    .received = stream_received,
    .close_channels = stream_close_channels,
    .test = stream_test,
    .is_done = stream_is_done,
    .progress = stream_progress,
    .sleep = stream_sleep,
    .begin = stream_begin,
    .commit = stream_commit,
    .after = stream_after,
    .stream_wait = stream_stream_wait,
    .busy = stream_busy,
    .busy_until = stream_busy_until,
    .abort = stream_abort,
    .aborted = stream_aborted,
    .reset = stream_reset,
    .close = stream_close,
};

int stream_comm_open(struct stream_group *group, struct dp_comm *host, struct dp_device *dev,
                     struct dp_comm **out)
{
    struct stream_comm *c = calloc(1, sizeof(*c));
    int err = dp_device_event_new(dev, &c->after);

    if (err) {
        free(c);
        return err;
    }
    c->base = (struct dp_comm){.ops = &stream_ops,
                               .rank = host->rank,
                               .size = host->size,
                               .world = &c->base,
                               .users = 1,
                               .contexts = 1,
                               .deadline_ns = host->deadline_ns,
                               .spin_ns = host->spin_ns};
    c->group = group;
    c->host = host;
    c->dev = dev;
    *out = &c->base;
    return 0;
}

long stream_comm_started(const struct dp_comm *comm)
{
    struct stream_comm *c = of(comm);

    pthread_mutex_lock(&c->group->lock);
    long started = c->group->ranks[c->base.rank].started;
    pthread_mutex_unlock(&c->group->lock);
    return started;
}
