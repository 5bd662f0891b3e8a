/* SPDX-License-Identifier: Apache-2.0 */
#include "shuffled_comm.h"

#include "comm/comm_ops.h"
#include <dualpipe/random.h>

#include <stdlib.h>
#include <string.h>

enum { HELD = 8, WAITING = 16 };

/* A receive of the inner communicator, and the message in it once it is done. */
struct held {
    struct dp_request request;
    bool posted, came;
    char *memory;
};

/* A receive of the caller, in its request. */
struct waiting {
    struct dp_request_head head;
    struct dp_received received;
};

struct shuffled {
    struct dp_comm base;
    struct dp_comm_ops ops;
    struct dp_comm *inner;
    size_t room;
    uint64_t seed, rolls, order;
    int channel;
    int wanted; /* receives of the caller that no receive of the inner one stands for yet */
    struct held held[HELD];
    struct {
        struct dp_request *request;
        void *buf;
    } waiting[WAITING];
    int waiting_count;
    const struct dp_request *known[WAITING]; /* every request that a receive of any was in */
    int known_count;
};

_Static_assert(sizeof(struct waiting) <= sizeof(struct dp_request), "a receive fits a request");

static struct shuffled *of(struct dp_comm *comm)
{
    return (struct shuffled *)comm;
}

static uint32_t roll(struct shuffled *s, uint32_t sides)
{
    uint32_t block[4];

    dp_random_block(dp_random_key(s->seed, 1, 0, 0), s->rolls++, block);
    return block[0] % sides;
}

/* ---- what the inner one has ------------------------------------------------------------------ */

static int post(struct shuffled *s)
{
    int err = 0;

    for (int i = 0; i < HELD && s->wanted && !err; i++) {
        struct held *h = &s->held[i];
        if (h->posted)
            continue;
        err = s->inner->ops->irecv_any(s->inner, -1, s->channel, h->memory, s->room, &h->request);
        h->posted = !err;
        s->wanted -= !err;
    }
    return err;
}

static int look(struct shuffled *s, int *came)
{
    *came = 0;
    for (int i = 0; i < HELD; i++) {
        struct held *h = &s->held[i];
        if (h->posted && !h->came) {
            int err = s->inner->ops->test(s->inner, &h->request);
            if (err && err != DP_EAGAIN)
                return err;
            h->came = !err;
        }
        *came += h->posted && h->came;
    }
    return 0;
}

/* ---- what the caller gets -------------------------------------------------------------------- */

/* The n-th message that has come, to the receive that has waited longest. */
static int hand_over(struct shuffled *s, int n)
{
    struct waiting *w = (struct waiting *)s->waiting[0].request;
    struct held *h = s->held;

    while (!h->came || n-- > 0)
        h++;
    s->inner->ops->received(s->inner, &h->request, &w->received);
    memcpy(s->waiting[0].buf, h->memory, w->received.len);
    s->order = (s->order ^ w->received.tag) * UINT64_C(0x9E3779B97F4A7C15);
    h->posted = h->came = false;
    memmove(s->waiting, s->waiting + 1, (size_t)--s->waiting_count * sizeof(s->waiting[0]));
    return post(s);
}

/* Half of the time a message that is there is kept for later, so that others may overtake it. */
static int deliver(struct shuffled *s)
{
    int came, err = look(s, &came);

    while (!err && came && s->waiting_count && roll(s, 2)) {
        err = hand_over(s, (int)roll(s, (uint32_t)came));
        if (!err)
            err = look(s, &came);
    }
    return err;
}

static bool is_known(const struct shuffled *s, const struct dp_request *req)
{
    for (int i = 0; i < s->known_count; i++)
        if (s->known[i] == req)
            return true;
    return false;
}

static bool is_waiting(const struct shuffled *s, const struct dp_request *req)
{
    for (int i = 0; i < s->waiting_count; i++)
        if (s->waiting[i].request == req)
            return true;
    return false;
}

/* ---- operations ------------------------------------------------------------------------------ */

static int shuffled_isend(struct dp_comm *comm, int peer, int channel, uint64_t tag,
                          const void *buf, size_t len, struct dp_request *req)
{
    struct dp_comm *inner = of(comm)->inner;
    return inner->ops->isend(inner, peer, channel, tag, buf, len, req);
}

