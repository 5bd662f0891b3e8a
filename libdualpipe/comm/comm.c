/* SPDX-License-Identifier: Apache-2.0
 *
 * comm.c - what all communicators have in common: arguments are checked here, and here is the one
 * loop that waits.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "base/number.h"
#include "comm/relax.h"
#include <dualpipe/comm.h>

#include <stdio.h>

static const char *const channel_names[DP_CHANNELS] = {"activation", "gradient", "reduce",
                                                       "control"};

/* DP_EABORTED means: say who it was. Not logged: who failed has done so. */
static int explain(struct dp_comm *comm, int err)
{
    struct dp_abort why;

    if (err != DP_EABORTED || !comm->ops->aborted(comm, &why))
        return err;
    return dp_fail_quietly(DP_EABORTED, "the run was ended by rank %d (%s): %s", why.rank,
                           dp_strerror(why.error), why.text);
}

/* Whoever worked on the transfers while the caller computed, now the caller does. */
static inline void come_back(struct dp_comm *comm)
{
    if (!comm->is_away)
        return;
    comm->is_away = false;
    comm->ops->come_back(comm);
}

static int check_transfer(const struct dp_comm *comm, int peer, int channel, const void *buf,
                          size_t len, const struct dp_request *req)
{
    if (!comm || !req)
        return dp_fail(DP_EINVAL, "a transfer without a %s", comm ? "request" : "comm");
    if (peer < 0 || peer >= comm->size || peer == comm->rank)
        return dp_fail(DP_EINVAL, "peer %d: expected a rank from 0 to %d other than the own, %d",
                       peer, comm->size - 1, comm->rank);
    if (channel < 0 || channel >= DP_CHANNELS)
        return dp_fail(DP_EINVAL, "channel %d: expected 0 to %d", channel, DP_CHANNELS - 1);
    if (!buf && len)
        return dp_fail(DP_EINVAL, "no buffer for a message of %zu bytes (peer %d, %s)", len, peer,
                       channel_names[channel]);
    return 0;
}

int dp_comm_isend(struct dp_comm *comm, int peer, int channel, uint64_t tag, const void *buf,
                  size_t len, struct dp_request *req)
{
    int err = check_transfer(comm, peer, channel, buf, len, req);

    if (err)
        return err;
    come_back(comm);
    return explain(comm, comm->ops->isend(comm, peer, channel, tag, buf, len, req));
}

int dp_comm_irecv(struct dp_comm *comm, int peer, int channel, uint64_t tag, void *buf, size_t len,
                  struct dp_request *req)
{
    int err = check_transfer(comm, peer, channel, buf, len, req);

    if (err)
        return err;
    come_back(comm);
    return explain(comm, comm->ops->irecv(comm, peer, channel, tag, buf, len, req));
}

int dp_comm_test(struct dp_comm *comm, struct dp_request *req)
{
    if (!comm || !req)
        return dp_fail(DP_EINVAL, "a test without a %s", comm ? "request" : "comm");
    come_back(comm);
    return explain(comm, comm->ops->test(comm, req));
}

static int give_up(struct dp_comm *comm, int peer, int64_t waited_ns)
{
    struct dp_abort why = {.rank = peer, .error = DP_ETIMEDOUT};

    dp_snprintf(why.text, sizeof(why.text), "rank %d waited %.1f s in vain for rank %d", comm->rank,
                (double)waited_ns / DP_NS_PER_S, peer);
    comm->ops->abort(comm, &why);
    comm->ops->aborted(comm, &why);
    return dp_fail(DP_ETIMEDOUT, "%s (DUALPIPE_COMM_TIMEOUT_MS says how long to wait)", why.text);
}

/* The quickest look; false: there is none. A rank that is not to spin would be in the way of the one
 * that it waits for. */
static bool watch(struct dp_comm *comm, const struct dp_request *req)
{
    if (!comm->ops->watch || comm->spin_ns <= 0)
        return false;
    comm->ops->watch(comm, req);
    return true;
}

/* The order matters: progress first, test behind it, then sleep, which wakes up for all that came
 * after the progress. Whom this rank waits for is told only once it has come to sleeping: before
 * that it is nobody's business, and costs. */
static int wait_long(struct dp_comm *comm, struct dp_request *req, int peer)
{
    const int64_t start = dp_now_ns();
    bool slept = false;
    int err;

    for (;;) {
        err = comm->ops->progress(comm, slept ? peer : -1);
        if (!err)
            err = comm->ops->test(comm, req);
        if (err != DP_EAGAIN)
            break;
        int64_t waited_ns = dp_now_ns() - start;
        if (waited_ns >= comm->deadline_ns) {
            err = give_up(comm, peer, waited_ns);
            break;
        }
        if (waited_ns < comm->spin_ns) {
            if (!watch(comm, req))
                dp_relax();
            continue;
        }
        if (slept)
            comm->ops->sleep(comm, start + comm->deadline_ns);
        slept = true;
    }
    if (slept) {
        int aborted = comm->ops->progress(comm, -1);
        return err ? err : aborted;
    }
    return err;
}

int dp_comm_wait(struct dp_comm *comm, struct dp_request *req, int peer)
{
    if (!comm || !req)
        return dp_fail(DP_EINVAL, "a wait without a %s", comm ? "request" : "comm");
    if (peer < 0 || peer >= comm->size || peer == comm->rank)
        return dp_fail(DP_EINVAL, "wait for peer %d: expected a rank from 0 to %d other than %d",
                       peer, comm->size - 1, comm->rank);
    come_back(comm);
    watch(comm, req);
    int err = comm->ops->test(comm, req);
    return explain(comm, err == DP_EAGAIN ? wait_long(comm, req, peer) : err);
}

int dp_comm_progress(struct dp_comm *comm)
{
    if (!comm)
        return dp_fail(DP_EINVAL, "progress without a comm");
    come_back(comm);
    return explain(comm, comm->ops->progress(comm, -1));
}

void dp_comm_away(struct dp_comm *comm)
{
    if (comm && !comm->is_away && comm->ops->away)
        comm->is_away = comm->ops->away(comm);
}

int dp_comm_abort(struct dp_comm *comm, int error, const char *text)
{
    if (!comm || error >= 0)
        return dp_fail(DP_EINVAL, "abort with error %d: expected a comm and a negative error",
                       error);
    struct dp_abort why = {.rank = comm->rank, .error = error};
    snprintf(why.text, sizeof(why.text), "%s", text ? text : "");
    return comm->ops->abort(comm, &why);
}

bool dp_comm_aborted(struct dp_comm *comm, struct dp_abort *why)
{
    return comm && comm->ops->aborted(comm, why);
}

int dp_comm_reset(struct dp_comm *comm)
{
    if (!comm)
        return dp_fail(DP_EINVAL, "reset without a comm");
    come_back(comm);
    return comm->ops->reset(comm);
}

void dp_comm_close(struct dp_comm *comm)
{
    if (!comm)
        return;
    come_back(comm);
    comm->ops->close(comm);
}
