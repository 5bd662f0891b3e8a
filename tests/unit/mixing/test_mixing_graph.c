/* SPDX-License-Identifier: Apache-2.0
 *
 * Mixing graphs: the built-in ones are what they are said to be, users' files become graphs, and the
 * checker names what is wrong and where.
 */
#include "cmocka_all.h"
#include "mixing/internal.h"

#include "mixing/graph.h"

static struct dp_graph *build_local(const char *name, int workers, int local)
{
    struct dp_graph *g;

    if (dp_graph_new(&(struct dp_graph_spec){.name = name, .workers = workers, .local = local}, &g))
        fail_msg("%s", dp_last_error());
    return g;
}

static struct dp_graph *build(const char *name, int workers)
{
    return build_local(name, workers, 1);
}

static struct dp_graph *read_text(const char *text)
{
    struct dp_graph *g;

    if (dp_graph_read(text, strlen(text), &g))
        fail_msg("%s, in\n%s", dp_last_error(), text);
    return g;
}

static double contraction(const struct dp_graph *g, int64_t first, int32_t count)
{
    double sigma;

    assert_int_equal(dp_graph_contraction(g, first, count, &sigma), 0);
    return sigma;
}

static void assert_near(double value, double right, double tolerance)
{
    if (!(fabs(value - right) <= tolerance))
        fail_msg("%.12g, expected %.12g", value, right);
}

static void assert_text(const struct dp_graph *g, const char *right)
{
    FREED char *text = NULL;

    assert_int_equal(dp_graph_write(g, &text, NULL), 0);
    assert_string_equal(text, right);
}

/* ---- built-in graphs -------------------------------------------------------------------------- */

CASE(every_built_in_graph_passes_the_checker_and_survives_its_text)
{
    for (int i = 0; dp_graph_name(i); i++)
        for (int n = 2; n <= 32; n *= 2) {
            struct dp_graph *g = build_local(dp_graph_name(i), n, n > 4 ? 2 : 1), *back;
            FREED char *text = NULL;
            size_t len;
            assert_int_equal(dp_graph_check(g, NULL), 0);
            assert_int_equal(dp_graph_write(g, &text, &len), 0);
            assert_int_equal(dp_graph_read(text, len, &back), 0);
            assert_true(dp_graph_equal(g, back));
            assert_string_equal(back->name, g->name);
            dp_graph_free(back);
            dp_graph_free(g);
        }
}

CASE(a_group_of_one_is_legal)
{
    static const char *const names[] = {"complete",     "one-peer-exp",    "torus",     "star",
                                        "hierarchical", "random-matching", "hypercube", "directed-exp"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct dp_graph *g = build(names[i], 1);
        double x = 3, out = 0;
        dp_graph_mix(g, 0, false, &x, &out);
        assert_true(out == 3);
        dp_graph_free(g);
    }
    dp_graph_free(build_local("alternating-exp-ring", 2, 1));
}

CASE(sizes_that_a_kind_cannot_have_are_refused)
{
    static const struct dp_graph_spec wrong[] = {
        {.name = "ring", .workers = 3, .local = 1},
        {.name = "ring", .workers = 1, .local = 1},
        {.name = "one-peer-exp", .workers = 6, .local = 1},
        {.name = "alternating-exp-ring", .workers = 6, .local = 2},
        {.name = "alternating-exp-ring", .workers = 4, .local = 4},
        {.name = "complete", .workers = 4, .local = 3},
        {.name = "complete", .workers = 0, .local = 1},
        {.name = "complete", .workers = -2, .local = 1},
        {.name = "complete", .workers = 4, .local = -1},
        {.name = "rign", .workers = 4, .local = 1},
        {.workers = 4, .local = 1},
    };
    struct dp_graph *g;

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        assert_int_equal(dp_graph_new(&wrong[i], &g), DP_EINVAL);
    dp_graph_new(&wrong[9], &g);
    assert_non_null(strstr(dp_last_error(), "did you mean ring?"));
}

CASE(nodes_are_those_of_the_launcher_by_default)
{
    setenv("LOCAL_WORLD_SIZE", "4", 1);
    struct dp_graph *g = build_local("hierarchical", 8, 0);
    assert_int_equal(g->local, 4);
    dp_graph_free(g);
    setenv("LOCAL_WORLD_SIZE", "four", 1);
    assert_int_equal(
        dp_graph_new(&(struct dp_graph_spec){.name = "complete", .workers = 4}, &g), DP_EINVAL);
    unsetenv("LOCAL_WORLD_SIZE");
}

