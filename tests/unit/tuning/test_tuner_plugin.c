/* SPDX-License-Identifier: Apache-2.0
 *
 * test_tuner_plugin.c - the tuner as NCCL meets it: through the symbols of the shared object, in
 * every version.
 */
#include "cmocka_all.h"

#include "scratch.h"
#include "tuner_caller.h"

#include <dualpipe/random.h>

#include <dlfcn.h>

static void *library;
static char directory[SCRATCH_LEN], table_path[SCRATCH_LEN + 16], said[4096];

/* ---- what NCCL would have ------------------------------------------------------------------- */

__attribute__((format(printf, 5, 6)))
static void keep_log(ncclDebugLogLevel level, unsigned long flags, const char *file, int line,
                     const char *fmt, ...)
{
    va_list args;
    size_t used = strlen(said);

    va_start(args, fmt);
    vsnprintf(said + used, sizeof(said) - used, fmt, args);
    va_end(args);
}

static void write_table(const char *text)
{
    FILE *file = fopen(table_path, "w");

    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    setenv("DUALPIPE_TUNER_TABLE", table_path, 1);
}

static struct tuner_caller open_tuner(int version, size_t ranks, size_t nodes)
{
    struct tuner_caller caller;

    *said = '\0';
    assert_true(tuner_find(library, version, &caller));
    assert_int_equal(tuner_init(&caller, ranks, nodes, keep_log), ncclSuccess);
    return caller;
}

/* An all-reduce for which NCCL would take ring and simple. */
static struct tuner_call all_reduce(size_t bytes)
{
    struct tuner_call call = {.function = ncclFuncAllReduce, .bytes = bytes, .pipe_ops = 1};

    for (int a = 0; a < NCCL_NUM_ALGORITHMS; a++)
        for (int p = 0; p < NCCL_NUM_PROTOCOLS; p++)
            call.costs[a][p] = 20;
    call.costs[NCCL_ALGO_RING][NCCL_PROTO_SIMPLE] = 10;
    return call;
}

static void assert_choice(struct tuner_caller *caller, struct tuner_call call, int algorithm,
                          int protocol, int channels)
{
    assert_int_equal(tuner_ask(caller, &call), ncclSuccess);
    assert_int_equal(call.algorithm, algorithm);
    assert_int_equal(call.protocol, protocol);
    assert_int_equal(call.channels, channels);
}

/* NCCL's choice without the tuner: the least cost. */
static void assert_left_alone(struct tuner_caller *caller, struct tuner_call call)
{
    struct tuner_call before = call;
    const bool has_costs = tuner_has_costs(caller->version);

    assert_int_equal(tuner_ask(caller, &call), ncclSuccess);
    assert_memory_equal(call.costs, before.costs, sizeof(call.costs));
    assert_int_equal(call.algorithm, has_costs ? NCCL_ALGO_RING : NCCL_ALGO_UNDEF);
    assert_int_equal(call.protocol, has_costs ? NCCL_PROTO_SIMPLE : NCCL_PROTO_UNDEF);
    assert_int_equal(call.channels, before.channels);
}

/* ---- tests ---------------------------------------------------------------------------------- */

/* Before any test that has one: NCCL limits chunks wherever there is a getChunkSize. */
CASE(without_a_table_nothing_is_touched)
{
    unsetenv("DUALPIPE_TUNER_TABLE");
    for (int v = 2; v <= TUNER_LAST; v++) {
        struct tuner_caller caller = open_tuner(v, 8, 1);
        struct tuner_call call = all_reduce(1024);
        call.channels = 5;
        assert_left_alone(&caller, call);
        assert_true(v < 6 || !((const struct ncclTuner_v6 *)caller.table)->getChunkSize);
        assert_int_equal(tuner_destroy(&caller), ncclSuccess);
    }
}

CASE(every_version_follows_the_table)
{
    write_table("allreduce,0,65536,ring,ll,4,-1,-1\nallreduce,65537,any,tree,simple,-1,-1,-1\n");
    for (int v = TUNER_FIRST; v <= TUNER_LAST; v++) {
        struct tuner_caller caller = open_tuner(v, 16, 2);
        assert_choice(&caller, all_reduce(65536), NCCL_ALGO_RING, NCCL_PROTO_LL, 4);
        assert_choice(&caller, all_reduce(65537), NCCL_ALGO_TREE, NCCL_PROTO_SIMPLE, 0);
        assert_int_equal(tuner_destroy(&caller), ncclSuccess);
    }
}

