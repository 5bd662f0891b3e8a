/* SPDX-License-Identifier: Apache-2.0
 *
 * The checker: passes what the builders write, names what is wrong in what they did not.
 */
#include "cmocka_all.h"

#include <dualpipe/schedule.h>

static bool is_legal(enum dp_schedule_kind kind, int ranks, int microbatches)
{
    if (kind == DP_SCHEDULE_DUALPIPE && (ranks % 2 || microbatches % 2))
        return false;
    if (kind == DP_SCHEDULE_INTERLEAVED && microbatches % ranks)
        return false;
    return (kind != DP_SCHEDULE_DUALPIPE && kind != DP_SCHEDULE_DUALPIPEV) ||
           microbatches >= 2 * ranks;
}

static void expect_valid(struct dp_schedule_spec spec)
{
    struct dp_finding finding;
    OWNED(dp_schedule) *s = NULL;

    if (dp_schedule_new(&spec, &s))
        fail_msg("%s", dp_last_error());
    if (dp_schedule_check(s, NULL, &finding))
        fail_msg("%s P=%d M=%d%s: %s: %s", dp_name(DP_NAMES_SCHEDULE, spec.kind), spec.ranks,
                 spec.microbatches, spec.forward_only ? " forward only" : "",
                 dp_name(DP_NAMES_RULE, finding.rule), finding.text);
}

CASE(all_built_schedules_up_to_24_ranks_are_valid)
{
    for (int kind = DP_SCHEDULE_GPIPE; kind < DP_SCHEDULE_KINDS; kind++)
        for (int ranks = 1; ranks <= 24; ranks++)
            for (int m = 1; m <= 2 * ranks + 8; m++)
                for (int flags = 0; flags < 4 && is_legal(kind, ranks, m); flags++)
                    expect_valid((struct dp_schedule_spec){
                        .kind = kind, .ranks = ranks, .microbatches = m,
                        .forward_only = flags & 1, .return_outputs = flags & 2,
                        .no_overlap = flags & 2, .mirror_reduce = flags & 2});
}

CASE(schedules_with_slack_are_valid)
{
    for (int kind = DP_SCHEDULE_DUALPIPE; kind <= DP_SCHEDULE_DUALPIPEV; kind++)
        for (int ranks = 1; ranks <= 12; ranks++)
            for (int m = 2 * ranks; m <= 6 * ranks; m++)
                for (int flags = 0; flags < 4 && is_legal(kind, ranks, m); flags++)
                    expect_valid((struct dp_schedule_spec){
                        .kind = kind, .ranks = ranks, .microbatches = m, .slack = 1,
                        .forward_only = flags == 3, .return_outputs = flags & 2,
                        .no_overlap = flags & 1, .mirror_reduce = flags & 2});
}

/* The pipeline is one of several replicas. */
CASE(a_reduce_of_every_slot_is_valid)
{
    struct dp_simulation sim;

    for (int kind = DP_SCHEDULE_GPIPE; kind < DP_SCHEDULE_KINDS; kind++) {
        OWNED(dp_schedule) *s = NULL;
        const struct dp_schedule_spec spec = {
            .kind = kind, .ranks = 4, .microbatches = 8, .reduce_all = true};
        expect_valid(spec);
        assert_int_equal(dp_schedule_new(&spec, &s), 0);
        size_t launched = 0, waited = 0;
        for (size_t i = 0; i < s->first[s->ranks]; i++) {
            launched += s->ops[i].kind == DP_OP_REDUCE;
            waited += s->ops[i].kind == DP_OP_REDUCE_WAIT;
        }
        assert_int_equal(launched, s->first_slot[s->ranks]);
        assert_int_equal(waited, launched);
        assert_int_equal(dp_schedule_simulate(s, &(struct dp_cost){.f_ns = 1}, 0, &sim), 0);
        dp_simulation_fini(&sim);
    }
}

/* ---- findings ------------------------------------------------------------------------------ */

/* Two ranks, two streams of one micro-batch each, forward only. */
#define CROSSING(rank0, rank1)                                                                     \
    "user P=2 M=2 streams=2 forward_only\nholds 0: 0 1/1\nholds 1: 1 0/1\n"                        \
    "rank 0: " rank0 "\nrank 1: " rank1 "\n"

