/* SPDX-License-Identifier: Apache-2.0 */
#include "cmocka_all.h"

#include <dualpipe/random.h>
#include <dualpipe/tuning.h>

enum { CELLS = DP_TUNING_ALGORITHMS * DP_TUNING_PROTOCOLS };

static struct dp_tuning_table *read_table(const char *text)
{
    struct dp_tuning_table *table;

    assert_int_equal(dp_tuning_table_read(text, strlen(text), "test", &table), 0);
    return table;
}

static struct dp_tuner *make(const struct dp_tuning_table *table, int ranks, int nodes, bool trusts)
{
    struct dp_tuner *tuner;
    const struct dp_tuner_config config = {.table = table, .ranks = ranks, .nodes = nodes,
                                           .trusts_registration = trusts};

    assert_int_equal(dp_tuner_new(&config, &tuner), 0);
    return tuner;
}

static struct dp_tuning_answer ask(const struct dp_tuner *tuner, int function, int64_t bytes,
                                   bool is_registered, const float *costs)
{
    static const float free_choice[CELLS];
    struct dp_tuning_answer answer;
    const struct dp_tuning_question q = {
        function, bytes, is_registered, 1, costs ? costs : free_choice,
        DP_TUNING_ALGORITHMS, DP_TUNING_PROTOCOLS};

    dp_tuner_ask(tuner, &q, &answer);
    return answer;
}

static const struct dp_tuning_rule *find(const struct dp_tuner *tuner, int function, int64_t bytes,
                                         bool is_registered, int64_t pipe_ops)
{
    static const float costs[CELLS];
    struct dp_tuning_answer answer;
    const struct dp_tuning_question q = {function,   bytes, is_registered,
                                         pipe_ops,   costs, DP_TUNING_ALGORITHMS,
                                         DP_TUNING_PROTOCOLS};

    dp_tuner_ask(tuner, &q, &answer);
    return answer.rule;
}

/* ---- which rule ----------------------------------------------------------------------------- */

CASE(the_first_rule_that_applies_counts)
{
    OWNED(dp_tuning_table) *table = read_table("allreduce,8,63,ring,ll,2,-1,-1\n"
                                               "allreduce,0,31,tree,ll128,-1,-1,-1\n");
    struct dp_tuner *tuner = make(table, 8, 1, false);

    assert_int_equal(ask(tuner, DP_TUNING_ALLREDUCE, 0, false, NULL).algorithm, DP_TUNING_TREE);
    assert_int_equal(ask(tuner, DP_TUNING_ALLREDUCE, 7, false, NULL).protocol, DP_TUNING_LL128);
    assert_int_equal(ask(tuner, DP_TUNING_ALLREDUCE, 8, false, NULL).algorithm, DP_TUNING_RING);
    assert_int_equal(ask(tuner, DP_TUNING_ALLREDUCE, 63, false, NULL).channels, 2);
    assert_int_equal(ask(tuner, DP_TUNING_ALLREDUCE, 64, false, NULL).algorithm, DP_TUNING_DEFAULT);
    assert_null(ask(tuner, DP_TUNING_BROADCAST, 8, false, NULL).rule);
    assert_null(ask(tuner, 11, 8, false, NULL).rule);
    assert_null(ask(tuner, -1, 8, false, NULL).rule);
    dp_tuner_free(tuner);
}

CASE(rules_are_for_some_ranks_and_nodes)
{
    OWNED(dp_tuning_table) *table = read_table("allreduce,0,any,ring,ll,-1,2-4,16\n"
                                               "allreduce,0,any,tree,ll,-1,any,any\n");
    const struct {
        int ranks, nodes, algorithm;
    } cases[] = {{16, 2, DP_TUNING_RING}, {16, 4, DP_TUNING_RING}, {16, 5, DP_TUNING_TREE},
                 {16, 1, DP_TUNING_TREE}, {15, 2, DP_TUNING_TREE}, {0, 0, DP_TUNING_TREE}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct dp_tuner *tuner = make(table, cases[i].ranks, cases[i].nodes, false);
        assert_int_equal(ask(tuner, DP_TUNING_ALLREDUCE, 1, false, NULL).algorithm,
                         cases[i].algorithm);
        dp_tuner_free(tuner);
    }
}

