/* SPDX-License-Identifier: Apache-2.0
 *
 * collective.c - what all ranks do together: barrier, gathering, broadcast, agreement, clocks. Made
 * of messages on DP_CHANNEL_CONTROL.
 *
 * Gathering is Bruck's: in round k a rank knows the 2^k blocks from its own on, and fetches as many
 * again from the rank that knows the next ones; ceil(log2(size)) rounds. Blocks are numbered modulo
 * size and stay at their place, so that a round's blocks are one piece or, around the end, two.
 *
 *      size 5    rank 3 knows  3   | 3 4   | 3 4 0 1   | all
 *                asks rank     4     0       2
 */
#include "base/clock.h"
#include "base/fail.h"
#include "base/text.h"
#include <dualpipe/comm.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum kind { GATHER = 1, BROADCAST, CLOCK };

static uint64_t tag_of(enum kind kind, int round)
{
    return (uint64_t)kind << 32 | (uint32_t)round;
}

/* Where each rank's bytes are: at offsets[rank], or at rank * len. */
struct blocks {
    char *base;
    size_t len;
    const size_t *offsets;
};

struct piece {
    char *at;
    size_t len;
};

static size_t offset_of(const struct blocks *b, int rank)
{
    return b->offsets ? b->offsets[rank] : (size_t)rank * b->len;
}

/* The `count` blocks from `first` on, as they lie: two pieces, the second one mostly empty. */
static void cut_pieces(const struct blocks *b, int size, int first, int count, struct piece out[2])
{
    int end = first + count, wrapped = end > size ? end - size : 0;

    out[0].at = b->base + offset_of(b, first);
    out[0].len = offset_of(b, end - wrapped) - offset_of(b, first);
    out[1].at = b->base;
    out[1].len = offset_of(b, wrapped);
}

/* The group is of no use once a rank fell out of a collective; and after an abort no request refers
 * to a caller's memory any more, so that it is safe to return. */
static int leave(struct dp_comm *comm, int err)
{
    if (err != DP_EABORTED && err != DP_ETIMEDOUT)
        dp_comm_abort(comm, err, dp_last_error());
    return err;
}

static int send_pieces(struct dp_comm *comm, int peer, uint64_t tag, const struct piece pieces[2],
                       struct dp_request reqs[2])
{
    int err = 0;

    for (int i = 0; i < 2 && !err; i++)
        err = dp_comm_isend(comm, peer, DP_CHANNEL_CONTROL, tag, pieces[i].at, pieces[i].len,
                            &reqs[i]);
    return err;
}

static int receive_pieces(struct dp_comm *comm, int peer, uint64_t tag,
                          const struct piece pieces[2], struct dp_request reqs[2])
{
    int err = 0;

    for (int i = 0; i < 2 && !err; i++)
        err = dp_comm_irecv(comm, peer, DP_CHANNEL_CONTROL, tag, pieces[i].at, pieces[i].len,
                            &reqs[i]);
    return err;
}

static int wait_pieces(struct dp_comm *comm, int peer, struct dp_request reqs[2])
{
    int err = dp_comm_wait(comm, &reqs[0], peer);

    return err ? err : dp_comm_wait(comm, &reqs[1], peer);
}

static int gather_round(struct dp_comm *comm, const struct blocks *blocks, int known, int round)
{
    const int size = comm->size, rank = comm->rank;
    const int count = known < size - known ? known : size - known;
    const int from = (rank + known) % size, to = (rank - known + size) % size;
    struct dp_request sends[2], receives[2];
    struct piece mine[2], theirs[2];

    cut_pieces(blocks, size, rank, count, mine);
    cut_pieces(blocks, size, from, count, theirs);
    int err = receive_pieces(comm, from, tag_of(GATHER, round), theirs, receives);
    if (!err)
        err = send_pieces(comm, to, tag_of(GATHER, round), mine, sends);
    if (!err)
        err = wait_pieces(comm, from, receives);
    if (!err)
        err = wait_pieces(comm, to, sends);
    return err;
}

