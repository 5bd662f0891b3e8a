/* SPDX-License-Identifier: Apache-2.0
 *
 * `dualpipe train --survive`: it goes on without ranks that are killed or stopped, and with those that
 * are started again.
 */
#include "config.h"

#include "cmocka_all.h"
#include "tests/system/train_command.h"

#include <dualpipe/comm.h>
#include <dualpipe/survival.h>

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MIXING_STEPS = 10 * STEPS, RESTART_STEPS = 30 * STEPS };

/* What a long output ends with; closes fd. */
static void read_end(int fd, char text[OUTPUT])
{
    const off_t len = lseek(fd, 0, SEEK_END);
    const ssize_t got = pread(fd, text, OUTPUT - 1, len < OUTPUT ? 0 : len - (OUTPUT - 1));

    text[got > 0 ? got : 0] = '\0';
    close(fd);
}

static void assert_step(const char *text, int step)
{
    char expected[32];

    snprintf(expected, sizeof(expected), "\"step\":%d,", step);
    assert_says(text, expected);
}

/* The others go on to the last step; another one prints if it was rank 0. */
static void replicas_that_mix_go_on_without_one_that_is_killed(void **state)
{
    struct run r;
    pid_t ranks[MAX_RANKS];
    char expected[80], options[256];

    for (int rank = 0; rank < 4; rank += 3) {
        snprintf(options, sizeof(options), "--schedule none -D 4 --mix one-peer-exp --survive --json "
                 "--steps %d --eval-every %d %s", MIXING_STEPS, MIXING_STEPS / 4,
                 rank ? "--mix-compress int8" : "");
        start(&r, options, NULL, NULL);
        wait_for_steps(&r);
        if (children_of(r.pid, ranks) != 4) {
            kill(r.pid, SIGKILL);
            finish(&r);
            no_children();
        }
        const int out = dup(fileno(r.out));
        kill(ranks[rank], SIGKILL);
        finish(&r);
        read_end(out, r.out_text);
        assert_int_equal(r.status, 0);
        snprintf(expected, sizeof(expected), "rank %d was killed by signal 9 (Killed); the others go on",
                 rank);
        assert_says(r.err_text, expected);
        assert_says(r.err_text, "mixing goes on with 3 of 4 workers from iteration ");
        assert_step(r.out_text, MIXING_STEPS);
        assert_says(r.out_text, "\"event\":\"end\"");
        assert_says(r.out_text, "\"held_out\":");
        assert_all_gone(ranks);
    }
}

/* Kill a child of the command, the oldest but `rank`. */
static void kill_child(struct run *r, int rank)
{
    pid_t ranks[MAX_RANKS];

    if (children_of(r->pid, ranks) != 4) {
        const bool ended = has_ended(r);
        kill(r->pid, SIGKILL);
        finish(r);
        if (ended)
            fail_msg("status %d: %s", r->status, r->err_text);
        no_children();
    }
    kill(ranks[rank], SIGKILL);
}

/* Until the run has said so many times that mixing goes on, or ended. */
static void wait_until_it_goes_on(struct run *r, int times)
{
    int said = 0;

    while (said < times && !has_ended(r)) {
        wait_for_output(r);
        read_text(r->err, r->err_text);
        said = 0;
        for (const char *s = r->err_text; (s = strstr(s, "mixing goes on with 4 workers")); s++)
            said++;
    }
}

