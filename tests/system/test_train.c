/* SPDX-License-Identifier: Apache-2.0
 *
 * `dualpipe train` as a set of processes: it ends when it should, all of it, and says why; its
 * output is what it claims to be.
 */
#include "config.h"

#include "cmocka_all.h"
#include "scratch.h"

#include <dualpipe/comm.h>
#include <dualpipe/survival.h>
#include <jansson.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_ARGS = 48, MAX_RANKS = 8, OUTPUT = 1 << 16 };

/* ---- a run of the command ------------------------------------------------------------------- */

struct run {
    pid_t pid;
    FILE *out, *err; /* temporary files */
    int written;     /* is readable once they have become longer */
    int status;      /* as the shell would see it */
    char out_text[OUTPUT], err_text[OUTPUT];
};

/* A model that takes no time, and text that is always there. */
static const char tiny[] = "--layers 4 --width 8 --heads 2 --context 8 --batch 8 --sample 10";
/* It would go on for hours. */
/* Ranks are killed after a few steps, and the run goes on for long enough to be seen to. A step takes ten
 * times as long under ThreadSanitizer. */
#if defined(__SANITIZE_THREAD__)
enum { STEPS = 60 };
#else
enum { STEPS = 200 };
#endif
enum { MIXING_STEPS = 10 * STEPS, RESTART_STEPS = 30 * STEPS };
static const char endless[] = "--steps 1000000000 --eval-every 0";

static void exec_train(const char *options)
{
    char command[4096], text[4096], *argv[MAX_ARGS] = {command, "train", "--data", text}, *word;
    int argc = 4;

    snprintf(command, sizeof(command), "%s/tools/dualpipe", getenv("DP_TOP_BUILDDIR"));
    snprintf(text, sizeof(text), "%s/LICENSE", getenv("DP_TOP_SRCDIR"));
    for (word = strtok(strdup(options), " "); word && argc < MAX_ARGS - 1; word = strtok(NULL, " "))
        argv[argc++] = word;
    execv(command, argv);
    _exit(127);
}

/* Without inotify, poll passes over what is not there, and each wait takes its time. */
static void watch(const struct run *r, FILE *f)
{
    char path[32];

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fileno(f));
    inotify_add_watch(r->written, path, IN_MODIFY);
}

/* before: called in the process that becomes the command. */
static void start(struct run *r, const char *more, void (*before)(void *), void *user)
{
    char options[1024];

    memset(r, 0, sizeof(*r));
    snprintf(options, sizeof(options), "%s %s", tiny, more);
    r->out = tmpfile();
    r->err = tmpfile();
    assert_non_null(r->out);
    assert_non_null(r->err);
    r->written = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    watch(r, r->out);
    watch(r, r->err);
    r->pid = fork();
    if (r->pid == 0) {
        dup2(fileno(r->out), STDOUT_FILENO);
        dup2(fileno(r->err), STDERR_FILENO);
        signal(SIGINT, SIG_DFL);
        signal(SIGHUP, SIG_DFL); /* of a test run that outlives its terminal */
        if (before)
            before(user);
        exec_train(options);
    }
    assert_true(r->pid > 0);
}

static void read_text(FILE *f, char text[OUTPUT])
{
    ssize_t len = pread(fileno(f), text, OUTPUT - 1, 0);

    text[len > 0 ? len : 0] = '\0';
}

static void finish(struct run *r)
{
    int how;

    assert_int_equal(waitpid(r->pid, &how, 0), r->pid);
    r->status = WIFSIGNALED(how) ? 128 + WTERMSIG(how) : WEXITSTATUS(how);
    read_text(r->out, r->out_text);
    read_text(r->err, r->err_text);
    fclose(r->out);
    fclose(r->err);
    close(r->written);
}

static void run(struct run *r, const char *options)
{
    start(r, options, NULL, NULL);
    finish(r);
}

static void assert_says(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("'%s' is not in: %s", part, text);
}

static void assert_one_line(const char *text)
{
    const char *end = strchr(text, '\n');

    if (!end || end[1])
        fail_msg("not one line: %s", text);
}

static bool has_ended(const struct run *r)
{
    siginfo_t info = {0};

    return waitid(P_PID, (id_t)r->pid, &info, WEXITED | WNOHANG | WNOWAIT) || info.si_pid;
}

/* Until it has printed something, and now and then, as it may end: its ranks need the processors. */
static void wait_for_output(const struct run *r)
{
    struct pollfd written = {.fd = r->written, .events = POLLIN};
    char events[1024];

    if (poll(&written, 1, 50) > 0)
        (void)!read(r->written, events, sizeof(events));
}

/* Until the run has printed two steps: all ranks are at work. */
static void wait_for_steps(struct run *r)
{
    while (!strstr(r->out_text, "\"step\":2") && !has_ended(r)) {
        wait_for_output(r);
        read_text(r->out, r->out_text);
    }
}

/* The processes that pid has started, oldest first. */
static int children_of(pid_t pid, pid_t *out)
{
    char path[64];
    int count = 0;

    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)pid, (int)pid);
    FILE *f = fopen(path, "r");
    if (!f)
        return 0;
    while (count < MAX_RANKS && fscanf(f, "%d", &out[count]) == 1)
        count++;
    fclose(f);
    return count;
}

