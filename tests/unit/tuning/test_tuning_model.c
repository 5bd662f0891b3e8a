/* SPDX-License-Identifier: Apache-2.0 */
#include "cmocka_all.h"

#include <dualpipe/tuning.h>

enum { CELLS = DP_TUNING_CROSSINGS_MAX };

static struct dp_tuner *make(const char *links, int ranks, int nodes)
{
    struct dp_tuning_links parsed;
    struct dp_tuner *tuner;

    assert_int_equal(dp_tuning_links_parse(links, &parsed), 0);
    assert_int_equal(dp_tuner_new(&(struct dp_tuner_config){.ranks = ranks, .nodes = nodes,
                                                            .links = &parsed}, &tuner), 0);
    return tuner;
}

/* All that exists may be chosen, and NCCL would take this cell. */
static void prefer(float *costs, int algorithm, int protocol)
{
    for (int i = 0; i < CELLS; i++)
        costs[i] = 2;
    costs[algorithm * DP_TUNING_PROTOCOLS + protocol] = 1;
}

static void only_rings_and_trees(float *costs)
{
    prefer(costs, DP_TUNING_RING, DP_TUNING_SIMPLE);
    for (int i = 2 * DP_TUNING_PROTOCOLS; i < CELLS; i++)
        costs[i] = -1;
}

static struct dp_tuning_answer ask(const struct dp_tuner *tuner, int function, int64_t bytes,
                                   const float *costs)
{
    struct dp_tuning_answer answer;
    const struct dp_tuning_question q = {function, bytes, false, 1, costs, DP_TUNING_ALGORITHMS,
                                         DP_TUNING_PROTOCOLS};

    dp_tuner_ask(tuner, &q, &answer);
    return answer;
}

/* ---- links ---------------------------------------------------------------------------------- */

CASE(links_are_read_and_written)
{
    struct dp_tuning_links links;
    char text[DP_TUNING_LINKS_LEN];

    assert_int_equal(dp_tuning_links_parse("inter_us=3.5,intra=450,inter=50", &links), 0);
    assert_true(links.intra_gbs == 450 && links.inter_gbs == 50 && links.inter_us == 3.5);
    assert_string_equal(dp_tuning_links_text(&links, text), "intra=450,inter=50,inter_us=3.5");
    assert_int_equal(dp_tuning_links_parse("", &links), 0);
    assert_string_equal(dp_tuning_links_text(&links, text), "");
}

CASE(links_that_are_none_are_refused)
{
    static const char *const cases[][2] = {
        {"intra", "links: 'intra', expected intra=NUMBER in GB/s"},
        {"intra=x", "expected intra=NUMBER in GB/s"},
        {"intra=-1", "expected intra=NUMBER in GB/s"},
        {"inter_us=1,inter=nan", "expected inter=NUMBER in GB/s"},
        {"intra=450GB", "expected intra=NUMBER in GB/s"},
        {"intro=4", "did you mean intra?"},
        {"speed=4", "links: 'speed', expected intra, inter, intra_us or inter_us"},
    };
    struct dp_tuning_links links;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(dp_tuning_links_parse(cases[i][0], &links), DP_EINVAL);
        if (!strstr(dp_last_error(), cases[i][1]))
            fail_msg("'%s' does not say '%s'", dp_last_error(), cases[i][1]);
    }
}

/* ---- lines ---------------------------------------------------------------------------------- */

CASE(a_model_needs_the_links_that_are_used)
{
    static const struct {
        const char *links;
        int ranks, nodes;
        bool is_known;
    } cases[] = {
        {"intra=450", 8, 1, true},  {"intra=450", 16, 2, false}, {"inter=50", 16, 2, false},
        {"inter=50", 4, 4, true},   {"inter=50", 1, 1, false},   {"intra=450,inter=50", 16, 2, true},
        {"intra=450", 2, 3, false}, {"", 8, 1, false},           {"intra=450", 0, 0, false},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct dp_tuner *tuner = make(cases[i].links, cases[i].ranks, cases[i].nodes);
        double us = dp_tuner_time_us(tuner, DP_TUNING_ALLREDUCE, DP_TUNING_RING, DP_TUNING_LL, 8);
        assert_int_equal(us >= 0, cases[i].is_known);
        dp_tuner_free(tuner);
    }
}

