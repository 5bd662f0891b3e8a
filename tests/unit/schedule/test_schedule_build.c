/* SPDX-License-Identifier: Apache-2.0
 *
 * Builders: what they write is what was recorded, the closed forms hold, bad specs are refused.
 */
#include "cmocka_all.h"
#include "schedule/internal.h"

#include "schedule/build.h"

#include <dualpipe/partition.h>
#include <dualpipe/schedule.h>

static struct dp_schedule *build(struct dp_schedule_spec spec)
{
    struct dp_schedule *s;

    if (dp_schedule_new(&spec, &s))
        fail_msg("%s P=%d M=%d: %s", dp_name(DP_NAMES_SCHEDULE, spec.kind), spec.ranks,
                 spec.microbatches, dp_last_error());
    return s;
}

/* ---- recorded traces ----------------------------------------------------------------------- */

static char *read_file(const char *name)
{
    char path[4096], *text;
    long size;

    snprintf(path, sizeof(path), "%s/golden/%s", getenv("DP_TEST_DATA"), name);
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("cannot open %s", path);
    fseek(f, 0, SEEK_END);
    size = ftell(f);
    rewind(f);
    text = calloc(1, (size_t)size + 1);
    assert_int_equal(fread(text, 1, (size_t)size, f), size);
    fclose(f);
    return text;
}

/* Blank the line with the source of a trace. */
static void drop_source(char *text)
{
    char *line = strstr(text, "\"source\"");
    assert_non_null(line);
    memset(line, ' ', strcspn(line, "\n"));
}

static void squeeze(char *text)
{
    char *to = text;
    for (char *from = text; *from; from++)
        if (*from != ' ')
            *to++ = *from;
    *to = '\0';
}

static void expect_same_text(const char *name, char *ours, char *golden)
{
    drop_source(ours);
    drop_source(golden);
    squeeze(ours);
    squeeze(golden);
    size_t i = 0;
    int line = 1;
    while (ours[i] && ours[i] == golden[i])
        line += ours[i++] == '\n';
    if (ours[i] != golden[i])
        fail_msg("%s, line %d: we wrote '%.60s', recorded was '%.60s'", name, line, ours + i,
                 golden + i);
}

static void compare_with_trace(enum dp_schedule_kind kind, int ranks, int microbatches,
                               bool forward)
{
    char name[100];
    FREED char *ours = NULL;
    FREED char *golden = NULL;
    OWNED(dp_schedule) *s = build((struct dp_schedule_spec){
        .kind = kind, .ranks = ranks, .microbatches = microbatches, .forward_only = forward,
        .return_outputs = forward});

    snprintf(name, sizeof(name), "%s_P%d_M%d%s.json", dp_name(DP_NAMES_SCHEDULE, kind), ranks,
             microbatches, forward ? "_fwd" : "");
    golden = read_file(name);
    assert_int_equal(dp_schedule_write(s, DP_FORMAT_JSON, &ours, NULL), 0);
    expect_same_text(name, ours, golden);
}

CASE(dualpipe_and_dualpipev_are_the_recorded_traces_event_for_event)
{
    static const int dualpipe[][2] = {{2, 4}, {2, 8}, {4, 8}, {4, 10}, {4, 20}, {8, 16}, {8, 20}};
    static const int dualpipev[][2] = {{1, 2}, {2, 4}, {2, 8}, {3, 6}, {4, 8}, {4, 10}, {8, 20}};

    for (int i = 0; i < 7; i++)
        for (int forward = 0; forward < 2; forward++) {
            compare_with_trace(DP_SCHEDULE_DUALPIPE, dualpipe[i][0], dualpipe[i][1], forward);
            compare_with_trace(DP_SCHEDULE_DUALPIPEV, dualpipev[i][0], dualpipev[i][1], forward);
        }
}

/* ---- closed forms -------------------------------------------------------------------------- */

/* Every legal DualPipe and DualPipeV up to 12 ranks. */
static void for_all_dualpipes(bool forward_only, void (*look)(const struct dp_schedule *s))
{
    for (int kind = DP_SCHEDULE_DUALPIPE; kind <= DP_SCHEDULE_DUALPIPEV; kind++)
        for (int ranks = 1; ranks <= 12; ranks++)
            for (int m = 2 * ranks; m <= 2 * ranks + 8; m++) {
                if (kind == DP_SCHEDULE_DUALPIPE && (ranks % 2 || m % 2))
                    continue;
                OWNED(dp_schedule) *s = build((struct dp_schedule_spec){
                    .kind = kind, .ranks = ranks, .microbatches = m, .forward_only = forward_only});
                look(s);
            }
}