/* One rank, two micro-batches, a stage; what a user writes need not be good. */
#define ALONE(ops) "user P=1 M=2\nrank 0: " ops "\n"

static const struct {
    enum dp_rule rule;
    int rank, index;
    const char *op, *text, *schedule;
} findings[] = {
    {DP_RULE_ONCE, 0, 3, "none0.0", "rank 0, end of list: B0.1 is missing",
     ALONE("F0.0 B0.0 F0.1")},
    {DP_RULE_ONCE, 0, 2, "F0.0", "rank 0, op 2 (F0.0): is there twice", ALONE("F0.0 B0.0 F0.0")},
    {DP_RULE_ONCE, 0, 5, "none0.0", "rank 0, end of list: B0.0 is there besides I and W",
     ALONE("F0.0 B0.0 I0.0 W0.0 F0.1")},
    {DP_RULE_SHAPE, 0, 1, "sF0.0",
     "rank 0, op 1 (sF0.0): slot 0 has no such message to another "
     "rank",
     ALONE("F0.0 sF0.0 c1")},
    {DP_RULE_ONCE, 0, 5, "none0.0", "rank 0, end of list: the REDUCE of slot 0 is missing",
     ALONE("F0.0 B0.0 F0.1 B0.1 Rw0")},
    {DP_RULE_SHAPE, 0, 1, "B0.0", "rank 0, op 1 (B0.0): in a forward-only schedule",
     "user P=1 M=1 forward_only\nrank 0: F0.0 B0.0\n"},
    {DP_RULE_DEPENDENCY, 0, 1, "B0.0", "rank 0, op 1 (B0.0): overlaps the F that it needs",
     ALONE("F0.0&B0.0")},
    {DP_RULE_DEPENDENCY, 0, 0, "B0.0", "rank 0, op 0 (B0.0): its F comes later",
     ALONE("B0.0 F0.0 F0.1 B0.1")},
    {DP_RULE_WEIGHT, 0, 4, "W0.1", "rank 0, op 4 (W0.1): the slot's oldest I that waits is I0.0",
     ALONE("F0.0 F0.1 I0.0 I0.1 W0.1 W0.0")},
    {DP_RULE_WEIGHT, 0, 1, "W0.0",
     "rank 0, op 1 (W0.0): no I of the slot waits for its weight part",
     ALONE("F0.0 W0.0 I0.0 F0.1 B0.1")},
    {DP_RULE_DEPENDENCY, 1, 0, "F0.0",
     "rank 1, op 0 (F0.0): its input has not been received and "
     "committed",
     CROSSING("F0.0 sF0.0 rF1.0 c2 F1.0", "F0.0 rF0.0 F1.0 sF1.0 c2")},
    {DP_RULE_COMMIT, 0, 3, "c3",
     "rank 0, op 3 (c3): 2 messages have been posted since the last "
     "commit",
     CROSSING("F0.0 sF0.0 rF1.0 c3 F1.0", "F1.0 sF1.0 rF0.0 c2 F0.0")},
    {DP_RULE_COMMIT, 0, 5, "none0.0",
     "rank 0, end of list: 1 messages are posted and never "
     "committed",
     CROSSING("rF1.0 c1 F1.0 F0.0 sF0.0", "F1.0 sF1.0 rF0.0 c2 F0.0")},
    {DP_RULE_COMMIT, 0, 0, "c1", "rank 0, op 0 (c1): nothing has been posted since the last commit",
     CROSSING("c1 F0.0 sF0.0 rF1.0 c2 F1.0", "F1.0 sF1.0 rF0.0 c2 F0.0")},
    {DP_RULE_DEADLOCK, 0, 0, "rF1.0",
     "rank 0, op 0 (rF1.0): waits in a circle: rank 0, op 0 "
     "(rF1.0) -> rank 1, op 0 (rF0.0) -> rank 0",
     CROSSING("rF1.0 c1 F1.0 F0.0 sF0.0 c1", "rF0.0 c1 F0.0 F1.0 sF1.0 c1")},
    {DP_RULE_FIFO, 1, 0, "rF0.1",
     "rank 1, op 0 (rF0.1): on its link with rank 0 it is the turn of "
     "sF0.0 (op 1 there)",
     "user P=2 M=2 forward_only\n"
     "rank 0: F0.0 sF0.0 c1 F0.1 sF0.1 c1\nrank 1: rF0.1 c1 F0.1 rF0.0 c1 F0.0\n"},
};

