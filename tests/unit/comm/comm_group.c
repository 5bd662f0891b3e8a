/* SPDX-License-Identifier: Apache-2.0 */
#include "comm_group.h"
#include "open_files.h"

#include <arpa/inet.h>
#include <pthread.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_RANKS = 64 };

/* ---- threads ------------------------------------------------------------------------------- */

struct rank_thread {
    pthread_t thread;
    struct dp_comm *comm;
    rank_fn fn;
    void *arg;
    int result;
};

static void *run_rank(void *arg)
{
    struct rank_thread *t = arg;

    t->result = t->fn(t->comm, t->arg);
    dp_comm_close(t->comm);
    return NULL;
}

int comm_on_threads(int size, int64_t deadline_ns, rank_fn fn, void *arg)
{
    struct rank_thread ranks[MAX_RANKS];
    struct dp_comm *comms[MAX_RANKS];
    int failed = 0;

    if (dp_comm_threads_new(size, comms))
        return size;
    for (int i = 0; i < size; i++) {
        ranks[i] = (struct rank_thread){.comm = comms[i], .fn = fn, .arg = arg};
        dp_comm_set_deadline(comms[i], deadline_ns);
    }
    for (int i = 0; i < size; i++)
        pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]);
    for (int i = 0; i < size; i++) {
        pthread_join(ranks[i].thread, NULL);
        failed += ranks[i].result != 0;
    }
    return failed;
}

static int run_threads(const struct comm_kind *kind, int size, int64_t deadline_ns, rank_fn fn,
                       void *arg, int *killed)
{
    *killed = 0;
    return comm_on_threads(size, deadline_ns, fn, arg);
}

/* ---- processes ----------------------------------------------------------------------------- */

static int listen_anywhere(int *port)
{
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(any);
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    if (bind(fd, (struct sockaddr *)&any, len) || getsockname(fd, (struct sockaddr *)&any, &len) ||
        listen(fd, MAX_RANKS))
        abort();
    *port = ntohs(any.sin_port);
    return fd;
}

int find_free_port(void)
{
    int port;

    close(listen_anywhere(&port));
    return port;
}

/* A rank must leave as many files open as it found. The listener is rank 0's, and others have none.
 */
static int be_rank(const struct comm_kind *kind, int rank, int size, int port, int listener,
                   int64_t deadline_ns, rank_fn fn, void *arg)
{
    const int files = count_files() - !rank;
    struct dp_comm *comm;
    char address[32];

    setenv("DUALPIPE_WIRE_CMA", kind->by_ring ? "0" : "1", 1);
    setenv("DUALPIPE_WIRE_MEASURE", "0", 1);
    snprintf(address, sizeof(address), "127.0.0.1:%d", port);
    const struct dp_comm_config config = {.rank = rank, .size = size, .address = address,
                                          .listener = listener, .transport = kind->name,
                                          .timeout_ns = 30 * INT64_C(1000000000)};
    if (dp_comm_open(&config, &comm))
        return -1;
    dp_comm_set_deadline(comm, deadline_ns);
    int result = fn(comm, arg);
    dp_comm_close(comm);
    if (count_files() != files) {
        printf("rank %d: %d files open before, %d after\n", rank, files, count_files());
        result = -1;
    }
#ifdef __SANITIZE_ADDRESS__
    if (__lsan_do_recoverable_leak_check()) /* _exit, below, does not look */
        result = -1;
#endif
    return result;
}

static int run_processes(const struct comm_kind *kind, int size, int64_t deadline_ns, rank_fn fn,
                         void *arg, int *killed)
{
    pid_t children[MAX_RANKS];
    int failed = 0, port;
    const int listener =
        listen_anywhere(&port); /* a free port might be taken until rank 0 listens */

    *killed = 0;
    fflush(NULL);
    for (int rank = 0; rank < size; rank++) {
        children[rank] = fork();
        if (children[rank] == 0) {
            if (rank)
                close(listener);
            int result = be_rank(kind, rank, size, port, rank ? 0 : listener, deadline_ns, fn, arg);
            fflush(NULL);
            _exit(result ? 1 : 0);
        }
    }
    close(listener);
    for (int rank = 0; rank < size; rank++) {
        int status = -1;
        waitpid(children[rank], &status, 0);
        failed += status != 0;
        *killed += WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    }
    return failed;
}

/* ---- MPI ------------------------------------------------------------------------------------ */

/* This process is one of the ranks. */
static int run_mpi(const struct comm_kind *kind, int size, int64_t deadline_ns, rank_fn fn,
                   void *arg, int *killed)
{
    const struct dp_comm_config config = {.transport = kind->name,
                                          .timeout_ns = 30 * INT64_C(1000000000)};
    const char *ranks = getenv("DP_TEST_RANKS");
    struct dp_comm *comm;

    *killed = 0;
    if (!ranks || atoi(ranks) != size)
        return 0;
    if (dp_comm_open(&config, &comm))
        return 1;
    dp_comm_set_deadline(comm, deadline_ns);
    int result = fn(comm, arg);
    dp_comm_close(comm);
    return result != 0;
}

static const struct comm_kind default_kinds[] = {
    {.name = "threads", .shares_files = true, .run = run_threads},
    {.name = "shm", .processes = true, .shares_files = true, .run = run_processes},
    {.name = "shm", .processes = true, .shares_files = true, .run = run_processes, .by_ring = true},
    {.name = "tcp", .processes = true, .shares_files = true, .run = run_processes},
    {.name = NULL},
};
static const struct comm_kind mpi_kinds[] = {
    {.name = "mpi", .run = run_mpi},
    {.name = NULL},
};
const struct comm_kind *comm_kinds = default_kinds;

__attribute__((constructor)) static void choose_kinds(void)
{
    const char *which = getenv("DP_TEST_COMM");

    if (which && !strcmp(which, "mpi"))
        comm_kinds = mpi_kinds;
}
