/* SPDX-License-Identifier: Apache-2.0
 *
 * job.c - the command as a child that has everything it would have without a parent in between: the
 * terminal (it stays in the same process group), signals, and in the end its status.
 */
#include "config.h"

#include "run/run.h"

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

/* ---- what was sent to each peer -------------------------------------------------------------- */

struct stat_seen {
    int page; /* of those mapped */
    uint32_t number;
    struct stat_pair pair;
};

/* ---- looking --------------------------------------------------------------------------------- */

/* 192.0.2.1:4000 and [fe80::1]:4000, without the port. */
static void cut_port(char *peer)
{
    char *colon = strrchr(peer, ':');

    if (colon && (strchr(peer, ':') == colon || (colon > peer && colon[-1] == ']')))
        *colon = '\0';
}

static struct stat_seen *find(struct stat_pairs *p, int page, uint32_t number)
{
    for (int i = p->count - 1; i >= 0; i--)
        if (p->seen[i].page == page && p->seen[i].number == number)
            return &p->seen[i];
    struct stat_seen *more = realloc(p->seen, ((size_t)p->count + 1) * sizeof(*more));
    if (!more)
        return NULL;
    p->seen = more;
    more[p->count] = (struct stat_seen){.page = page, .number = number};
    return &more[p->count++];
}

static double sum_times(const struct stat_counts *c)
{
    double sum = 0;

    for (int i = 0; i < DPN_STAT_TIMES; i++)
        sum += (double)c->times[i];
    return sum;
}

static void see(struct stat_pairs *p, int page, const struct stat_process *process,
                const struct stat_connection *c)
{
    const double timed = sum_times(&c->counted);
    struct stat_seen *seen =
        c->way == DPN_STAT_SEND && timed > 0 ? find(p, page, c->number) : NULL;

    if (!seen)
        return;
    snprintf(seen->pair.device, sizeof(seen->pair.device), "%s", process->devices[c->device].name);
    snprintf(seen->pair.transport, sizeof(seen->pair.transport), "%s", c->transport);
    snprintf(seen->pair.peer, sizeof(seen->pair.peer), "%s", c->peer);
    cut_port(seen->pair.peer);
    seen->pair.bytes = (double)c->counted.counts[DPN_STAT_BYTES];
    seen->pair.ns = (double)c->counted.counts[DPN_STAT_TIMED_NS] / timed *
                    (double)c->counted.counts[DPN_STAT_MESSAGES];
}

/* Look at the connections that are open now. */
static void look_at_pairs(struct stat_pairs *p, const struct stat_mapped *m)
{
    struct stat_process *process = m->count ? stat_process_new() : NULL;

    for (int i = 0; process && i < m->count; i++)
        if (!stat_page_read((const void *)m->pages[i].head, process))
            for (int c = 0; c < process->connection_count; c++)
                see(p, i, process, &process->connections[c]);
    if (process)
        stat_process_free(process);
}

/* ---- adding up ------------------------------------------------------------------------------- */

static bool is_same(const struct stat_pair *a, const struct stat_pair *b)
{
    return !strcmp(a->peer, b->peer) && !strcmp(a->device, b->device) &&
           !strcmp(a->transport, b->transport);
}

/* By device, transport and peer, the address without its port. */
static void sum_pairs(struct stat_pairs *p)
{
    p->pairs = calloc((size_t)p->count + 1, sizeof(*p->pairs));
    p->pair_count = 0;
    for (int i = 0; p->pairs && i < p->count; i++) {
        int k = 0;
        while (k < p->pair_count && !is_same(&p->pairs[k], &p->seen[i].pair))
            k++;
        if (k < p->pair_count) {
            p->pairs[k].bytes += p->seen[i].pair.bytes;
            p->pairs[k].ns += p->seen[i].pair.ns;
        } else {
            p->pairs[p->pair_count++] = p->seen[i].pair;
        }
    }
}

void stat_pairs_fini(struct stat_pairs *p)
{
    free(p->seen);
    free(p->pairs);
    *p = (struct stat_pairs){0};
}

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

static int64_t clock_ns(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* What the terminal sent to the command it sent to us, too: where the command has ended from it before
 * it was looked at here, it must not end us once signals are let through again. */
static void drop_pending(const sigset_t *signals)
{
    const struct timespec none = {0};

    while (sigtimedwait(signals, NULL, &none) > 0)
        continue;
}

static void await(pid_t child, const sigset_t *signals, struct stat_mapped *net,
                  struct stat_mapped *preload, struct run_outcome *out)
{
    const struct timespec look = {.tv_nsec = LOOK_MS * 1000000l};
    siginfo_t info;

    for (;;) {
        const int got = sigtimedwait(signals, &info, &look);
        if (got > 0 && got != SIGCHLD)
            pass_on(child, &info);
        stat_map(net, &stat_net_kind, getenv("DUALPIPE_NET_STAT_DIR"), is_of_the_job);
        look_at_pairs(&out->pairs, net);
        stat_map(preload, &stat_preload_kind, getenv("DUALPIPE_PRELOAD_STAT_DIR"), is_of_the_job);
        if (has_ended(child, out))
            break;
    }
    drop_pending(signals);
}

int run_job(char **command, void (*has_begun)(void *user), void *user, struct run_outcome *out)
{
    const int64_t began_ns = clock_ns(CLOCK_MONOTONIC);
    struct stat_mapped net = {0}, preload = {0};
    struct inherited before;
    sigset_t signals;
    pid_t child = -1;

    *out = (struct run_outcome){.began_ns = clock_ns(CLOCK_REALTIME)};
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
    out->seconds = (double)(clock_ns(CLOCK_MONOTONIC) - began_ns) / 1e9;
    out->processes = stat_pages_sum(&net, &out->sent);
    stat_mapped_fini(&net);
    sum_pairs(&out->pairs);
    out->preload_processes = preload.count;
    stat_preload_sum(&preload, out->preload);
    stat_mapped_fini(&preload);
    sigaction(SIGCHLD, &before.on_child, NULL);
    sigprocmask(SIG_SETMASK, &before.mask, NULL);
    return status;
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