CASE(what_does_not_exist_has_no_time)
{
    struct dp_tuner *one = make("intra=450,inter=50", 8, 1), *two = make("intra=450,inter=50", 16, 2);

    assert_true(dp_tuner_time_us(one, DP_TUNING_BROADCAST, DP_TUNING_TREE, DP_TUNING_LL, 8) < 0);
    assert_true(dp_tuner_time_us(one, DP_TUNING_ALLREDUCE, DP_TUNING_NVLS, DP_TUNING_LL, 8) < 0);
    assert_true(dp_tuner_time_us(one, DP_TUNING_ALLREDUCE, DP_TUNING_NVLS, DP_TUNING_SIMPLE, 8) > 0);
    assert_true(dp_tuner_time_us(two, DP_TUNING_ALLREDUCE, DP_TUNING_NVLS, DP_TUNING_SIMPLE, 8) < 0);
    assert_true(dp_tuner_time_us(two, DP_TUNING_ALLGATHER, DP_TUNING_PAT, DP_TUNING_SIMPLE, 8) < 0);
    assert_true(dp_tuner_time_us(two, 9, DP_TUNING_RING, DP_TUNING_LL, 8) < 0);
    assert_true(dp_tuner_time_us(two, DP_TUNING_ALLREDUCE, 7, DP_TUNING_LL, 8) < 0);
    dp_tuner_free(one);
    dp_tuner_free(two);
}

/* A ring of two sends each byte once in an all-reduce: half of it there, the other half back. */
CASE(a_pair_needs_what_its_link_needs)
{
    struct dp_tuner *pair = make("inter=50", 2, 2);
    double us = dp_tuner_time_us(pair, DP_TUNING_ALLREDUCE, DP_TUNING_RING, DP_TUNING_SIMPLE, 1 << 30);
    double wire_us = (1 << 30) / 50e3;

    assert_true(us > wire_us && us < 1.3 * wire_us);
    dp_tuner_free(pair);
}

CASE(more_nodes_and_slower_links_cost_more)
{
    struct dp_tuner *few = make("intra=450,inter=400", 16, 2), *more = make("intra=450,inter=400", 64, 8);
    struct dp_tuner *slow = make("intra=450,inter=25", 16, 2);
    struct dp_tuner *far = make("intra=450,inter=400,inter_us=30", 16, 2);

    for (int p = 0; p < DP_TUNING_PROTOCOLS; p++) {
        double us = dp_tuner_time_us(few, DP_TUNING_ALLREDUCE, DP_TUNING_RING, p, 1 << 24);
        assert_true(dp_tuner_time_us(more, DP_TUNING_ALLREDUCE, DP_TUNING_RING, p, 1 << 24) > us);
        assert_true(dp_tuner_time_us(slow, DP_TUNING_ALLREDUCE, DP_TUNING_RING, p, 1 << 24) > us);
        assert_true(dp_tuner_time_us(far, DP_TUNING_ALLREDUCE, DP_TUNING_RING, p, 1 << 24) > us);
    }
    dp_tuner_free(few);
    dp_tuner_free(more);
    dp_tuner_free(slow);
    dp_tuner_free(far);
}

CASE(nccls_own_latencies_take_the_place_of_ours)
{
    static const struct dp_tuning_latencies latencies = {.base_us[DP_TUNING_RING] = {1000, 1000, 1000}};
    const struct dp_tuning_links links = {.intra_gbs = 450};
    OWNED(dp_tuner) *tuner = NULL;

    assert_int_equal(dp_tuner_new(&(struct dp_tuner_config){.ranks = 8, .nodes = 1, .links = &links,
                                                            .latencies = &latencies}, &tuner), 0);
    assert_true(dp_tuner_time_us(tuner, DP_TUNING_ALLREDUCE, DP_TUNING_RING, DP_TUNING_LL, 0) == 1000);
}

/* ---- crossings ------------------------------------------------------------------------------ */

CASE(protocols_cross_from_ll_to_simple)
{
    struct dp_tuner *tuner = make("intra=450", 8, 1);
    struct dp_tuning_crossing c[CELLS];
    float costs[CELLS];

    for (int i = 0; i < CELLS; i++)
        costs[i] = i / DP_TUNING_PROTOCOLS == DP_TUNING_RING ? 1 : -1;
    int count = dp_tuner_crossings(tuner, DP_TUNING_ALLREDUCE, costs, c);
    assert_true(count >= 2);
    assert_int_equal(c[0].protocol, DP_TUNING_LL);
    assert_int_equal(c[0].bytes, 0);
    assert_int_equal(c[count - 1].protocol, DP_TUNING_SIMPLE);
    dp_tuner_free(tuner);
}

static int fastest(const struct dp_tuner *tuner, int function, const float *costs, int64_t bytes)
{
    int best = -1;
    double least = 0;

    for (int i = 0; i < CELLS; i++) {
        double us = dp_tuner_time_us(tuner, function, i / 3, i % 3, bytes);
        if (costs[i] >= 0 && us >= 0 && (best < 0 || us < least)) {
            best = i;
            least = us;
        }
    }
    return best;
}