CASE(every_version_passes_on_how_many_operations_are_in_a_row)
{
    write_table("allreduce,0,any,ring,ll,-1,-1,-1,1\nallreduce,0,any,tree,ll,-1,-1,-1,2-4\n");
    for (int v = TUNER_FIRST + 1; v <= TUNER_LAST; v++) {
        struct tuner_caller caller = open_tuner(v, 16, 2);
        struct tuner_call call = all_reduce(8);
        assert_choice(&caller, call, NCCL_ALGO_RING, NCCL_PROTO_LL, 0);
        call.pipe_ops = 4;
        assert_choice(&caller, call, NCCL_ALGO_TREE, NCCL_PROTO_LL, 0);
        call.pipe_ops = 5;
        assert_left_alone(&caller, call);
        assert_int_equal(tuner_destroy(&caller), ncclSuccess);
    }
}

CASE(a_cell_that_is_ruled_out_stays_so)
{
    write_table("allreduce,0,any,tree,ll,8,-1,-1\n");
    for (int v = 3; v <= TUNER_LAST; v++) {
        struct tuner_caller caller = open_tuner(v, 8, 1);
        struct tuner_call call = all_reduce(1024);
        call.costs[NCCL_ALGO_TREE][NCCL_PROTO_LL] = NCCL_ALGO_PROTO_IGNORE;
        assert_left_alone(&caller, call);
        assert_int_equal(tuner_destroy(&caller), ncclSuccess);
    }
}

CASE(a_table_that_cannot_be_read_is_reported_and_changes_nothing)
{
    write_table("allreduce,0,any,rng,ll,8,-1,-1\n");
    for (int v = 2; v <= TUNER_LAST; v++) {
        struct tuner_caller caller = open_tuner(v, 8, 1);
        assert_non_null(strstr(said, ":1: algorithm: 'rng', expected one of tree"));
        assert_non_null(strstr(said, "NCCL chooses by itself on this rank"));
        assert_left_alone(&caller, all_reduce(1024));
        assert_int_equal(tuner_destroy(&caller), ncclSuccess);
    }
}

CASE(a_strict_user_gets_an_error_instead)
{
    struct tuner_caller caller;

    setenv("DUALPIPE_TUNER_TABLE", "no/such/file", 1);
    setenv("DUALPIPE_TUNER_STRICT", "yes", 1);
    assert_true(tuner_find(library, TUNER_LAST, &caller));
    assert_int_equal(tuner_init(&caller, 8, 1, keep_log), ncclSystemError);
    assert_null(caller.context);
    assert_int_equal(tuner_destroy(&caller), ncclSuccess);
    unsetenv("DUALPIPE_TUNER_STRICT");
}

CASE(a_table_is_read_again_for_the_next_communicator_only)
{
    write_table("allreduce,0,any,ring,ll,-1,-1,-1\n");
    struct tuner_caller first = open_tuner(TUNER_LAST, 8, 1);
    write_table("allreduce,0,any,tree,ll,-1,-1,-1\n");
    struct tuner_caller second = open_tuner(TUNER_LAST, 8, 1);

    assert_choice(&first, all_reduce(8), NCCL_ALGO_RING, NCCL_PROTO_LL, 0);
    assert_choice(&second, all_reduce(8), NCCL_ALGO_TREE, NCCL_PROTO_LL, 0);
    tuner_destroy(&first);
    tuner_destroy(&second);
}

CASE(channels_stay_within_what_nccl_has)
{
    write_table("allreduce,0,8,ring,ll,64,-1,-1\nallreduce,9,any,collnet_chain,simple,64,-1,-1\n");
    for (int v = 2; v <= TUNER_LAST; v++) {
        struct tuner_caller caller = open_tuner(v, 8, 1);
        struct tuner_call collnet = all_reduce(9);
        collnet.has_collnet = true;
        assert_choice(&caller, all_reduce(8), NCCL_ALGO_RING, NCCL_PROTO_LL, v < 5 ? 32 : 64);
        assert_choice(&caller, collnet, NCCL_ALGO_COLLNET_CHAIN, NCCL_PROTO_SIMPLE, 0);
        tuner_destroy(&caller);
    }
}

