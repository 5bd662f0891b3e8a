/* SPDX-License-Identifier: Apache-2.0
 *
 * test_async.c - a list of layers as a pipeline of several ranks: layers are made where they live and
 * nowhere else, and what is wrong on any rank ends it on all of them with one sentence.
 */
#include "cmocka_all.h"

#include "unit/comm/comm_group.h"

#include <dualpipe/asyncpipe.h>
#include <dualpipe/batch_step.h>

enum { RANKS = 2, EVERYWHERE = -1, MOST = 8, BUILD_FAILED = -77 };
static const int64_t deadline_ns = INT64_C(20000000000);

static const int32_t two_each[] = {2, 2};
static const struct dp_async_spec four_layers = {
    .layer_count = 4, .balance = two_each, .stages = 2, .chunks = 4};

/* ---- layers that are made -------------------------------------------------------------------- */

/* Those of this rank. */
struct built {
    int count;
    int32_t positions[MOST], layers[MOST];
    int32_t fails_at; /* position; -1: none */
};

static int build(void *user, int32_t position, int32_t layer)
{
    struct built *b = user;

    if (position == b->fails_at)
        return dp_callback_error(BUILD_FAILED, "no weights for layer %d", layer);
    b->positions[b->count] = position;
    b->layers[b->count++] = layer;
    return 0;
}

/* What each rank should have made. */
struct list {
    struct dp_async_spec spec;
    int ranks;
    struct {
        int count;
        int32_t positions[MOST];
    } own[4];
};

static int run_list(struct dp_comm *comm, void *arg)
{
    const struct list *l = arg;
    const int rank = dp_comm_rank(comm);
    struct built b = {.fails_at = -1};
    struct dp_async_spec spec = l->spec;
    struct dp_async *async;
    int32_t at;

    spec.comm = comm;
    spec.build = build;
    spec.user = &b;
    CHECK(!dp_async_new(&spec, &async));
    CHECK(async->unused == (rank >= spec.stages));
    CHECK(b.count == l->own[rank].count && dp_async_len(async) == b.count);
    for (int i = 0; i < b.count; i++) {
        CHECK(b.positions[i] == l->own[rank].positions[i]);
        CHECK(b.layers[i] == (spec.layers ? spec.layers[b.positions[i]] : b.positions[i]));
        CHECK(!dp_async_layer(async, i, &at) && at == b.positions[i]);
        CHECK(!dp_async_layer(async, i - b.count, &at) && at == b.positions[i]);
    }
    CHECK_ERROR(dp_async_layer(async, b.count, &at), DP_EINVAL, "(A15)");
    CHECK(async->schedule->ranks == l->ranks && async->evaluation->forward_only);
    CHECK(async->comm == comm && async->chunks == spec.chunks && async->stages == spec.stages);
    CHECK(!spec.stages || (async->balance != spec.balance &&
                           !memcmp(async->balance, spec.balance,
                                   (size_t)spec.stages * sizeof(*spec.balance))));
    CHECK(async->checkpoint == DP_RECOMPUTE_EXCEPT_LAST);
    CHECK(async->final_stage == (rank == spec.stages - 1));
    CHECK(!async->groups == async->unused);
    int in_groups = 0;
    for (int32_t g = 0; g < async->group_count; g++) {
        CHECK(async->groups[g].at.stage == rank && async->groups[g].at.index == g);
        in_groups += async->groups[g].count;
    }
    CHECK(in_groups == b.count);
    CHECK(!dp_schedule_check(async->schedule, NULL, NULL));
    CHECK(!dp_schedule_check(async->evaluation, NULL, NULL));
    dp_async_free(async);
    return 0;
}

static const int32_t one_each[] = {1, 1, 1}, reused[] = {7, 1, 7, 2, 7}, one_and_two[] = {1, 2};

CASE(layers_are_made_once_and_only_where_they_live)
{
    struct list lists[] = {
        {four_layers, 2, {{2, {0, 1}}, {2, {2, 3}}}},
        /* a rank more than stages */
        {{.layer_count = 3, .balance = one_each, .stages = 3, .chunks = 1}, 4,
         {{1, {0}}, {1, {1}}, {1, {2}}, {0, {0}}}},
        /* layer 7 lives where it is used first */
        {{.layers = reused, .layer_count = 5, .balance = one_and_two, .stages = 2, .chunks = 3}, 2,
         {{1, {0}}, {2, {1, 3}}}},
        /* no layer and no stage */
        {{.chunks = 2}, 3, {{0, {0}}}},
    };

    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
        if (comm_on_threads(lists[i].ranks, deadline_ns, run_list, &lists[i]))
            fail_msg("list %zu", i);
}