CASE(rules_are_for_some_pipe_ops)
{
    OWNED(dp_tuning_table) *table = read_table("allreduce,0,63,ring,ll,-1,-1,-1,1\n"
                                               "broadcast,0,any,ring,ll,-1,-1,-1,2\n"
                                               "allreduce,0,31,tree,ll,-1,-1,-1,2-4\n"
                                               "allreduce,0,any,tree,ll128,-1,-1,-1,any\n");
    const struct {
        int64_t bytes, pipe_ops;
        int line;
    } cases[] = {{8, 1, 1}, {8, 2, 3}, {8, 4, 3}, {8, 5, 4}, {32, 2, 4}, {64, 1, 4}, {8, 0, 4}};
    struct dp_tuner *tuner = make(table, 8, 1, false);

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct dp_tuning_rule *rule =
            find(tuner, DP_TUNING_ALLREDUCE, cases[i].bytes, false, cases[i].pipe_ops);
        assert_non_null(rule);
        assert_int_equal(rule->line, cases[i].line);
    }
    assert_null(find(tuner, DP_TUNING_BROADCAST, 8, false, 3));
    dp_tuner_free(tuner);
}

CASE(registration_counts_only_if_it_is_trusted)
{
    OWNED(dp_tuning_table) *table = read_table("allgather,0,any,nvls,simple,-1,-1,-1,-1,yes\n"
                                               "allgather,0,any,ring,simple,-1,-1,-1,-1,no\n");
    struct dp_tuner *wary = make(table, 8, 1, false), *trusting = make(table, 8, 1, true);

    assert_int_equal(ask(wary, DP_TUNING_ALLGATHER, 1, true, NULL).algorithm, DP_TUNING_RING);
    assert_int_equal(ask(wary, DP_TUNING_ALLGATHER, 1, false, NULL).algorithm, DP_TUNING_RING);
    assert_int_equal(ask(trusting, DP_TUNING_ALLGATHER, 1, true, NULL).algorithm, DP_TUNING_NVLS);
    assert_int_equal(ask(trusting, DP_TUNING_ALLGATHER, 1, false, NULL).algorithm, DP_TUNING_RING);
    dp_tuner_free(wary);
    dp_tuner_free(trusting);
}

CASE(a_cell_that_may_not_be_chosen_is_left_alone)
{
    OWNED(dp_tuning_table) *table = read_table("allreduce,0,any,pat,ll,8,-1,-1\n");
    struct dp_tuner *tuner = make(table, 8, 1, false);
    float costs[CELLS] = {0};
    struct dp_tuning_answer answer;
    struct dp_tuning_question q = {DP_TUNING_ALLREDUCE, 1, false, 1, costs, 6, 3};

    dp_tuner_ask(tuner, &q, &answer); /* no row for it in an older NCCL */
    assert_int_equal(answer.source, DP_TUNING_FROM_NCCL);
    costs[DP_TUNING_PAT * DP_TUNING_PROTOCOLS + DP_TUNING_LL] = -1;
    answer = ask(tuner, DP_TUNING_ALLREDUCE, 1, false, costs);
    assert_int_equal(answer.source, DP_TUNING_FROM_NCCL);
    assert_int_equal(answer.algorithm, DP_TUNING_DEFAULT);
    assert_int_equal(answer.channels, 0);
    assert_non_null(answer.rule);
    dp_tuner_free(tuner);
}

CASE(a_chunk_goes_with_its_algorithm)
{
    OWNED(dp_tuning_table) *table = read_table("collective,algorithm,protocol,chunk_bytes\n"
                                               "allreduce,ring,simple,128KiB\n");
    struct dp_tuner *tuner = make(table, 8, 1, false);

    assert_int_equal(dp_tuner_chunk_bytes(tuner, DP_TUNING_ALLREDUCE, 1, DP_TUNING_RING,
                                          DP_TUNING_SIMPLE), 131072);
    assert_int_equal(dp_tuner_chunk_bytes(tuner, DP_TUNING_ALLREDUCE, 1, DP_TUNING_RING,
                                          DP_TUNING_LL), 0);
    assert_int_equal(dp_tuner_chunk_bytes(tuner, 99, 1, DP_TUNING_RING, DP_TUNING_LL), 0);
    dp_tuner_free(tuner);
}