CASE(a_chunk_is_set_for_the_cell_of_its_rule)
{
    write_table("collective,algorithm,protocol,chunk_bytes\nallreduce,ring,ll,32KiB\n");
    struct tuner_caller caller = open_tuner(6, 8, 1);
    struct tuner_call call = all_reduce(1024);
    size_t chunk = 1;

    tuner_ask(&caller, &call);
    assert_int_equal(tuner_ask_chunk(&caller, &call, &chunk), ncclSuccess);
    assert_int_equal(chunk, 32768);
    call.protocol = NCCL_PROTO_SIMPLE;
    chunk = 1;
    assert_int_equal(tuner_ask_chunk(&caller, &call, &chunk), ncclSuccess);
    assert_int_equal(chunk, 1);
    tuner_destroy(&caller);
}

CASE(without_costs_only_what_surely_exists_is_chosen)
{
    static const struct {
        const char *rule, *algorithms, *protocols;
        size_t nodes;
        bool collnet, nvls, is_chosen;
    } cases[] = {
        {"allreduce,0,any,ring,ll128,-1,-1,-1", NULL, NULL, 1, true, true, false},
        {"allreduce,0,any,ring,ll128,-1,-1,-1", NULL, "^LL", 1, true, true, false},
        {"allreduce,0,any,ring,ll128,-1,-1,-1", NULL, "LL128,Simple", 1, true, true, true},
        {"allreduce,0,any,ring,ll,-1,-1,-1", NULL, "^LL", 1, false, false, false},
        {"allreduce,0,any,ring,ll,-1,-1,-1", "Tree", NULL, 1, false, false, false},
        {"allreduce,0,any,ring,ll,-1,-1,-1", "tree,ring", NULL, 1, false, false, true},
        {"allreduce,0,any,nvls,simple,-1,-1,-1", NULL, NULL, 1, false, false, false},
        {"allreduce,0,any,nvls,simple,-1,-1,-1", NULL, NULL, 1, false, true, true},
        {"allreduce,0,any,nvls,ll,-1,-1,-1", NULL, NULL, 1, false, true, false},
        {"allreduce,0,any,nvls,simple,-1,-1,-1", NULL, NULL, 2, false, true, false},
        {"allreduce,0,any,nvls_tree,simple,-1,-1,-1", NULL, NULL, 2, false, true, true},
        {"allreduce,0,any,collnet_direct,simple,-1,-1,-1", NULL, NULL, 2, true, true, true},
        {"allreduce,0,any,collnet_chain,simple,-1,-1,-1", NULL, NULL, 2, false, true, false},
        {"allreduce,0,any,pat,simple,-1,-1,-1", NULL, NULL, 2, true, true, false},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (cases[i].algorithms)
            setenv("NCCL_ALGO", cases[i].algorithms, 1);
        if (cases[i].protocols)
            setenv("NCCL_PROTO", cases[i].protocols, 1);
        write_table(cases[i].rule);
        struct tuner_caller caller = open_tuner(2, 16, cases[i].nodes);
        struct tuner_call call = {.function = ncclFuncAllReduce, .bytes = 1,
                                  .has_collnet = cases[i].collnet, .has_nvls = cases[i].nvls};
        assert_int_equal(tuner_ask(&caller, &call), ncclSuccess);
        if ((call.algorithm >= 0) != cases[i].is_chosen || (call.protocol >= 0) != cases[i].is_chosen)
            fail_msg("%s, case %zu: %d %d", cases[i].rule, i, call.algorithm, call.protocol);
        tuner_destroy(&caller);
        unsetenv("NCCL_ALGO");
        unsetenv("NCCL_PROTO");
    }
}

CASE(rules_for_registered_buffers_are_warned_of)
{
    write_table("allreduce,0,any,ring,ll,-1,-1,-1,-1,yes\n");
    struct tuner_caller caller = open_tuner(5, 8, 1);
    struct tuner_call call = all_reduce(1);

    assert_non_null(strstr(said, "1 rules for registered buffers do not apply"));
    call.is_registered = true;
    assert_left_alone(&caller, call);
    tuner_destroy(&caller);
    setenv("DUALPIPE_TUNER_REGISTERED", "trust", 1);
    caller = open_tuner(5, 8, 1);
    assert_choice(&caller, call, NCCL_ALGO_RING, NCCL_PROTO_LL, 0);
    tuner_destroy(&caller);
    unsetenv("DUALPIPE_TUNER_REGISTERED");
}

