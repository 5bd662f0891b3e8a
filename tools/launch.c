/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "launch.h"

#include "command.h"

#include <dualpipe/survival.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* How long ranks may take to end by themselves after one of them has failed: those that can learn of
 * it, and those that can only be failing, too; and how long to wait for a signal that a thread of a
 * library (BLAS has some) may have got instead of us. */
enum { GRACE_MS = 5000, LAST_WORDS_MS = 200, LOOK_S = 1, NOTICE_MS = 2000 };

/* Of all ranks and the launcher; NULL if this process is neither. */
static struct shared {
    atomic_bool has_joined; /* a rank */
    atomic_int restarts;    /* that are left */
    int ranks;
    struct {
        atomic_bool waits;       /* started again, not yet admitted */
        atomic_bool is_excluded; /* the others go on without it */
    } of[];                 /* [ranks] */
} *shared;

struct launch {
    int ranks, alive;
    const char *transport;
    launch_fn run;
    void *user;
    pid_t *pids;       /* [ranks], 0: has ended, or not begun */
    int *stops;        /* [ranks] the signal that has stopped it, 0: none */
    bool is_done;      /* a rank has ended well */
    int reports[2];    /* a pipe; a rank that fails writes its struct dp_abort */
    int port_fd;       /* keeps the port for rank 0 */
    char address[32], secret[33];
    sigset_t signals, before;
    int interrupted;   /* the signal that ended everything, 0: none */
    int dead_rank, dead_signal; /* the first rank that a signal killed, -1: none */
    bool survives;              /* the others go on without it */
    bool is_over;               /* signals that kill are our own from here on */
    int status;        /* the first that was not EXIT_OK */
    int status_rank;
    int64_t until_ms;  /* after a failure: then the others are killed */
};

static int64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* ---- before any rank ------------------------------------------------------------------------ */

/* Bind the port but do not listen: with SO_REUSEADDR on both sides rank 0 can still have it, and
 * no other process. */
static int keep_port_of(struct launch *l, struct sockaddr *at, socklen_t len)
{
    int on = 1;

    l->port_fd = socket(at->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (l->port_fd >= 0 && !setsockopt(l->port_fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) &&
        !bind(l->port_fd, at, len) && !getsockname(l->port_fd, at, &len))
        return 0;
    const int error = errno;
    if (l->port_fd >= 0)
        close(l->port_fd);
    l->port_fd = -1;
    return error;
}

/* The loopback; by IPv6 where there is no other. */
static int keep_port(struct launch *l, int port)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                             .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port),
                              .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    const int error = keep_port_of(l, (struct sockaddr *)&v4, sizeof(v4));

    if (!error) {
        snprintf(l->address, sizeof(l->address), "127.0.0.1:%d", ntohs(v4.sin_port));
        return EXIT_OK;
    }
    if (error == EADDRNOTAVAIL && !keep_port_of(l, (struct sockaddr *)&v6, sizeof(v6))) {
        snprintf(l->address, sizeof(l->address), "[::1]:%d", ntohs(v6.sin6_port));
        return EXIT_OK;
    }
    if (!port)
        return command_broke("no port of 127.0.0.1 for the ranks to meet: %s", strerror(error));
    return command_misused("--port %d: %s; expected a free port, or 0 for any", port,
                           strerror(error));
}

/* Only processes that know it may join the ranks. */
static int draw_secret(char out[33])
{
    unsigned char bytes[16];

    if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes))
        return command_broke("no random numbers from the kernel for the secret of the ranks: %s",
                             strerror(errno));
    for (int i = 0; i < 16; i++)
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
    return EXIT_OK;
}

/* The signals that end a run. Under nohup SIGHUP is ignored, and stays so. */
static void list_signals(sigset_t *out)
{
    struct sigaction hangup;

    sigemptyset(out);
    sigaddset(out, SIGINT);
    sigaddset(out, SIGTERM);
    if (!sigaction(SIGHUP, NULL, &hangup) && hangup.sa_handler != SIG_IGN)
        sigaddset(out, SIGHUP);
}

