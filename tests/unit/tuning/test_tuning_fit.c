/* SPDX-License-Identifier: Apache-2.0
 *
 * test_tuning_fit.c - from outputs of NCCL's tests to a table: what is read, and that the table is
 * never worse than NCCL's own choice at what was measured.
 */
#include "cmocka_all.h"

#include "command.h"
#include "scratch.h"
#include "tune/results.h"

enum { CELLS = DP_TUNING_ALGORITHMS * DP_TUNING_PROTOCOLS };

static const struct tune_run nothing = {.function = -1, .algorithm = DP_TUNING_DEFAULT,
                                        .protocol = DP_TUNING_DEFAULT};

/* label: "ring/ll=", or "". */
static int read_results(const char *label, const char *name, struct tune_results *r)
{
    char operand[4096];

    snprintf(operand, sizeof(operand), "%s%s/tuner/results/%s", label, getenv("DP_TEST_DATA"), name);
    return tune_results_read(operand, &nothing, r);
}

static void read_all_reduces(struct tune_results *r)
{
    static const char *const cells[][2] = {
        {"", "own"},
        {"ring/ll=", "ring-ll"},         {"ring/ll128=", "ring-ll128"},
        {"ring/simple=", "ring-simple"}, {"tree/ll=", "tree-ll"},
        {"", "tree-ll128"}, /* named in its log */
        {"tree/simple=", "tree-simple"},
    };
    char name[64];

    for (size_t i = 0; i < sizeof(cells) / sizeof(cells[0]); i++) {
        snprintf(name, sizeof(name), "allreduce-%s.txt", cells[i][1]);
        assert_int_equal(read_results(cells[i][0], name, r), EXIT_OK);
    }
}

static void read_all_gathers(struct tune_results *r)
{
    static const char *const names[] = {"own", "ring-ll", "ring-ll128", "ring-simple", "nvls-simple"};
    char name[64];

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(name, sizeof(name), "allgather-%s.json", names[i]);
        assert_int_equal(read_results("", name, r), EXIT_OK);
    }
}

/* ---- reading -------------------------------------------------------------------------------- */

CASE(text_has_the_ranks_and_the_times)
{
    struct tune_results r = {0};

    assert_int_equal(read_results("ring/ll/8=", "allreduce-ring-ll.txt", &r), EXIT_OK);
    assert_int_equal(r.count, 21);
    assert_int_equal(r.points[0].function, DP_TUNING_ALLREDUCE);
    assert_int_equal(r.points[0].ranks, 16);
    assert_int_equal(r.points[0].nodes, 2);
    assert_int_equal(r.points[0].bytes, 1024);
    assert_int_equal(r.points[0].algorithm, DP_TUNING_RING);
    assert_int_equal(r.points[0].protocol, DP_TUNING_LL);
    assert_int_equal(r.points[0].channels, 8);
    assert_int_equal(r.points[20].bytes, 1 << 30);
    tune_results_fini(&r);
}

CASE(a_log_names_the_choice)
{
    struct tune_results r = {0};

    assert_int_equal(read_results("", "allreduce-tree-ll128.txt", &r), EXIT_OK);
    assert_int_equal(r.points[0].algorithm, DP_TUNING_TREE);
    assert_int_equal(r.points[0].protocol, DP_TUNING_LL128);
    assert_true(tune_point_us(&r.points[0]) > 62.2 && tune_point_us(&r.points[0]) < 62.3);
    tune_results_fini(&r);
}

CASE(json_has_the_same)
{
    struct tune_results r = {0};

    assert_int_equal(read_results("", "allgather-nvls-simple.json", &r), EXIT_OK);
    assert_int_equal(r.count, 11);
    assert_int_equal(r.points[0].function, DP_TUNING_ALLGATHER);
    assert_int_equal(r.points[0].ranks, 8);
    assert_int_equal(r.points[0].nodes, 1);
    assert_int_equal(r.points[0].algorithm, DP_TUNING_NVLS);
    assert_int_equal(r.points[0].protocol, DP_TUNING_SIMPLE);
    tune_results_fini(&r);
}