/* 32 far nodes: NCCL would take ring and simple for 1 KiB, the model a tree and LL. */
CASE(links_give_later_versions_a_model)
{
    unsetenv("DUALPIPE_TUNER_TABLE");
    setenv("DUALPIPE_TUNER_LINKS", "inter=3,inter_us=25", 1);
    for (int v = 2; v <= TUNER_LAST; v++) {
        struct tuner_caller caller = open_tuner(v, 32, 32);
        struct tuner_call call = all_reduce(1024);
        for (int a = NCCL_ALGO_COLLNET_DIRECT; a < NCCL_NUM_ALGORITHMS; a++)
            for (int p = 0; p < NCCL_NUM_PROTOCOLS; p++)
                call.costs[a][p] = NCCL_ALGO_PROTO_IGNORE;
        if (!tuner_has_costs(v))
            assert_left_alone(&caller, call);
        else
            assert_choice(&caller, call, NCCL_ALGO_TREE, NCCL_PROTO_LL, 0);
        tuner_destroy(&caller);
    }
    setenv("DUALPIPE_TUNER_LINKS", "outer=3", 1);
    struct tuner_caller caller = open_tuner(6, 32, 32);
    assert_non_null(strstr(said, "links: 'outer', expected intra, inter, intra_us or inter_us"));
    assert_left_alone(&caller, all_reduce(1024));
    tuner_destroy(&caller);
    unsetenv("DUALPIPE_TUNER_LINKS");
}

static void write_placement(char path[SCRATCH_LEN], const char *text)
{
    assert_true(scratch_file(path, "tuner"));
    FILE *file = fopen(path, "w");
    assert_true(file && fputs(text, file) >= 0 && !fclose(file));
    setenv("DUALPIPE_PLACEMENT", path, 1);
}

static void expect_said(int version, const char *sentence)
{
    struct tuner_caller caller = open_tuner(version, 8, 1);

    if (!strstr(said, sentence))
        fail_msg("'%s' is not in: %s", sentence, said);
    tuner_destroy(&caller);
}

CASE(a_placement_gives_links_only_if_it_is_asked_for_them)
{
    char path[SCRATCH_LEN], wrong[SCRATCH_LEN];

    unsetenv("DUALPIPE_TUNER_TABLE");
    write_placement(path, "dualpipe assignment 1\nplacement ranks=1 replicas=1 intra_gbs=450 inter_gbs=50\n"
                          "node id=1 kind=gpu\nworker replica=0 rank=0 gpu=1 came_as=0\nend\n");
    expect_said(5, "so NCCL chooses by itself");
    struct tuner_caller unasked = open_tuner(5, 8, 1);
    assert_left_alone(&unasked, all_reduce(1 << 20));
    tuner_destroy(&unasked);
    setenv("DUALPIPE_TUNER_LINKS", "placement", 1);
    expect_said(5, "a model of links intra=450,inter=50");
    expect_said(2, "so NCCL chooses by itself"); /* gets no costs */
    setenv("DUALPIPE_TUNER_LINKS", "intra=100", 1);
    expect_said(5, "a model of links intra=100");
    setenv("DUALPIPE_TUNER_LINKS", "placement", 1);
    write_placement(wrong, "{}");
    expect_said(5, ": JSON, expected lines of text: `dualpipe topo place --convert ");
    unsetenv("DUALPIPE_PLACEMENT");
    expect_said(5, "DUALPIPE_TUNER_LINKS=placement: DUALPIPE_PLACEMENT names no file");
    unsetenv("DUALPIPE_TUNER_LINKS");
    unlink(path);
    unlink(wrong);
}

/* NCCL's own constants count, and stay what they were. */
CASE(constants_are_read_and_never_written)
{
    struct tuner_caller caller;
    struct tuner_call call = all_reduce(8);

    setenv("DUALPIPE_TUNER_LINKS", "intra=450", 1);
    assert_true(tuner_find(library, 5, &caller));
    for (int p = 0; p < NCCL_NUM_PROTOCOLS; p++)
        caller.constants.baseLatencies[NCCL_ALGO_RING][p] = 1000;
    const struct ncclTunerConstants_v5 before = caller.constants;
    assert_int_equal(tuner_init(&caller, 8, 1, keep_log), ncclSuccess);
    assert_memory_equal(&caller.constants, &before, sizeof(before));
    assert_int_equal(tuner_ask(&caller, &call), ncclSuccess);
    assert_int_not_equal(call.algorithm, NCCL_ALGO_RING);
    tuner_destroy(&caller);
    unsetenv("DUALPIPE_TUNER_LINKS");
}

