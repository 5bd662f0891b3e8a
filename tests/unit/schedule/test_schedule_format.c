/* SPDX-License-Identifier: Apache-2.0
 *
 * Text formats: what is written can be read back, and an error gives the place, what was found and
 * what was expected.
 */
#include "cmocka_all.h"
#include "schedule/internal.h"

#include <dualpipe/schedule.h>

static const enum dp_format formats[] = {DP_FORMAT_TEXT, DP_FORMAT_JSON, DP_FORMAT_CSV};

static struct dp_schedule *build(struct dp_schedule_spec spec)
{
    struct dp_schedule *s;

    if (dp_schedule_new(&spec, &s))
        fail_msg("%s", dp_last_error());
    return s;
}

static struct dp_schedule *read_form(const char *text, enum dp_format format)
{
    struct dp_schedule *s;

    if (dp_schedule_read(text, strlen(text), format, &s))
        fail_msg("%s, in\n%.400s", dp_last_error(), text);
    return s;
}

static void expect_round_trip(const struct dp_schedule *s)
{
    for (int i = 0; i < 3; i++) {
        FREED char *text = NULL;
        FREED char *again = NULL;
        size_t len;
        assert_int_equal(dp_schedule_write(s, formats[i], &text, &len), 0);
        assert_int_equal(len, strlen(text));
        struct dp_schedule *back = read_form(text, formats[i]);
        if (!dp_schedule_equal(s, back))
            fail_msg("not the same any more:\n%.400s", text);
        assert_int_equal(dp_schedule_write(back, formats[i], &again, NULL), 0);
        assert_string_equal(text, again);
        dp_schedule_free(back);
    }
}

static bool has_slack(int kind)
{
    return kind == DP_SCHEDULE_DUALPIPE || kind == DP_SCHEDULE_DUALPIPEV;
}

CASE(every_built_schedule_survives_every_form)
{
    for (int kind = DP_SCHEDULE_GPIPE; kind < DP_SCHEDULE_KINDS; kind++)
        for (int ranks = 2; ranks <= 8; ranks += 2)
            for (int flags = 0; flags < (has_slack(kind) ? 32 : 16); flags++) {
                struct dp_schedule *s =
                    build((struct dp_schedule_spec){.kind = kind, .ranks = ranks,
                                                    .microbatches = 2 * ranks,
                                                    .forward_only = flags & 1,
                                                    .return_outputs = flags & 2,
                                                    .no_overlap = flags & 4,
                                                    .slack = !!(flags & 16),
                                                    .mirror_reduce = flags & 8,
                                                    .reduce_all = (flags & 12) == 12});
                expect_round_trip(s);
                dp_schedule_free(s);
            }
}

CASE(rank_maps_survive_every_form)
{
    static const int map[] = {2, 0, 3, 1};
    OWNED(dp_schedule) *s = build((struct dp_schedule_spec){
        .kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 8, .rank_map = map});

    assert_int_equal(s->group_rank[2], 0);
    assert_int_equal(s->group_rank[1], 3);
    expect_round_trip(s);
}

CASE(the_text_form_is_made_to_be_read)
{
    FREED char *text = NULL;
    OWNED(dp_schedule) *s = build((struct dp_schedule_spec){
        .kind = DP_SCHEDULE_DUALPIPE, .ranks = 2, .microbatches = 4, .mirror_reduce = true});

    assert_int_equal(dp_schedule_write(s, DP_FORMAT_TEXT, &text, NULL), 0);
    assert_string_equal(text,
        "dualpipe P=2 M=4\n"
        "rank 0: |2| F0.0 sF0.0 rF1.0 c2 x0.0 F1.0 |4| F0.1 B1.0 sF0.1 sB1.0 rF1.1 rB0.0 c4 x0.1 "
        "F1.1&B0.0 |6| B1.1 sB1.1 rB0.1 c2 R1 I0.1 |8| W0.1 R0 Rw1 Rw0\n"
        "rank 1: |2| F1.0 sF1.0 rF0.0 c2 x1.0 F0.0 |4| F1.1 B0.0 sF1.1 sB0.0 rF0.1 rB1.0 c4 x1.1 "
        "F0.1&B1.0 |6| B0.1 sB0.1 rB1.1 c2 R0 I1.1 |8| W1.1 R1 Rw0 Rw1\n");
}