/* Start an endless run of four ranks; returns false where /proc does not list children. */
static bool start_endless(struct run *r, pid_t ranks[4])
{
    char options[256];
    pid_t found[MAX_RANKS];

    snprintf(options, sizeof(options), "-P 4 --json %s", endless);
    start(r, options, NULL, NULL);
    wait_for_steps(r);
    if (children_of(r->pid, found) != 4) {
        kill(r->pid, SIGKILL);
        finish(r);
        return false;
    }
    memcpy(ranks, found, 4 * sizeof(pid_t));
    return true;
}

static void no_children(void)
{
    print_message("/proc does not list a process's children here\n");
    skip();
}

static void assert_all_gone(const pid_t *ranks)
{
    for (int i = 0; i < 4; i++)
        if (!kill(ranks[i], 0))
            fail_msg("rank %d is still there", i);
}

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

/* The output of a run of STEPS steps in one process, for assert_same_steps. */
static void run_sequential(struct run *r, const char *more)
{
    char options[256];

    snprintf(options, sizeof(options), "--schedule none --steps %d --eval-every 3 --json %s", STEPS,
             more);
    run(r, options);
    assert_int_equal(r->status, 0);
}

/* Every step of `expected` is in `got` too, with the same loss and norm to the last digit. */
static void assert_same_steps(const char *got, const char *expected)
{
    char step[256];
    int steps = 0;

    for (const char *at = expected; (at = strstr(at, "\"event\":\"step\",")); at++, steps++) {
        const char *end = strstr(at, "\"rate\":");
        assert_non_null(end);
        assert_true((size_t)(end - at) < sizeof(step));
        snprintf(step, (size_t)(end - at) + 1, "%s", at);
        assert_says(got, step);
    }
    assert_int_equal(steps, STEPS);
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
        {pipeline, "shm", "Cannot allocate memory", RLIMIT_AS},
        {mixing, "shm", "Cannot allocate memory", RLIMIT_AS},
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

/* A socket that listens on a port of loopback, 0: any that is free; -1 if the port is taken. */
static int listen_on(int port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    at.sin_port = htons((uint16_t)port);
    assert_true(fd >= 0);
    if (!bind(fd, (struct sockaddr *)&at, sizeof(at)) && !listen(fd, 1))
        return fd;
    close(fd);
    return -1;
}

static int port_of(int fd)
{
    struct sockaddr_in at;
    socklen_t len = sizeof(at);

    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    return ntohs(at.sin_port);
}

/* A MASTER_PORT: the ranks meet on the port above it. Below the range from which the system gives
 * ports to connections, so that none takes it before the ranks are there. */
static int find_master_port(void)
{
    int fd, port = 20000 + 2 * (getpid() % 5000);

    while ((fd = listen_on(port + 1)) < 0)
        assert_true((port += 2) < 32000);
    close(fd);
    return port;
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

struct launched {
    int rank, port, size; /* 0: 2 */
};

static void set_variables(void *user)
{
    const struct launched *l = user;
    char rank[16], port[16], size[16];

    snprintf(size, sizeof(size), "%d", l->size ? l->size : 2);
    snprintf(rank, sizeof(rank), "%d", l->rank);
    snprintf(port, sizeof(port), "%d", l->port);
    setenv("RANK", rank, 1);
    setenv("WORLD_SIZE", size, 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", port, 1);
}

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
        cmocka_unit_test(replicas_that_mix_go_on_without_one_that_is_killed),
        cmocka_unit_test(replicas_that_are_killed_are_started_again),
        cmocka_unit_test(a_pipeline_goes_on_without_a_rank_that_is_killed),
        cmocka_unit_test(a_rank_without_files_or_memory_ends_alone),
        cmocka_unit_test(a_pipeline_goes_on_without_a_rank_that_is_stopped),
        cmocka_unit_test(a_pipeline_waits_for_a_rank_that_is_stopped_for_a_while),
        cmocka_unit_test(a_pipeline_ends_where_both_holders_of_a_stage_are_lost),
        cmocka_unit_test(a_rank_that_stops_is_named),
        cmocka_unit_test(ranks_end_with_their_parent),
        cmocka_unit_test(a_port_that_is_taken_is_refused),
        cmocka_unit_test(too_little_memory_is_refused),
        cmocka_unit_test(a_wrong_variable_of_the_environment_is_named),
        cmocka_unit_test(ranks_of_torchrun_find_each_other),
        cmocka_unit_test(pipelines_of_torchrun_mix),
        cmocka_unit_test(replicas_begin_without_one_that_dies_before_the_first_step),
        cmocka_unit_test(a_pipeline_begins_without_a_rank_that_dies_before_the_first_step),
        cmocka_unit_test(ranks_of_torchrun_must_have_been_told_the_same),
        cmocka_unit_test(the_port_of_torchrun_may_be_taken),
        cmocka_unit_test(the_number_of_ranks_must_be_that_of_torchrun),
        cmocka_unit_test(json_is_an_object_a_line),
        cmocka_unit_test(the_trace_is_json_of_all_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
