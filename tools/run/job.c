/* SPDX-License-Identifier: Apache-2.0
 *
 * job.c - the command as a child that has everything it would have without a parent in between: the
 * terminal (it stays in the same process group), signals, and in the end its status.
 */
#include "config.h"

#include "run/run.h"

#include "clock.h"
#include "command.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LOOK_MS = 200 };

/* Passed on when a process sends them to us; what the terminal sends, it sends to the command, too.
 */
static const int passed_on[] = {SIGHUP,  SIGINT,  SIGQUIT, SIGTERM,
                                SIGUSR1, SIGUSR2, SIGCONT, SIGWINCH};

static int cannot_run(const char *name, int error)
{
    command_broke("cannot run %s: %s", name, strerror(error));
    return error == ENOENT ? RUN_EXIT_NOT_FOUND : RUN_EXIT_CANNOT;
}

int run_become(char **command)
{
    execvp(command[0], command);
    return cannot_run(command[0], errno);
}

/* ---- the start ------------------------------------------------------------------------------- */

/* What of the signals this process changes for itself, as the command is to have it. */
struct inherited {
    sigset_t mask;
    struct sigaction on_child;
};

/* In the child. A pipe that is closed by exec tells the parent that it began, or why not. */
static void start(char **command, const struct inherited *signals, pid_t parent, int news)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(RUN_EXIT_CANNOT);
    sigaction(SIGCHLD, &signals->on_child, NULL);
    sigprocmask(SIG_SETMASK, &signals->mask, NULL);
    execvp(command[0], command);
    const int error = errno;
    if (write(news, &error, sizeof(error)) < 0)
        _exit(RUN_EXIT_CANNOT);
    _exit(RUN_EXIT_CANNOT);
}

static int spawn(char **command, const struct inherited *signals, pid_t *child)
{
    const pid_t parent = getpid();
    int news[2], error = 0;

    if (pipe2(news, O_CLOEXEC))
        return command_broke("cannot make a pipe: %s", strerror(errno));
    *child = fork();
    if (!*child)
        start(command, signals, parent, news[1]);
    const int fork_error = errno;
    close(news[1]);
    const bool has_failed = *child > 0 && read(news[0], &error, sizeof(error)) == sizeof(error);
    close(news[0]);
    if (*child < 0)
        return command_broke("cannot start %s: %s", command[0], strerror(fork_error));
    if (!has_failed)
        return 0;
    waitpid(*child, NULL, 0);
    return cannot_run(command[0], error);
}

/* ---- until it ends --------------------------------------------------------------------------- */

/* Whether a process is the job's: its parents lead to this one. In another name space of processes
 * it cannot be told, and it is not counted. */
static bool is_of_the_job(int64_t pid)
{
    for (int depth = 0; depth < 64 && pid > 1; depth++) {
        char path[64], text[512] = "";
        long long parent = 0;
        snprintf(path, sizeof(path), "/proc/%lld/stat", (long long)pid);
        FILE *file = fopen(path, "re");
        if (!file)
            return false;
        const size_t len = fread(text, 1, sizeof(text) - 1, file);
        fclose(file);
        text[len] = '\0';
        const char *end = strrchr(text, ')'); /* the name may have any character */
        if (!end || sscanf(end + 1, " %*c %lld", &parent) != 1)
            return false;
        if (parent == getpid())
            return true;
        pid = parent;
    }
    return false;
}

static void pass_on(pid_t child, const siginfo_t *info)
{
    if (info->si_code != SI_KERNEL && info->si_pid != child)
        kill(child, info->si_signo);
}

static bool has_ended(pid_t child, struct run_outcome *out)
{
    struct rusage used;

    if (wait4(child, &out->how, WNOHANG, &used) != child)
        return false;
    out->cpu_seconds = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                       (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
    out->most_bytes = (double)used.ru_maxrss * 1024;
    return true;
}

/* What the terminal sent to the command it sent to us, too: where the command has ended from it before
 * it was looked at here, it must not end us once signals are let through again. */
static void drop_pending(const sigset_t *signals)
{
    const struct timespec none = {0};

    while (sigtimedwait(signals, NULL, &none) > 0)
        continue;
}

static void await(pid_t child, const sigset_t *signals, struct dp_pages *net, struct dp_pages *preload,
                  struct run_outcome *out)
{
    const struct timespec look = {.tv_nsec = LOOK_MS * 1000000l};
    siginfo_t info;

    for (;;) {
        const int got = sigtimedwait(signals, &info, &look);
        if (got > 0 && got != SIGCHLD)
            pass_on(child, &info);
        dp_pages_map(net, stat_net.page, getenv("DUALPIPE_NET_STAT_DIR"), is_of_the_job, NULL, NULL);
        dp_pages_map(preload, stat_preload.page, getenv("DUALPIPE_PRELOAD_STAT_DIR"), is_of_the_job,
                     NULL, NULL);
        if (has_ended(child, out))
            break;
    }
    drop_pending(signals);
}

int run_job(char **command, void (*has_begun)(void *user), void *user, struct run_outcome *out)
{
    const int64_t began_ns = now_ns();
    struct dp_pages net = {0}, preload = {0};
    struct inherited before;
    sigset_t signals;
    pid_t child = -1;

    *out = (struct run_outcome){0};
    sigemptyset(&signals);
    sigaddset(&signals, SIGCHLD);
    for (size_t i = 0; i < sizeof(passed_on) / sizeof(passed_on[0]); i++)
        sigaddset(&signals, passed_on[i]);
    sigprocmask(SIG_BLOCK, &signals, &before.mask);
    /* Where SIGCHLD is ignored, a child that has ended leaves nothing to wait for. */
    sigaction(SIGCHLD, &(struct sigaction){.sa_handler = SIG_DFL}, &before.on_child);
    const int status = spawn(command, &before, &child);
    if (!status) {
        has_begun(user);
        await(child, &signals, &net, &preload, out);
    }
    out->seconds = (double)(now_ns() - began_ns) / 1e9;
    out->processes = stat_total(&net, &stat_net, &out->sent);
    dp_pages_fini(&net);
    (void)stat_total(&preload, &stat_preload, &out->preload);
    dp_pages_fini(&preload);
    sigaction(SIGCHLD, &before.on_child, NULL);
    sigprocmask(SIG_SETMASK, &before.mask, NULL);
    return status;
}

void run_outcome_fini(struct run_outcome *out)
{
    stat_page_fini(&out->sent);
    stat_page_fini(&out->preload);
}

int run_leave(const struct run_outcome *outcome)
{
    if (!WIFSIGNALED(outcome->how))
        return WEXITSTATUS(outcome->how);
    const int number = WTERMSIG(outcome->how);
    fflush(NULL);
    setrlimit(RLIMIT_CORE, &(struct rlimit){0}); /* the command's own is there, if wanted */
    signal(number, SIG_DFL);
    raise(number);
    return 128 + number; /* one that does not kill */
}
