/* SPDX-License-Identifier: Apache-2.0
 *
 * train_command.c - `dualpipe train` as a set of processes.
 */
#include "config.h"

#include "cmocka_all.h"
#include "tests/system/train_command.h"

#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_ARGS = 48 };

/* ---- a run of the command ------------------------------------------------------------------- */

/* A model that takes no time, and text that is always there. */
static const char tiny[] = "--layers 4 --width 8 --heads 2 --context 8 --batch 8 --sample 10";
/* It would go on for hours. */
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
void start(struct run *r, const char *more, void (*before)(void *), void *user)
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

void read_text(FILE *f, char text[OUTPUT])
{
    ssize_t len = pread(fileno(f), text, OUTPUT - 1, 0);

    text[len > 0 ? len : 0] = '\0';
}

void finish(struct run *r)
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

void run(struct run *r, const char *options)
{
    start(r, options, NULL, NULL);
    finish(r);
}

void assert_says(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("'%s' is not in: %s", part, text);
}

void assert_one_line(const char *text)
{
    const char *end = strchr(text, '\n');

    if (!end || end[1])
        fail_msg("not one line: %s", text);
}

bool has_ended(const struct run *r)
{
    siginfo_t info = {0};

    return waitid(P_PID, (id_t)r->pid, &info, WEXITED | WNOHANG | WNOWAIT) || info.si_pid;
}

/* Until it has printed something, and now and then, as it may end: its ranks need the processors. */
void wait_for_output(const struct run *r)
{
    struct pollfd written = {.fd = r->written, .events = POLLIN};
    char events[1024];

    if (poll(&written, 1, 50) > 0)
        (void)!read(r->written, events, sizeof(events));
}

/* Until the run has printed two steps: all ranks are at work. */
void wait_for_steps(struct run *r)
{
    while (!strstr(r->out_text, "\"step\":2") && !has_ended(r)) {
        wait_for_output(r);
        read_text(r->out, r->out_text);
    }
}

/* The processes that pid has started, oldest first. */
int children_of(pid_t pid, pid_t *out)
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
bool start_endless(struct run *r, pid_t ranks[4])
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

void no_children(void)
{
    print_message("/proc does not list a process's children here\n");
    skip();
}

void assert_all_gone(const pid_t *ranks)
{
    for (int i = 0; i < 4; i++)
        if (!kill(ranks[i], 0))
            fail_msg("rank %d is still there", i);
}

/* The output of a run of STEPS steps in one process, for assert_same_steps. */
void run_sequential(struct run *r, const char *more)
{
    char options[256];

    snprintf(options, sizeof(options), "--schedule none --steps %d --eval-every 3 --json %s", STEPS,
             more);
    run(r, options);
    assert_int_equal(r->status, 0);
}

/* Every step of `expected` is in `got` too, with the same loss and norm to the last digit. */
void assert_same_steps(const char *got, const char *expected)
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

/* A socket that listens on a port of loopback, 0: any that is free; -1 if the port is taken. */
int listen_on(int port)
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

int port_of(int fd)
{
    struct sockaddr_in at;
    socklen_t len = sizeof(at);

    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    return ntohs(at.sin_port);
}

/* A MASTER_PORT: the ranks meet on the port above it. Below the range from which the system gives
 * ports to connections, so that none takes it before the ranks are there. */
int find_master_port(void)
{
    int fd, port = 20000 + 2 * (getpid() % 5000);

    while ((fd = listen_on(port + 1)) < 0)
        assert_true((port += 2) < 32000);
    close(fd);
    return port;
}

void set_variables(void *user)
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

