/* SPDX-License-Identifier: Apache-2.0
 *
 * test_partition.c - layers cut into stages; what other implementations made of theirs is checked
 * by tests/golden.
 */
#include "cmocka_all.h"
#include "schedule/internal.h"

#include <dualpipe/partition.h>
#include <dualpipe/schedule.h>

static struct dp_partition *cut(const char *letters, const int32_t *balance, int32_t stages)
{
    int32_t layers[64];
    struct dp_partition *p;

    for (size_t i = 0; letters[i]; i++)
        layers[i] = letters[i];
    if (dp_partition_new(&(struct dp_partition_spec){.layers = layers,
                                                     .layer_count = (int32_t)strlen(letters),
                                                     .balance = balance, .stages = stages}, &p))
        fail_msg("%s: %s", letters, dp_last_error());
    return p;
}

/* Every list over three layers, cut in every way: each entry is executed once, in its order. */
CASE(every_entry_is_executed_once_and_in_order)
{
    for (int code = 0; code < 3 * 3 * 3 * 3 * 3 * 3; code++) {
        char letters[7] = "";
        int32_t seen[3] = {0}, distinct = 0, balance[3] = {1, 1, 1};
        for (int i = 0, rest = code; i < 6; i++, rest /= 3) {
            letters[i] = (char)('a' + rest % 3);
            distinct += !seen[rest % 3];
            seen[rest % 3] = 1;
        }
        for (int stages = 1; stages <= distinct; stages++) {
            balance[0] = distinct - stages + 1;
            struct dp_partition *p = cut(letters, balance, stages);
            char executed[16] = "";
            for (int k = 0; k < p->invocation_count; k++) {
                const struct dp_layer_group *g = &p->groups[p->invocations[k].group];
                for (int i = 0; i < g->count; i++)
                    strncat(executed, &letters[p->positions[g->first + i]], 1);
            }
            assert_string_equal(executed, letters);
            dp_partition_free(p);
        }
    }
}

CASE(layers_are_counted_and_indexed_by_stage)
{
    const int32_t balance[] = {3, 2};
    struct dp_partition *p = cut("asbsctd", (const int32_t[]){3, 3}, 2);
    int32_t at;

    dp_partition_free(p);
    p = cut("asbscd", balance, 2);
    assert_int_equal(dp_partition_len(p, 0), 3);
    assert_int_equal(dp_partition_len(p, 1), 2);
    assert_int_equal(dp_partition_len(p, 2), 0);
    assert_int_equal(dp_partition_layer(p, 1, -1, &at), 0);
    assert_int_equal(at, 5);
    assert_int_equal(dp_partition_layer(p, 0, 2, &at), 0);
    assert_int_equal(at, 2);
    expect_error(dp_partition_layer(p, 0, 3, &at), DP_EINVAL, "expected -3 to 2 (A15)");
    dp_partition_free(p);
}

static void expect_refused(struct dp_partition_spec spec, const char *sentence)
{
    struct dp_partition *p;

    assert_int_equal(dp_partition_new(&spec, &p), DP_EINVAL);
    if (!strstr(dp_last_error(), sentence))
        fail_msg("'%s' does not contain '%s'", dp_last_error(), sentence);
}

CASE(bad_balances_are_refused_by_the_rows_of_the_table)
{
    static const int32_t two[] = {2, 2}, zero[] = {4, 0}, reused[] = {0, 1, 0, 2};

    expect_refused((struct dp_partition_spec){.layer_count = 5, .balance = two, .stages = 2},
                   "4 layers together, expected the 5 that are in the list (A4)");
    expect_refused((struct dp_partition_spec){.layers = reused, .layer_count = 4, .balance = two,
                                              .stages = 2}, "expected the 3 that are in");
    expect_refused((struct dp_partition_spec){.layer_count = 4, .balance = zero, .stages = 2},
                   "balance[1]: 0, expected at least 1 (A5)");
    expect_refused((struct dp_partition_spec){.layer_count = 4, .balance = two, .stages = 2,
                                              .ranks = 1}, "at least one for each of 2 stages (A6)");
    OWNED(dp_partition) *p = NULL;
    assert_int_equal(dp_partition_new(&(struct dp_partition_spec){0}, &p), 0);
    assert_int_equal(p->invocation_count, 0);
}

