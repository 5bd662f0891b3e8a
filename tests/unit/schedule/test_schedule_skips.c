/* SPDX-License-Identifier: Apache-2.0
 *
 * Skip connections of a schedule: their declaration, their messages under every schedule, the checker
 * and the simulator, and the formats.
 */
#include "cmocka_all.h"
#include "schedule/internal.h"

#include <dualpipe/partition.h>
#include <dualpipe/schedule.h>

/* From stage 0 over every third of the model, crossing each other. */
static int crossing(int stages, struct dp_skip skips[2])
{
    memset(skips, 0, 2 * sizeof(*skips));
    skips[0] = (struct dp_skip){.name = "a", .from = 0, .to = stages - 1 - (stages > 2)};
    skips[1] = (struct dp_skip){.name = "a", .space = "enc", .from = stages > 2, .to = stages - 1};
    return stages > 1 ? 2 : 0;
}

static int stages_of(struct dp_schedule_spec spec)
{
    OWNED(dp_schedule) *s = NULL;

    assert_int_equal(dp_schedule_new(&spec, &s), 0);
    const int stages = s->stages;
    return stages;
}

static const struct dp_schedule_spec shapes[] = {
    {.kind = DP_SCHEDULE_GPIPE, .ranks = 1, .microbatches = 3},
    {.kind = DP_SCHEDULE_GPIPE, .ranks = 4, .microbatches = 6},
    {.kind = DP_SCHEDULE_1F1B, .ranks = 2, .microbatches = 4},
    {.kind = DP_SCHEDULE_1F1B, .ranks = 5, .microbatches = 9},
    {.kind = DP_SCHEDULE_ZB1P, .ranks = 4, .microbatches = 8},
    {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 2, .microbatches = 4},
    {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 8, .microbatches = 20, .mirror_reduce = true},
    {.kind = DP_SCHEDULE_DUALPIPEV, .ranks = 1, .microbatches = 3},
    {.kind = DP_SCHEDULE_DUALPIPEV, .ranks = 4, .microbatches = 10},
    {.kind = DP_SCHEDULE_INTERLEAVED, .ranks = 3, .microbatches = 6, .virtual_stages = 3},
    {.kind = DP_SCHEDULE_ZBV, .ranks = 4, .microbatches = 8},
    {.kind = DP_SCHEDULE_ASYNC, .ranks = 4, .microbatches = 5},
};
enum { SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

static struct dp_schedule *build(struct dp_schedule_spec spec)
{
    struct dp_skip skips[2];
    struct dp_schedule *s = NULL;

