/* SPDX-License-Identifier: Apache-2.0 */
#include "simcuda/nccl_ranks.h"

#include "base/clock.h"
#include "simcuda/nccl_api.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static const int64_t deadline_ns = 60 * DP_NS_PER_S;

static struct dp_comm *host_comm;
static struct dp_device *device;

struct dp_comm *nccl_ranks_host(void)
{
    return host_comm;
}

struct dp_device *nccl_ranks_device(void)
{
    return device;
}

void nccl_ranks_count_waits(void)
{
    sim_count_waits();
}

int nccl_ranks_waits(void)
{
    return sim_waits_inside();
}

/* NCCL leaves some of its own memory behind, as tests/simcuda/real.sh says. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:ncclCalloc\nleak:libnccl.so";
}

static const char *or_else(const char *name, const char *otherwise)
{
    const char *value = getenv(name);

    return value && *value ? value : otherwise;
}

const char *nccl_ranks_init(void)
{
    static char why[512], libnccl[400], libnvml[400], libsimcuda[400];
    const char *build = or_else("DP_TOP_BUILDDIR", ".");
    const char *package = or_else("DP_TEST_NCCL", "nvidia-nccl-cu13==2.28.9");
    char cache[200];
    int version = 0;

#ifdef __SANITIZE_THREAD__
    return "the thread sanitizer cannot see what NCCL does and takes it for races";
#endif
    snprintf(cache, sizeof(cache), "%s/cache", build);
    snprintf(libnccl, sizeof(libnccl), "%s/nccl/%s/libnccl.so.2", or_else("DP_TEST_CACHE", cache),
             package);
    snprintf(libnvml, sizeof(libnvml), "%s/tests/simcuda/.libs/libnvidia-ml.so.1", build);
    snprintf(libsimcuda, sizeof(libsimcuda), "%s/tests/simcuda/.libs/libsimcuda.so", build);
    if (access(libnccl, R_OK)) {
        snprintf(why, sizeof(why),
                 "no %s: sh tests/simcuda/fetch.sh loads it, as tests/run.sh does", package);
        return why;
    }
    const struct nccl_api *nccl = nccl_api_load(libnccl, libnvml);
    if (!nccl || nccl->GetVersion(&version))
        return "NCCL or the simulated NVML cannot be loaded";
    const char *known = sim_known_instead(version);
    if (known) {
        snprintf(why, sizeof(why), "NCCL %d: its kernels' structures are known for %s only",
                 version, known);
        return why;
    }
    setenv("DUALPIPE_NCCL_LIBRARY", libnccl, 1);
    setenv("DUALPIPE_DEVICE_CUDA_LIBRARY", libsimcuda, 1);
    return NULL;
}

enum { MOST_PEERS = 32 };

struct job {
    rank_fn fn;
    void *arg;
    const struct dp_schedule *const *schedules; /* NULL: all ranks are peers */
    int schedule_count;
};

/* Two processes on one GPU are refused unless they seem to be on different hosts. */
static void be_a_host(int rank)
{
    char name[32];

    snprintf(name, sizeof(name), "host-%d", rank);
    setenv("NCCL_HOSTID", name, 1);
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    setenv("NCCL_NET_PLUGIN", "none", 1);
    setenv("NCCL_RAS_ENABLE", "0", 1);
    setenv("NCCL_MAX_NCHANNELS", "1", 1); /* small and few: each takes memory and time */
    setenv("NCCL_BUFFSIZE", "131072", 1);
    setenv("SIMCUDA_LOOKS", "1", 1);
}

/* With the host's comm. */
static int run_host(struct dp_comm *comm, void *arg)
{
    const struct job *job = arg;

    be_a_host(dp_comm_rank(comm));
    return job->fn(comm, job->arg);
}

static int run_rank(struct dp_comm *comm, void *arg)
{
    const struct job *job = arg;
    struct dp_nccl_peer peers[MOST_PEERS];
    struct dp_comm *nccl;

    host_comm = comm;
    CHECK(!dp_device_cuda_open(0, &device));
    struct dp_nccl_config config = {.device = device, .peers = job->schedules ? peers : NULL};
    for (int i = 0; i < job->schedule_count; i++) {
        const int rank = dp_comm_rank(comm), room = job->schedules[i]->ranks;
        CHECK(config.peer_count + room <= MOST_PEERS);
        const int more =
            dp_pipeline_nccl_peers(job->schedules[i], rank, peers + config.peer_count);
        CHECK(more >= 0);
        config.peer_count += more;
    }
    CHECK(!dp_comm_nccl_open(comm, &config, &nccl));
    const int result = job->fn(nccl, job->arg);
    dp_comm_close(nccl);
    dp_device_close(device);
    return result;
}