static int arm_of(const struct dp_schedule *s)
{
    return s->kind == DP_SCHEDULE_DUALPIPE ? s->ranks / 2 : s->ranks;
}

static int place_of(const struct dp_schedule *s, int rank)
{
    bool second = s->kind == DP_SCHEDULE_DUALPIPE && rank >= s->ranks / 2;
    return second ? s->ranks - 1 - rank : rank;
}

/* The micro-batch of the i-th forward (backward) of a phase in a step of the list. */
static int closed_form(const struct dp_schedule *s, int rank, int step, bool forward, int phase,
                       int i)
{
    int arm = arm_of(s), h = place_of(s, rank), d = arm - h - 1, n = s->mb_per_stream;
    int n1 = 2 * d, n2 = h + 1, n3 = d, n4 = n - 2 * arm + h + 1, n6 = h + 1, n7 = d;
    const int of[9][4] = {
        /* F0, F1, B0, B1 */
        [1] = {0, -1, -1, -1},
        [2] = {n1, 0, -1, -1},
        [3] = {-1, n2, -1, 0},
        [4] = {n1 + n2, arm, 0, n3},
        [5] = {-1, arm + n4, n4, n3 + n4},
        [6] = {-1, -1, n - n7 - n6, n - n6},
        [7] = {-1, -1, n - n7, -1},
        [8] = {-1, -1, -1, -1},
    };
    int base = of[step][2 * !forward + phase];
    return base < 0 ? -1 : base + i;
}

static void chunks_of_a_rank_follow_the_closed_form(const struct dp_schedule *s, int rank)
{
    int seen[9][2][2] = {{{0}}};

    for (size_t i = 0; i < dp_schedule_count(s, rank); i++) {
        struct dp_op op = dp_schedule_ops(s, rank)[i];
        bool forward = op.kind == DP_OP_F;
        int phase = dp_schedule_slot(s, rank, (int)op.slot)->phase;
        if (!forward && op.kind != DP_OP_B && op.kind != DP_OP_I)
            continue;
        int *count = &seen[dp_op_unit(op)][forward][phase];
        assert_int_equal(op.mb, closed_form(s, rank, (int)dp_op_unit(op), forward, phase, (*count)++));
    }
}

static void chunks_follow_the_closed_form(const struct dp_schedule *s)
{
    for (int rank = 0; rank < s->ranks; rank++)
        chunks_of_a_rank_follow_the_closed_form(s, rank);
}

CASE(chunk_numbers_are_those_of_the_closed_form)
{
    for_all_dualpipes(false, chunks_follow_the_closed_form);
}

static void sums_are_right(const struct dp_schedule *s)
{
    for (int rank = 0; rank < s->ranks; rank++) {
        int count[DP_OP_KINDS] = {0}, pairs = 0, batch = 0;
        int arm = arm_of(s), h = place_of(s, rank), d = arm - h - 1, n = s->mb_per_stream;
        for (size_t i = 0; i < dp_schedule_count(s, rank); i++) {
            struct dp_op op = dp_schedule_ops(s, rank)[i];
            count[op.kind]++;
            pairs += op.flags & DP_OP_OVERLAP;
            if (op.kind == DP_OP_COMMIT && (int)op.mb > batch)
                batch = (int)op.mb;
        }
        assert_int_equal(count[DP_OP_F], 2 * n);
        assert_int_equal(count[DP_OP_B] + count[DP_OP_I], s->forward_only ? 0 : 2 * n);
        assert_int_equal(count[DP_OP_I], s->forward_only ? 0 : 2 * arm - h - 1);
        assert_int_equal(count[DP_OP_W], count[DP_OP_I]);
        assert_int_equal(pairs, s->forward_only ? 0 : 2 * (n - 2 * arm + h + 1) + d - (d == 0));
        assert_int_equal(count[DP_OP_FREE], count[DP_OP_SEND_F]);
        assert_true(batch <= 4);
    }
}

CASE(check_sums_of_every_rank_are_right)
{
    for_all_dualpipes(false, sums_are_right);
    for_all_dualpipes(true, sums_are_right);
}