CASE(alternating_is_as_in_the_specification)
{
    struct dp_graph *g = build_local("alternating-exp-ring", 8, 2);

    assert_text(g, "mixing alternating-exp-ring workers=8 local=2\n"
                   "round 0: {0 1} {2 3} {4 5 6 7}\n"
                   "round 1: {0 1 2 3} {4 5} {6 7}\n"
                   "round 2: {0 1} {4 5} {2 3 6 7}\n"
                   "round 3: {0 1 4 5} {2 3} {6 7}\n");
    dp_graph_free(g);
}

CASE(rounds_contract_as_theory_predicts)
{
    for (int n = 6; n <= 64; n += 2) {
        struct dp_graph *g = build("ring", n);
        assert_near(contraction(g, 0, 1), 1, 1e-12);
        assert_near(contraction(g, 0, 2), cos(2 * 3.14159265358979323846 / n), 1e-9);
        dp_graph_free(g);
    }
    for (int n = 2; n <= 64; n *= 2)
        for (int first = 0; first < 3; first++) {
            struct dp_graph *g = build("one-peer-exp", n), *h = build("hypercube", n);
            assert_true(dp_graph_equal(g, h));
            assert_near(contraction(g, first, g->period), 0, 0);
            dp_graph_free(g);
            g = build("directed-exp", n);
            assert_near(contraction(g, first, g->period), 0, 0);
            dp_graph_free(g);
            dp_graph_free(h);
        }
    struct dp_graph *g = build("star", 16);
    assert_near(contraction(g, 0, 1), 1 - 1.0 / 16, 1e-9);
    dp_graph_free(g);
    g = build("ring", 2048); /* where power iteration would take millions of steps */
    assert_near(contraction(g, 0, 2), cos(2 * 3.14159265358979323846 / 2048), 1e-11);
    dp_graph_free(g);
}

CASE(any_number_of_workers_agrees_exactly_after_a_period_of_hypercube)
{
    for (int n = 1; n <= 60; n++) {
        struct dp_graph *g = build("hypercube", n);
        assert_near(contraction(g, 0, g->period), 0, 0);
        dp_graph_free(g);
        for (int local = 1; local <= n; local++) {
            if (n % local)
                continue;
            g = build_local("hierarchical", n, local);
            assert_near(contraction(g, 0, g->period), 0, 0);
            dp_graph_free(g);
        }
    }
}

CASE(random_matchings_follow_their_seed_and_are_connected)
{
    for (int n = 2; n <= 33; n++)
        for (uint64_t seed = 0; seed < 4; seed++) {
            struct dp_graph_spec spec = {.name = "random-matching", .workers = n, .local = 1,
                                         .seed = seed};
            struct dp_graph *again;
            OWNED(dp_graph) *g = NULL;
            assert_int_equal(dp_graph_new(&spec, &g), 0);
            assert_int_equal(dp_graph_new(&spec, &again), 0);
            assert_true(dp_graph_equal(g, again));
            dp_graph_free(again);
            spec.seed += 100;
            assert_int_equal(dp_graph_new(&spec, &again), 0);
            assert_true(n < 6 || !dp_graph_equal(g, again));
            dp_graph_free(again);
        }
}

/* Integers, so that nothing is rounded. */
CASE(rounds_preserve_the_mean_exactly)
{
    for (int i = 0; dp_graph_name(i); i++) {
        struct dp_graph *g = build_local(dp_graph_name(i), 16, 4);
        double x[16], out[16], back[16], sum = 0;
        for (int w = 0; w < 16; w++)
            sum += x[w] = 720720.0 * (w * w % 13);
        for (int32_t t = 0; t < g->period; t++) {
            double mixed = 0, dot = 0, dot_back = 0;
            dp_graph_mix(g, t, false, x, out);
            dp_graph_mix(g, t, true, out, back);
            for (int w = 0; w < 16; w++) {
                double row = 0;
                mixed += out[w];
                dot += out[w] * out[w];
                dot_back += x[w] * back[w];
                for (int v = 0; v < 16; v++)
                    row += dp_graph_weight(g, t, w, v) * x[v];
                assert_near(row, out[w], 1e-6);
            }
            assert_near(mixed, sum, 0);
            assert_near(dot / dot_back, 1, 1e-12);
        }
        dp_graph_free(g);
    }
}

/* ---- names ------------------------------------------------------------------------------------ */