CASE(the_same_measured_twice_counts_once)
{
    struct tune_results r = {0};

    for (int i = 0; i < 2; i++)
        assert_int_equal(read_results("", "allreduce-own.txt", &r), EXIT_OK);
    assert_int_equal(r.count, 21);
    assert_int_equal(r.points[0].count, 2);
    tune_results_fini(&r);
}

/* ---- odd outputs ---------------------------------------------------------------------------- */

static char odd_path[SCRATCH_LEN];

static int read_odd(const char *text, struct tune_results *r)
{
    FILE *file = fopen(odd_path, "w");

    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    return tune_results_read(odd_path, &nothing, r);
}

#define NAMES "#       size         count      type   redop    root     time   algbw   busbw #wrong" \
              "     time   algbw   busbw #wrong\n"
#define ROW   "        1024           256     float     sum      -1    10.00    0.1    0.2      0" \
              "    20.00    0.1    0.2      0\n"
#define RANK0 "#  Rank  0 Pid  1 on  a device  0 [0x1b] NVIDIA\n"
#define RANK1 "#  Rank  1 Pid  2 on  a device  1 [0x2b] NVIDIA\n"
#define RANKS RANK0 RANK1

CASE(older_outputs_and_those_of_mpirun_are_read)
{
    struct tune_results r = {0};

    assert_int_equal(read_odd("[1,0]<stdout>:" RANK0 "[1,0]<stdout>:" RANK1 "[1,0]<stdout>:" NAMES
                              "[1,0]<stdout>:# Collective test concluded: reduce_scatter_perf\n"
                              "[1,0]<stdout>:" ROW, &r), EXIT_OK);
    assert_int_equal(r.count, 1);
    assert_int_equal(r.points[0].ranks, 2);
    assert_int_equal(r.points[0].nodes, 1);
    assert_int_equal(r.points[0].function, DP_TUNING_REDUCESCATTER);
    assert_true(tune_point_us(&r.points[0]) == 15);
    tune_results_fini(&r);
}

CASE(what_cannot_be_used_is_refused)
{
#define START "# Collective test starting: all_reduce_perf\n"
    static const char *const texts[] = {
        "", "hello\n", NAMES ROW, START NAMES ROW, RANKS NAMES ROW, START RANKS ROW,
        START RANKS NAMES "   1024 256 float sum -1 10.0 0.1 0.2 7 20.0 0.1 0.2 0\n",
        START RANKS NAMES "   1024 256 float sum -1 N/A\n",
        "x NCCL INFO NCCL_ALGO set by environment to Ring,Tree\n" START RANKS NAMES ROW,
        "x NCCL INFO NCCL_ALGO set by environment to Ring\n" START RANKS NAMES ROW,
        START RANK0 NAMES ROW, START RANK0 RANK0 NAMES ROW,
        "{", "{\"results\": 1}", "{\"args\": [\"all_reduce_perf\"], \"results\": [{}]}",
        "{\"args\": [\"all_reduce_perf\"], \"results\": [{\"size\": 8, \"in_place\": {\"time\": 1}}]}",
        ("{\"args\": [\"all_reduce_perf\"], \"config\": {\"devices\": [{}]},"
         " \"results\": [{\"size\": 8, \"in_place\": {\"time\": 1, \"nwrong\": 2}}]}"),
    };
    struct tune_results r = {0};

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        if (read_odd(texts[i], &r) != EXIT_USAGE)
            fail_msg("'%s' is not refused", texts[i]);
    assert_int_equal(tune_results_read("no/such/file", &nothing, &r), EXIT_USAGE);
    assert_int_equal(r.count, 0);
    tune_results_fini(&r);
}

/* ---- fitting -------------------------------------------------------------------------------- */

static double measured_us(const struct tune_size *size, int algorithm, int protocol)
{
    for (size_t i = 0; i < size->count; i++)
        if (size->points[i].algorithm == algorithm && size->points[i].protocol == protocol)
            return tune_point_us(&size->points[i]);
    fail_msg("%d/%d was not measured", algorithm, protocol);
    return 0;
}