/* DualPipe over 2P ranks computes what DualPipeV computes over P, each phase of each rank. */
CASE(dualpipe_and_dualpipev_are_one_program)
{
    for (int ranks = 1; ranks <= 8; ranks++) {
        int m = 2 * ranks + 3;
        OWNED(dp_schedule) *a = build((struct dp_schedule_spec){
            .kind = DP_SCHEDULE_DUALPIPE, .ranks = 2 * ranks, .microbatches = 2 * m});
        OWNED(dp_schedule) *b = build((struct dp_schedule_spec){
            .kind = DP_SCHEDULE_DUALPIPEV, .ranks = ranks, .microbatches = m});
        for (int rank = 0; rank < 2 * ranks; rank++) {
            int other = rank < ranks ? rank : 2 * ranks - 1 - rank;
            const struct dp_op *x = dp_schedule_ops(a, rank), *y = dp_schedule_ops(b, other);
            const struct dp_op *x_end = x + dp_schedule_count(a, rank);
            const struct dp_op *y_end = y + dp_schedule_count(b, other);
            for (;; x++, y++) {
                while (x < x_end && x->kind > DP_OP_W)
                    x++;
                while (y < y_end && y->kind > DP_OP_W)
                    y++;
                if (x == x_end || y == y_end)
                    break;
                assert_int_equal(x->kind, y->kind);
                assert_int_equal(x->mb, y->mb);
                assert_int_equal(dp_op_unit(*x), dp_op_unit(*y));
                assert_int_equal(dp_schedule_slot(a, rank, (int)x->slot)->phase,
                                 dp_schedule_slot(b, other, (int)y->slot)->phase);
            }
            assert_true(x == x_end && y == y_end);
        }
    }
}

/* ---- one rank, rank maps, passes ----------------------------------------------------------- */

static bool has_slack(int kind)
{
    return kind == DP_SCHEDULE_DUALPIPE || kind == DP_SCHEDULE_DUALPIPEV;
}

CASE(one_ranks_list_is_that_of_the_whole_schedule)
{
    for (int kind = DP_SCHEDULE_GPIPE; kind < DP_SCHEDULE_KINDS; kind++)
        for (int flags = 0; flags < (has_slack(kind) ? 16 : 8); flags++) {
            struct dp_schedule_spec spec = {
                .kind = kind, .ranks = 6, .microbatches = 12, .forward_only = flags & 1,
                .return_outputs = flags & 2, .mirror_reduce = flags & 4, .slack = !!(flags & 8)};
            OWNED(dp_schedule) *s = build(spec);
            struct dp_op ops[1000];
            for (int rank = 0; rank < 6; rank++) {
                size_t count = dp_schedule_count(s, rank), said;
                assert_int_equal(dp_schedule_build_rank(&spec, rank, ops, count, &said), 0);
                assert_int_equal(said, count);
                assert_memory_equal(ops, dp_schedule_ops(s, rank), count * sizeof(*ops));
                said = 0;
                assert_int_equal(dp_schedule_build_rank(&spec, rank, ops, count - 1, &said),
                                 DP_ENOMEM);
                assert_int_equal(said, count);
            }
        }
}

/* DualPipe's builder frees activations itself: as the pass over a finished list would. */
static void expect_frees(struct dp_schedule_spec spec)
{
    OWNED(dp_schedule) *ours = build(spec);

    spec.return_outputs = true;
    OWNED(dp_schedule) *theirs = build(spec);
    theirs->return_outputs = false;
    assert_int_equal(dp_schedule_add_frees(theirs), 0);
    for (int rank = 0; rank < spec.ranks; rank++) {
        const size_t count = dp_schedule_count(ours, rank);
        if (count != dp_schedule_count(theirs, rank) ||
            memcmp(dp_schedule_ops(ours, rank), dp_schedule_ops(theirs, rank),
                   count * sizeof(struct dp_op)))
            fail_msg("%s P=%d M=%d, rank %d: other frees than those of the pass",
                     dp_name(DP_NAMES_SCHEDULE, spec.kind), spec.ranks, spec.microbatches, rank);
    }
}

CASE(frees_of_dualpipe_stand_where_a_pass_puts_them)
{
    for (int ranks = 2; ranks <= 10; ranks += 2)
        for (int more = 0; more <= 6; more += 2)
            for (int variant = 0; variant < 4; variant++) {
                struct dp_schedule_spec spec = {.kind = DP_SCHEDULE_DUALPIPE, .ranks = ranks,
                                                .microbatches = 2 * ranks + more,
                                                .forward_only = variant & 1};
                if (variant & 2)
                    spec.kind = DP_SCHEDULE_DUALPIPEV;
                expect_frees(spec);
            }
}

CASE(a_rank_map_changes_peers_and_nothing_else)
{
    static const int map[] = {3, 1, 0, 2};
    struct dp_schedule_spec spec = {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 8};
    OWNED(dp_schedule) *plain = build(spec);
    spec.rank_map = map;
    OWNED(dp_schedule) *mapped = build(spec);

    for (int group = 0; group < 4; group++) {
        assert_int_equal(plain->group_rank[group], group);
        assert_int_equal(mapped->group_rank[map[group]], group);
    }
    memcpy(mapped->group_rank, plain->group_rank, 4 * sizeof(*plain->group_rank));
    assert_true(dp_schedule_equal(plain, mapped));
}