CASE(every_kind_of_op_survives_every_format)
{
    static const char text[] =
        "user P=2 M=2\nholds 0: 0 2 1\nholds 1:\n"
        "rank 0: |31| F0.0 F2.0 F1.0 ev1.0 ev2.0 fe1.0 B1.0 fe2.0 I2.0 re0.0 "
        "B0.0 W2.0 F0.1 F2.1 F1.1 B1.1 B2.1 B0.1\nrank 1:\n";
    OWNED(dp_schedule) *s = NULL;
    struct dp_finding finding;

    assert_int_equal(dp_schedule_read(text, sizeof(text) - 1, DP_FORMAT_TEXT, &s), 0);
    if (dp_schedule_check(s, NULL, &finding))
        fail_msg("%s", finding.text);
    assert_int_equal(s->ops[0].flags & DP_OP_RECOMPUTED, DP_OP_RECOMPUTED);
    assert_int_equal(s->ops[12].flags & DP_OP_RECOMPUTED, 0);
    assert_int_equal(dp_schedule_slot_count(s, 1), 0);
    expect_round_trip(s);
}

CASE(ranks_of_a_trace_may_stand_in_any_order)
{
    const char *text = "{\"algo\": \"gpipe\", \"P\": 2, \"M\": 1, \"forward_only\": true, "
                       "\"ranks\": ["
                       "{\"rank\": 1, \"group_rank\": 0, \"events\": []},"
                       "{\"rank\": 0, \"group_rank\": 1, \"events\": ["
                       "{\"op\": \"SEND_F\", \"mod\": 0, \"chunk\": 0, \"peer\": 0}]}]}";
    struct dp_schedule *s = read_form(text, DP_FORMAT_JSON);

    assert_int_equal(s->group_rank[0], 1);
    assert_int_equal(dp_schedule_count(s, 0), 1);
    assert_int_equal(dp_schedule_count(s, 1), 0);
    dp_schedule_free(s);
}

/* ---- users' files -------------------------------------------------------------------------- */

/* The same schedule three times: two ranks, three stages a rank would be, two slots each. */
static const char *const users[] = {
    "# a V over two ranks, forward and backward in turn\n"
    "user P=2 M=2\n"
    "holds 0: 0 3\n"
    "holds 1: 1 2\n"
    "\n"
    "rank 0: F0.0 F1.0 B1.0  # the first micro-batch\n"
    "        B0.0\n"
    "        F0.1 F1.1 B1.1 B0.1\n"
    "rank 1: F0.0 F1.0 B1.0 B0.0 F0.1 F1.1 B1.1 B0.1\n",

    "{\"algo\": \"user\", \"P\": 2, \"M\": 2, \"slots\": [[{\"stage\": 0}, {\"stage\": 3}],"
    " [{\"stage\": 1}, {\"stage\": 2}]], \"ranks\": [{\"events\": ["
    "{\"op\": \"F\", \"mod\": 0, \"chunk\": 0}, {\"op\": \"F\", \"mod\": 1, \"chunk\": 0},"
    "{\"op\": \"B\", \"mod\": 1, \"chunk\": 0}, {\"op\": \"B\", \"mod\": 0, \"chunk\": 0},"
    "{\"op\": \"F\", \"mod\": 0, \"chunk\": 1}, {\"op\": \"F\", \"mod\": 1, \"chunk\": 1},"
    "{\"op\": \"B\", \"mod\": 1, \"chunk\": 1}, {\"op\": \"B\", \"mod\": 0, \"chunk\": 1}"
    "]}, {\"events\": ["
    "{\"op\": \"F\", \"mod\": 0, \"chunk\": 0}, {\"op\": \"F\", \"mod\": 1, \"chunk\": 0},"
    "{\"op\": \"B\", \"mod\": 1, \"chunk\": 0}, {\"op\": \"B\", \"mod\": 0, \"chunk\": 0},"
    "{\"op\": \"F\", \"mod\": 0, \"chunk\": 1}, {\"op\": \"F\", \"mod\": 1, \"chunk\": 1},"
    "{\"op\": \"B\", \"mod\": 1, \"chunk\": 1}, {\"op\": \"B\", \"mod\": 0, \"chunk\": 1}]}]}",

    "user,P=2,M=2,,\r\n"
    "holds,0,0,3\r\n"
    "holds,1,1,2\r\n"
    "rank,0,F0.0,F1.0,B1.0,B0.0,F0.1,F1.1,B1.1,B0.1\r\n"
    "rank,1,F0.0,F1.0,,B1.0,B0.0,F0.1,F1.1,B1.1,B0.1,,\r\n",
};