static int gather(struct dp_comm *comm, const struct blocks *blocks)
{
    int err = 0;

    for (int known = 1, round = 0; known < comm->size && !err; known *= 2, round++)
        err = gather_round(comm, blocks, known, round);
    return err ? leave(comm, err) : 0;
}

int dp_comm_barrier(struct dp_comm *comm)
{
    static char nothing;

    if (!comm)
        return dp_fail(DP_EINVAL, "barrier without a comm");
    return gather(comm, &(struct blocks){.base = &nothing});
}

int dp_comm_allgather(struct dp_comm *comm, const void *mine, void *all, size_t len)
{
    if (!comm || (len && (!mine || !all)))
        return dp_fail(DP_EINVAL, "allgather of %zu bytes without a %s", len,
                       comm ? "buffer" : "comm");
    static char nothing;
    char *base = all ? all : &nothing;
    if (len)
        memmove(base + (size_t)comm->rank * len, mine, len);
    return gather(comm, &(struct blocks){.base = base, .len = len});
}

int dp_comm_allgatherv(struct dp_comm *comm, const void *mine, size_t len, void **all,
                       size_t *offsets)
{
    if (!comm || !all || !offsets || (len && !mine))
        return dp_fail(DP_EINVAL, "allgatherv of %zu bytes without a %s", len,
                       comm ? "buffer" : "comm");

    /* The lengths come first, one place further on than the offsets that they become. */
    offsets[0] = 0;
    int err = dp_comm_allgather(comm, &len, offsets + 1, sizeof(len));
    if (err)
        return err;
    for (int i = 0; i < comm->size; i++)
        offsets[i + 1] += offsets[i];

    char *base = malloc(offsets[comm->size] + 1);
    if (!base)
        return leave(comm, dp_fail(DP_ENOMEM, "no memory to gather %zu bytes of %d ranks",
                                   offsets[comm->size], comm->size));
    if (len)
        memcpy(base + offsets[comm->rank], mine, len);
    err = gather(comm, &(struct blocks){.base = base, .offsets = offsets});
    if (err) {
        free(base);
        return err;
    }
    *all = base;
    return 0;
}

/* A binomial tree over the ranks as counted from the root: `place` receives from the place without
 * its lowest set bit, and hands on to those with one more bit below it. */
static int hand_down(struct dp_comm *comm, void *buf, size_t len, int root)
{
    const int size = comm->size, place = (comm->rank - root + size) % size;
    struct dp_request req;
    int bit = 1, err = 0;

    while (bit < size && !(place & bit))
        bit *= 2;
    if (place) {
        int parent = (place - bit + root) % size;
        err = dp_comm_irecv(comm, parent, DP_CHANNEL_CONTROL, tag_of(BROADCAST, root), buf, len,
                            &req);
        if (!err)
            err = dp_comm_wait(comm, &req, parent);
    }
    for (bit /= 2; bit && !err; bit /= 2) {
        if (place + bit >= size)
            continue;
        int child = (place + bit + root) % size;
        err = dp_comm_isend(comm, child, DP_CHANNEL_CONTROL, tag_of(BROADCAST, root), buf, len,
                            &req);
        if (!err)
            err = dp_comm_wait(comm, &req, child);
    }
    return err;
}

int dp_comm_broadcast(struct dp_comm *comm, void *buf, size_t len, int root)
{
    if (!comm || (len && !buf))
        return dp_fail(DP_EINVAL, "broadcast of %zu bytes without a %s", len,
                       comm ? "buffer" : "comm");
    if (root < 0 || root >= comm->size)
        return dp_fail(DP_EINVAL, "broadcast from rank %d: expected 0 to %d", root, comm->size - 1);
    int err = hand_down(comm, buf, len, root);
    return err ? leave(comm, err) : 0;
}