static int share_memory(int ranks, int restarts)
{
    void *memory = mmap(NULL, sizeof(*shared) + (size_t)ranks * sizeof(shared->of[0]),
                        PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        return -1;
    shared = memory;
    shared->ranks = ranks;
    atomic_store(&shared->restarts, restarts);
    return 0;
}

static int prepare(struct launch *l, int port, int restarts)
{
    list_signals(&l->signals);
    sigaddset(&l->signals, SIGCHLD);
    sigprocmask(SIG_BLOCK, &l->signals, &l->before);
    const int status = draw_secret(l->secret);
    if (status)
        return status;
    l->pids = calloc((size_t)l->ranks, sizeof(*l->pids));
    l->stops = calloc((size_t)l->ranks, sizeof(*l->stops));
    if (!l->pids || !l->stops || share_memory(l->ranks, restarts) ||
        pipe2(l->reports, O_CLOEXEC | O_NONBLOCK))
        return command_broke("cannot start %d ranks: %s", l->ranks, strerror(errno));
    return keep_port(l, port);
}

static void tidy_up(struct launch *l)
{
    close(l->port_fd);
    close(l->reports[0]);
    close(l->reports[1]);
    free(l->stops);
    free(l->pids);
    if (shared)
        munmap(shared, sizeof(*shared) + (size_t)l->ranks * sizeof(shared->of[0]));
    shared = NULL;
    sigprocmask(SIG_SETMASK, &l->before, NULL);
}

/* ---- a rank -------------------------------------------------------------------------------- */

int launch_join(const struct dp_comm_config *config, struct dp_comm **out)
{
    struct dp_comm_config again = *config;

    again.rank = 0; /* the group decides */
    int err = config->size ? dp_comm_open(config, out) : dp_comm_join(&again, out);
    if (!err && shared)
        atomic_store(&shared->has_joined, true);
    return err;
}

static int count_waiting(void)
{
    int count = 0;

    for (int rank = 0; rank < shared->ranks; rank++)
        count += atomic_load(&shared->of[rank].waits);
    return count;
}

int launch_count_waiting(int lost)
{
    const int64_t until_ms = now_ms() + NOTICE_MS;

    while (shared && count_waiting() < lost && atomic_load(&shared->restarts) > 0 &&
           now_ms() < until_ms)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    const int count = shared ? count_waiting() : 0;
    return count < lost ? count : lost;
}

void launch_admitted(int rank)
{
    atomic_store(&shared->of[rank].waits, false);
}

void launch_excluded(int rank)
{
    if (shared)
        atomic_store(&shared->of[rank].is_excluded, true);
}

/* Ctrl-C reaches every process of the terminal; the parent alone is to act on it. */
static void become_rank(const struct launch *l, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(EXIT_FAILED);
    signal(SIGINT, SIG_IGN);
    sigprocmask(SIG_SETMASK, &l->before, NULL);
    close(l->reports[0]);
}

/* size: 0 of a rank that is started again. */
static void run_rank(const struct launch *l, int rank, int size, pid_t parent)
{
    struct dp_abort why = {.rank = rank};

    become_rank(l, parent);
    int err = l->run(l->user, &(struct dp_comm_config){
        .rank = rank, .size = size, .address = l->address, .transport = l->transport,
        .secret = l->secret}, &why);
    const int lost = command_flush();
    if (lost && !err) {
        err = DP_EIO;
        snprintf(why.text, sizeof(why.text), "cannot write to standard output: %s", strerror(lost));
    }
    /* If the pipe is full, enough ranks have said why. */
    if (err && write(l->reports[1], &why, sizeof(why)) < 0)
        _exit(EXIT_FAILED);
    _exit(err ? EXIT_FAILED : EXIT_OK);
}

static int start_rank(struct launch *l, int rank, int size)
{
    pid_t parent = getpid();

    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0)
        run_rank(l, rank, size, parent);
    if (pid < 0)
        return command_broke("cannot start rank %d of %d: %s", rank, l->ranks, strerror(errno));
    l->pids[rank] = pid;
    l->alive++;
    return EXIT_OK;
}

static int start_ranks(struct launch *l)
{
    int status = EXIT_OK;

    for (int rank = 0; rank < l->ranks && status == EXIT_OK; rank++)
        status = start_rank(l, rank, l->ranks);
    return status;
}

/* ---- the end of the ranks ------------------------------------------------------------------- */

static void kill_ranks(struct launch *l)
{
    l->is_over = true;
    for (int rank = 0; rank < l->ranks; rank++)
        if (l->pids[rank] > 0)
            kill(l->pids[rank], SIGKILL);
}

static bool has_failure(const struct launch *l)
{
    return l->dead_rank >= 0 || l->status_rank >= 0;
}