/* A9: layers with skips are made late as any are, and their skips are messages of the schedule. */
RANKS_CASE(a9_layers_with_skips_are_made_late,
           assert_int_equal(comm_on_threads(RANKS, deadline_ns, part, NULL), 0))
{
    static const struct dp_skip skips[] = {{.name = "far", .from = 0, .to = 3},
                                           {.name = "near", .from = 1, .to = 2}};
    struct built b = {.fails_at = -1};
    struct dp_async_spec spec = four_layers;
    struct dp_async *async;
    int crossing = 0;

    spec.comm = comm;
    spec.build = build;
    spec.user = &b;
    spec.skips = skips;
    spec.skip_count = 2;
    CHECK(!dp_async_new(&spec, &async));
    CHECK(b.count == 2 && b.positions[0] == 2 * dp_comm_rank(comm));
    CHECK(!dp_schedule_check(async->schedule, NULL, NULL));
    for (size_t i = 0; i < dp_schedule_count(async->schedule, 0); i++)
        crossing += dp_schedule_ops(async->schedule, 0)[i].kind == DP_OP_SEND_SKIP_F;
    CHECK(crossing == 2 * spec.chunks || dp_comm_rank(comm));
    dp_async_free(async);
    return 0;
}

CASE(one_rank_needs_no_comm)
{
    static const int32_t all[] = {4};
    struct dp_async_spec spec = {.layer_count = 4, .balance = all, .stages = 1, .chunks = 2};
    struct built b = {.fails_at = -1};
    struct dp_async *async;

    spec.build = build;
    spec.user = &b;
    assert_int_equal(dp_async_new(&spec, &async), 0);
    assert_int_equal(b.count, 4);
    dp_async_free(async);
    dp_async_free(NULL);
}

/* Micro-batch i is recomputed if i < stop; the mode follows the number that there is. */
CASE(modes_recompute_two_one_and_none_of_two)
{
    static const struct {
        const char *mode;
        int recomputed;
    } modes[] = {{"always", 2}, {"except_last", 1}, {NULL, 1}, {"never", 0}};
    static const int32_t one[] = {1};

    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        struct dp_async *async;
        int count[2] = {0};
        assert_int_equal(dp_async_new(&(struct dp_async_spec){.layer_count = 1, .balance = one,
                                                              .stages = 1, .chunks = 2,
                                                              .checkpoint = modes[i].mode},
                                      &async), 0);
        const struct dp_schedule *both[] = {async->schedule, async->evaluation};
        for (int k = 0; k < 2; k++)
            for (size_t op = 0; op < dp_schedule_count(both[k], 0); op++)
                count[k] += dp_schedule_ops(both[k], 0)[op].kind == DP_OP_RECOMPUTE;
        assert_int_equal(count[0], modes[i].recomputed);
        assert_int_equal(count[1], 0);
        dp_async_free(async);
    }
}

/* ---- what is wrong, on all ranks ------------------------------------------------------------- */

LATER(dp_async_spec);
struct row {
    const char *what;
    void (*spoil)(struct dp_async_spec *spec, struct built *b); /* of a later_dp_async_spec */
    int error;
    const char *sentence;
};

static void no_chunks(struct dp_async_spec *spec, struct built *b)
{
    spec->chunks = 0;
}

static void fewer_than_no_chunks(struct dp_async_spec *spec, struct built *b)
{
    spec->chunks = -3;
}

static void unknown_mode(struct dp_async_spec *spec, struct built *b)
{
    spec->checkpoint = "sometimes";
}

static void a_layer_more(struct dp_async_spec *spec, struct built *b)
{
    spec->layer_count++;
}

static void an_empty_stage(struct dp_async_spec *spec, struct built *b)
{
    static const int32_t balance[] = {4, 0};

    spec->balance = balance;
}

static void less_than_an_empty_stage(struct dp_async_spec *spec, struct built *b)
{
    static const int32_t balance[] = {5, -1};

    spec->balance = balance;
}

static void more_stages_than_ranks(struct dp_async_spec *spec, struct built *b)
{
    static const int32_t balance[] = {1, 1, 2};

    spec->balance = balance;
    spec->stages = 3;
}

static void no_layer(struct dp_async_spec *spec, struct built *b)
{
    static const int32_t layers[] = {0, 1, -7, 3};

    spec->layers = layers;
}