/* "micro-batches: rank 0 has 8, but rank 2 has 10, rank 3 has 10" */
static int say_differing(const struct dp_comm *comm, const char *what, const uint64_t *values)
{
    enum { NAMED_AT_MOST = 8 };
    struct dp_text t = {0};
    int differing = 0;

    for (int i = 1; i < comm->size; i++)
        if (values[i] != values[0] && differing++ < NAMED_AT_MOST)
            dp_text_addf(&t, "%srank %d has %" PRIu64, differing > 1 ? ", " : "", i, values[i]);
    if (differing > NAMED_AT_MOST)
        dp_text_addf(&t, " and %d more", differing - NAMED_AT_MOST);
    int err = 0;
    if (differing)
        err = dp_fail(DP_EMISMATCH, "%s: all ranks must agree; rank 0 has %" PRIu64 ", but %s",
                      what, values[0], t.data ? t.data : "others differ");
    dp_text_fini(&t);
    return err;
}

int dp_comm_agree(struct dp_comm *comm, const char *what, uint64_t value)
{
    enum { ON_STACK = 512 };
    uint64_t few[ON_STACK], *values = few;

    if (!comm || !what)
        return dp_fail(DP_EINVAL, "agreement without a %s", comm ? "name" : "comm");
    if (comm->size > ON_STACK) {
        values = malloc((size_t)comm->size * sizeof(*values));
        if (!values)
            return leave(comm, dp_fail(DP_ENOMEM, "no memory to ask %d ranks", comm->size));
    }
    int err = dp_comm_allgather(comm, &value, values, sizeof(value));
    if (!err)
        err = say_differing(comm, what, values);
    if (values != few)
        free(values);
    return err;
}

static int send_small(struct dp_comm *comm, int peer, const int64_t *value)
{
    struct dp_request req;
    int err = dp_comm_isend(comm, peer, DP_CHANNEL_CONTROL, tag_of(CLOCK, 0), value,
                            sizeof(*value), &req);

    return err ? err : dp_comm_wait(comm, &req, peer);
}

static int receive_small(struct dp_comm *comm, int peer, int64_t *value)
{
    struct dp_request req;
    int err = dp_comm_irecv(comm, peer, DP_CHANNEL_CONTROL, tag_of(CLOCK, 0), value,
                            sizeof(*value), &req);

    return err ? err : dp_comm_wait(comm, &req, peer);
}

/* Rank 0's part: answer each rank in turn. */
static int tell_time(struct dp_comm *comm, int rounds)
{
    int err = 0;

    for (int peer = 1; peer < comm->size; peer++)
        for (int i = 0; i < rounds && !err; i++) {
            int64_t now;
            err = receive_small(comm, peer, &now);
            now = dp_now_ns();
            if (!err)
                err = send_small(comm, peer, &now);
        }
    return err;
}

/* The answer was given somewhere between question and reply; halfway is wrong by half the round
 * trip at most. */
static int ask_time(struct dp_comm *comm, int rounds, int64_t *offset_ns, int64_t *error_ns)
{
    int64_t best = INT64_MAX, offset = 0;
    int err = 0;

    for (int i = 0; i < rounds && !err; i++) {
        int64_t asked = dp_now_ns(), told = 0;
        err = send_small(comm, 0, &asked);
        if (!err)
            err = receive_small(comm, 0, &told);
        int64_t trip = dp_now_ns() - asked;
        if (!err && trip < best) {
            best = trip;
            offset = told - (asked + trip / 2);
        }
    }
    if (err)
        return err;
    *offset_ns = offset;
    *error_ns = (best + 1) / 2;
    return 0;
}

int dp_comm_clock_offset(struct dp_comm *comm, int rounds, int64_t *offset_ns, int64_t *error_ns)
{
    if (!comm || !offset_ns || !error_ns || rounds < 1)
        return dp_fail(DP_EINVAL, "clock offset in %d rounds: expected a comm, two results, at least "
                       "1 round", rounds);
    int err = comm->rank ? ask_time(comm, rounds, offset_ns, error_ns) : tell_time(comm, rounds);
    if (err)
        return leave(comm, err);
    if (!comm->rank)
        *offset_ns = *error_ns = 0;
    return 0;
}