/* How near a record is to the cause: an error of a rank itself goes before a connection that broke
 * or a deadline that passed, and what the first rank to end says before what others say. */
static int rate(const struct launch *l, const struct dp_abort *why)
{
    const bool is_own = why->error != DP_ECOMM && why->error != DP_ETIMEDOUT;

    return 2 * is_own + (why->rank == l->status_rank);
}

/* The record of the culprit itself, or what another rank knows of it. */
static bool read_reason(const struct launch *l, struct dp_abort *why)
{
    struct dp_abort one;
    int best = -1;

    while (read(l->reports[0], &one, sizeof(one)) == sizeof(one))
        if (rate(l, &one) > best) {
            *why = one;
            best = rate(l, &one);
        }
    return best >= 0;
}

static bool is_survived(const struct launch *l, int how)
{
    return l->survives && WIFSIGNALED(how) && l->alive > 0 && !l->is_over &&
           atomic_load(&shared->has_joined);
}

/* The rank waits before there is one restart less: launch_count_waiting looks in the other order. */
static void go_on_without(struct launch *l, int rank, int signal)
{
    const bool again = atomic_load(&shared->restarts) > 0;

    fflush(stdout);
    fprintf(stderr, "dualpipe: rank %d was killed by signal %d (%s); the others go on%s\n", rank, signal,
            strsignal(signal), again ? ", and it is started again" : "");
    atomic_store(&shared->of[rank].waits, again && start_rank(l, rank, 0) == EXIT_OK);
    atomic_fetch_sub(&shared->restarts, again);
}

/* It failed before it was one of them, or has failed because it is not any more. */
static void go_on_alone(const struct launch *l, int rank, const char *what)
{
    struct dp_abort why = {.text = ""};

    atomic_store(&shared->of[rank].waits, false);
    read_reason(l, &why);
    fflush(stdout);
    fprintf(stderr, "dualpipe: rank %d%s: %s; the others go on\n", rank, what, why.text);
}

/* Not the last one: there must be others that the run is left to. */
static bool is_left_out(const struct launch *l, int rank, int how)
{
    return l->survives && WIFEXITED(how) && WEXITSTATUS(how) != EXIT_OK &&
           (l->alive > 0 || l->is_done) && atomic_load(&shared->of[rank].is_excluded);
}

/* No rank is left to admit those that wait. */
static void end_waiting(struct launch *l)
{
    if (l->alive > 0 && l->alive == count_waiting())
        kill_ranks(l);
}

static void note_end(struct launch *l, int rank, int how)
{
    bool first = !has_failure(l);

    l->pids[rank] = l->stops[rank] = 0;
    l->alive--;
    l->is_done = l->is_done || (WIFEXITED(how) && WEXITSTATUS(how) == EXIT_OK);
    if (is_survived(l, how)) {
        go_on_without(l, rank, WTERMSIG(how));
        return;
    }
    if (WIFEXITED(how) && atomic_load(&shared->of[rank].waits)) {
        go_on_alone(l, rank, ", started again, was not admitted");
        return;
    }
    if (is_left_out(l, rank, how)) {
        go_on_alone(l, rank, " failed");
        return;
    }
    if (WIFSIGNALED(how) && l->dead_rank < 0 && !l->is_over) {
        l->dead_rank = rank;
        l->dead_signal = WTERMSIG(how);
    }
    if (WIFEXITED(how) && WEXITSTATUS(how) != EXIT_OK && l->status_rank < 0) {
        l->status_rank = rank;
        l->status = WEXITSTATUS(how);
    }
    if (first && has_failure(l))
        l->until_ms = now_ms() + (atomic_load(&shared->has_joined) ? GRACE_MS : LAST_WORDS_MS);
}

static void note_change(struct launch *l, int rank, int how)
{
    if (WIFSTOPPED(how) || WIFCONTINUED(how)) {
        l->stops[rank] = WIFSTOPPED(how) ? WSTOPSIG(how) : 0;
        return;
    }
    note_end(l, rank, how);
    end_waiting(l);
}

/* Take note of every rank that has ended, was stopped or continued. */
static void reap(struct launch *l, int flags)
{
    pid_t pid;
    int how;

    while (l->alive > 0 && (pid = waitpid(-1, &how, flags | WUNTRACED | WCONTINUED)) > 0)
        for (int rank = 0; rank < l->ranks; rank++)
            if (l->pids[rank] == pid)
                note_change(l, rank, how);
}