    spec.skip_count = crossing(stages_of(spec), skips);
    spec.skips = skips;
    if (dp_schedule_new(&spec, &s))
        fail_msg("%s", dp_last_error());
    return s;
}

static int count_kind(const struct dp_schedule *s, enum dp_op_kind kind)
{
    int count = 0;

    for (size_t i = 0; i < s->first[s->ranks]; i++)
        count += s->ops[i].kind == (uint32_t)kind;
    return count;
}

static int remote_skips(const struct dp_schedule *s)
{
    int count = 0;

    for (int i = 0; i < s->streams * s->skip_count; i++)
        count += s->skip_ends[i].from != s->skip_ends[i].to;
    return count;
}

/* Every variant of every shape. */
static void for_all(void (*test)(struct dp_schedule *s))
{
    for (int i = 0; i < SHAPES; i++)
        for (int variant = 0; variant < 4; variant++) {
            struct dp_schedule_spec spec = shapes[i];
            spec.forward_only = variant == 1;
            spec.recompute = variant == 2 ? DP_RECOMPUTE_EXCEPT_LAST : DP_RECOMPUTE_NEVER;
            spec.return_outputs = variant == 3;
            OWNED(dp_schedule) *s = build(spec);
            test(s);
        }
}

static void expect_right(struct dp_schedule *s)
{
    const int messages = remote_skips(s) * s->mb_per_stream, back = s->forward_only ? 0 : messages;
    struct dp_finding finding;

    if (dp_schedule_check(s, NULL, &finding))
        fail_msg("%s, %d ranks: %s", dp_name(DP_NAMES_SCHEDULE, s->kind), s->ranks, finding.text);
    assert_int_equal(count_kind(s, DP_OP_SEND_SKIP_F), messages);
    assert_int_equal(count_kind(s, DP_OP_RECV_SKIP_F), messages);
    assert_int_equal(count_kind(s, DP_OP_SEND_SKIP_B), back);
    assert_int_equal(count_kind(s, DP_OP_RECV_SKIP_B), back);
}

CASE(every_schedule_with_crossing_skips_passes_the_checker)
{
    for_all(expect_right);
}

static void expect_round_trip(struct dp_schedule *s)
{
    for (int format = DP_FORMAT_TEXT; format <= DP_FORMAT_CSV; format++) {
        OWNED(dp_schedule) *again = NULL;
        FREED char *text = NULL;
        size_t len;
        assert_int_equal(dp_schedule_write(s, (enum dp_format)format, &text, &len), 0);
        if (dp_schedule_read(text, len, (enum dp_format)format, &again))
            fail_msg("%s: %s", dp_name(DP_NAMES_SCHEDULE, s->kind), dp_last_error());
        assert_true(dp_schedule_equal(s, again));
    }
}

CASE(skips_are_written_and_read_back_in_every_format)
{
    for_all(expect_round_trip);
}

/* Messages that take no time change nothing; those of skips that take long delay their consumers. */
static void expect_simulated(struct dp_schedule *s)
{
    const struct dp_cost cost = {.f_ns = 10, .i_ns = 10, .w_ns = 10};
    struct dp_cost slow = cost;
    struct dp_simulation slow_run;
    ENDED_BY(dp_simulation_fini) struct dp_simulation fast_run = {0};

    slow.link_bytes_per_ns = 1;
    slow.skip_bytes = 1000;
    assert_int_equal(dp_schedule_simulate(s, &cost, 0, &fast_run), 0);
    assert_int_equal(dp_schedule_simulate(s, &slow, DP_SIMULATE_BATCHES, &slow_run), 0);
    dp_simulation_fini(&slow_run);
    assert_int_equal(dp_schedule_simulate(s, &slow, 0, &slow_run), 0);
    if (remote_skips(s))
        assert_true(slow_run.makespan_ns >= fast_run.makespan_ns + 900);
    else
        assert_int_equal(slow_run.makespan_ns, fast_run.makespan_ns);
    dp_simulation_fini(&slow_run);
}

CASE(the_simulator_lets_consumers_wait_for_skips)
{
    for_all(expect_simulated);
}

/* ---- what the checker finds ------------------------------------------------------------------ */

static size_t find_op(const struct dp_schedule *s, int rank, enum dp_op_kind kind)
{
    size_t i = 0;

    while (dp_schedule_ops(s, rank)[i].kind != (uint32_t)kind)
        i++;
    return s->first[rank] + i;
}

static void expect_finding(const struct dp_schedule *s, enum dp_rule rule, const char *text)
{
    struct dp_finding finding;

    assert_int_equal(dp_schedule_check(s, NULL, &finding), DP_EINVAL);
    if (finding.rule != rule || !strstr(finding.text, text))
        fail_msg("%s: %s, expected %s: %s", dp_name(DP_NAMES_RULE, finding.rule), finding.text,
                 dp_name(DP_NAMES_RULE, rule), text);
}

CASE(the_checker_finds_what_is_wrong_with_messages_of_skips)
{
    OWNED(dp_schedule) *s = build(shapes[1]);
    size_t send = find_op(s, 0, DP_OP_SEND_SKIP_F), f = find_op(s, 2, DP_OP_RECV_SKIP_F);

    s->ops[send].flags = dp_op_flags(0, 7);
    expect_finding(s, DP_RULE_SHAPE, "skip 7, expected one of 2");
    s->ops[send].flags = dp_op_flags(0, 1);
    expect_finding(s, DP_RULE_SHAPE, "slot 0 has no such message of skip 1");
    s->ops[send].flags = dp_op_flags(0, 0);
    s->ops[send].mb = 1;
    expect_finding(s, DP_RULE_ONCE, "is there twice");
    s->ops[send].mb = 0;
    /* Two receives of one skip the wrong way round. */
    size_t next = f + 1;
    while (s->ops[next].kind != DP_OP_RECV_SKIP_F)
        next++;
    const uint32_t mb = s->ops[f].mb;
    s->ops[f].mb = s->ops[next].mb;
    s->ops[next].mb = mb;
    struct dp_finding finding;
    assert_int_equal(dp_schedule_check(s, NULL, &finding), DP_EINVAL);
    assert_true(finding.rule == DP_RULE_FIFO || finding.rule == DP_RULE_DEPENDENCY);
}

CASE(a_compute_before_its_skip_is_refused)
{
    static const char text[] = "user P=3 M=1 forward_only\n"
                               "skip a 0 2\n"
                               "rank 0: F0.0 sF0.0 skF0.0:0 c2\n"
                               "rank 1: rF0.0 c1 F0.0 sF0.0 c1\n"
                               "rank 2: rF0.0 c1 F0.0 rkF0.0:0 c1\n";
    OWNED(dp_schedule) *s = NULL;

    assert_int_equal(dp_schedule_read(text, strlen(text), DP_FORMAT_TEXT, &s), 0);
    expect_finding(s, DP_RULE_DEPENDENCY, "its value of skip 0 has not been received");
}

/* Ranks 0 and 2 begin with the two ends of one skip in different batches. */
CASE(skips_that_wait_in_a_circle_are_refused)
{
    static const char text[] = "user P=3 M=1 forward_only\n"
                               "skip a 0 2\n"
                               "rank 0: F0.0 skF0.0 c1 sF0.0 c1\n"
                               "rank 1: rF0.0 c1 F0.0 sF0.0 c1\n"
                               "rank 2: rF0.0 c1 rkF0.0 c1 F0.0\n";
    OWNED(dp_schedule) *s = NULL;

    assert_int_equal(dp_schedule_read(text, strlen(text), DP_FORMAT_TEXT, &s), 0);
    expect_finding(s, DP_RULE_DEADLOCK, "rank 0, op 1 (skF0.0:0) -> rank 2");
}

CASE(messages_of_skips_are_added_to_a_list_of_computes)
{
    static const char text[] = "user P=2 M=2\n"
                               "skip deep/x 0 3\n"
                               "holds 0: 0 3\n"
                               "holds 1: 1 2\n"
                               "rank 0: F0.0 F1.0 B1.0 B0.0 F0.1 F1.1 B1.1 B0.1\n"
                               "rank 1: F0.0 F1.0 B1.0 B0.0 F0.1 F1.1 B1.1 B0.1\n";
    OWNED(dp_schedule) *s = NULL;

    assert_int_equal(dp_schedule_read(text, strlen(text), DP_FORMAT_TEXT, &s), 0);
    assert_int_equal(dp_schedule_check(s, NULL, NULL), 0);
    assert_int_equal(s->skip_ends[0].from, 0);
    assert_int_equal(s->skip_ends[0].to_slot, 1);
    assert_int_equal(count_kind(s, DP_OP_SEND_SKIP_F), 0); /* both ends are on rank 0 */
}

/* ---- declarations ---------------------------------------------------------------------------- */

/* Of a schedule of so many stages. */
static int check_skips(const struct dp_skip *skips, int count, int stages)
{
    OWNED(dp_schedule) *s = NULL;

    assert_int_equal(dp_schedule_new(&(struct dp_schedule_spec){.kind = DP_SCHEDULE_GPIPE,
                                                               .ranks = stages, .microbatches = 1},
                                     &s), 0);
    const int err = dp_schedule_add_skips(s, skips, count);
    return err;
}

CASE(all_violations_are_reported_together)
{
    static const struct dp_skip wrong[] = {
        {"self", "", 1, 1},     {"back", "", 3, 1},     {"twice", "", 0, 2}, {"twice", "", 1, 3},
        {"lost", "", 0, -1},    {"none", "enc", -1, 2}, {"far", "", 0, 9},   {"two", "", 0, 1},
        {"two", "enc", 0, 1},
    };
    static const char *const parts[] = {
        "'self': produced and consumed by stage 1",
        "'back': consumed by stage 1 before stage 3 produces it",
        "'twice': produced twice, by stages 0 and 1", "'twice': consumed twice, by stages 2 and 3",
        "'lost': produced by stage 0 and never consumed",
        "'enc/none': consumed by stage 2 and never produced",
        "'far': consumed by stage 9, expected 0 to 3",
    };

    assert_int_equal(check_skips(wrong, sizeof(wrong) / sizeof(wrong[0]), 4), DP_EINVAL);
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        if (!strstr(dp_last_error(), parts[i]))
            fail_msg("%s, expected %s", dp_last_error(), parts[i]);
    assert_non_null(strstr(dp_last_error(), "7 violations"));
    assert_int_equal(check_skips(wrong + 7, 2, 4), 0); /* one name in two namespaces */
}

/* One entry after the other: 0 and 1 on rank 0, s (twice) and 3 on rank 1, then s again and 5. */
CASE(skips_of_layers_become_those_of_their_stages)
{
    static const int32_t list[] = {'a', 'b', 's', 'c', 's', 'd'}, balance[] = {2, 3};
    static const struct dp_skip layers[] = {
        {"inside", "", 0, 1}, {"far", "", 0, 5}, {"far", "enc", 1, 3}, {"reused", "", 2, 4}};
    OWNED(dp_partition) *p = NULL;
    struct dp_skip skips[4];
    int count = 0;

    assert_int_equal(dp_partition_new(&(struct dp_partition_spec){.layers = list, .layer_count = 6,
                                                                  .balance = balance, .stages = 2},
                                      &p), 0);
    assert_int_equal(p->invocation_count, 5); /* a b | s | c | s | d */
    assert_int_equal(dp_skips_of_layers(p, layers, 4, skips, &count), 0);
    static const struct dp_skip want[] = {
        {"far", "", 0, 4}, {"far", "enc", 0, 2}, {"reused", "", 1, 3}};
    assert_int_equal(count, 3);
    for (int i = 0; i < count; i++)
        if (strcmp(skips[i].name, want[i].name) || strcmp(skips[i].space, want[i].space) ||
            skips[i].from != want[i].from || skips[i].to != want[i].to)
            fail_msg("skip %d: '%s' from %d to %d", i, skips[i].name, skips[i].from, skips[i].to);
    OWNED(dp_schedule) *s = NULL;
    assert_int_equal(dp_schedule_new(&(struct dp_schedule_spec){.kind = DP_SCHEDULE_ASYNC,
                                                                .ranks = 2, .microbatches = 3,
                                                                .partition = p, .skips = skips,
                                                                .skip_count = count},
                                     &s), 0);
    assert_int_equal(dp_schedule_check(s, NULL, NULL), 0);
    /* 'reused' begins and ends on rank 1: two skips cross, value and gradient of 3 micro-batches. */
    assert_int_equal(count_kind(s, DP_OP_SEND_SKIP_F), 2 * 3);
    assert_int_equal(count_kind(s, DP_OP_SEND_SKIP_B), 2 * 3);
}

CASE(all_violations_of_layers_are_reported_together)
{
    static const struct dp_skip wrong[] = {
        {"self", "", 1, 1},  {"back", "", 3, 1},     {"twice", "", 0, 2}, {"twice", "", 1, 3},
        {"lost", "", 0, -1}, {"none", "enc", -1, 2}, {"far", "", 0, 9}};
    static const char *const parts[] = {
        "7 violations",
        "'self': produced and consumed by layer 1",
        "'back': consumed by layer 1 before layer 3 produces it",
        "'twice': produced twice, by layers 0 and 1",
        "'twice': consumed twice, by layers 2 and 3",
        "'lost': produced by layer 0 and never consumed",
        "'enc/none': consumed by layer 2 and never produced",
        "'far': consumed by layer 9, expected 0 to 3"};
    static const int32_t balance[] = {4};
    OWNED(dp_partition) *p = NULL;
    struct dp_skip skips[7];
    int count = -1;

    assert_int_equal(dp_partition_new(&(struct dp_partition_spec){.layer_count = 4,
                                                                  .balance = balance, .stages = 1},
                                      &p), 0);
    assert_int_equal(dp_skips_of_layers(p, wrong, 7, skips, &count), DP_EINVAL);
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        if (!strstr(dp_last_error(), parts[i]))
            fail_msg("%s, expected %s", dp_last_error(), parts[i]);
    assert_int_equal(count, -1);
}

CASE(what_is_no_declaration_is_refused)
{
    const struct dp_skip unnamed = {.from = 0, .to = 1}, blank = {"a b", "", 0, 1};
    OWNED(dp_schedule) *s = build(shapes[3]);

    assert_int_equal(check_skips(NULL, 0, 2), 0);
    assert_int_equal(check_skips(NULL, 1, 2), DP_EINVAL);
    assert_int_equal(check_skips(&unnamed, -1, 2), DP_EINVAL);
    assert_int_equal(check_skips(&unnamed, 1, 2), DP_EINVAL);
    assert_int_equal(check_skips(&blank, 1, 2), DP_EINVAL);
    assert_int_equal(dp_schedule_add_skips(s, &unnamed, 1), DP_ESTATE);
}

static void expect_unread(const char *text, enum dp_format format, const char *says)
{
    struct dp_schedule *s;

    assert_int_equal(dp_schedule_read(text, strlen(text), format, &s), DP_EINVAL);
    if (!strstr(dp_last_error(), says))
        fail_msg("%s, expected %s", dp_last_error(), says);
}

CASE(files_with_wrong_skips_are_refused_with_their_place)
{
    expect_unread("1f1b P=2 M=2\nskip a 0\n", DP_FORMAT_TEXT, "line 2: the line ends");
    expect_unread("1f1b P=2 M=2\nskip a/b/c 0 1\n", DP_FORMAT_TEXT, "line 2: 'a/b/c'");
    expect_unread("1f1b P=2 M=2\nskip a 0 x\n", DP_FORMAT_TEXT, "line 2: 'x', expected a stage");
    expect_unread("1f1b P=2 M=2\nskip a 0 1 2\n", DP_FORMAT_TEXT, "line 2: '2', expected the end");
    expect_unread("1f1b P=2 M=2\nskip a 1 0\nrank 0: F0.0\n", DP_FORMAT_TEXT,
                  "line 3: skips: 1 violation: 'a': consumed by stage 0 before stage 1");
    expect_unread("1f1b P=2 M=2\nrank 0: skF0.0:0\n", DP_FORMAT_TEXT, "the number of one of 0 skips");
    expect_unread("{\"algo\": \"1f1b\", \"P\": 2, \"M\": 2, \"skips\": [{\"name\": \"a\"}],"
                  "\"ranks\": [{\"events\": []}, {\"events\": []}]}",
                  DP_FORMAT_JSON, "skips[0].from");
    expect_unread("{\"algo\": \"1f1b\", \"P\": 2, \"M\": 2, \"skips\": [{\"name\": 7}],"
                  "\"ranks\": [{\"events\": []}, {\"events\": []}]}",
                  DP_FORMAT_JSON, "skips[0].name");
}
