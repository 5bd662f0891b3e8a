/* SPDX-License-Identifier: Apache-2.0
 *
 * Every small change of a valid schedule is either still valid, by an oracle that knows nothing of
 * the checker, or refused under a rule that it breaks.
 */
#include "cmocka_all.h"
#include "schedule_oracle.h"

#include <dualpipe/schedule.h>

/* How often each rule was the answer; DP_RULE_NONE: still valid. */
static int answers[DP_RULES];

static void judge(const struct dp_schedule *s, const char *what)
{
    unsigned broken = oracle_broken_rules(s);
    struct dp_finding finding;
    int err = dp_schedule_check(s, NULL, &finding);

    answers[finding.rule]++;
    if (!err && !broken)
        return;
    if (err && broken >> finding.rule & 1 && *finding.text)
        return;
    fail_msg("%s: the checker says %s (%s), the oracle's rules are %#x", what,
             err ? dp_name(DP_NAMES_RULE, finding.rule) : "valid", finding.text, broken);
}

/* ---- changes ------------------------------------------------------------------------------- */

struct mutant {
    struct dp_schedule s;
    const struct dp_schedule *original;
};

/* A copy with room for one op more. */
static struct mutant mutant_of(const struct dp_schedule *original)
{
    struct mutant m = {.s = *original, .original = original};
    size_t ranks = (size_t)original->ranks, count = original->first[ranks];

    m.s.first = malloc((ranks + 1) * sizeof(*m.s.first));
    m.s.ops = malloc((count + 1) * sizeof(*m.s.ops));
    return m;
}

static void reset(struct mutant *m)
{
    size_t ranks = (size_t)m->s.ranks;

    memcpy(m->s.first, m->original->first, (ranks + 1) * sizeof(*m->s.first));
    memcpy(m->s.ops, m->original->ops, m->s.first[ranks] * sizeof(*m->s.ops));
}

static void mutant_fini(struct mutant *m)
{
    free(m->s.first);
    free(m->s.ops);
}

/* Make the rank's list longer (1) or shorter (-1) at ops[at]. */
static void shift(struct mutant *m, int rank, size_t at, int by)
{
    size_t end = m->s.first[m->s.ranks];

    if (by > 0)
        memmove(m->s.ops + at + 1, m->s.ops + at, (end - at) * sizeof(*m->s.ops));
    else
        memmove(m->s.ops + at, m->s.ops + at + 1, (end - at - 1) * sizeof(*m->s.ops));
    for (int r = rank + 1; r <= m->s.ranks; r++)
        m->s.first[r] += (size_t)by;
}

static const char *name(const char *change, int rank, size_t i, size_t j)
{
    static char text[100];
    snprintf(text, sizeof(text), "%s in rank %d: op %zu, %zu", change, rank, i, j);
    return text;
}

static void delete_each(struct mutant *m, int rank)
{
    for (size_t i = m->original->first[rank]; i < m->original->first[rank + 1]; i++) {
        reset(m);
        shift(m, rank, i, -1);
        judge(&m->s, name("deletion", rank, i - m->original->first[rank], 0));
    }
}

/* Have each op twice: the second time right behind it, and as the last of the list. */
static void duplicate_each(struct mutant *m, int rank)
{
    size_t first = m->original->first[rank], end = m->original->first[rank + 1];

    for (size_t i = first; i < end; i++)
        for (size_t to = i + 1; to <= end; to = to < end ? end : end + 1) {
            reset(m);
            shift(m, rank, to, 1);
            m->s.ops[to] = m->original->ops[i];
            judge(&m->s, name("duplication", rank, i - first, to - first));
        }
}

static void swap_each(struct mutant *m, int rank)
{
    size_t first = m->original->first[rank], end = m->original->first[rank + 1];

    for (size_t i = first; i < end; i++)
        for (size_t j = i + 1; j < end; j++) {
            reset(m);
            m->s.ops[i] = m->original->ops[j];
            m->s.ops[j] = m->original->ops[i];
            judge(&m->s, name("swap", rank, i - first, j - first));
        }
}

/* Another kind, slot, micro-batch or count, and the other overlap mark. */
static void change_each(struct mutant *m, int rank)
{
    for (size_t i = m->original->first[rank]; i < m->original->first[rank + 1]; i++) {
        struct dp_op op = m->original->ops[i];
        for (uint32_t change = 1; change < 16 + 7; change++) {
            reset(m);
            struct dp_op *to = &m->s.ops[i];
            to->kind = change < 16 ? op.kind ^ change : op.kind;
            to->slot = change == 16 ? op.slot ^ 1 : change == 20 ? 15 : op.slot;
            to->mb = change == 17 ? op.mb + 1 : change == 18 ? op.mb - 1 : op.mb;
            to->flags ^= change == 19 ? DP_OP_OVERLAP : change == 21 ? DP_OP_RECOMPUTED : 0;
            to->flags += change == 22 ? dp_op_flags(0, 1) : 0;
            judge(&m->s, name("change", rank, i - m->original->first[rank], change));
        }
    }
}