CASE(computes_of_a_user_get_their_messages_and_can_be_carried_out)
{
    struct dp_schedule *first = read_form(users[0], formats[0]);

    for (int i = 0; i < 3; i++) {
        struct dp_schedule *s = read_form(users[i], formats[i]);
        struct dp_finding finding;
        assert_int_equal(s->stages, 4);
        assert_int_equal(s->max_slots, 2);
        assert_int_equal(dp_schedule_slot(s, 0, 1)->prev, 1);
        if (dp_schedule_check(s, NULL, &finding))
            fail_msg("%s: %s", dp_name(DP_NAMES_RULE, finding.rule), finding.text);
        assert_true(dp_schedule_equal(s, first));
        expect_round_trip(s);
        dp_schedule_free(s);
    }
    dp_schedule_free(first);
}

CASE(a_user_without_slots_has_a_stage_a_rank_and_may_have_two_streams)
{
    struct dp_schedule *s = read_form("user P=2 M=1 forward_only map=1:0\n"
                                      "rank 0: F0.0\nrank 1: F0.0\n", DP_FORMAT_TEXT);
    assert_int_equal(dp_schedule_slot(s, 1, 0)->stage, 1);
    assert_int_equal(s->group_rank[0], 1);
    assert_int_equal(dp_schedule_check(s, NULL, NULL), 0);
    expect_round_trip(s);
    dp_schedule_free(s);

    s = read_form("user P=1 M=2 streams=2 no_overlap return_outputs\nholds 0: 0 0/1\n"
                  "rank 0: F0.0 B0.0 F1.0 B1.0\n", DP_FORMAT_TEXT);
    assert_int_equal(dp_schedule_slot(s, 0, 0)->mirror_slot, 1);
    assert_int_equal(dp_schedule_check(s, NULL, NULL), 0);
    expect_round_trip(s);
    dp_schedule_free(s);
}

/* ---- what cannot be read ------------------------------------------------------------------- */

static void expect_answer(const char *text, enum dp_format format, const char *answer)
{
    struct dp_schedule *s;
    int err = dp_schedule_read(text, strlen(text), format, &s);

    if (err != DP_EINVAL || !strstr(dp_last_error(), answer))
        fail_msg("'%s'\n was answered by '%s', expected '%s'", text, err ? dp_last_error() : "",
                 answer);
}