CASE(every_finding_names_rule_rank_index_and_op)
{
    char op[DP_OP_TEXT_LEN];

    for (size_t i = 0; i < sizeof(findings) / sizeof(findings[0]); i++) {
        const char *text = findings[i].schedule;
        struct dp_finding f;
        OWNED(dp_schedule) *s = NULL;
        if (dp_schedule_read(text, strlen(text), DP_FORMAT_TEXT, &s))
            fail_msg("%s", dp_last_error());
        assert_int_equal(dp_schedule_check(s, NULL, &f), DP_EINVAL);
        assert_string_equal(f.text, findings[i].text);
        assert_string_equal(dp_name(DP_NAMES_RULE, f.rule), dp_name(DP_NAMES_RULE, findings[i].rule));
        assert_int_equal(f.rank, findings[i].rank);
        assert_int_equal(f.index, findings[i].index);
        assert_string_equal(dp_op_text(f.op, op), findings[i].op);
    }
}

/* Reduces meet in the order of the lists; here partners come to them crosswise. */
CASE(reduces_that_partners_come_to_in_different_orders_are_found)
{
    OWNED(dp_schedule) *s = NULL;
    struct dp_finding f;
    size_t last[2];

    assert_int_equal(dp_schedule_new(&(struct dp_schedule_spec){
        .kind = DP_SCHEDULE_DUALPIPE, .ranks = 2, .microbatches = 4,
        .mirror_reduce = true}, &s), 0);
    for (int n = 0, i = (int)s->first[1] - 1; n < 2; i--)
        if (s->ops[i].kind == DP_OP_REDUCE)
            last[n++] = (size_t)i;
    /* On rank 0 put the first behind the second, then the second behind that. */
    struct dp_op first = s->ops[last[1]];
    memmove(s->ops + last[1], s->ops + last[1] + 1, (last[0] - last[1]) * sizeof(first));
    s->ops[last[0]] = first;
    assert_int_equal(dp_schedule_check(s, NULL, &f), DP_EINVAL);
    assert_int_equal(f.rule, DP_RULE_FIFO);
    assert_non_null(strstr(f.text, "it is the turn of R"));
    s->ops[last[0]] = s->ops[last[0] - 1];
    s->ops[last[0] - 1] = first;
    assert_int_equal(dp_schedule_check(s, NULL, &f), 0);
}

/* Stages run twice round the ranks, and every rank begins with its second one. */
static void expect_circle(int ranks, const char *part, const char *end)
{
    char text[8192];
    size_t len = (size_t)sprintf(text, "user P=%d M=1 forward_only\n", ranks);
    OWNED(dp_schedule) *s = NULL;
    struct dp_finding f;

    for (int r = 0; r < ranks; r++)
        len += (size_t)sprintf(text + len, "holds %d: %d %d\n", r, r, r + ranks);
    for (int r = 0; r < ranks; r++)
        len += (size_t)sprintf(text + len, "rank %d: rF1.0 c1 F1.0 %s%sF0.0 sF0.0 c%d\n", r,
                               r + 1 < ranks ? "sF1.0 " : "",
                               !r ? "" : r + 1 < ranks ? "rF0.0 c2 " : "rF0.0 c1 ", r ? 1 : 2);
    assert_int_equal(dp_schedule_read(text, len, DP_FORMAT_TEXT, &s), 0);
    assert_int_equal(dp_schedule_check(s, NULL, &f), DP_EINVAL);
    assert_int_equal(f.rule, DP_RULE_DEADLOCK);
    if (!strstr(f.text, part) || strcmp(f.text + strlen(f.text) - strlen(end), end))
        fail_msg("'%s', expected '%s ... %s'", f.text, part, end);
}

