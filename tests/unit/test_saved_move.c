/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of a job goes from ranks to ranks, as where a pipeline goes on without one that has
 * died. A rank that has no memory for that leaves, and the move ends on the others, which go on
 * without it.
 */
#include "cmocka_all.h"

#include "gpt_sequential.h"
#include "comm_group.h"
#include "base/clock.h"
#include "comm/comm_ops.h"
#include "failing_memory.h"
#include "train/saved.h"

#include <pthread.h>
#include <stdlib.h>

enum { RANKS = 3, POOR = 1 };
static const int64_t timeout_ns = INT64_C(60000000000);
static const struct gpt_config config = {
    .layers = 2, .width = 8, .heads = 2, .context = 4, .batch = 1, .seed = 1};
static const struct trainer_config training = {.sequences = 1, .steps = 1, .rate = 0.01};

/* ---- a rank ---------------------------------------------------------------------------------- */

struct side {
    struct engine *engine;
    struct trainer trainer;
};

static int side_open(struct side *p, const struct data *data, uint64_t seed)
{
    struct sequential_config c = {.model = config, .microbatches = 1, .order_blocks = 1};

    c.model.seed = seed;
    int err = sequential_new(&c, &p->engine);
    return err ? err : trainer_init(&p->trainer, &training, data, p->engine);
}

static void side_close(struct side *p)
{
    trainer_fini(&p->trainer);
    p->engine->ops->free(p->engine);
}

static real weight_of(const struct side *p)
{
    return p->engine->stages[0]->weights[0];
}

/* Every rank has the state and wants it. failing: the allocation of POOR's that fails; -1: none. */
static int move(struct dp_comm *comm, struct side *from, struct side *to, int failing)
{
    const bool poor = dp_comm_rank(comm) == POOR && failing >= 0;
    struct dp_comm *next = NULL;

    until_no_memory = poor ? failing : -1;
    const int err = saved_move(comm, &from->trainer, &to->trainer);
    until_no_memory = -1;
    if (failing < 0) {
        CHECK(!err && weight_of(from) == weight_of(to));
        return 0;
    }
    CHECK(weight_of(from) != weight_of(to));
    if (poor) {
        CHECK(err == DP_ENOMEM);
        return 0;
    }
    CHECK(err == DP_EABORTED || err == DP_ECOMM);
    CHECK(!dp_comm_shrink(comm, &next));
    CHECK(dp_comm_size(next) == RANKS - 1 && !dp_comm_barrier(next));
    dp_comm_close(next);
    return 0;
}

struct job {
    int failing;
    pthread_barrier_t ready; /* an abort must meet no rank that is still on its way */
};

static int run_rank(struct dp_comm *comm, void *arg)
{
    struct job *job = arg;
    struct data data = {.window = (size_t)config.context + 1};
    struct side from, to;

    CHECK(!dp_comm_survive(comm));
    CHECK(!side_open(&from, &data, 1) && !side_open(&to, &data, 2));
    CHECK(weight_of(&from) != weight_of(&to));
    pthread_barrier_wait(&job->ready);
    const int failed = move(comm, &from, &to, job->failing);
    side_close(&to);
    side_close(&from);
    data_close(&data);
    return failed;
}

static void run(int failing)
{
    struct job job = {.failing = failing};

    pthread_barrier_init(&job.ready, NULL, RANKS);
    assert_int_equal(comm_on_threads(RANKS, timeout_ns, run_rank, &job), 0);
    pthread_barrier_destroy(&job.ready);
}

static void the_state_comes_from_the_ranks_that_have_it(void **state)
{
    (void)state;
    run(-1);
}

/* A list of what it has, and one of what it wants. */
static void a_rank_without_memory_leaves_and_the_others_go_on(void **state)
{
    (void)state;
    for (int failing = 0; failing < 2; failing++)
        run(failing);
}

/* So a rank that is stopped while it writes, and renews nothing, is not waited for much longer. */
static void what_a_rank_that_saves_announces_is_short_and_is_renewed(void **state)
{
    const int64_t began_ns = dp_now_ns();
    struct dp_comm *comms[2];
    struct dp_busy *busy;

    (void)state;
    assert_int_equal(dp_comm_threads_new(2, comms), 0);
    busy = dp_comm_busy_begin(comms[0]);
    const int64_t first_ns = comms[1]->ops->busy_until(comms[1]);
    assert_in_range(first_ns - began_ns, 1, 20 * DP_NS_PER_S);
    while (comms[1]->ops->busy_until(comms[1]) == first_ns)
        assert_true(dp_now_ns() < began_ns + timeout_ns);
    assert_true(comms[1]->ops->busy_until(comms[1]) > first_ns);
    dp_comm_busy_end(busy);
    assert_true(comms[1]->ops->busy_until(comms[1]) <= dp_now_ns());
    busy = dp_comm_busy_begin(NULL); /* alone there is no rank to tell */
    dp_comm_busy_end(busy);
    dp_comm_close(comms[0]);
    dp_comm_close(comms[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_state_comes_from_the_ranks_that_have_it),
        cmocka_unit_test(a_rank_without_memory_leaves_and_the_others_go_on),
        cmocka_unit_test(what_a_rank_that_saves_announces_is_short_and_is_renewed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