CASE(errors_give_the_line_and_what_was_expected)
{
    static const char *const cases[][2] = {
        {"", "line 1: the end, expected a schedule's kind"},
        {"# nothing\n\n", "line 3: the end, expected a schedule's kind"},
        {"dualpip P=2 M=4\n", "line 1: schedule 'dualpip', expected one of gpipe, 1f1b, zb1p, "
                              "dualpipe, dualpipev, interleaved, zbv, async, user; did you mean dualpipe?"},
        {"dualpipe P=two M=4", "line 1: 'two', expected a whole number"},
        {"dualpipe P=2 M=4 N=3", "line 1: 'N=3', expected P=, M=, v=, streams=, slack=, map=, forward_only"},
        {"dualpipe P=2 M=4", "line 1: P=2, expected as many lines below"},
        {"gpipe P=1 M=4 streams=3", "line 1: streams=3, expected 1 or 2"},
        {"gpipe P=2 M=4 map=0:0\n", "line 1: group rank 0 of rank 1, expected each of 0 to 1 once"},
        {"gpipe map=0:1 P=2 M=4\n", "line 1: '0:1', expected P before it, and as many ranks"},
        {"gpipe P=2 M=4 map=0\n", "line 1: '0', expected a rank for each of P"},
        {"gpipe P=2 M=4 map=0:1 P=3\n", "line 1: '3', expected P before map"},
        {"dualpipe P=2 M=4\n\nF0.0\n", "line 3: 'F0.0', expected 'rank 0:'"},
        {"dualpipe P=3 M=6\nrank 0:\n", "line 2: ranks: 3, expected an even number for dualpipe"},
        {"dualpipe P=4 M=6\nrank 0:\n", "line 2: microbatches: 6, expected at least 8, twice"},
        {"gpipe P=2 M=0\nrank 0:\n", "line 2: microbatches: 0, expected 1 to 1048575"},
        {"gpipe P=2 M=2\nrank 1:\n", "line 2: '1:', expected rank 0"},
        {"gpipe P=2 M=2\nrank\n", "line 2: the line ends, expected 'rank 0:'"},
        {"gpipe P=2 M=2\nrank 0: F0.0\n", "line 3: the end, expected 'rank 1:'"},
        {"gpipe M=2\n", "line 1: P=0, expected the number of ranks"},
        {"user P=1 M=1 v=9\nrank 0: F0.0", "line 2: virtual_stages: 9, expected 0; interleaved has them"},
        {"gpipe P=1 M=2\nrank 0:\nrank 1:\n", "line 3: rank 1, expected no more than 1 ranks"},
        {"gpipe P=1 M=2\nrank 0: F0.0 G0.0\n", "line 2: 'G0.0', expected an op such as F0.3"},
        {"gpipe P=1 M=2\nrank 0: F0.0 F0.\n", "line 2: 'F0.', expected an op such as F0.3"},
        {"gpipe P=1 M=2\nrank 0: F0.0x\n", "line 2: 'F0.0x', expected an op such as F0.3"},
        {"gpipe P=1 M=2\nrank 0: F0.0&F0.1\n", "line 2: 'F0.0&F0.1', expected an op"},
        {"gpipe P=1 M=2\nrank 0: B0.0&B0.1\n", "line 2: 'B0.0&B0.1', expected an op"},
        {"gpipe P=1 M=2\nrank 0:\nF1.0", "line 3: 'F1.0', expected slot 0 to 0"},
        {"gpipe P=1 M=2\nrank 0:\nF0.2", "line 3: 'F0.2', expected micro-batch 0 to 1"},
        {"gpipe P=1 M=2\nrank 0: F0.99999999999", "line 2: 'F0.99999999999', expected an op"},
        {"gpipe P=1 M=2\nrank 0: |64| F0.0", "line 2: '|64|', expected a section of the list"},
        {"gpipe P=1 M=2\nholds 0: 0\n", "line 2: 'holds', expected only before the ranks of a "
                                        "schedule of kind user"},

        {"user P=2 M=2\nholds 0: 0\nholds 1:\nrank 0:\nrank 1: F0.0",
         "line 5: 'F0.0', expected no op: rank 1 holds no stage"},
        {"user P=2 M=2\nholds 0: 0 1\nrank 0:\n", "line 3: ranks, expected 'holds 1:' first"},
        {"user P=2 M=2\nholds 0: 0\nholds 1: 0\nrank 0:\n", "line 4: rank 1, slot 0: stage 0 of "
                                                           "stream 0, which rank 0 holds"},
        {"user P=2 M=2\nholds 0: 0\nholds 1: 2\nrank 0:\n", "line 4: rank 1, slot 0: stage 2, "
                                                           "expected 0 to 1"},
        {"user P=2 M=2\nholds 0: zero\n", "line 2: 'zero', expected a stage, stage/stream or stage@"},
        {"user P=1 M=3 streams=2\nholds 0: 0 0/1\nrank 0:\n", "line 3: microbatches: 3, expected "
                                                             "an even number for 2 streams"},
        {"\n {\"algo\": 1}", "JSON, expected text; DP_FORMAT_JSON reads it"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        expect_answer(cases[i][0], DP_FORMAT_TEXT, cases[i][1]);
}

#define EVENTS(e)                                                                                  \
    "{\"algo\": \"dualpipe\", \"P\": 2, \"M\": 4, \"ranks\": [{\"events\": [" e                      \
    "]}, {\"events\": []}]}"

CASE(bad_json_is_answered_by_path_and_expectation)
{
    static const char *const cases[][2] = {
        {"{\n\"algo\": \"dualpipe\",\n", "line 3, column 0: "},
        {"[1]", "the file: [1], expected a trace"},
        {"{\"P\": 2}", "algo: not there, expected the name of a schedule"},
        {"{\"algo\": \"pipe\"}", "algo: schedule 'pipe', expected one of gpipe"},
        {"{\"algo\": \"dualpipe\"}", "P: not there, expected a whole number from 1 to"},
        {"{\"algo\": \"dualpipe\", \"P\": 2.5}", "P: 2.5, expected a whole number from 1 to"},
        {"{\"algo\": \"dualpipe\", \"P\": 2, \"M\": \"4\"}", "M: \"4\", expected a whole number"},
        {"{\"algo\": \"dualpipe\", \"P\": 2, \"M\": 4, \"overlap_hook\": 1}",
         "overlap_hook: 1, expected true or false"},
        {"{\"algo\": \"dualpipe\", \"P\": 2, \"M\": 4}", "ranks: not there, expected a list"},
        {"{\"algo\": \"dualpipe\", \"P\": 2, \"M\": 4, \"ranks\": []}",
         "ranks: a list of 0, expected P, 2"},
        {"{\"algo\": \"dualpipe\", \"P\": 2, \"M\": 3, \"ranks\": [{}, {}]}",
         "microbatches: 3, expected an even number"},
        {"{\"algo\": \"dualpipe\", \"P\": 2, \"M\": 4, \"ranks\": [{\"rank\": 1}, {}]}",
         "ranks[1].rank: not there, expected each rank once"},
        {"{\"algo\": \"dualpipe\", \"P\": 2, \"M\": 4, \"ranks\": [{\"rank\": 1}, {\"rank\": 1}]}",
         "ranks[1].rank: 1, expected each rank once"},
        {"{\"algo\": \"dualpipe\", \"P\": 2, \"M\": 4, \"ranks\": [{\"rank\": 2}, {}]}",
         "ranks[0].rank: 2, expected a whole number from 0 to 1"},
        {"{\"algo\": \"dualpipe\", \"P\": 2, \"M\": 4, \"ranks\": [{\"group_rank\": 1}, {}]}",
         "ranks: group rank 1 of rank 1, expected each of 0 to 1 once"},
        {"{\"algo\": \"dualpipe\", \"P\": 2, \"M\": 4, \"ranks\": [{}, {}]}",
         "ranks[0].events: not there, expected a list"},
        {EVENTS("7"), "ranks[0].events[0]: 7, expected an event"},
        {EVENTS("{\"step\": 99}"), "ranks[0].events[0].step: 99, expected a whole number from 0"},
        {EVENTS("{\"op\": \"Q\"}"), "ranks[0].events[0].op: \"Q\", expected one of F, B, I, W, FB"},
        {EVENTS("{\"op\": \"F\", \"mod\": 2}"), "events[0].mod: 2, expected a whole number from 0 "
                                               "to 1"},
        {EVENTS("{\"op\": \"F\", \"mod\": 1, \"chunk\": 2}"), "events[0].chunk: 2, expected a "
                                                             "whole number from 0 to 1"},
        {EVENTS("{\"op\": \"F\", \"mod\": 1, \"chunk\": 1, \"stage\": 0}"),
         "ranks[0].events[0].stage: 0, expected 1"},
        {EVENTS("{\"op\": \"F\", \"mod\": 1, \"chunk\": 1, \"phase\": 0}"),
         "ranks[0].events[0].phase: 0, expected 1"},
        {EVENTS("{\"op\": \"SEND_F\", \"mod\": 0, \"chunk\": 1, \"peer\": 0}"),
         "ranks[0].events[0].peer: 0, expected 1"},
        {EVENTS("{\"op\": \"SEND_F\", \"mod\": 1, \"chunk\": 1, \"peer\": 1}"),
         "ranks[0].events[0].peer: 1, expected -1"},
        {EVENTS("{\"op\": \"F\", \"mod\": 1, \"chunk\": 1, \"argument\": 1}"),
         "ranks[0].events[0].argument: 1, expected"},
        {EVENTS("{\"op\": \"COMMIT\"}"),
         "ranks[0].events[0].n: not there, expected a whole number"},
        {EVENTS("{\"op\": \"FB\", \"f\": 3}"),
         "ranks[0].events[0].f: 3, expected a record of mod and chunk"},
        {EVENTS("{\"op\": \"FB\", \"f\": {\"mod\": 0, \"chunk\": 9}}"),
         "ranks[0].events[0].f.chunk: 9, expected"},
        {"{\"algo\": \"user\", \"P\": 1, \"M\": 1, \"slots\": [], \"ranks\": [{\"events\": []}]}",
         "slots: [], expected a list for each of P ranks"},
        {"{\"algo\": \"user\", \"P\": 1, \"M\": 1, \"slots\": [3], \"ranks\": [{\"events\": []}]}",
         "slots[0]: 3, expected a list of at most 64 stages"},
        {"{\"algo\": \"user\", \"P\": 1, \"M\": 1, \"slots\": [[{\"stage\": 1}]], \"ranks\": "
         "[{\"events\": []}]}", "slots[0][0].stage: 1, expected a whole number from 0 to 0"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        expect_answer(cases[i][0], DP_FORMAT_JSON, cases[i][1]);
}

/* The computes of a list, rank by rank. */
static void expect_same_computes(const struct dp_schedule *a, const struct dp_schedule *b)
{
    assert_int_equal(a->ranks, b->ranks);
    for (int rank = 0; rank < a->ranks; rank++) {
        size_t at = 0, end = dp_schedule_count(b, rank);
        for (size_t i = 0; i < dp_schedule_count(a, rank); i++) {
            struct dp_op op = dp_schedule_ops(a, rank)[i];
            if (op.kind < DP_OP_F || op.kind > DP_OP_W)
                continue;
            while (at < end && (dp_schedule_ops(b, rank)[at].kind < DP_OP_F ||
                                dp_schedule_ops(b, rank)[at].kind > DP_OP_W))
                at++;
            assert_true(at < end);
            struct dp_op other = dp_schedule_ops(b, rank)[at++];
            assert_true(op.kind == other.kind && op.mb == other.mb && ((op.flags ^ other.flags) & DP_OP_OVERLAP) == 0);
            assert_int_equal(dp_schedule_slot(a, rank, op.slot)->stage,
                             dp_schedule_slot(b, rank, other.slot)->stage);
        }
    }
}

CASE(schedules_of_one_stream_go_to_pytorch_and_back)
{
    for (int kind = DP_SCHEDULE_GPIPE; kind < DP_SCHEDULE_KINDS; kind++)
        for (int ranks = 2; ranks <= 8; ranks += 2) {
            struct dp_finding finding;
            char *text;
            OWNED(dp_schedule) *s = build((struct dp_schedule_spec){
                .kind = kind, .ranks = ranks, .microbatches = 2 * ranks});
            int err = dp_schedule_write(s, DP_FORMAT_PYTORCH, &text, NULL);
            assert_int_equal(err, kind == DP_SCHEDULE_DUALPIPE ? DP_EUNSUPPORTED : 0);
            if (!err) {
                OWNED(dp_schedule) *forward = NULL;
                struct dp_schedule *back = read_form(text, DP_FORMAT_PYTORCH);
                expect_same_computes(s, back);
                if (dp_schedule_check(back, NULL, &finding))
                    fail_msg("%s\n%s", finding.text, text);
                assert_int_equal(dp_schedule_new_forward(back, &forward), 0);
                assert_int_equal(dp_schedule_check(forward, NULL, &finding), 0);
                dp_schedule_free(back);
                free(text);
            }
        }
}

CASE(what_pytorch_has_no_word_for_is_not_written)
{
    OWNED(dp_schedule) *s = build((struct dp_schedule_spec){.kind = DP_SCHEDULE_1F1B, .ranks = 2,
                                                            .microbatches = 4,
                                                            .recompute = DP_RECOMPUTE_ALWAYS});
    char *text;

    assert_int_equal(dp_schedule_write(s, DP_FORMAT_PYTORCH, &text, NULL), DP_EUNSUPPORTED);
    assert_non_null(strstr(dp_last_error(), "RECOMPUTE in PyTorch's format"));
}

CASE(messages_and_shards_of_pytorch_leave_the_computes)
{
    static const char with[] =
        "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0I1,0W1,0REDUCE_GRAD,0RESHARD\n"
        "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1I1,1SEND_B1,1W1\n";
    static const char without[] = "\xef\xbb\xbf \"0F0\",,0F1,0B0,0I1,0W1\r\n1F0,1B0,1F1,1I1,1W1\r\n\r\n";
    /* B beside a W of the same micro-batch: the input's part. */
    static const char older[] = "0F0,0F1,0BW0,0B1,0W1\n1F0,1BW0,1F1,1B1,1W1";
    struct dp_schedule *s = read_form(with, DP_FORMAT_PYTORCH);
    struct dp_schedule *plain = read_form(without, DP_FORMAT_PYTORCH);
    struct dp_schedule *old = read_form(older, DP_FORMAT_PYTORCH);

    assert_true(dp_schedule_equal(s, plain));
    assert_true(dp_schedule_equal(s, old));
    assert_int_equal(dp_schedule_check(s, NULL, NULL), 0);
    dp_schedule_free(s);
    dp_schedule_free(plain);
    dp_schedule_free(old);
}

CASE(bad_lists_of_pytorch_are_answered_by_cell_and_expectation)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "no action in it, expected a row for each rank"},
        {"\n\n", "no action in it"},
        {"0F0,0X0,0B0", "line 1, cell 2: '0X0', expected an action such as 0F0"},
        {"0F0\n1F0,1B", "line 2, cell 2: '1B', expected an action"},
        {"0F0,0B0x", "cell 2: '0B0x'"},
        {"0F0,-1B0", "cell 2: '-1B0'"},
        {"0F99999999999", "cell 1: '0F99999999999'"},
        {"99999999999F0", "cell 1: '99999999999F0'"},
        {"0F0,(0F1;0B0)", "cell 2: '(0F1;0B0)', expected a forward and a backward"},
        {"0F0,(0F1,0B0)OVERLAP_F_B", "cell 2: '(0F1', expected a forward and a backward"},
        {"0F0,(0B0;0F1)OVERLAP_F_B", "expected a forward and a backward"},
        {"0F0,(0F1;0B0)OVERLAP", "expected a forward and a backward"},
        {"0F7,0B7", "micro-batch 7 of stage 0, expected a number below that of the row's computes"},
        {"0F0,0B0,1SEND_F0", "cell 3: micro-batch 0 of stage 1, expected a message of what this rank"},
        {"0F0,0B0,0SEND_F1", "cell 3: micro-batch 1 of stage 0, expected a message of what this rank"},
        {"0F0,0SEND_F_RECV_B0", "cell 2: '0SEND_F_RECV_B0', expected an action"},
        {"0F0,0B0\n0F0,0B0", "stage"},
        {"0F0,0B0\n5F0,5B0", "stage"},
        {"0F0\xff", "byte 0xff, expected UTF-8"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct dp_schedule *s;
        int err = dp_schedule_read(cases[i].text, strlen(cases[i].text), DP_FORMAT_PYTORCH, &s);
        if (err != DP_EINVAL || !strstr(dp_last_error(), cases[i].says))
            fail_msg("%s: %d, %s", cases[i].text, err, dp_last_error());
    }
}

CASE(an_unknown_format_is_refused)
{
    OWNED(dp_schedule) *s = NULL;
    char *text;

    assert_int_equal(dp_schedule_read("", 0, (enum dp_format)9, &s), DP_EINVAL);
    s = build((struct dp_schedule_spec){.kind = DP_SCHEDULE_GPIPE, .ranks = 1, .microbatches = 1});
    assert_int_equal(dp_schedule_write(s, (enum dp_format)9, &text, NULL), DP_EINVAL);
}

CASE(schedules_that_differ_anywhere_are_not_equal)
{
    struct dp_schedule_spec spec = {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 8};
    struct dp_schedule *a = build(spec), *b = build(spec);

    assert_true(dp_schedule_equal(a, b));
    b->ops[5].mb ^= 1;
    assert_false(dp_schedule_equal(a, b));
    b->ops[5].mb ^= 1;
    b->slots[3].stage ^= 1;
    assert_false(dp_schedule_equal(a, b));
    b->slots[3].stage ^= 1;
    b->forward_only = true;
    assert_false(dp_schedule_equal(a, b));
    dp_schedule_free(a);
    dp_schedule_free(b);
}

RUN_QUIET_CASES(NULL, NULL)