static int build_halves(const struct dp_graph_spec *spec, struct dp_graph_builder *b, void *user)
{
    const int32_t half = spec->workers / 2;

    if (user && *(bool *)user)
        return DP_EINVAL;
    for (int32_t t = 0; t < 2; t++) {
        dp_graph_add_round(b);
        for (int32_t i = 0; i < half; i++)
            dp_graph_add_group(b, (int32_t[]){i, half + (i + t) % half}, 2, 0.6);
    }
    return 0;
}

static int build_one_missing(const struct dp_graph_spec *spec, struct dp_graph_builder *b,
                             void *user)
{
    dp_graph_add_round(b);
    dp_graph_add_group(b, (int32_t[]){0, 1}, 2, -1);
    return 0;
}

CASE(names_are_registered_once)
{
    static bool refuse;
    const struct dp_graph_kind halves = {build_halves, &refuse}, missing = {build_one_missing, NULL};
    struct dp_graph *g;

    assert_int_equal(dp_graph_register("halves", &halves), 0);
    assert_int_equal(dp_graph_register("halves", &halves), DP_EINVAL);
    assert_int_equal(dp_graph_register("ring", &halves), DP_EINVAL);
    assert_int_equal(dp_graph_register("none", &(struct dp_graph_kind){0}), DP_EINVAL);
    assert_int_equal(dp_graph_register("none", NULL), DP_EINVAL);
    assert_int_equal(dp_graph_register("", &halves), DP_EINVAL);
    assert_int_equal(dp_graph_register("no blanks", &halves), DP_EINVAL);
    assert_int_equal(dp_graph_register("missing", &missing), 0);

    g = build("halves", 8);
    assert_near(dp_graph_weight(g, 1, 0, 5), 0.4, 1e-15);
    dp_graph_free(g);
    refuse = true;
    assert_int_equal(dp_graph_new(&(struct dp_graph_spec){.name = "halves", .workers = 8, .local = 1},
                                  &g), DP_EINVAL);
    assert_int_equal(dp_graph_new(&(struct dp_graph_spec){.name = "missing", .workers = 3, .local = 1},
                                  &g), DP_EINVAL);
    assert_non_null(strstr(dp_last_error(), "worker 2 is in no group"));
    bool found = false;
    for (int i = 0; dp_graph_name(i); i++)
        found = found || !strcmp(dp_graph_name(i), "halves");
    assert_true(found);
}

/* ---- users' files ----------------------------------------------------------------------------- */

CASE(groups_of_push_sum_are_links)
{
    struct dp_graph *g = read_text("mixing both workers=3 push-sum\n"
                                   "round 0: {0 1}*0.75 {2}\nround 1: 0>0*0.5 0>2*0.5 1>1*1 2>2*1\n");

    assert_text(g, "mixing both workers=3 local=1 push-sum\n"
                   "round 0: 0>0*0.75 1>0*0.25 0>1*0.25 1>1*0.75 2>2*1\n"
                   "round 1: 0>0*0.5 1>1*1 0>2*0.5 2>2*1\n");
    dp_graph_free(g);
    g = read_text("mixing twice workers=2 push-sum\nround 0: {0 1} {1}\n");
    assert_int_equal(dp_graph_check(g, NULL), DP_EINVAL);
    dp_graph_free(g);
}

CASE(files_that_are_no_graph_are_refused)
{
    static const struct {
        const char *text, *says;
    } wrong[] = {
        {"", "expected 'mixing NAME workers=N'"},
        {"# nothing\n", "line 2: the line ends, expected 'mixing NAME workers=N'"},
        {"0 1\n1 2\n", "line 1: '0', expected 'mixing NAME workers=N'"},
        {"mixing\n", "expected"},
        {"mixing a workers=2\nround 1: {0 1}\n", "line 2: 'round 1: {0 1}', expected 'round 0:'"},
        {"mixing a workers=2\nround 0: {0 2}\n", "worker 2, expected 0 to 1"},
        {"mixing a workers=2\nround 0: {0 1\n", "expected workers and '}'"},
        {"mixing a workers=2\nround 0: {0 1}*\n", "expected what each worker of the group keeps"},
        {"mixing a workers=2\nround 0: 0>1\n", "expected a group like"},
        {"mixing a workers=2\nround 0: {0} 0>1*1\n", "a link, expected groups only"},
        {"mixing a workers=2\nround 0: 0>1*1 {0}\n", "in a round without links"},
        {"mixing a workers=4 local=3\n", "expected a divisor of 4 workers"},
        {"{\"world\": 2}", "line 1: '{\"world\":', expected 'mixing NAME workers=N'"},
    };
    struct dp_graph *g;

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        int err = dp_graph_read(wrong[i].text, strlen(wrong[i].text), &g);
        if (err != DP_EINVAL || !strstr(dp_last_error(), wrong[i].says))
            fail_msg("'%s': %d, '%s', expected '%s'", wrong[i].text, err, dp_last_error(),
                     wrong[i].says);
    }
    assert_int_equal(dp_graph_read("mixing a\0b workers=2", 20, &g), DP_EINVAL);
}