/* ---- many rules ----------------------------------------------------------------------------- */

enum { RULES = 400, POINT_MAX = 3000 };

static uint64_t throws;

static int64_t below(int64_t n)
{
    uint32_t block[4];

    dp_random_block(dp_random_key(1, 0, 0, 0), throws++, block);
    return block[0] % n;
}

static struct dp_tuning_rule random_rule(void)
{
    struct dp_tuning_rule r = {
        .function = (int)below(DP_TUNING_FUNCTIONS), .bytes = {below(POINT_MAX), 0},
        .ranks = {0, INT64_MAX}, .nodes = {0, INT64_MAX}, .pipe_ops = {0, INT64_MAX},
        .registered = (enum dp_tuning_registered)below(3),
        .algorithm = (int)below(DP_TUNING_ALGORITHMS), .protocol = (int)below(DP_TUNING_PROTOCOLS),
    };

    r.bytes.most = below(9) ? r.bytes.least + below(POINT_MAX / 20) : INT64_MAX;
    if (!below(4))
        r.ranks = (struct dp_tuning_range){1 + below(8), 8 + below(8)};
    if (!below(4))
        r.pipe_ops = (struct dp_tuning_range){1 + below(3), 3 + below(3)};
    return r;
}

static const struct dp_tuning_rule *scan(const struct dp_tuning_table *table, int function,
                                         int64_t bytes, int ranks, bool is_registered,
                                         int64_t pipe_ops)
{
    for (size_t i = 0; i < table->count; i++) {
        const struct dp_tuning_rule *r = &table->rules[i];
        if (r->function == function && bytes >= r->bytes.least && bytes <= r->bytes.most &&
            ranks >= r->ranks.least && ranks <= r->ranks.most &&
            pipe_ops >= r->pipe_ops.least && pipe_ops <= r->pipe_ops.most &&
            (r->registered == DP_TUNING_EITHER || (int)r->registered == is_registered))
            return r;
    }
    return NULL;
}

/* The table is copied, so the rule that is found is another one with the same line number. */
static void assert_same(const struct dp_tuning_rule *found, const struct dp_tuning_rule *expected)
{
    assert_int_equal(found ? found->line : -1, expected ? expected->line : -1);
}

CASE(the_first_rule_of_the_table_that_applies_is_found)
{
    struct dp_tuning_rule rules[RULES];
    struct dp_tuning_table table = {.name = "random", .rules = rules};

    for (int round = 0; round < 8; round++) {
        table.count = round ? (size_t)below(RULES) : 0;
        for (size_t i = 0; i < table.count; i++) {
            rules[i] = random_rule();
            rules[i].line = (int)i;
        }
        struct dp_tuner *tuner = make(&table, 9, 1, true);
        for (int64_t bytes = 0; bytes < POINT_MAX + POINT_MAX / 10; bytes++)
            for (int k = 0; k < 2 * DP_TUNING_FUNCTIONS; k++)
                assert_same(find(tuner, k / 2, bytes, k % 2, bytes % 7),
                            scan(&table, k / 2, bytes, 9, k % 2, bytes % 7));
        for (int k = 0; k < DP_TUNING_FUNCTIONS; k++)
            assert_same(find(tuner, k, INT64_MAX, false, 1),
                        scan(&table, k, INT64_MAX, 9, false, 1));
        dp_tuner_free(tuner);
    }
}

CASE(a_tuner_without_a_table_leaves_all_to_nccl)
{
    struct dp_tuner *tuner = make(NULL, 8, 1, false);

    assert_int_equal(ask(tuner, DP_TUNING_ALLREDUCE, 1024, false, NULL).source,
                     DP_TUNING_FROM_NCCL);
    dp_tuner_free(tuner);
    dp_tuner_free(NULL);
    dp_tuning_table_free(NULL);
}

CASE(negative_numbers_are_refused)
{
    struct dp_tuner *tuner;

    log_nothing();
    assert_int_equal(dp_tuner_new(&(struct dp_tuner_config){.ranks = -1}, &tuner), DP_EINVAL);
    assert_string_equal(dp_last_error(),
                        "-1 ranks on 0 nodes, expected numbers that are not negative");
}