int nccl_ranks_run_hosts(int size, rank_fn fn, void *arg, int *killed)
{
    const struct comm_kind *kind = comm_kinds;
    struct job job = {.fn = fn, .arg = arg};

    while (strcmp(kind->name, "shm") != 0)
        kind++;
    return kind->run(kind, size, deadline_ns, run_host, &job, killed);
}

int nccl_ranks_run(int size, rank_fn fn, void *arg, int *killed)
{
    struct job job = {.fn = fn, .arg = arg};

    return nccl_ranks_run_hosts(size, run_rank, &job, killed);
}

int nccl_ranks_run_schedules(const struct dp_schedule *const *schedules, int count, rank_fn fn,
                             void *arg, int *killed)
{
    struct job job = {.fn = fn, .arg = arg, .schedules = schedules, .schedule_count = count};

    return nccl_ranks_run_hosts(schedules[0]->ranks, run_rank, &job, killed);
}

/* ---- one rank falls out of what the others have queued ----------------------------------------- */

enum { RANKS = 4, QUEUED_TAG = 55, ALL_QUEUED_TAG = 56 };
/* For those that wait in vain: not so short that a message between two that live is late. */
static const int64_t short_ns = 2 * DP_NS_PER_S;

static atomic_int *ended; /* how many ranks; shared by all */

bool nccl_ranks_run_fall(rank_fn fn, enum nccl_fall *how)
{
    int killed;

    ended = mmap(NULL, sizeof(*ended), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (ended == MAP_FAILED)
        return false;
    const int failed = nccl_ranks_run_hosts(RANKS, fn, how, &killed);
    munmap(ended, sizeof(*ended));
    return failed == (*how == NCCL_DIES) && killed == failed;
}

/* One byte between the culprit and each other rank. */
static int pass(struct dp_comm *comm, int peer, uint64_t tag, bool sends)
{
    struct dp_request req;
    char byte = 0;
    int err = sends ? dp_comm_isend(comm, peer, DP_CHANNEL_CONTROL, tag, &byte, 1, &req)
                    : dp_comm_irecv(comm, peer, DP_CHANNEL_CONTROL, tag, &byte, 1, &req);

    return err ? err : dp_comm_wait(comm, &req, peer);
}

static int pass_all(struct dp_comm *comm, uint64_t tag, bool sends)
{
    int err = 0;

    for (int peer = 0; peer < dp_comm_size(comm) && !err; peer++)
        if (peer != NCCL_CULPRIT)
            err = pass(comm, peer, tag, sends);
    return err;
}

/* As one that computes: it hears of nothing. */
static void stay_away(void)
{
    const int64_t until_ns = dp_now_ns() + deadline_ns;

    while (atomic_load(ended) < RANKS - 1 && dp_now_ns() < until_ns)
        nanosleep(&(struct timespec){.tv_nsec = DP_NS_PER_MS}, NULL);
}

int nccl_ranks_fall_out(struct dp_comm *comm, enum nccl_fall how)
{
    CHECK(!pass_all(comm, QUEUED_TAG, false));
    CHECK(!pass_all(comm, ALL_QUEUED_TAG, true));
    if (how == NCCL_DIES)
        raise(SIGKILL);
    if (how == NCCL_ABORTS)
        CHECK(!dp_comm_abort(comm, DP_ECALLBACK, "a stage failed"));
    stay_away();
    return 0;
}

/* The culprit may be gone before this rank knows of its words. */
int nccl_ranks_have_queued(struct dp_comm *comm, enum nccl_fall how)
{
    int err = pass(comm, NCCL_CULPRIT, QUEUED_TAG, true);

    if (!err)
        err = pass(comm, NCCL_CULPRIT, ALL_QUEUED_TAG, false);
    CHECK(!err || (err == DP_EABORTED && how != NCCL_STAYS_AWAY));
    if (how == NCCL_STAYS_AWAY)
        dp_comm_set_deadline(comm, short_ns);
    return 0;
}

int nccl_ranks_check_end(struct dp_comm *comm, enum nccl_fall how, int err)
{
    static const int errors[] = {DP_ECOMM, DP_ECALLBACK, DP_ETIMEDOUT};
    struct dp_abort why;

    CHECK(err == DP_EABORTED || (err == DP_ETIMEDOUT && how == NCCL_STAYS_AWAY));
    CHECK(dp_comm_aborted(comm, &why) && why.rank == NCCL_CULPRIT && why.error == errors[how]);
    return 0;
}

void nccl_ranks_have_ended(void)
{
    atomic_fetch_add(ended, 1);
}
