/* SPDX-License-Identifier: Apache-2.0
 *
 * test_shm_path.c - the path of large messages over shared memory: the selection, with invented
 * times, and messages whose path changes from one to the next.
 */
#include "cmocka_all.h"

#include "shm_pair.h"

#include "base/copy.h"

enum { LONG = 400000 }; /* messages */

/* The time of a message by each path, in ns. */
struct machine {
    size_t len;
    int64_t ns[DP_SHM_PATHS];
};

static enum dp_shm_path wanted(const struct dp_shm_paths *ways, size_t len)
{
    return (enum dp_shm_path)ways->classes[dp_shm_class(len)].wanted;
}

/* Every message takes the wanted path. Returns the share of the time that went into another one. */
static double run(struct dp_shm_paths *ways, const struct machine *m, enum dp_shm_path best,
                  int times)
{
    double all = 0, others = 0;

    for (int i = 0; i < times; i++) {
        const enum dp_shm_path way = wanted(ways, m->len);
        const double ns = (double)m->ns[way];
        all += ns;
        others += way == best ? 0 : ns;
        dp_shm_paths_learn(ways, m->len, way, m->ns[way]);
    }
    return others / all;
}

static const struct machine near_cores = {512 << 10, {28000, 16000, 0}};
static const struct machine far_cores = {512 << 10, {28000, 150000, 0}};

/* ---- the decision ---------------------------------------------------------------------------- */

CASE(the_fastest_path_is_used_but_for_a_small_share)
{
    struct dp_shm_paths ways = {0};

    assert_int_equal(wanted(&ways, 512 << 10), DP_SHM_CMA);
    run(&ways, &near_cores, DP_SHM_RING, 100);
    assert_true(run(&ways, &near_cores, DP_SHM_RING, LONG) < 0.02);

    ways = (struct dp_shm_paths){0};
    run(&ways, &far_cores, DP_SHM_CMA, 100);
    assert_true(run(&ways, &far_cores, DP_SHM_CMA, LONG) < 0.02);
}

CASE(when_the_machine_changes_so_does_the_path)
{
    struct dp_shm_paths ways = {0};

    run(&ways, &near_cores, DP_SHM_RING, 1000);
    run(&ways, &far_cores, DP_SHM_CMA, 100);
    assert_true(run(&ways, &far_cores, DP_SHM_CMA, LONG) < 0.02);
    run(&ways, &near_cores, DP_SHM_RING, 10000);
    assert_true(run(&ways, &near_cores, DP_SHM_RING, LONG) < 0.02);
}

CASE(a_hopeless_path_is_left_after_one_message)
{
    struct dp_shm_paths ways = {0};
    const size_t len = far_cores.len;

    while (wanted(&ways, len) == DP_SHM_CMA)
        run(&ways, &far_cores, DP_SHM_CMA, 1);
    run(&ways, &far_cores, DP_SHM_CMA, 1);
    assert_int_equal(wanted(&ways, len), DP_SHM_CMA);
}

/* Not the path's fault: another process had the core. */
CASE(one_slow_message_changes_nothing)
{
    struct dp_shm_paths ways = {0};
    const size_t len = near_cores.len;

    run(&ways, &near_cores, DP_SHM_RING, 100);
    while (wanted(&ways, len) != DP_SHM_RING)
        run(&ways, &near_cores, DP_SHM_RING, 1);
    const int64_t before = ways.classes[dp_shm_class(len)].cost[DP_SHM_RING];
    dp_shm_paths_learn(&ways, len, DP_SHM_RING, 1000 * near_cores.ns[DP_SHM_RING]);
    const int64_t after = ways.classes[dp_shm_class(len)].cost[DP_SHM_RING];
    assert_true(after > before && after < before + before / 4);
    run(&ways, &near_cores, DP_SHM_RING, 100);
    assert_int_equal(ways.classes[dp_shm_class(len)].cost[DP_SHM_RING], before);
}

/* Only the largest are copied past the caches, and each size has its own path. */
CASE(sizes_are_measured_apart)
{
    static const struct machine large = {DP_COPY_LARGE, {9, 8, 5}};
    struct dp_shm_paths ways = {0};

    for (size_t len = DP_SHM_LARGE; len < DP_COPY_LARGE; len *= 4) {
        for (int i = 0; i < 100; i++) {
            const enum dp_shm_path way = wanted(&ways, len);
            assert_int_not_equal(way, DP_SHM_RING_NT);
            dp_shm_paths_learn(&ways, len, way, way == DP_SHM_RING ? 9000 : 8000);
        }
        assert_true(dp_shm_class(len) < dp_shm_class(4 * len));
    }
    run(&ways, &large, DP_SHM_RING_NT, 100);
    assert_true(run(&ways, &large, DP_SHM_RING_NT, LONG) < 0.02);
    assert_int_equal(dp_shm_class(SIZE_MAX), DP_SHM_CLASSES - 1);
}

/* Straight may be impossible: what was wanted so comes through the ring. */
CASE(a_path_that_is_never_possible_holds_up_none_of_the_others)
{
    static const int64_t ns[DP_SHM_PATHS] = {0, 8000000, 5000000};
    const size_t len = 64 << 20;
    struct dp_shm_paths ways = {0};
    int past = 0;

    for (int i = 0; i < LONG; i++) {
        const bool is_past = wanted(&ways, len) == DP_SHM_RING_NT;
        past += is_past;
        dp_shm_paths_learn(&ways, len, is_past ? DP_SHM_RING_NT : DP_SHM_RING,
                           ns[is_past ? DP_SHM_RING_NT : DP_SHM_RING]);
    }
    assert_true(past > LONG - LONG / 50);
}

/* ---- the wire -------------------------------------------------------------------------------- */

enum { LEN = (5 << 20) + 77 };
static char out[LEN], in[LEN];

/* The receiver chooses the path, the sender follows at once. */
CASE(a_message_takes_the_path_that_its_receiver_wants)
{
    static const size_t lens[] = {DP_SHM_LARGE, 300000, 1 << 20, LEN};
    ENDED_BY(free_pair) struct pair p = make_pair();
    struct dp_shm_wire *a = dp_shm_of(p.a), *b = dp_shm_of(p.b);
    const bool right = goes_straight(&p);
    unsigned seed = 0;

    for (int round = 0; round < 3; round++)
        for (int i = 0; i < 4; i++)
            for (unsigned way = 0; way < 2; way++) {
                const unsigned before = a->by_cma;
                atomic_store(&b->in->by_ring, way << dp_shm_class(lens[i]));
                send_one(&p, out, in, lens[i], ++seed);
                assert_int_equal(a->by_cma - before, right && !way);
            }
}

/* While it is measured both paths are used, and every message arrives whole. */
CASE(paths_are_measured)
{
    ENDED_BY(free_pair) struct pair p = make_pair();
    struct dp_shm_wire *b = dp_shm_of(p.b);
    const struct dp_shm_costs *c = &b->paths.classes[dp_shm_class(LEN)];

    b->measures = true;
    for (unsigned i = 0; i < 40; i++)
        send_one(&p, out, in, LEN, i);
    assert_true(c->cost[DP_SHM_RING] > 0 && c->cost[DP_SHM_RING_NT] > 0);
    assert_int_equal(c->cost[DP_SHM_CMA] > 0, goes_straight(&p));
}