/* ---- balance ------------------------------------------------------------------------------- */

static void expect_blocks(const double *costs, int count, int parts, const int32_t *expected)
{
    int32_t balance[16];

    assert_int_equal(dp_partition_blocks(costs, count, parts, balance), 0);
    assert_memory_equal(balance, expected, (size_t)parts * sizeof(*balance));
}

CASE(blocks_have_similar_sums)
{
    const double costs[] = {1, 2, 3, 4, 5, 6}, equal[] = {1, 1, 1, 1, 1}, bad[] = {1, -1};
    int32_t balance[2];

    expect_blocks(costs, 6, 2, (const int32_t[]){4, 2});
    expect_blocks(costs, 6, 3, (const int32_t[]){3, 2, 1});
    expect_blocks(costs, 6, 6, (const int32_t[]){1, 1, 1, 1, 1, 1});
    expect_blocks(equal, 5, 1, (const int32_t[]){5});
    /* Where several blocks are the smallest: what fairscale 0.4.13 makes of them. */
    expect_blocks((const double[]){7, 7, 22, 16, 1}, 5, 3, (const int32_t[]){2, 1, 2});
    /* And where it leaves a block empty, or has a layer twice. */
    expect_blocks((const double[]){5, 5, 22, 25}, 4, 3, (const int32_t[]){1, 2, 1});
    expect_blocks((const double[]){29, 2, 2, 17, 2, 16, 12, 22}, 8, 7,
                  (const int32_t[]){1, 1, 1, 1, 2, 1, 1});
    assert_int_equal(dp_partition_blocks(costs, 6, 0, balance), DP_EINVAL);
    assert_int_equal(dp_partition_blocks(costs, 1, 2, balance), DP_EINVAL);
    assert_int_equal(dp_partition_blocks(bad, 2, 1, balance), DP_EINVAL);
}

CASE(sizes_count_activations_and_parameters)
{
    const struct dp_layer_size sizes[] = {{100, 0}, {100, 0}, {0, 10}, {0, 10}, {0, 10}, {0, 10}};
    int32_t balance[2];

    assert_int_equal(dp_partition_by_size(sizes, 6, 2, 8, 4, 1, balance), 0);
    assert_int_equal(balance[0], 1); /* 200 for each of the first two, 10 for each other */
    assert_int_equal(dp_partition_by_size(sizes, 6, 2, 8, 0, 1, balance), DP_EINVAL);
}

struct counter {
    int runs[4], fail_at;
};

static int run_layer(void *user, int32_t layer)
{
    struct counter *c = user;

    c->runs[layer]++;
    return layer == c->fail_at ? DP_ECALLBACK : 0;
}

CASE(times_are_measured_by_running_every_layer)
{
    struct counter c = {.fail_at = -1};
    int32_t balance[2];

    assert_int_equal(dp_partition_by_time(run_layer, &c, 4, 2, 0, balance), 0);
    assert_int_equal(balance[0] + balance[1], 4);
    for (int i = 0; i < 4; i++)
        assert_int_equal(c.runs[i], 1);
    c.fail_at = 2;
    assert_int_equal(dp_partition_by_time(run_layer, &c, 4, 2, 0, balance), DP_ECALLBACK);
    assert_int_equal(c.runs[3], 1);
    assert_int_equal(dp_partition_by_time(run_layer, &c, 1, 2, 0, balance), DP_EINVAL);
}

/* ---- schedules ----------------------------------------------------------------------------- */