/* Twice one, which may be the one that came back; the third time nothing is started again. */
static void replicas_that_are_killed_are_started_again(void **state)
{
    static const char *const how[] = {"--transport shm --mix-staleness 2",
                                      "--transport tcp -M 4"};
    struct run r;
    char options[256];

    for (int k = 0; k < 2; k++) {
        snprintf(options, sizeof(options),
                 "--schedule none -D 4 --mix one-peer-exp --survive --restart 2 --json --steps %d "
                 "--eval-every %d %s", RESTART_STEPS, RESTART_STEPS / 3, how[k]);
        start(&r, options, NULL, NULL);
        wait_for_steps(&r);
        kill_child(&r, 0);
        wait_until_it_goes_on(&r, 1);
        kill_child(&r, 3);
        wait_until_it_goes_on(&r, 2);
        kill_child(&r, k);
        const int out = dup(fileno(r.out));
        finish(&r);
        read_end(out, r.out_text);
        if (r.status)
            fail_msg("status %d: %s", r.status, r.err_text);
        assert_says(r.err_text, "rank 0 was killed by signal 9 (Killed); the others go on, and it is "
                                "started again\n");
        assert_says(r.err_text, "(Killed); the others go on\n");
        assert_says(r.err_text, "mixing goes on with 4 workers, 1 of them new, from iteration ");
        assert_says(r.err_text, "mixing goes on with 3 of 4 workers from iteration ");
        assert_step(r.out_text, RESTART_STEPS);
        assert_says(r.out_text, "\"held_out\":");
    }
}

/* Pipelines of DualPipe, of which a rank is lost: its mirror holds both of its stages. */
struct layout {
    const char *options;
    int ranks;            /* all, the spare ones too */
    const char *sequential; /* what one process gets instead */
    const char *next;     /* how they go on */
};

static const struct layout layouts[] = {
    {"-P 4", 4, "", " with P = 2 and D = 1, 1 spare\n"},
    {"-P 4 --spare 1", 5, "", " with P = 4 and D = 1, 0 spare\n"},
    {"-P 4 --tie-embeddings", 4, "--tie-embeddings", " with P = 2 and D = 1, 1 spare\n"},
    {"-P 2 -D 2 -M 8 --spare 1 --tie-embeddings", 5, "-M 8 --order-blocks 4 --tie-embeddings",
     " with P = 2 and D = 2, 0 spare\n"},
    {"-P 4 -D 2 -M 16 --batch 16", 8, "-M 16 --batch 16 --order-blocks 4",
     " with P = 4 and D = 1, 3 spare\n"},
    {"-P 2", 2, "", " with P = 1 and D = 1, 0 spare\n"},
    {"-P 2 -D 2 -M 8", 4, "-M 8 --order-blocks 4", " with P = 2 and D = 1, 1 spare\n"},
};
enum { LAYOUTS = sizeof(layouts) / sizeof(layouts[0]) };

static void start_pipelines(struct run *r, const struct layout *l, const char *more,
                            pid_t ranks[MAX_RANKS])
{
    char options[256];

    snprintf(options, sizeof(options), "%s --survive --steps %d --eval-every 3 --json %s %s",
             strstr(l->options, "--mix") ? "--schedule none" : "--schedule dualpipe", STEPS, l->options,
             more);
    start(r, options, NULL, NULL);
    wait_for_steps(r);
    if (children_of(r->pid, ranks) == l->ranks)
        return;
    kill(r->pid, SIGKILL);
    finish(r);
    no_children();
}

static void kill_one_of_a_pipeline(const struct layout *l, const char *expected, const char *transport,
                                   int rank, long delay_us)
{
    struct run r;
    pid_t ranks[MAX_RANKS];
    char more[64], lost[64];

    snprintf(more, sizeof(more), "--transport %s", transport);
    start_pipelines(&r, l, more, ranks);
    nanosleep(&(struct timespec){.tv_nsec = delay_us * 1000}, NULL);
    kill(ranks[rank], SIGKILL);
    finish(&r);
    if (r.status)
        fail_msg("%s %s, rank %d killed after %ld us: status %d: %s", l->options, more, rank, delay_us,
                 r.status, r.err_text);
    assert_says(r.err_text, "was killed by signal 9 (Killed); the others go on\n");
    snprintf(lost, sizeof(lost), "training goes on without rank %d from step ", rank);
    assert_says(r.err_text, lost);
    assert_says(r.err_text, l->next);
    assert_same_steps(r.out_text, expected);
}