static void keep_computes_only(struct dp_schedule *s)
{
    size_t to = 0, from = 0;

    for (int rank = 0; rank < s->ranks; rank++) {
        size_t end = s->first[rank + 1];
        s->first[rank] = to;
        for (; from < end; from++)
            if (s->ops[from].kind <= DP_OP_W)
                s->ops[to++] = s->ops[from];
    }
    s->first[s->ranks] = to;
}

/* What GPipe, 1F1B and ZB1P do by default; for DualPipe there is another order that works, too. */
CASE(computes_alone_can_be_given_messages)
{
    for (int kind = DP_SCHEDULE_GPIPE; kind <= DP_SCHEDULE_DUALPIPEV; kind++)
        for (int ranks = 2; ranks <= 12; ranks += 2)
            for (int forward = 0; forward < 2; forward++) {
                struct dp_schedule_spec spec = {.kind = kind, .ranks = ranks,
                                                .microbatches = 2 * ranks + 2,
                                                .forward_only = forward};
                struct dp_schedule *s = build(spec), *built = build(spec);
                struct dp_finding finding;
                keep_computes_only(s);
                assert_int_equal(dp_schedule_add_messages(s), 0);
                assert_int_equal(dp_schedule_add_frees(s), 0);
                if (dp_schedule_check(s, NULL, &finding))
                    fail_msg("%s P=%d: %s", dp_name(DP_NAMES_SCHEDULE, kind), ranks, finding.text);
                if (kind < DP_SCHEDULE_DUALPIPE)
                    assert_true(dp_schedule_equal(s, built));
                expect_error(dp_schedule_add_messages(s), DP_ESTATE, "; expected computes only");
                dp_schedule_free(s);
                dp_schedule_free(built);
            }
}

/* Ranks whose computes wait for each other: messages do not help, and the checker reports it. */
CASE(computes_in_a_circle_get_messages_and_are_refused)
{
    OWNED(dp_schedule) *s = build((struct dp_schedule_spec){
        .kind = DP_SCHEDULE_DUALPIPE, .ranks = 2, .microbatches = 4, .forward_only = true});
    struct dp_finding finding;

    keep_computes_only(s);
    for (int rank = 0; rank < 2; rank++) /* begin with what comes from the other */
        for (size_t i = s->first[rank]; i < s->first[rank + 1]; i++)
            s->ops[i].slot ^= 1;
    assert_int_equal(dp_schedule_add_messages(s), 0);
    assert_int_equal(dp_schedule_check(s, NULL, &finding), DP_EINVAL);
    assert_int_equal(finding.rule, DP_RULE_DEADLOCK);
}

CASE(a_reduce_stands_behind_the_last_weight_gradient_of_each_slot)
{
    struct dp_schedule_spec spec = {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 8};
    struct dp_schedule *later = build(spec);
    spec.mirror_reduce = true;
    struct dp_schedule *s = build(spec);

    assert_int_equal(dp_schedule_add_reduces(later), 0);
    assert_true(dp_schedule_equal(s, later));
    for (int rank = 0; rank < 4; rank++) {
        int reduces = 0;
        for (size_t i = s->first[rank]; i < s->first[rank + 1]; i++)
            reduces += s->ops[i].kind == DP_OP_REDUCE;
        assert_int_equal(reduces, 2);
    }
    dp_schedule_free(s);
    dp_schedule_free(later);
    /* Nothing to do where stages exist once, or nothing is learned. */
    spec.forward_only = true;
    s = build(spec);
    for (size_t i = 0; i < s->first[4]; i++)
        assert_int_not_equal(s->ops[i].kind, DP_OP_REDUCE);
    dp_schedule_free(s);
}

/* ---- what is refused ----------------------------------------------------------------------- */

static void expect_refused(struct dp_schedule_spec spec, const char *sentence)
{
    struct dp_schedule *s;
    struct dp_op op;
    size_t count;

    assert_int_equal(dp_schedule_new(&spec, &s), DP_EINVAL);
    assert_string_equal(dp_last_error(), sentence);
    assert_int_equal(dp_schedule_build_rank(&spec, 0, &op, 1, &count), DP_EINVAL);
    assert_string_equal(dp_last_error(), sentence);
}