CASE(invocations_are_stages_and_locations_share_parameters)
{
    struct dp_partition *p = cut("saRsBsC", (const int32_t[]){3, 1, 1}, 3);
    struct dp_schedule_spec spec = {.kind = DP_SCHEDULE_ASYNC, .ranks = 4, .microbatches = 3,
                                    .partition = p};
    struct dp_schedule *s, *back;
    struct dp_finding finding;
    char *text;

    assert_int_equal(dp_schedule_new(&spec, &s), 0);
    if (dp_schedule_check(s, NULL, &finding))
        fail_msg("%s", finding.text);
    assert_int_equal(s->stages, 6);
    assert_int_equal(dp_schedule_slot_count(s, 0), 4);
    assert_int_equal(dp_schedule_slot_count(s, 3), 0); /* A7 */
    assert_int_equal(dp_schedule_slot(s, 0, 2)->location, 0);
    assert_int_equal(dp_schedule_slot(s, 0, 1)->location, 1);
    assert_int_equal(dp_schedule_write(s, DP_FORMAT_TEXT, &text, NULL), 0);
    assert_int_equal(dp_schedule_read(text, strlen(text), DP_FORMAT_TEXT, &back), 0);
    assert_true(dp_schedule_equal(s, back));
    free(text);
    dp_schedule_free(back);
    dp_schedule_free(s);
    spec.ranks = 2;
    expect_error(dp_schedule_new(&spec, &s), DP_EINVAL, "(A6)");
    dp_partition_free(p);
}

/* The number of recomputed micro-batches of a rank: 2, 1, 0 of 2. */
CASE(modes_of_recomputation_go_by_the_actual_number_of_micro_batches)
{
    static const int kinds[] = {DP_SCHEDULE_ASYNC, DP_SCHEDULE_1F1B, DP_SCHEDULE_ZB1P,
                                DP_SCHEDULE_DUALPIPE, DP_SCHEDULE_DUALPIPEV, DP_SCHEDULE_ZBV};

    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++)
        for (int mode = 0; mode < DP_RECOMPUTES; mode++) {
            OWNED(dp_schedule) *s = NULL;
            struct dp_finding finding;
            struct dp_schedule_spec spec = {.kind = (enum dp_schedule_kind)kinds[k], .ranks = 2,
                                            .microbatches = 6,
                                            .recompute = (enum dp_recompute)mode};
            size_t again = 0, forwards = 0;
            assert_int_equal(dp_schedule_new(&spec, &s), 0);
            if (dp_schedule_check(s, NULL, &finding))
                fail_msg("%s: %s", dp_name(DP_NAMES_SCHEDULE, s->kind), finding.text);
            for (size_t i = 0; i < s->first[2]; i++) {
                again += s->ops[i].kind == DP_OP_RECOMPUTE;
                forwards += s->ops[i].kind == DP_OP_F;
            }
            size_t slots = s->first_slot[2];
            assert_int_equal(again, mode == DP_RECOMPUTE_ALWAYS  ? forwards
                                    : mode == DP_RECOMPUTE_NEVER ? 0
                                                                 : forwards - slots);
        }
}

static bool is_of_stage(void *user, const struct dp_slot *slot, int32_t mb)
{
    return slot->stage == *(const int *)user;
}

CASE(recomputation_saves_activation_sets)
{
    OWNED(dp_schedule) *s = NULL;
    ENDED_BY(dp_simulation_fini) struct dp_simulation sim = {0};
    enum dp_recompute mode;

    assert_int_equal(dp_recompute_parse("always", &mode), 0);
    assert_int_equal(dp_recompute_parse("some", &(enum dp_recompute){0}), DP_EINVAL);
    assert_int_equal(dp_schedule_new(&(struct dp_schedule_spec){
        .kind = DP_SCHEDULE_ASYNC, .ranks = 3, .microbatches = 8, .recompute = mode}, &s), 0);
    assert_int_equal(dp_schedule_simulate(s, &(struct dp_cost){.f_ns = 1000, .b_ns = 2000}, 0,
                                          &sim), 0);
    assert_int_equal(sim.ranks[0].peak_activations, 1);
    assert_int_equal(sim.ranks[0].peak_inputs, 8);
    assert_int_equal(dp_schedule_add_recomputes(s, is_of_stage, &(int){0}), DP_ESTATE);
}

