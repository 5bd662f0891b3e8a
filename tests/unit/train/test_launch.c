/* SPDX-License-Identifier: Apache-2.0
 *
 * test_launch.c - how long the others have when one of several ranks has failed.
 */
#include "cmocka_all.h"

#include "command.h"
#include "launch.h"

#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static int go[2], news[2]; /* pipes: rank 0 has joined; what it reported before its end */

static int give_up(int rank, struct dp_abort *why)
{
    *why = (struct dp_abort){.rank = rank, .error = DP_EINVAL};
    snprintf(why->text, sizeof(why->text), "it is a test");
    return DP_EINVAL;
}

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Rank 0 waits for the others, for a minute. */
static int fail_before(void *user, const struct dp_comm_config *config, struct dp_abort *why)
{
    struct dp_comm *comm;

    return config->rank ? give_up(config->rank, why) : launch_join(config, &comm);
}

CASE(no_rank_waits_for_one_that_failed_before_the_rendezvous)
{
    const double start = now_s();

    assert_int_equal(launch_ranks(2, 0, "tcp", fail_before, NULL), EXIT_FAILED);
    assert_true(now_s() - start < 5);
}

static int fail_behind(void *user, const struct dp_comm_config *config, struct dp_abort *why)
{
    struct dp_comm *comm;
    char word;

    int err = launch_join(config, &comm);
    if (!err && (config->rank ? read(go[0], &word, 1) : write(go[1], "!", 1)) != 1)
        err = DP_EIO;
    if (err || config->rank)
        return give_up(config->rank, why);
    nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
    return write(news[1], "here", 4) == 4 ? 0 : DP_EIO;
}

CASE(ranks_that_have_met_have_time_to_end_by_themselves)
{
    char word[8];

    assert_int_equal(pipe(go), 0);
    assert_int_equal(pipe(news), 0);
    assert_int_equal(launch_ranks(2, 0, "tcp", fail_behind, NULL), EXIT_FAILED);
    close(news[1]);
    assert_int_equal(read(news[0], word, sizeof(word)), 4);
    close(news[0]);
    close(go[0]);
    close(go[1]);
}

/* Rank 0 cannot see that rank 1 has failed. */
static int fail_beside_a_stopped_rank(void *user, const struct dp_comm_config *config,
                                      struct dp_abort *why)
{
    struct dp_comm *comm;
    char word;

    int err = launch_join(config, &comm);
    if (!err && !config->rank)
        err = write(go[1], "!", 1) == 1 ? raise(SIGSTOP) : DP_EIO;
    if (!err && read(go[0], &word, 1) != 1)
        err = DP_EIO;
    return give_up(config->rank, why);
}

CASE(a_stopped_rank_is_ended_when_all_others_have_failed)
{
    const double start = now_s();

    assert_int_equal(pipe(go), 0);
    assert_int_equal(launch_ranks(2, 0, "tcp", fail_beside_a_stopped_rank, NULL), EXIT_FAILED);
    assert_true(now_s() - start < 4);
    close(go[0]);
    close(go[1]);
}