static void skips_to_before(struct dp_async_spec *spec, struct built *b)
{
    static const struct dp_skip skip = {.name = "x", .from = 3, .to = 1};

    spec->skips = &skip;
    spec->skip_count = 1;
}

static void fails_to_build(struct dp_async_spec *spec, struct built *b)
{
    b->fails_at = dp_comm_rank(spec->comm) * 2 + 1;
}

static void of_a_later_release(struct dp_async_spec *spec, struct built *b)
{
    ((struct later_dp_async_spec *)spec)->unknown = 1;
}

static const struct row rows[] = {
    {"A1", no_chunks, DP_EINVAL, "chunks: 0, expected at least 1 (A1)"},
    {"A1, negative", fewer_than_no_chunks, DP_EINVAL, "chunks: -3, expected at least 1 (A1)"},
    {"A2", unknown_mode, DP_EINVAL, "'sometimes', expected never, except_last or always (A2)"},
    {"A4", a_layer_more, DP_EINVAL, "4 layers together, expected the 5 that are in the list (A4)"},
    {"A5", an_empty_stage, DP_EINVAL, "balance[1]: 0, expected at least 1 (A5)"},
    {"A5, negative", less_than_an_empty_stage, DP_EINVAL, "balance[1]: -1, expected at least 1 (A5)"},
    {"A6", more_stages_than_ranks, DP_EINVAL, "expected at least one for each of 3 stages (A6)"},
    {"A8", no_layer, DP_EINVAL, "layers[2]: -7, expected a layer, at least 0 (A8)"},
    {"a skip that goes back", skips_to_before, DP_EINVAL, "'x'"},
    {"what is not known", of_a_later_release, DP_EINVAL, "struct dp_async_spec of"},
    {"a layer that is not made", fails_to_build, DP_ECALLBACK, "no weights for layer"},
};
enum { ROWS = sizeof(rows) / sizeof(rows[0]) };

/* All ranks have the error, and to the letter one sentence, which names the rank at fault. */
static int check_same(struct dp_comm *comm, int err, int at_fault, int error, const char *sentence)
{
    char prefix[24], mine[256], all[RANKS][256];

    snprintf(prefix, sizeof(prefix), "rank %d: ", at_fault == EVERYWHERE ? 0 : at_fault);
    CHECK(err == error);
    CHECK_SAYS(sentence);
    CHECK(!strncmp(dp_last_error(), prefix, strlen(prefix)));
    memset(mine, 0, sizeof(mine));
    snprintf(mine, sizeof(mine), "%s", dp_last_error());
    CHECK(!dp_comm_allgather(comm, mine, all, sizeof(mine)));
    for (int r = 0; r < RANKS; r++)
        CHECK(!strcmp(mine, all[r]));
    return 0;
}

static bool is_at_fault(int at_fault, const struct dp_comm *comm)
{
    return at_fault == EVERYWHERE || at_fault == dp_comm_rank(comm);
}

static int try_row(struct dp_comm *comm, const struct row *row, int at_fault)
{
    struct built b = {.fails_at = -1};
    struct later_dp_async_spec spec = {four_layers, 0};
    struct dp_async *async = NULL;

    spec.known.comm = comm;
    spec.known.build = build;
    spec.known.user = &b;
    if (is_at_fault(at_fault, comm))
        row->spoil(&spec.known, &b);
    const int err = dp_async_new_sized(&spec.known, &async, sizeof(spec));
    CHECK(!async);
    return check_same(comm, err, at_fault, row->error, row->sentence);
}

/* A15: a rank that asks for a layer that it has not. */
static int try_index(struct dp_comm *comm, int at_fault, int32_t index)
{
    struct dp_async_spec spec = four_layers;
    struct dp_async *async;
    int32_t at;

    spec.comm = comm;
    CHECK(!dp_async_new(&spec, &async));
    int err = dp_async_layer(async, is_at_fault(at_fault, comm) ? index : 1, &at);
    err = dp_comm_share_error(comm, err);
    dp_async_free(async);
    return check_same(comm, err, at_fault, DP_EINVAL, "expected -2 to 1 (A15)");
}

static int run_rows(struct dp_comm *comm, void *arg)
{
    for (int at_fault = EVERYWHERE; at_fault < RANKS; at_fault++) {
        for (int i = 0; i < ROWS; i++)
            if (try_row(comm, &rows[i], at_fault)) {
                printf("%s, at fault: %d\n", rows[i].what, at_fault);
                return -1;
            }
        CHECK(!try_index(comm, at_fault, 2));
        CHECK(!try_index(comm, at_fault, -3));
        CHECK(!dp_comm_share_error(comm, 0)); /* the communicator is as good as before */
    }
    return 0;
}