CASE(a_cycle_is_one_sentence_however_long)
{
    const char *part = "waits in a circle: rank 0, op 0 (rF1.0) -> rank ";

    expect_circle(3, part, "rank 2, op 0 (rF1.0) -> rank 1, op 0 (rF1.0) -> rank 0");
    expect_circle(24, part, "-> rank 2, op 0 (rF1.0) -> rank 1, op 0 (rF1.0) -> rank 0");
    expect_circle(99, part, " ranks more -> rank 0");
}

CASE(bounds_of_the_callers_are_kept_too)
{
    OWNED(dp_schedule) *s = NULL;
    struct dp_finding f;

    assert_int_equal(dp_schedule_new(&(struct dp_schedule_spec){
        .kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 8}, &s), 0);
    assert_int_equal(dp_schedule_check(s, &(struct dp_check_limits){.max_activations = 5}, &f), 0);
    assert_int_equal(dp_schedule_check(s, &(struct dp_check_limits){.max_activations = 4}, &f),
                     DP_EINVAL);
    assert_int_equal(f.rule, DP_RULE_ACTIVATION);
    assert_string_equal(f.text, "rank 0, op 21 (F0.3): 5 activation sets are alive, expected at "
                                "most 4");
    assert_int_equal(dp_schedule_check(s, &(struct dp_check_limits){.max_weight_queue = 1}, &f),
                     DP_EINVAL);
    assert_int_equal(f.rule, DP_RULE_WEIGHT);
}

CASE(a_placement_that_makes_no_sense_is_found)
{
    OWNED(dp_schedule) *s = NULL;
    struct dp_finding f;

    assert_int_equal(dp_schedule_new(&(struct dp_schedule_spec){
        .kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 8}, &s), 0);
#define EXPECT_SHAPE(member, wrong, sentence)                                                      \
    do {                                                                                           \
        int32_t right = s->member;                                                                 \
        s->member = (wrong);                                                                       \
        assert_int_equal(dp_schedule_check(s, NULL, &f), DP_EINVAL);                               \
        assert_int_equal(f.rule, DP_RULE_SHAPE);                                                   \
        assert_int_equal(f.rank, -1);                                                              \
        assert_string_equal(f.text, sentence);                                                     \
        s->member = right;                                                                         \
    } while (0)
    EXPECT_SHAPE(slots[3].prev, 3, "rank 1, slot 1: neighbours do not hold the stages beside stage "
                                   "2");
    EXPECT_SHAPE(slots[3].mirror, 1, "rank 1, slot 1: neighbours do not hold the stages beside "
                                     "stage 2");
    EXPECT_SHAPE(slots[3].stage, 1, "rank 2, slot 1: stage 1 of stream 1, which rank 1 holds");
    EXPECT_SHAPE(slots[3].stage, 4, "rank 1, slot 1: stage 4, expected 0 to 3");
    EXPECT_SHAPE(slots[3].stream, 2, "rank 1, slot 1: stream 2, expected 0 to 1");
    EXPECT_SHAPE(stages, 5, "4 ranks with 8 slots together, expected a slot for each of 10 stages");
    EXPECT_SHAPE(streams, 3, "4 ranks, 4 stages, 3 streams; expected at least one of each and at "
                             "most 2 streams");
    EXPECT_SHAPE(max_slots, 0, "rank 0: 2 slots, expected at most max_slots, 0, which is at "
                               "most 64");
    EXPECT_SHAPE(max_slots, 65, "rank 0: 2 slots, expected at most max_slots, 65, which is at "
                                "most 64");
    EXPECT_SHAPE(microbatches, 9, "9 micro-batches, 4 per stream; expected 1 to 1048575 per stream");
    EXPECT_SHAPE(group_rank[2], 3, "rank 3: group rank 3, expected each of 0 to 3 once");
}

CASE(without_a_finding_the_sentence_is_the_last_error)
{
    const char *text = ALONE("F0.0 B0.0 F0.1");
    OWNED(dp_schedule) *s = NULL;

    assert_int_equal(dp_schedule_read(text, strlen(text), DP_FORMAT_TEXT, &s), 0);
    expect_error_is(dp_schedule_check(s, NULL, NULL), DP_EINVAL,
                    "schedule breaks the once rule: rank 0, end of list: B0.1 " "is missing");
}

RUN_QUIET_CASES(NULL, NULL)
