/* SPDX-License-Identifier: Apache-2.0
 *
 * `dualpipe train` as a set of processes: it ends when it should, all of it, and says why; its
 * output is what it claims to be.
 */
#include "config.h"

#include "cmocka_all.h"
#include "scratch.h"
#include "tests/system/train_command.h"

#include <jansson.h>

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- how it ends ---------------------------------------------------------------------------- */

static void an_interrupt_ends_all_ranks_at_once(void **state)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    struct run r;
    pid_t ranks[4];

    for (int i = 0; i < 3; i++) {
        if (!start_endless(&r, ranks))
            no_children();
        kill(r.pid, signals[i]);
        finish(&r);
        assert_int_equal(r.status, 128 + signals[i]);
        assert_string_equal(r.err_text, "");
        assert_all_gone(ranks);
    }
}

static void a_rank_that_dies_is_named_and_ends_the_others(void **state)
{
    struct run r;
    pid_t ranks[4];
    char expected[64];

    for (int rank = 0; rank < 4; rank += 3) {
        if (!start_endless(&r, ranks))
            no_children();
        kill(ranks[rank], SIGKILL);
        finish(&r);
        assert_int_equal(r.status, 1);
        snprintf(expected, sizeof(expected), "rank %d was killed by signal 9 (Killed)", rank);
        assert_says(r.err_text, expected);
        assert_one_line(r.err_text);
        assert_all_gone(ranks);
    }
}

static void a_rank_that_stops_is_named(void **state)
{
    struct run r;
    pid_t ranks[4];

    setenv("DUALPIPE_COMM_TIMEOUT_MS", "4000", 1); /* for the beginning, too */
    bool started = start_endless(&r, ranks);
    unsetenv("DUALPIPE_COMM_TIMEOUT_MS");
    if (!started)
        no_children();
    kill(ranks[2], SIGSTOP);
    finish(&r);
    assert_int_equal(r.status, 1);
    assert_says(r.err_text, "rank 2");
    assert_one_line(r.err_text);
    assert_all_gone(ranks);
}

/* Ranks of a parent that was killed are this process's to wait for. */
static void ranks_end_with_their_parent(void **state)
{
    struct run r;
    pid_t ranks[4];
    int how;

    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (!start_endless(&r, ranks))
        no_children();
    kill(r.pid, SIGKILL);
    finish(&r);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(waitpid(ranks[i], &how, 0), ranks[i]);
        assert_true(WIFSIGNALED(how));
    }
    prctl(PR_SET_CHILD_SUBREAPER, 0);
}

static void a_port_that_is_taken_is_refused(void **state)
{
    char options[64];
    struct run r;
    int fd = listen_on(0);

    snprintf(options, sizeof(options), "--port %d", port_of(fd));
    run(&r, options);
    close(fd);
    assert_int_equal(r.status, 2);
    assert_says(r.err_text, "Address already in use; expected a free port");
    assert_one_line(r.err_text);
}

static void limit_memory(void *user)
{
    setrlimit(RLIMIT_AS, &(struct rlimit){UINT64_C(1) << 30, UINT64_C(1) << 30});
}

static void too_little_memory_is_refused(void **state)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    print_message("sanitizers map more memory than any limit\n");
    skip();
#endif
    struct run r;

    start(&r, "--width 2048 --layers 16 -P 4", limit_memory, NULL);
    finish(&r);
    assert_int_equal(r.status, 2);
    assert_says(r.err_text, "the limit of a process leaves (ulimit -v)");
    assert_one_line(r.err_text);
}

static void set_wrong_variable(void *user)
{
    setenv("DUALPIPE_WIRE_TCP_BUFFER", "much", 1);
}

/* The other ranks wait for the one that has failed, until they are ended; that is not the reason. */
static void a_wrong_variable_of_the_environment_is_named(void **state)
{
    struct run r;

    start(&r, "--steps 1 -P 2", set_wrong_variable, NULL);
    finish(&r);
    assert_int_equal(r.status, 1);
    assert_says(r.err_text, "failed: DUALPIPE_WIRE_TCP_BUFFER=much: expected a whole number");
    assert_one_line(r.err_text);
}

/* ---- ranks that a launcher starts ------------------------------------------------------- */

/* Two ranks as torchrun would start them, with these options. */
static void run_two(struct run r[2], const char *options0, const char *options1)
{
    struct launched l[2];
    int port = find_master_port();

    for (int i = 0; i < 2; i++) {
        l[i] = (struct launched){.rank = i, .port = port};
        start(&r[i], i ? options1 : options0, set_variables, &l[i]);
    }
    for (int i = 0; i < 2; i++)
        finish(&r[i]);
}

static void ranks_of_torchrun_find_each_other(void **state)
{
    struct run r[2];

    run_two(r, "--steps 2 --json", "--steps 2 --json");
    for (int i = 0; i < 2; i++) {
        assert_string_equal(r[i].err_text, "");
        assert_int_equal(r[i].status, 0);
    }
    assert_says(r[0].out_text, "\"event\":\"end\"");
    assert_string_equal(r[1].out_text, "");
}

static void set_variables_of_one_host(void *user)
{
    set_variables(user);
    setenv("LOCAL_RANK", getenv("RANK"), 1);
    setenv("LOCAL_WORLD_SIZE", getenv("WORLD_SIZE"), 1);
}