/* Each rank once; with DP_TEST_FULL at many places of a step, of the evaluation after it and of what
 * is measured between steps. */
static void a_pipeline_goes_on_without_a_rank_that_is_killed(void **state)
{
    const bool full = getenv("DP_TEST_FULL");
    const char *const transports[] = {"shm", "tcp"};
    static struct run sequential[LAYOUTS];

    for (int i = 0; i < LAYOUTS; i++)
        run_sequential(&sequential[i], layouts[i].sequential);
    for (int i = 0; i < (full ? 320 : LAYOUTS); i++) {
        const int k = full ? i / 2 % LAYOUTS : i;
        kill_one_of_a_pipeline(&layouts[k], sequential[k].out_text, transports[i % 2],
                               (full ? i / (2 * LAYOUTS) % 4 : 3 * i % 4) % layouts[k].ranks,
                               full ? i * 937 / 2 : 0);
    }
}

/* Rank 1 may open no file, or have no more memory, from then on; it needs them once rank 0 is
 * killed. */
static void a_rank_without_files_or_memory_ends_alone(void **state)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    const bool has_allocator = false; /* that returns NULL */
#else
    const bool has_allocator = true;
#endif
    static const char pipeline[] = "-P 4", mixing[] = "-D 4 --mix ring";
    static const struct {
        const char *how, *transport, *why;
        __rlimit_resource_t what;
    } cases[] = {
        {pipeline, "shm", "Too many open files", RLIMIT_NOFILE},
        {pipeline, "tcp", "Too many open files", RLIMIT_NOFILE},
        {mixing, "shm", "Too many open files", RLIMIT_NOFILE},
        {mixing, "tcp", "Too many open files", RLIMIT_NOFILE},
        /* "Cannot allocate memory" for a mapping, "no memory for ..." of the heap: whichever is first. */
        {pipeline, "shm", " memory", RLIMIT_AS},
        {mixing, "shm", " memory", RLIMIT_AS},
    };
    static struct run sequential;
    struct run r;

    run_sequential(&sequential, "");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct layout l = {.options = cases[i].how, .ranks = 4};
        char more[64];
        pid_t ranks[MAX_RANKS];
        if (cases[i].what == RLIMIT_AS && !has_allocator)
            continue;
        snprintf(more, sizeof(more), "--transport %s", cases[i].transport);
        start_pipelines(&r, &l, more, ranks);
        assert_int_equal(prlimit(ranks[1], cases[i].what, &(struct rlimit){3, 3}, NULL), 0);
        kill(ranks[0], SIGKILL);
        finish(&r);
        if (r.status)
            fail_msg("%s %s: status %d: %s", cases[i].how, more, r.status, r.err_text);
        assert_says(r.err_text, "rank 1 failed: ");
        assert_says(r.err_text, cases[i].why);
        assert_says(r.err_text, "the others go on");
        assert_null(strstr(r.err_text, "all ranks have ended"));
        assert_step(r.out_text, STEPS);
        if (cases[i].how == pipeline)
            assert_same_steps(r.out_text, sequential.out_text);
    }
}

/* Until no more steps come for a while, so that the others wait; or the run has ended. */
static void wait_until_nothing_is_printed(struct run *r)
{
    size_t before, len = 0;

    do {
        before = len;
        nanosleep(&(struct timespec){.tv_nsec = 300 * 1000 * 1000}, NULL);
        read_text(r->out, r->out_text);
        len = strlen(r->out_text);
    } while (len != before && !has_ended(r));
}

enum { LONGEST_MS = 32000 };

/* A stopped rank is one that gives no answer. The others name it; continued after that it ends by
 * itself, otherwise with the run. False: the machine let another rank be silent for the deadline, too,
 * which may have been lost instead or as well. */