static void ask(const struct tune_fit *fit, const struct tune_size *size, int64_t bytes,
                struct dp_tuning_answer *answer)
{
    static const float costs[CELLS];
    const struct dp_tuning_question q = {size->points->function, bytes, false, 1, costs,
                                         DP_TUNING_ALGORITHMS, DP_TUNING_PROTOCOLS};
    OWNED(dp_tuner) *tuner = NULL;

    assert_int_equal(dp_tuner_new(&(struct dp_tuner_config){.table = fit->table,
                                                            .ranks = size->points->ranks,
                                                            .nodes = size->points->nodes}, &tuner), 0);
    dp_tuner_ask(tuner, &q, answer);
    answer->rule = NULL; /* it goes with the tuner */
}

CASE(no_size_is_left_worse_than_by_nccls_own_choice)
{
    struct tune_results r = {0};
    struct tune_fit fit;
    struct dp_tuning_answer answer;
    int changed = 0;

    read_all_reduces(&r);
    read_all_gathers(&r);
    assert_int_equal(tune_fit(&r, 0.03, &fit), EXIT_OK);
    assert_int_equal(fit.count, 21 + 11);
    for (size_t i = 0; i < fit.count; i++) {
        const struct tune_size *s = &fit.sizes[i];
        double own_us = tune_point_us(&s->points[0]);
        ask(&fit, s, s->points->bytes, &answer);
        double us = measured_us(s, answer.algorithm, answer.protocol);
        assert_true(us <= own_us);
        assert_true(answer.algorithm == DP_TUNING_DEFAULT || us < 0.97 * own_us);
        changed += answer.algorithm != DP_TUNING_DEFAULT;
    }
    assert_int_equal(changed, 10);
    tune_fit_fini(&fit);
    tune_results_fini(&r);
}

/* Between a size that changes and one that does not, and outside of all, NCCL is left alone. */
CASE(nothing_is_changed_without_measurements)
{
    struct tune_results r = {0};
    struct tune_fit fit;
    struct dp_tuning_answer answer;

    read_all_reduces(&r);
    assert_int_equal(tune_fit(&r, 0.03, &fit), EXIT_OK);
    for (size_t i = 0; i + 1 < fit.count; i++) {
        const struct tune_size *a = &fit.sizes[i], *b = a + 1;
        bool both = a->choice != a->points && b->choice != b->points;
        ask(&fit, a, (a->points->bytes + b->points->bytes) / 2, &answer);
        assert_int_equal(answer.algorithm != DP_TUNING_DEFAULT, both);
    }
    ask(&fit, fit.sizes, 1023, &answer);
    assert_int_equal(answer.source, DP_TUNING_FROM_NCCL);
    ask(&fit, fit.sizes, (1 << 30) + 1, &answer);
    assert_int_equal(answer.source, DP_TUNING_FROM_NCCL);
    tune_fit_fini(&fit);
    tune_results_fini(&r);
}

CASE(a_greater_gain_changes_less)
{
    static const double gains[] = {0, 0.03, 0.2, 0.4, 0.99};
    size_t last = 1000;

    for (size_t g = 0; g < sizeof(gains) / sizeof(gains[0]); g++) {
        struct tune_results r = {0};
        struct tune_fit fit;
        size_t changed = 0;
        read_all_reduces(&r);
        assert_int_equal(tune_fit(&r, gains[g], &fit), EXIT_OK);
        for (size_t i = 0; i < fit.count; i++)
            changed += fit.sizes[i].choice != fit.sizes[i].points;
        assert_true(changed <= last);
        last = changed;
        tune_fit_fini(&fit);
        tune_results_fini(&r);
    }
    assert_int_equal(last, 0);
}

CASE(without_nccls_own_choice_there_is_no_table)
{
    struct tune_results r = {0};
    struct tune_fit fit;

    assert_int_equal(read_results("tree/ll=", "allreduce-tree-ll.txt", &r), EXIT_OK);
    assert_int_equal(tune_fit(&r, 0.03, &fit), EXIT_USAGE);
    tune_fit_fini(&fit);
    tune_results_fini(&r);
}

static int set_up(void **state)
{
    return scratch_file(odd_path, "tune") ? 0 : -1;
}

static int tear_down(void **state)
{
    return unlink(odd_path);
}

RUN_CASES(set_up, tear_down)