/* ---- ranks agree ---------------------------------------------------------------------------- */

enum { RANKS = 4, QUESTIONS = 2000 };

static uint64_t throws;

static uint32_t below(uint32_t n)
{
    uint32_t block[4];

    dp_random_block(dp_random_key(2, 0, 0, 0), throws++, block);
    return block[0] % n;
}

/* What NCCL has in common on all ranks is random; what is a rank's own differs from rank to
 * rank. */
static void assert_agreement(int version, struct tuner_caller *ranks)
{
    struct tuner_call common = {.function = (ncclFunc_t)below(12), .bytes = below(1u << 20),
                                .pipe_ops = 1 + (int)below(9),
                                .has_collnet = below(2), .has_nvls = below(2)};
    struct tuner_call first = common;
    size_t first_chunk = 0;

    for (int a = 0; a < NCCL_NUM_ALGORITHMS; a++)
        for (int p = 0; p < NCCL_NUM_PROTOCOLS; p++)
            common.costs[a][p] = below(3) ? 1 + (float)below(100) : NCCL_ALGO_PROTO_IGNORE;
    for (int r = 0; r < RANKS; r++) {
        struct tuner_call call = common;
        size_t chunk = 4096;
        call.is_registered = below(2);
        assert_int_equal(tuner_ask(&ranks[r], &call), ncclSuccess);
        for (int a = 0; a < NCCL_NUM_ALGORITHMS; a++)
            for (int p = 0; p < NCCL_NUM_PROTOCOLS; p++)
                assert_int_equal(call.costs[a][p] < 0, common.costs[a][p] < 0);
        if (version >= 6)
            tuner_ask_chunk(&ranks[r], &call, &chunk);
        if (!r) {
            first = call;
            first_chunk = chunk;
        }
        assert_int_equal(call.algorithm, first.algorithm);
        assert_int_equal(call.protocol, first.protocol);
        assert_int_equal(call.channels, first.channels);
        assert_int_equal(chunk, first_chunk);
    }
}

/* Another communicator comes and goes on some ranks only. */
CASE(ranks_agree_whatever_is_their_own)
{
    char path[4096];

    snprintf(path, sizeof(path), "%s/tuner/example.csv", getenv("DP_TEST_DATA"));
    setenv("DUALPIPE_TUNER_TABLE", path, 1);
    setenv("DUALPIPE_TUNER_LINKS", "intra=100,inter=12,inter_us=9", 1);
    for (int v = TUNER_FIRST; v <= TUNER_LAST; v++) {
        struct tuner_caller ranks[RANKS], other = {0};
        for (int r = 0; r < RANKS; r++) {
            if (r == 1)
                other = open_tuner(v, 2, 2);
            ranks[r] = open_tuner(v, 16, 2);
        }
        for (int i = 0; i < QUESTIONS; i++) {
            if (i == QUESTIONS / 2)
                tuner_destroy(&other);
            assert_agreement(v, ranks);
        }
        for (int r = 0; r < RANKS; r++)
            tuner_destroy(&ranks[r]);
    }
}

/* ---- set up --------------------------------------------------------------------------------- */

static int set_up(void **state)
{
    char path[4096];

    snprintf(path, sizeof(path), "%s/nccl-plugin/.libs/libnccl-tuner-dualpipe.so",
             getenv("DP_TOP_BUILDDIR"));
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        print_message("%s\n", dlerror());
    if (!library || !scratch_directory(directory, "tuner"))
        return -1;
    snprintf(table_path, sizeof(table_path), "%s/table.csv", directory);
    unsetenv("NCCL_ALGO");
    unsetenv("NCCL_PROTO");
    return 0;
}

static int tear_down(void **state)
{
    unlink(table_path);
    rmdir(directory);
    dlclose(library);
    return 0;
}

RUN_CASES(set_up, tear_down)