/* ---- the checker ------------------------------------------------------------------------------ */

CASE(the_checker_names_the_rule_and_the_place)
{
    static const struct {
        const char *text;
        enum dp_graph_rule rule;
        int32_t round, worker;
    } wrong[] = {
        {"mixing a workers=2\n", DP_GRAPH_RULE_SHAPE, -1, -1},
        {"mixing a workers=4\nround 0: {0 1} {2 3}\nround 1: {0 1} {2}\n", DP_GRAPH_RULE_ONCE, 1, 3},
        {"mixing a workers=4\nround 0: {0 1} {2 3} {1}\n", DP_GRAPH_RULE_ONCE, 0, 1},
        {"mixing a workers=2\nround 0: {0 0 1}\n", DP_GRAPH_RULE_ONCE, 0, 0},
        {"mixing a workers=2\nround 0:\n", DP_GRAPH_RULE_ONCE, 0, 0},
        {"mixing a workers=2\nround 0: {0 1}*1.5\n", DP_GRAPH_RULE_WEIGHT, 0, 0},
        {"mixing a workers=2\nround 0: {0} {1}*0.5\n", DP_GRAPH_RULE_WEIGHT, 0, 1},
        {"mixing a workers=2\nround 0: 0>0*0.5 0>1*0.4 1>1*0.5 1>0*0.5\n", DP_GRAPH_RULE_COLUMN, 0, 0},
        {"mixing a workers=2\nround 0: 0>0*0.5 0>1*0.5 1>1*1\n", DP_GRAPH_RULE_ROW, 0, 0},
        {"mixing a workers=2\nround 0: 0>0*-1 0>1*2 1>1*1\n", DP_GRAPH_RULE_WEIGHT, 0, 0},
        {"mixing a workers=2\nround 0: 0>1*0.5 0>1*0.5 1>0*1\n", DP_GRAPH_RULE_ONCE, 0, 1},
        {"mixing a workers=4\nround 0: {0 1} {2 3}\n", DP_GRAPH_RULE_CONNECTED, -1, 2},
        {"mixing a workers=2 local=1 push-sum\nround 0: 0>0*0.5 0>1*0.5 1>1*1\n",
         DP_GRAPH_RULE_CONNECTED, -1, 1},
    };

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        OWNED(dp_graph) *g = read_text(wrong[i].text);
        struct dp_graph_finding finding;
        assert_int_equal(dp_graph_check(g, &finding), DP_EINVAL);
        if (finding.rule != wrong[i].rule || finding.round != wrong[i].round ||
            finding.worker != wrong[i].worker)
            fail_msg("%s: %s rule, round %d, worker %d: %s", wrong[i].text,
                     dp_name(DP_NAMES_GRAPH_RULE, finding.rule), finding.round, finding.worker, finding.text);
    }
}

/* ---- fewer workers, and more ------------------------------------------------------------------ */

static struct dp_graph *without(struct dp_graph *g, unsigned dead)
{
    struct dp_graph *left = NULL;
    bool alive[16];

    for (int w = 0; w < g->workers; w++)
        alive[w] = !(dead >> w & 1);
    assert_int_equal(dp_graph_without(g, alive, &left), 0);
    assert_int_equal(dp_graph_check(left, NULL), 0);
    assert_int_equal(left->workers, g->workers - __builtin_popcount(dead));
    return left;
}

CASE(any_workers_may_be_lost_and_the_rest_is_a_sound_graph)
{
    static const struct {
        const char *name;
        int workers, local;
    } cases[] = {{"complete", 5, 1}, {"ring", 6, 1}, {"one-peer-exp", 8, 1}, {"hypercube", 6, 1},
                 {"alternating-exp-ring", 8, 2}, {"hierarchical", 6, 2}, {"random-matching", 7, 1},
                 {"torus", 6, 1}, {"star", 5, 1}, {"directed-exp", 6, 1}};
    static const char one_way[] = "mixing one-way workers=4\n"
                                  "round 0: 0>0*0.5 0>1*0.5 1>1*0.5 1>2*0.5 2>2*0.5 2>3*0.5 3>3*0.5 "
                                  "3>0*0.5\n";

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct dp_graph *g = build_local(cases[i].name, cases[i].workers, cases[i].local);
        for (unsigned dead = 0; dead + 1 < 1u << g->workers; dead++)
            dp_graph_free(without(g, dead));
        dp_graph_free(g);
    }
    struct dp_graph *g = read_text(one_way);
    for (unsigned dead = 0; dead + 1 < 16; dead++)
        dp_graph_free(without(g, dead));
    dp_graph_free(g);
}