CASE(single_stages_can_be_recomputed)
{
    int stage = 1;
    OWNED(dp_schedule) *s = NULL;

    assert_int_equal(dp_schedule_new(&(struct dp_schedule_spec){
        .kind = DP_SCHEDULE_1F1B, .ranks = 2, .microbatches = 3}, &s), 0);
    assert_int_equal(dp_schedule_add_recomputes(s, is_of_stage, &stage), 0);
    assert_int_equal(dp_schedule_check(s, NULL, NULL), 0);
    for (size_t i = 0; i < s->first[2]; i++)
        assert_true(s->ops[i].kind != DP_OP_RECOMPUTE || i >= s->first[1]);
}

/* ---- exact partitions ---------------------------------------------------------------------- */

/* The largest sum of a rank. */
static double largest_of(const double *costs, const int32_t *balance, int32_t stages,
                         enum dp_pairing pairing)
{
    double ranks[8] = {0}, largest = 0;
    int32_t at = 0;

    for (int32_t s = 0; s < stages; s++) {
        const int32_t rank = s < stages / 2 || !pairing         ? s
                             : pairing == DP_PAIRING_MIRRORED ? stages - 1 - s
                                                              : s - stages / 2;
        for (int32_t k = 0; k < balance[s]; k++)
            ranks[rank] += costs[at++];
        largest = ranks[rank] > largest ? ranks[rank] : largest;
    }
    return largest;
}

/* Every way to give the layers from `left` on to the stages from s on. */
static double try_all(const double *costs, int32_t *balance, int32_t s, int32_t left, int32_t stages,
                      enum dp_pairing pairing)
{
    double found = 1e300;

    if (s == stages - 1) {
        balance[s] = left;
        return largest_of(costs, balance, stages, pairing);
    }
    for (balance[s] = 1; left - balance[s] >= stages - 1 - s; balance[s]++) {
        const int32_t taken = balance[s];
        const double most = try_all(costs, balance, s + 1, left - taken, stages, pairing);
        found = most < found ? most : found;
    }
    return found;
}

CASE(an_exact_partition_is_the_best_of_all)
{
    uint32_t random = 1;

    for (int round = 0; round < 300; round++) {
        const enum dp_pairing pairing = (enum dp_pairing)(round % 3);
        const int32_t stages = pairing ? 2 + 2 * (round % 2) + 2 * (round % 5 == 0) : 1 + round % 5;
        const int32_t count = stages + round % 6;
        double costs[16], largest;
        int32_t balance[8], tried[8], sum = 0;
        for (int32_t i = 0; i < count; i++) {
            random = random * 1664525 + 1013904223;
            costs[i] = (double)(random >> 24) * (random >> 8 & 3 ? 1 : 8);
        }
        assert_int_equal(dp_partition_exact(costs, count, stages, pairing, balance, &largest), 0);
        for (int32_t s = 0; s < stages; s++) {
            assert_true(balance[s] > 0);
            sum += balance[s];
        }
        assert_int_equal(sum, count);
        assert_true(largest == largest_of(costs, balance, stages, pairing));
        assert_true(largest == try_all(costs, tried, 0, count, stages, pairing));
    }
}

CASE(an_exact_partition_says_what_it_cannot_cut)
{
    const double costs[] = {1, -1, 1};
    int32_t balance[4];
    double largest;

    assert_int_equal(dp_partition_exact(costs, 3, 4, DP_PAIRING_NONE, balance, &largest), DP_EINVAL);
    assert_int_equal(dp_partition_exact(costs, 3, 3, DP_PAIRING_MIRRORED, balance, &largest),
                     DP_EINVAL);
    assert_int_equal(dp_partition_exact(costs, 3, 2, DP_PAIRING_NONE, balance, &largest), DP_EINVAL);
    assert_non_null(strstr(dp_last_error(), "costs[1]: -1"));
}

RUN_QUIET_CASES(NULL, NULL)