static void mutate_schedule(struct dp_schedule *s, void (*change)(struct mutant *, int))
{
    assert_int_equal(dp_schedule_check(s, NULL, NULL), 0);
    judge(s, "built");
    struct mutant m = mutant_of(s);
    for (int rank = 0; rank < s->ranks; rank++)
        change(&m, rank);
    mutant_fini(&m);
    dp_schedule_free(s);
}

static void mutate(struct dp_schedule_spec spec, void (*change)(struct mutant *, int))
{
    struct dp_schedule *s;

    assert_int_equal(dp_schedule_new(&spec, &s), 0);
    mutate_schedule(s, change);
}

/* ---- schedules ----------------------------------------------------------------------------- */

static const struct dp_schedule_spec specs[] = {
    {.kind = DP_SCHEDULE_GPIPE, .ranks = 3, .microbatches = 3},
    {.kind = DP_SCHEDULE_1F1B, .ranks = 4, .microbatches = 5},
    {.kind = DP_SCHEDULE_ZB1P, .ranks = 3, .microbatches = 5},
    {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 2, .microbatches = 4, .mirror_reduce = true},
    {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 8, .mirror_reduce = true},
    {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 8, .no_overlap = true,
     .return_outputs = true},
    {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 8, .forward_only = true},
    {.kind = DP_SCHEDULE_DUALPIPEV, .ranks = 1, .microbatches = 4},
    {.kind = DP_SCHEDULE_ZBV, .ranks = 2, .microbatches = 3},
    {.kind = DP_SCHEDULE_INTERLEAVED, .ranks = 2, .microbatches = 2},
    {.kind = DP_SCHEDULE_ASYNC, .ranks = 2, .microbatches = 3, .recompute = DP_RECOMPUTE_EXCEPT_LAST},
    {.kind = DP_SCHEDULE_DUALPIPEV, .ranks = 3, .microbatches = 6},
};

/* Computes; messages and frees are added on reading. */
static const char *const texts[] = {
    "user P=2 M=3\n"
    "rank 0: F0.0 F0.1 F0.2 re0.0 ev0.0 fe0.0 B0.0 I0.1 W0.1 re0.2 B0.2\n"
    "rank 1: F0.0 B0.0 F0.1 I0.1 ev0.1 F0.2 ev0.2 fe0.2 fe0.1 I0.2 W0.1 W0.2\n",
    "user P=3 M=2\nholds 0: 0 3\nholds 1:\nholds 2: 1 2\n"
    "rank 0: F0.0 F0.1 F1.0 I1.0 F1.1 I1.1 I0.0 I0.1 W1.0 W0.0 W0.1 W1.1\n"
    "rank 1:\n"
    "rank 2: F0.0 F1.0 F0.1 F1.1 B1.0 B0.0 B1.1 B0.1\n",
};

static void mutate_text(const char *text, void (*change)(struct mutant *, int))
{
    struct dp_schedule *s;

    if (dp_schedule_read(text, strlen(text), DP_FORMAT_TEXT, &s))
        fail_msg("%s", dp_last_error());
    mutate_schedule(s, change);
}

static void mutate_all(void (*change)(struct mutant *, int))
{
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        mutate_text(texts[i], change);
    for (size_t i = 0; i < sizeof(specs) / sizeof(specs[0]); i++)
        mutate(specs[i], change);
}

CASE(every_deletion_is_judged_rightly)
{
    mutate_all(delete_each);
}

CASE(every_duplication_is_judged_rightly)
{
    mutate_all(duplicate_each);
}

CASE(every_swap_is_judged_rightly)
{
    mutate_all(swap_each);
}

CASE(every_change_of_a_field_is_judged_rightly)
{
    mutate_all(change_each);
}

CASE(all_rules_were_answers)
{
    for (int rule = 0; rule < DP_RULES; rule++) {
        print_message("%s %d\n", dp_name(DP_NAMES_RULE, (enum dp_rule)rule), answers[rule]);
        assert_true(answers[rule] > 0);
    }
}

RUN_QUIET_CASES(NULL, NULL)
