/* SPDX-License-Identifier: Apache-2.0 */
#include "train/survivors.h"

#include <dualpipe/stage.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { OVER = 1, OVER_TAG = 1, POLL_NS = 1000000 };

bool survivors_may_be(int err)
{
    return err == DP_ECOMM || err == DP_ETIMEDOUT || err == DP_EABORTED;
}

enum { DONE = 1 };

int survivors_no_memory(void)
{
    return dp_callback_error(DP_ENOMEM, "no memory for a list of ranks: %s", strerror(ENOMEM));
}

/* *done: all live, and on all of them it was true. */
static int agree(struct dp_comm *comm, bool *done)
{
    const int size = dp_comm_size(comm);
    uint64_t flags = *done ? DONE : 0;
    bool *alive = calloc((size_t)size, sizeof(*alive));
    int err = alive ? dp_comm_agree_flags(comm, &flags, alive) : survivors_no_memory();

    *done = flags & DONE;
    for (int rank = 0; rank < size && !err; rank++)
        *done = *done && alive[rank];
    free(alive);
    return err;
}

int survivors_agree(struct dp_comm *comm, int err)
{
    bool done = !err;

    if (err && !survivors_may_be(err))
        return err;
    if (err)
        dp_comm_revoke(comm, err, dp_last_error());
    const int agreed = agree(comm, &done);
    if (agreed || err)
        return agreed ? agreed : err;
    return done ? 0 : DP_ECOMM;
}

int survivors_ranks(int live, int most)
{
    const int ranks = live < most ? live : most;

    return ranks > 1 ? ranks - ranks % 2 : ranks;
}

/* Other ranks watch this one, and it hears of deaths, in each call. */
int survivors_wait(struct dp_comm *all)
{
    struct dp_request request;
    int32_t over = 0;
    int err = dp_comm_irecv(all, 0, DP_CHANNEL_ACTIVATION, OVER_TAG, &over, sizeof(over), &request);

    while (!err && (err = dp_comm_test(all, &request)) == DP_EAGAIN) {
        nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
        err = 0;
    }
    if (!err)
        dp_comm_barrier(all);
    return err;
}

/* One that is dead needs no word. The barrier keeps ranks from leaving before all have learnt that the
 * run is over: one that has not would take those that have left for dead. A death in it changes
 * nothing. */
void survivors_dismiss(struct dp_comm *all, int ranks)
{
    static const int32_t over = OVER;
    struct dp_request request;

    for (int rank = ranks; rank < dp_comm_size(all) && dp_comm_rank(all) == 0; rank++)
        if (!dp_comm_isend(all, rank, DP_CHANNEL_ACTIVATION, OVER_TAG, &over, sizeof(over), &request))
            dp_comm_wait(all, &request, rank);
    dp_comm_barrier(all);
}
