/* SPDX-License-Identifier: Apache-2.0
 *
 * comm_nccl.c - the kind "nccl" of a group: DP_TEST_COMM=nccl with DP_TEST_RANKS makes a test program one
 * of so many processes, each of which runs all cases, those for so many ranks over one communicator by
 * NCCL, since to connect takes the longest. tests/simcuda/real_suite.sh sets what else it takes.
 */
#include "comm_cases.h"

#include <dualpipe/nccl.h>

#include <arpa/inet.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_RANKS = 16 };
/* Of what is to come: less than a test may take (DP_TEST_LIMIT_S), so that the rank that waits is
 * named. 64 MiB through buffers of 128 KiB have taken 80 s, on two CPUs with a load average of 56. */
static const int64_t DEADLINE_NS = 240 * INT64_C(1000000000), LONG_NS = 10 * INT64_C(1000000000);

static struct {
    int rank, size, listener;
    char address[32];
    pid_t children[MOST_RANKS];
    struct dp_device *device;
    struct dp_comm *host, *comm;
} group;

/* ---- memory ---------------------------------------------------------------------------------- */

static void *alloc_pinned(size_t len)
{
    void *out = NULL;

    return dp_device_alloc(group.device, DP_MEMORY_PINNED, len, &out) ? NULL : out;
}

static void free_pinned(void *ptr)
{
    dp_device_free(group.device, DP_MEMORY_PINNED, ptr);
}

/* ---- cases ----------------------------------------------------------------------------------- */

/* The next case may end the group, but not while a rank is still in what comes before. */
static int meet(void)
{
    const int err = dp_comm_barrier(group.comm);

    return err == DP_EABORTED ? 0 : err;
}

static int open_all(void)
{
    const struct dp_comm_config config = {.rank = group.rank, .size = group.size,
                                          .address = group.address,
                                          .listener = group.rank ? 0 : group.listener,
                                          .transport = "shm", .timeout_ns = DEADLINE_NS};
    int err = dp_comm_open(&config, &group.host);

    if (!err)
        err = dp_device_cuda_open(0, &group.device);
    const struct dp_nccl_config nccl = {.device = group.device};
    if (!err)
        err = dp_comm_nccl_open(group.host, &nccl, &group.comm);
    return err ? err : meet();
}

/* As new for the next case: all ranks meet, unless one has ended the group. */
static int make_new(void)
{
    dp_comm_set_deadline(group.comm, DEADLINE_NS);
    dp_comm_set_poll(group.comm, NULL, NULL);
    int err = dp_comm_barrier(group.comm);
    if (err == DP_EABORTED)
        err = dp_comm_reset(group.comm);
    return err ? err : meet();
}

static int run_nccl(const struct comm_kind *kind, int size, int64_t deadline_ns, rank_fn fn,
                    void *arg, int *killed)
{
    *killed = 0;
    if (size != group.size)
        return 0;
    if (!group.comm && open_all()) {
        printf("rank %d: %s\n", group.rank, dp_last_error());
        return 1;
    }
    /* What a case waits for in earnest may take long on a simulated GPU beside other work. */
    dp_comm_set_deadline(group.comm, deadline_ns < LONG_NS ? deadline_ns : DEADLINE_NS);
    const int result = fn(group.comm, arg);
    const int err = make_new();
    if (err)
        printf("rank %d: after a case: %s\n", group.rank, dp_last_error());
    return result || err;
}

static const struct comm_kind kinds[] = {
    {.name = "nccl", .run = run_nccl, .alloc = alloc_pinned, .free = free_pinned,
     .lacks = NEEDS_TAGS | NEEDS_ANY | NEEDS_PARTS | NEEDS_END},
    {.name = NULL},
};

/* ---- processes ------------------------------------------------------------------------------- */

/* At the end of the program: what of the other ranks has failed, fails here. */
static void end_ranks(void)
{
    int failed = 0;

    dp_comm_close(group.comm);
    dp_comm_close(group.host);
    dp_device_close(group.device);
    for (int rank = 1; rank < group.size && !group.rank; rank++) {
        int status = -1;
        waitpid(group.children[rank], &status, 0);
        failed += status != 0;
    }
    fflush(NULL);
    if (failed)
        _exit(failed);
}

static void listen_for_ranks(void)
{
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(any);

    group.listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(group.listener, (struct sockaddr *)&any, len) ||
        getsockname(group.listener, (struct sockaddr *)&any, &len) ||
        listen(group.listener, MOST_RANKS))
        abort();
    snprintf(group.address, sizeof(group.address), "127.0.0.1:%d", ntohs(any.sin_port));
}

static void become_ranks(int size)
{
    char name[32];

    group.size = size;
    listen_for_ranks();
    for (int rank = 1; rank < size && !group.rank; rank++) {
        group.children[rank] = fork();
        if (!group.children[rank]) {
            group.rank = rank;
            close(group.listener);
        }
    }
    /* Two processes on one GPU are refused unless they seem to be on different hosts. */
    snprintf(name, sizeof(name), "host-%d", group.rank);
    setenv("NCCL_HOSTID", name, 1);
    atexit(end_ranks);
}

__attribute__((constructor)) static void choose_nccl(void)
{
    const char *which = getenv("DP_TEST_COMM"), *ranks = getenv("DP_TEST_RANKS");
    const int size = ranks ? atoi(ranks) : 0;

    if (!which || strcmp(which, "nccl") != 0)
        return;
    if (size < 1 || size > MOST_RANKS)
        abort();
    comm_kinds = kinds;
    become_ranks(size);
}