static int shuffled_irecv(struct dp_comm *comm, int peer, int channel, uint64_t tag, void *buf,
                          size_t len, struct dp_request *req)
{
    struct dp_comm *inner = of(comm)->inner;
    return inner->ops->irecv(inner, peer, channel, tag, buf, len, req);
}

/* Empty messages, as of a pipeline that connects, are not shuffled. */
static int shuffled_irecv_any(struct dp_comm *comm, int peer, int channel, void *buf, size_t room,
                              struct dp_request *req)
{
    struct shuffled *s = of(comm);

    if (peer >= 0 || !room || s->waiting_count == WAITING || s->known_count == WAITING)
        return s->inner->ops->irecv_any(s->inner, peer, channel, buf, room, req);
    if (!is_known(s, req))
        s->known[s->known_count++] = req;
    *(struct waiting *)req = (struct waiting){0};
    s->channel = channel;
    s->waiting[s->waiting_count].request = req;
    s->waiting[s->waiting_count++].buf = buf;
    s->wanted++;
    return post(s);
}

static void shuffled_received(struct dp_comm *comm, const struct dp_request *req,
                              struct dp_received *out)
{
    *out = ((const struct waiting *)req)->received;
}

static int shuffled_test(struct dp_comm *comm, struct dp_request *req)
{
    struct shuffled *s = of(comm);

    if (!is_known(s, req))
        return s->inner->ops->test(s->inner, req);
    int err = deliver(s);
    return err ? err : is_waiting(s, req) ? DP_EAGAIN : 0;
}

static int shuffled_progress(struct dp_comm *comm, int waiting_for)
{
    struct dp_comm *inner = of(comm)->inner;
    return inner->ops->progress(inner, waiting_for);
}

/* A message that is kept for later must not be slept over. */
static void shuffled_sleep(struct dp_comm *comm, int64_t until_ns)
{
    struct shuffled *s = of(comm);
    int came;

    if (!look(s, &came) && !came)
        s->inner->ops->sleep(s->inner, until_ns);
}

static int64_t shuffled_busy_until(struct dp_comm *comm)
{
    struct dp_comm *inner = of(comm)->inner;
    return inner->ops->busy_until(inner);
}

static int shuffled_abort(struct dp_comm *comm, const struct dp_abort *why)
{
    struct dp_comm *inner = of(comm)->inner;
    return inner->ops->abort(inner, why);
}

static bool shuffled_aborted(struct dp_comm *comm, struct dp_abort *why)
{
    struct dp_comm *inner = of(comm)->inner;
    return inner->ops->aborted(inner, why);
}

static void shuffled_close(struct dp_comm *comm)
{
    struct shuffled *s = of(comm);

    for (int i = 0; i < HELD; i++)
        free(s->held[i].memory);
    free(s);
}

struct dp_comm *shuffled_comm_new(struct dp_comm *inner, size_t room, uint64_t seed)
{
    struct shuffled *s = calloc(1, sizeof(*s));

    if (!s)
        return NULL;
    s->inner = inner;
    s->room = room;
    s->seed = seed;
    s->base = *inner;
    s->base.world = &s->base;
    s->base.ops = &s->ops;
    s->ops = *inner->ops;
    s->ops.isend = shuffled_isend;
    s->ops.irecv = shuffled_irecv;
    s->ops.irecv_any = shuffled_irecv_any;
    s->ops.received = shuffled_received;
    s->ops.test = shuffled_test;
    s->ops.progress = shuffled_progress;
    s->ops.watch = NULL;
    s->ops.sleep = shuffled_sleep;
    s->ops.progress_start = NULL;
    s->ops.progress_stop = NULL;
    s->ops.busy_until = shuffled_busy_until;
    s->ops.abort = shuffled_abort;
    s->ops.aborted = shuffled_aborted;
    s->ops.close = shuffled_close;
    for (int i = 0; i < HELD; i++)
        if (!(s->held[i].memory = malloc(room))) {
            shuffled_close(&s->base);
            return NULL;
        }
    return &s->base;
}

uint64_t shuffled_comm_order(struct dp_comm *comm)
{
    struct shuffled *s = of(comm);
    const uint64_t order = s->order;

    s->order = 0;
    return order;
}