static bool stop_one_of_a_pipeline(const char *expected, const char *transport, int rank, bool goes_on,
                                   int deadline_ms)
{
    struct run r;
    pid_t ranks[MAX_RANKS];
    char more[64], lost[64], deadline[16];

    snprintf(more, sizeof(more), "--transport %s", transport);
    snprintf(deadline, sizeof(deadline), "%d", deadline_ms);
    setenv("DUALPIPE_COMM_TIMEOUT_MS", deadline, 1);
    start_pipelines(&r, &layouts[0], more, ranks);
    unsetenv("DUALPIPE_COMM_TIMEOUT_MS");
    kill(ranks[rank], SIGSTOP);
    do {
        wait_for_output(&r);
        read_text(r.err, r.err_text);
    } while (!strstr(r.err_text, "goes on") && !has_ended(&r));
    if (goes_on)
        kill(ranks[rank], SIGCONT);
    finish(&r);
    snprintf(lost, sizeof(lost), "training goes on without rank %d from step ", rank);
    if (deadline_ms < LONGEST_MS && !strstr(r.err_text, lost)) {
        print_message("with a deadline of %d ms: %s\n", deadline_ms, r.err_text);
        return false;
    }
    if (r.status)
        fail_msg("%s, rank %d stopped: status %d: %s", transport, rank, r.status, r.err_text);
    assert_says(r.err_text, lost);
    snprintf(lost, sizeof(lost), goes_on ? "rank %d failed: rank %d was declared dead by the others"
                                         : "rank %d is stopped by signal 19 ", rank, rank);
    assert_says(r.err_text, lost);
    assert_same_steps(r.out_text, expected);
    assert_all_gone(ranks);
    return true;
}

static void a_pipeline_goes_on_without_a_rank_that_is_stopped(void **state)
{
    const char *const transports[] = {"shm", "tcp"};
    struct run sequential;

    run_sequential(&sequential, "");
    for (int i = 0; i < (getenv("DP_TEST_FULL") ? 16 : 2); i++) {
        int deadline_ms = 4000;
        while (!stop_one_of_a_pipeline(sequential.out_text, transports[i % 2], (1 + i + i / 4) % 4,
                                       i % 2 == i / 2 % 2, deadline_ms))
            deadline_ms *= 2;
    }
}

/* A stop that ends before any deadline: a rank that is late, and no more. */
static void stop_one_for_a_while(const struct layout *l, const char *expected, const char *transport,
                                 int rank)
{
    struct run r;
    pid_t ranks[MAX_RANKS];
    char more[64];

    snprintf(more, sizeof(more), "--transport %s", transport);
    setenv("DUALPIPE_COMM_TIMEOUT_MS", "120000", 1);
    start_pipelines(&r, l, more, ranks);
    unsetenv("DUALPIPE_COMM_TIMEOUT_MS");
    kill(ranks[rank], SIGSTOP);
    wait_until_nothing_is_printed(&r);
    const bool ended = has_ended(&r);
    kill(ranks[rank], SIGCONT);
    finish(&r);
    if (r.status || ended)
        fail_msg("%s, rank %d stopped for a while: status %d: %s", more, rank, r.status, r.err_text);
    assert_string_equal(r.err_text, "");
    assert_same_steps(r.out_text, expected);
}

static void a_pipeline_waits_for_a_rank_that_is_stopped_for_a_while(void **state)
{
    const char *const transports[] = {"shm", "tcp"};
    struct run sequential;

    run_sequential(&sequential, layouts[0].sequential);
    for (int i = 0; i < (getenv("DP_TEST_FULL") ? 16 : 2); i++)
        stop_one_for_a_while(&layouts[0], sequential.out_text, transports[i % 2], (3 * i + i / 4) % 4);
}