CASE(bad_specs_are_refused_with_what_was_expected)
{
    static const int twice[] = {0, 1, 1, 2}, outside[] = {0, 1, 2, 4};

#define SPEC(...) (struct dp_schedule_spec){__VA_ARGS__}
    expect_refused(SPEC(.kind = DP_SCHEDULE_GPIPE, .ranks = 2, .microbatches = 4, .reserved = {0, 1}),
                   "spec: reserved words are set, expected zeros");
    expect_refused(SPEC(.kind = DP_SCHEDULE_GPIPE, .ranks = 0, .microbatches = 4),
                   "ranks: 0, expected 1 to 1048576");
    expect_refused(SPEC(.kind = DP_SCHEDULE_GPIPE, .ranks = 2, .microbatches = 0),
                   "microbatches: 0, expected 1 to 1048575");
    expect_refused(SPEC(.kind = DP_SCHEDULE_1F1B, .ranks = 2, .microbatches = 1048576),
                   "microbatches: 1048576, expected 1 to 1048575");
    expect_refused(SPEC(.kind = DP_SCHEDULE_DUALPIPE, .ranks = 3, .microbatches = 8),
                   "ranks: 3, expected an even number for dualpipe");
    expect_refused(SPEC(.kind = DP_SCHEDULE_DUALPIPE, .ranks = 2, .microbatches = 7),
                   "microbatches: 7, expected an even number for dualpipe");
    expect_refused(SPEC(.kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 6),
                   "microbatches: 6, expected at least 8, twice the ranks");
    expect_refused(SPEC(.kind = DP_SCHEDULE_DUALPIPEV, .ranks = 3, .microbatches = 5),
                   "microbatches: 5, expected at least 6, twice the ranks");
    expect_refused(SPEC(.kind = DP_SCHEDULE_DUALPIPEV, .ranks = 4, .microbatches = 8,
                        .rank_map = twice), "rank_map[2]: 1, expected each of 0 to 3 once");
    expect_refused(SPEC(.kind = DP_SCHEDULE_DUALPIPEV, .ranks = 4, .microbatches = 8,
                        .rank_map = outside), "rank_map[3]: 4, expected each of 0 to 3 once");
    expect_refused(SPEC(.kind = DP_SCHEDULE_1F1B, .ranks = 4, .microbatches = 8, .slack = 1),
                   "slack: 1, expected 0; dualpipe and dualpipev have it");
    expect_refused(SPEC(.kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 8, .slack = 2),
                   "slack: 2, expected 0 or 1");
    expect_refused(SPEC(.kind = DP_SCHEDULE_USER, .ranks = 4, .microbatches = 8),
                   "kind: 0 (user), expected one that is built; a user's schedule is read");
    for (int kind = DP_SCHEDULE_USER + 1; kind < DP_SCHEDULE_KINDS; kind++)
        if (kind != DP_SCHEDULE_ASYNC)
            expect_refused(SPEC(.kind = (enum dp_schedule_kind)kind, .ranks = 2, .microbatches = 4,
                                .partition = &(struct dp_partition){.stages = 2}),
                           "partition: given, expected NULL; async has one, stages of other kinds hold "
                           "layers of their own");
    expect_refused(SPEC(.kind = (enum dp_schedule_kind)77, .ranks = 4, .microbatches = 8),
                   "kind: 77 (?), expected one that is built; a user's schedule is read");
}

CASE(a_rank_outside_the_schedule_is_refused)
{
    struct dp_schedule_spec spec = {.kind = DP_SCHEDULE_GPIPE, .ranks = 2, .microbatches = 4};
    struct dp_op op;
    size_t count;

    assert_int_equal(dp_schedule_build_rank(&spec, 2, &op, 1, &count), DP_EINVAL);
    assert_string_equal(dp_last_error(), "rank: 2, expected 0 to 1");
    assert_int_equal(dp_schedule_build_rank(&spec, -1, &op, 1, &count), DP_EINVAL);
}

CASE(names_of_kinds_and_ops_are_printed_and_parsed)
{
    enum dp_schedule_kind kind;

    for (int k = DP_SCHEDULE_USER; k < DP_SCHEDULE_KINDS; k++) {
        assert_int_equal(dp_schedule_kind_parse(dp_name(DP_NAMES_SCHEDULE, k), &kind), 0);
        assert_int_equal(kind, k);
    }
    expect_error(dp_schedule_kind_parse("dualpip", &kind), DP_EINVAL, "did you mean dualpipe?");
    assert_string_equal(dp_name(DP_NAMES_OP, DP_OP_RECV_F), "RECV_F");
    dp_schedule_free(NULL);
}

RUN_QUIET_CASES(NULL, NULL)