CASE(every_row_is_the_same_error_and_sentence_on_all_ranks)
{
    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++) {
        int killed;
        if (kind->run(kind, RANKS, deadline_ns, run_rows, NULL, &killed))
            fail_msg("%s", kind->name);
    }
}

CASE(a13_several_stages_need_a_comm)
{
    struct dp_async *async;

    assert_int_equal(dp_async_new(&four_layers, &async), DP_ESTATE);
    assert_string_equal(dp_last_error(), "comm: NULL, expected one of 2 ranks (A13)");
}

/* ---- ranks that were told different things ---------------------------------------------------- */

static void other_chunks(struct dp_async_spec *spec)
{
    spec->chunks = 7;
}

static void other_mode(struct dp_async_spec *spec)
{
    spec->checkpoint = "always";
}

static void with_outputs(struct dp_async_spec *spec)
{
    spec->return_outputs = true;
}

static void other_balance(struct dp_async_spec *spec)
{
    static const int32_t balance[] = {1, 3};

    spec->balance = balance;
}

static void other_layers(struct dp_async_spec *spec)
{
    static const int32_t layers[] = {0, 1, 3, 2};

    spec->layers = layers;
}

static void other_skips(struct dp_async_spec *spec)
{
    static const struct dp_skip skip = {.name = "x", .from = 0, .to = 3};

    spec->skips = &skip;
    spec->skip_count = 1;
}

RANKS_CASE(ranks_that_were_told_different_things_all_say_so,
           assert_int_equal(comm_on_threads(RANKS, deadline_ns, part, NULL), 0))
{
    static const struct {
        void (*change)(struct dp_async_spec *spec);
        const char *sentence;
    } wrong[] = {
        {other_chunks, "chunks: rank 1 has 7, rank 0 has 4"},
        {other_mode, "checkpoint: rank 1 has always, rank 0 has except_last"},
        {with_outputs, "return_outputs: rank 1 has 1, rank 0 has 0"},
        {other_balance, "balance[0]: rank 1 has 1, rank 0 has 2"},
        {other_layers, "layers[2]: rank 1 has 3, rank 0 has 2"},
        {other_skips, "number of skips: rank 1 has 1, rank 0 has 0"},
    };

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct dp_async_spec spec = four_layers;
        struct dp_async *async;
        spec.comm = comm;
        if (dp_comm_rank(comm) == 1)
            wrong[i].change(&spec);
        CHECK(dp_async_new(&spec, &async) == DP_EMISMATCH);
        CHECK_SAYS(wrong[i].sentence);
    }
    return 0;
}

/* ---- no stage at all -------------------------------------------------------------------------- */

/* Every rank is unused: a step of a whole batch returns its input. */
static int run_identity(struct dp_comm *comm, void *arg)
{
    const struct dp_border nothing = {0};
    struct dp_async *async;
    struct dp_pipeline *pipe;
    float x[6] = {1, 2, 3, 4, 5, 6};
    int64_t shape[] = {3, 2};
    DLTensor t = {x, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, shape, NULL, 0};
    const struct dp_tree leaf = dp_tensor(&t), args = dp_tuple(1, &leaf);
    OWNED(dp_tree) *outputs = NULL;

    CHECK(!dp_async_new(&(struct dp_async_spec){.comm = comm, .chunks = 2}, &async));
    CHECK(async->unused);
    CHECK(!dp_pipeline_new(
        &(struct dp_pipeline_config){.schedule = async->schedule, .comm = comm, .borders = &nothing,
                                     .execution = *(const enum dp_execution *)arg},
        &pipe));
    struct dp_batch_step batch = {.args = &args, .outputs = &outputs};
    CHECK(!dp_pipeline_step_batch(pipe, &batch));
    CHECK(batch.unused && outputs->kind == DP_TREE_TUPLE && outputs->items[0].tensor == &t);
    CHECK(!dp_comm_barrier(comm));
    dp_pipeline_free(pipe);
    dp_async_free(async);
    return 0;
}

CASE(without_layers_a_step_returns_its_input)
{
    for (enum dp_execution how = DP_EXECUTE_LIST; how < DP_EXECUTIONS; how++)
        assert_int_equal(comm_on_threads(3, deadline_ns, run_identity, &how), 0);
}

RUN_QUIET_CASES(NULL, NULL)