CASE(crossings_give_the_fastest_everywhere)
{
    static const struct {
        const char *links;
        int ranks, nodes;
    } places[] = {{"intra=450", 8, 1},   {"intra=450,inter=400", 64, 8},
                  {"inter=25", 2, 2},    {"intra=25,inter=3,inter_us=30", 16, 4},
                  {"inter=12.5", 16, 16}};
    struct dp_tuning_crossing c[CELLS];
    float costs[CELLS];

    prefer(costs, DP_TUNING_RING, DP_TUNING_SIMPLE);
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++)
        for (int f = 0; f < DP_TUNING_FUNCTIONS; f++) {
            struct dp_tuner *tuner = make(places[i].links, places[i].ranks, places[i].nodes);
            int count = dp_tuner_crossings(tuner, f, costs, c), at = 0;
            assert_true(count > 0 && c[0].bytes == 0);
            for (int64_t bytes = 1; bytes < INT64_C(1) << 34; bytes += 1 + bytes / 7) {
                while (at + 1 < count && c[at + 1].bytes <= bytes)
                    at++;
                int best = fastest(tuner, f, costs, bytes);
                double us = dp_tuner_time_us(tuner, f, c[at].algorithm, c[at].protocol, bytes);
                assert_true(us <= 1.000001 * dp_tuner_time_us(tuner, f, best / 3, best % 3, bytes));
            }
            dp_tuner_free(tuner);
        }
}

CASE(without_a_model_there_are_no_crossings)
{
    struct dp_tuner *tuner = make("", 8, 1);
    struct dp_tuning_crossing c[CELLS];
    float costs[CELLS];

    prefer(costs, DP_TUNING_RING, DP_TUNING_SIMPLE);
    assert_int_equal(dp_tuner_crossings(tuner, DP_TUNING_ALLREDUCE, costs, c), 0);
    dp_tuner_free(tuner);
}

/* ---- choices -------------------------------------------------------------------------------- */

CASE(many_far_nodes_take_a_tree_for_small_messages)
{
    struct dp_tuner *tuner = make("inter=3,inter_us=25", 32, 32);
    float costs[CELLS];

    only_rings_and_trees(costs);
    struct dp_tuning_answer small = ask(tuner, DP_TUNING_ALLREDUCE, 1024, costs);
    assert_int_equal(small.source, DP_TUNING_FROM_MODEL);
    assert_int_equal(small.algorithm, DP_TUNING_TREE);
    assert_int_equal(small.protocol, DP_TUNING_LL);
    assert_int_equal(small.channels, 0);
    assert_true(small.time_us < small.default_us);
    /* ... and what NCCL would choose for large ones. */
    assert_int_equal(ask(tuner, DP_TUNING_ALLREDUCE, INT64_C(1) << 32, costs).source,
                     DP_TUNING_FROM_NCCL);
    dp_tuner_free(tuner);
}

/* Only a clear gain counts, and never a cell that may not be chosen. */
CASE(the_model_keeps_to_what_is_clearly_better_and_allowed)
{
    struct dp_tuner *tuner = make("intra=450,inter=100,inter_us=5", 32, 4);
    float costs[CELLS];

    for (int d = 0; d < CELLS; d++)
        for (int64_t bytes = 8; bytes < INT64_C(1) << 32; bytes *= 3) {
            prefer(costs, d / 3, d % 3);
            for (int i = d % 5; i < CELLS; i += 5)
                costs[i] = i == d ? costs[i] : -1;
            struct dp_tuning_answer a = ask(tuner, DP_TUNING_ALLREDUCE, bytes, costs);
            if (a.source != DP_TUNING_FROM_MODEL)
                continue;
            assert_true(costs[a.algorithm * DP_TUNING_PROTOCOLS + a.protocol] >= 0);
            assert_true(a.time_us < 0.9 * a.default_us);
        }
    dp_tuner_free(tuner);
}

CASE(a_rule_comes_before_the_model)
{
    static const char text[] = "allreduce,0,1023,ring,simple,-1,-1,-1\n"
                               "allreduce,1024,2047,default,default,-1,-1,-1\n";
    const struct dp_tuning_links links = {.inter_gbs = 3, .inter_us = 25};
    OWNED(dp_tuning_table) *table = NULL;
    OWNED(dp_tuner) *tuner = NULL;
    float costs[CELLS];

    assert_int_equal(dp_tuning_table_read(text, strlen(text), "t", &table), 0);
    assert_int_equal(dp_tuner_new(&(struct dp_tuner_config){.table = table, .ranks = 32, .nodes = 32,
                                                            .links = &links}, &tuner), 0);
    only_rings_and_trees(costs);
    assert_int_equal(ask(tuner, DP_TUNING_ALLREDUCE, 1023, costs).source, DP_TUNING_FROM_TABLE);
    assert_int_equal(ask(tuner, DP_TUNING_ALLREDUCE, 1024, costs).source, DP_TUNING_FROM_NCCL);
    assert_int_equal(ask(tuner, DP_TUNING_ALLREDUCE, 2048, costs).source, DP_TUNING_FROM_MODEL);
    costs[DP_TUNING_RING * DP_TUNING_PROTOCOLS + DP_TUNING_SIMPLE] = -1;
    costs[DP_TUNING_RING * DP_TUNING_PROTOCOLS + DP_TUNING_LL128] = 1;
    assert_int_equal(ask(tuner, DP_TUNING_ALLREDUCE, 1023, costs).source, DP_TUNING_FROM_MODEL);
}

RUN_QUIET_CASES(NULL, NULL)