CASE(what_a_lost_worker_passed_on_goes_the_same_way)
{
    static const char skewed[] = "mixing skewed workers=4\nround 0: {0 1 2 3}*0.4\n"
                                 "round 1: {0 1} {2 3}\n";
    static const char one_way[] = "mixing one-way workers=3\n"
                                  "round 0: 0>0*0.5 0>1*0.5 1>1*0.5 1>2*0.5 2>2*0.5 2>0*0.5\n";
    struct dp_graph *g, *left;

    g = build("ring", 8);
    left = without(g, 1u << 1 | 1u << 4);
    struct dp_graph *smaller = build("ring", 6);
    assert_true(dp_graph_equal(left, smaller));
    dp_graph_free(smaller);
    dp_graph_free(left);
    dp_graph_free(g);
    g = build("one-peer-exp", 4);
    left = without(g, 1u << 2);
    assert_text(left, "mixing one-peer-exp workers=3 local=1\nround 0: {0 1} {2}\n"
                      "round 1: {0} {1 2}\n");
    dp_graph_free(left);
    dp_graph_free(g);
    g = read_text(skewed);
    left = without(g, 1u << 3);
    /* 0.2 each; of the lost one's 0.2 a third of 0.6 each comes back: 0.2 + 0.2 * 0.2 / 0.6. */
    assert_near(dp_graph_weight(left, 0, 0, 1), 0.2 + 0.04 / 0.6, 1e-15);
    assert_near(dp_graph_weight(left, 0, 0, 0), 0.4 + 0.04 / 0.6, 1e-15);
    assert_near(dp_graph_weight(left, 1, 2, 2), 1, 0);
    dp_graph_free(left);
    left = without(g, 1u << 1 | 1u << 3);
    assert_int_equal(left->period, 2); /* the first round is enough */
    dp_graph_free(left);
    dp_graph_free(g);
    g = read_text(one_way);
    left = without(g, 1u << 1);
    assert_near(dp_graph_weight(left, 0, 1, 0), 0.5, 1e-15); /* 0 gave it to 1, which gave it to 2 */
    assert_near(dp_graph_weight(left, 0, 1, 1), 0.5, 1e-15);
    dp_graph_free(left);
    dp_graph_free(g);
}

CASE(parts_that_would_never_meet_get_a_round_more)
{
    static const char path[] = "mixing path workers=5\nround 0: {0 1} {2 3} {4}\n"
                               "round 1: {0} {1 2} {3 4}\n";
    OWNED(dp_graph) *g = read_text(path);
    struct dp_graph *left = without(g, 1u << 2);

    assert_text(left, "mixing path workers=4 local=1\nround 0: {0 1} {2} {3}\n"
                      "round 1: {0} {1} {2 3}\nround 2: {0 2} {1} {3}\n");
    dp_graph_free(left);
}

CASE(a_graph_of_another_size_is_of_its_kind_where_that_exists)
{
    static const struct {
        const char *name;
        int workers, then;
        const char *becomes;
    } cases[] = {{"ring", 4, 6, "ring"}, {"ring", 4, 5, "hypercube"}, {"one-peer-exp", 4, 8,
                 "one-peer-exp"}, {"one-peer-exp", 4, 6, "hypercube"}, {"torus", 4, 5, "torus"},
                 {"directed-exp", 4, 5, "directed-exp"}, {"random-matching", 4, 5, "hypercube"}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct dp_graph *g = build(cases[i].name, cases[i].workers), *other, *right;
        assert_int_equal(dp_graph_of_size(g, cases[i].then, &other), 0);
        right = build(cases[i].becomes, cases[i].then);
        assert_true(dp_graph_equal(other, right));
        assert_int_equal(dp_graph_of_size(g, 0, &other), DP_EINVAL);
        assert_int_equal(dp_graph_without(g, (bool[4]){false}, &other), DP_EINVAL);
        dp_graph_free(right);
        dp_graph_free(other);
        dp_graph_free(g);
    }
}

RUN_QUIET_CASES(NULL, NULL)