static bool are_all_stopped(const struct launch *l)
{
    int stopped = 0;

    for (int rank = 0; rank < l->ranks; rank++)
        stopped += l->stops[rank] > 0;
    return stopped && stopped == l->alive;
}

/* Ranks that are stopped do not see that there is nothing left for them to do: after a failure all
 * others have ended, or they have gone on without these ranks, to the end of the run. */
static void end_stopped(struct launch *l)
{
    const bool failed = has_failure(l);

    if (!are_all_stopped(l) || (!failed && (!l->survives || !l->is_done)))
        return;
    fflush(stdout);
    for (int rank = 0; rank < l->ranks && !failed; rank++)
        if (l->stops[rank] > 0)
            fprintf(stderr,
                    "dualpipe: rank %d is stopped by signal %d (%s); the others have come to the end "
                    "without it, and it is ended\n",
                    rank, l->stops[rank], strsignal(l->stops[rank]));
    kill_ranks(l);
}

/* Until a signal comes, for a while; after a failure, until the grace is over. Returns the signal,
 * or -1. */
static int wait_for_news(const struct launch *l)
{
    if (!has_failure(l))
        return sigtimedwait(&l->signals, NULL, &(struct timespec){.tv_sec = LOOK_S});
    const int64_t left_ms = l->until_ms - now_ms();
    if (left_ms <= 0)
        return -1;
    return sigtimedwait(&l->signals, NULL,
                        &(struct timespec){left_ms / 1000, left_ms % 1000 * 1000000});
}

static void wait_for_ranks(struct launch *l)
{
    while (l->alive > 0 && !l->interrupted && !(has_failure(l) && now_ms() >= l->until_ms)) {
        int signal = wait_for_news(l);
        if (signal > 0 && signal != SIGCHLD)
            l->interrupted = signal;
        else
            reap(l, WNOHANG);
        end_stopped(l);
    }
    kill_ranks(l);
    while (l->alive > 0)
        reap(l, 0);
}

/* ---- what to say --------------------------------------------------------------------------- */

static int conclude(const struct launch *l)
{
    struct dp_abort why;

    if ((l->interrupted || has_failure(l)) && isatty(STDOUT_FILENO))
        putchar('\n'); /* the line of progress may be on the screen */
    fflush(stdout);
    if (l->interrupted)
        return 128 + l->interrupted;
    if (!has_failure(l))
        return EXIT_OK;
    if (l->dead_rank >= 0 && l->dead_signal == SIGPIPE)
        return 128 + SIGPIPE; /* the reader of the output has closed it */
    if (l->dead_rank >= 0)
        fprintf(stderr, "dualpipe: rank %d was killed by signal %d (%s); all ranks have ended\n",
                l->dead_rank, l->dead_signal, strsignal(l->dead_signal));
    else if (read_reason(l, &why))
        fprintf(stderr, "dualpipe: rank %d failed: %s; all ranks have ended\n", why.rank, why.text);
    else
        fprintf(stderr, "dualpipe: rank %d ended with status %d; all ranks have ended\n",
                l->status_rank, l->status);
    return EXIT_FAILED;
}

/* ---- the whole ----------------------------------------------------------------------------- */

static void leave(int signal)
{
    _exit(128 + signal);
}

void launch_alone(void)
{
    sigset_t signals;

    list_signals(&signals);
    for (int signal = 1; signal < NSIG; signal++)
        if (sigismember(&signals, signal) == 1)
            sigaction(signal, &(struct sigaction){.sa_handler = leave}, NULL);
}

static int launch(struct launch *l, int port, int restarts)
{
    l->reports[0] = l->reports[1] = l->port_fd = l->dead_rank = l->status_rank = -1;
    int status = prepare(l, port, restarts);
    if (status == EXIT_OK) {
        status = start_ranks(l);
        if (status != EXIT_OK)
            kill_ranks(l);
        wait_for_ranks(l);
    }
    if (status == EXIT_OK)
        status = conclude(l);
    tidy_up(l);
    return status;
}

int launch_ranks(int ranks, int port, const char *transport, launch_fn run, void *user)
{
    struct launch l = {.ranks = ranks, .transport = transport, .run = run, .user = user};

    return launch(&l, port, 0);
}

int launch_survivors(int ranks, int port, const char *transport, int restarts, launch_fn run,
                     void *user)
{
    struct launch l = {.ranks = ranks, .transport = transport, .run = run, .user = user,
                       .survives = true};

    return launch(&l, port, restarts);
}