/* Both of the ranks that held two stages. */
static void a_pipeline_ends_where_both_holders_of_a_stage_are_lost(void **state)
{
    struct run r;
    pid_t ranks[MAX_RANKS];

    start(&r, "--schedule dualpipe -P 4 --survive --steps 1000000 --eval-every 0 --json", NULL, NULL);
    wait_for_steps(&r);
    if (children_of(r.pid, ranks) != 4) {
        kill(r.pid, SIGKILL);
        finish(&r);
        no_children();
    }
    kill(ranks[1], SIGKILL);
    kill(ranks[2], SIGKILL);
    finish(&r);
    assert_int_equal(r.status, 1);
    assert_says(r.err_text, "needs: no rank has it; if those that held it have died, only a checkpoint");
    assert_null(strstr(r.err_text, "rank -1"));
    assert_all_gone(ranks);
}

/* A rank that is killed as soon as the group is there. */
static pid_t start_victim(const struct launched *l)
{
    const pid_t pid = fork();

    if (pid == 0) {
        struct dp_comm_config config = {0};
        struct dp_comm *comm;
        set_variables((void *)(uintptr_t)l);
        if (!dp_comm_config_from_env(&config) && !dp_comm_open(&config, &comm) &&
            !dp_comm_agree(comm, "--survive", true) && !dp_comm_survive(comm))
            raise(SIGKILL);
        _exit(1);
    }
    return pid;
}

static void run_without(struct run r[4], int victim, const char *options)
{
    struct launched l[4];
    pid_t pid = -1;
    const int port = find_master_port();
    int how;

    for (int i = 0; i < 4; i++) {
        l[i] = (struct launched){.rank = i, .port = port, .size = 4};
        if (i == victim)
            pid = start_victim(&l[i]);
        else
            start(&r[i], options, set_variables, &l[i]);
    }
    assert_int_equal(waitpid(pid, &how, 0), pid);
    assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
    for (int i = 0; i < 4; i++) {
        if (i == victim)
            continue;
        finish(&r[i]);
        if (r[i].status)
            fail_msg("rank %d of %d: %s", i, victim, r[i].err_text);
    }
}

static void replicas_begin_without_one_that_dies_before_the_first_step(void **state)
{
    static struct run r[4];

    for (int victim = 0; victim < 4; victim += 2) {
        const int first = victim == 0;
        run_without(r, victim, "--schedule none -D 4 --mix one-peer-exp --survive --steps 20 --json");
        assert_says(r[first].err_text, "mixing goes on with 3 of 4 workers from iteration 0 on");
        assert_says(r[first].out_text, "\"step\":20,");
    }
}

static void a_pipeline_begins_without_a_rank_that_dies_before_the_first_step(void **state)
{
    static struct run r[4], sequential;

    run_sequential(&sequential, "");
    for (int victim = 0; victim < 4; victim += 2) {
        const int first = victim == 0;
        char expected[80], options[80];
        snprintf(options, sizeof(options),
                 "--schedule dualpipe -P 4 --survive --steps %d --eval-every 3 --json", STEPS);
        run_without(r, victim, options);
        snprintf(expected, sizeof(expected), "training goes on without rank %d from step 1 with P = 2 and",
                 victim);
        assert_says(r[first].err_text, expected);
        assert_says(r[first].out_text, "\"event\":\"begin\"");
        assert_same_steps(r[first].out_text, sequential.out_text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replicas_that_mix_go_on_without_one_that_is_killed),
        cmocka_unit_test(replicas_that_are_killed_are_started_again),
        cmocka_unit_test(a_pipeline_goes_on_without_a_rank_that_is_killed),
        cmocka_unit_test(a_rank_without_files_or_memory_ends_alone),
        cmocka_unit_test(a_pipeline_goes_on_without_a_rank_that_is_stopped),
        cmocka_unit_test(a_pipeline_waits_for_a_rank_that_is_stopped_for_a_while),
        cmocka_unit_test(a_pipeline_ends_where_both_holders_of_a_stage_are_lost),
        cmocka_unit_test(replicas_begin_without_one_that_dies_before_the_first_step),
        cmocka_unit_test(a_pipeline_begins_without_a_rank_that_dies_before_the_first_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