/* Of the eight processes of a host two are a replica. */
static void pipelines_of_torchrun_mix(void **state)
{
    static struct run r[8];
    static const char *const how[] = {"one-peer-exp", "alternating-exp-ring --mix-local 2"};
    char options[160];

    for (int k = 0; k < 2; k++) {
        struct launched l[8];
        const int port = find_master_port();
        snprintf(options, sizeof(options), "--steps 2 --json -P 2 -D 4 -s 1f1b --mix %s", how[k]);
        for (int i = 0; i < 8; i++) {
            l[i] = (struct launched){.rank = i, .port = port, .size = 8};
            start(&r[i], options, set_variables_of_one_host, &l[i]);
        }
        for (int i = 0; i < 8; i++) {
            finish(&r[i]);
            if (r[i].status)
                fail_msg("%s: rank %d: %s", how[k], i, r[i].err_text);
        }
        assert_says(r[0].out_text, "\"event\":\"end\"");
    }
}

static void ranks_of_torchrun_must_have_been_told_the_same(void **state)
{
    struct run r[2];

    run_two(r, "--steps 2 --seed 1", "--steps 2 --seed 2");
    for (int i = 0; i < 2; i++) {
        assert_int_not_equal(r[i].status, 0);
        assert_says(r[i].err_text, "--seed");
    }
}

static void the_port_of_torchrun_may_be_taken(void **state)
{
    struct run r;
    int fd = listen_on(0);
    struct launched l = {.rank = 0, .port = port_of(fd) - 1};

    start(&r, "--steps 2", set_variables, &l);
    finish(&r);
    close(fd);
    assert_int_equal(r.status, 2);
    assert_says(r.err_text, "in use");
    assert_one_line(r.err_text);
}

static void the_number_of_ranks_must_be_that_of_torchrun(void **state)
{
    struct run r[2];

    run_two(r, "-P 4", "-P 4");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(r[i].status, 2);
        assert_says(r[i].err_text, "-P 4: expected 2, the size of the job that this process was started in (WORLD_SIZE");
        assert_one_line(r[i].err_text);
    }
}

/* ---- what it prints ------------------------------------------------------------------------- */

static json_t *next_event(char **at, const char *event)
{
    char *line = strsep(at, "\n");
    json_error_t error;

    assert_non_null(line);
    json_t *o = json_loads(line, 0, &error);
    if (!o)
        fail_msg("%s: %s", error.text, line);
    assert_string_equal(json_string_value(json_object_get(o, "event")), event);
    return o;
}

static double number(const json_t *o, const char *key)
{
    const json_t *value = json_object_get(o, key);

    if (!json_is_number(value))
        fail_msg("no number '%s'", key);
    return json_number_value(value);
}

static void json_is_an_object_a_line(void **state)
{
    struct run r;
    json_t *o;

    run(&r, "--json --steps 4 --eval-every 2 -P 2 --schedule 1f1b");
    assert_int_equal(r.status, 0);
    assert_string_equal(r.err_text, "");
    char *at = r.out_text;
    o = next_event(&at, "begin");
    assert_true(number(o, "parameters") > 0 && number(o, "ranks") == 2);
    json_decref(o);
    for (int step = 1; step <= 4; step++) {
        o = next_event(&at, "step");
        assert_true(number(o, "step") == step && number(o, "loss") > 0 && number(o, "rate") > 0);
        assert_true(json_is_number(json_object_get(o, "held_out")) == (step % 2 == 0));
        json_decref(o);
    }
    o = next_event(&at, "end");
    assert_true(number(o, "steps") == 4 && number(o, "held_out") > 0);
    assert_true(number(o, "bubble") >= 0 && number(o, "simulated_ms") > 0);
    assert_true(json_is_string(json_object_get(o, "sample")));
    json_decref(o);
    assert_string_equal(at, "");
}

static void enter(void *directory)
{
    if (chdir(directory))
        _exit(126);
}

static void the_trace_is_json_of_all_ranks(void **state)
{
    char directory[SCRATCH_LEN], path[SCRATCH_LEN + 16];
    bool seen[4] = {false};
    struct run r;
    json_t *e;
    size_t i;

    assert_true(scratch_directory(directory, "train"));
    snprintf(path, sizeof(path), "%s/trace.json", directory);
    start(&r, "--steps 2 --trace trace.json", enter, directory);
    finish(&r);
    assert_int_equal(r.status, 0);
    json_t *trace = json_load_file(path, 0, NULL);
    assert_int_equal(scratch_remove(directory), 0);
    assert_non_null(trace);
    json_array_foreach(json_object_get(trace, "traceEvents"), i, e) {
        json_int_t pid = json_integer_value(json_object_get(e, "pid"));
        if (pid >= 0 && pid < 4)
            seen[pid] = true;
    }
    assert_true(seen[0] && seen[1] && seen[2] && seen[3]);
    json_decref(trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_interrupt_ends_all_ranks_at_once),
        cmocka_unit_test(a_rank_that_dies_is_named_and_ends_the_others),
        cmocka_unit_test(a_rank_that_stops_is_named),
        cmocka_unit_test(ranks_end_with_their_parent),
        cmocka_unit_test(a_port_that_is_taken_is_refused),
        cmocka_unit_test(too_little_memory_is_refused),
        cmocka_unit_test(a_wrong_variable_of_the_environment_is_named),
        cmocka_unit_test(ranks_of_torchrun_find_each_other),
        cmocka_unit_test(pipelines_of_torchrun_mix),
        cmocka_unit_test(ranks_of_torchrun_must_have_been_told_the_same),
        cmocka_unit_test(the_port_of_torchrun_may_be_taken),
        cmocka_unit_test(the_number_of_ranks_must_be_that_of_torchrun),
        cmocka_unit_test(json_is_an_object_a_line),
        cmocka_unit_test(the_trace_is_json_of_all_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
