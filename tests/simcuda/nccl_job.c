/* SPDX-License-Identifier: Apache-2.0
 *
 * nccl_job.c - a job on the real NCCL: processes that each take themselves for a host of their own,
 * so that NCCL sends everything over its net plugin, run cases and check what arrives.
 */
#include "simcuda/nccl_job.h"

#include "simcuda/nccl_data.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char usage[] =
    "usage: nccl-job [--ranks N] [--bytes N,N...] [--types N,N...] [--seconds N]\n"
    "                LIBNCCL LIBNVML [CASE...]\n"
    "\n"
    "  --ranks    processes, each a host (2)\n"
    "  --bytes    sizes that every case runs with (1048576)\n"
    "  --types    numbers of ncclDataType_t, likewise (7, float32)\n"
    "  --seconds  kill it all after so many (240)\n"
    "\n"
    "Status 0: all cases passed, 1: one did not, 2: misuse. Without cases, 0: this NCCL can be\n"
    "simulated, 77: it cannot, for the reason that is printed.\n";

enum { MOST = 16, MOST_RANKS = 8 };

/* What a rank is doing. */
struct nccl_place {
    const char *name; /* of a case; the same address in all ranks, which are forks */
    long bytes;
};

struct settings {
    long ranks, seconds;
    long bytes[MOST], types[MOST];
    int bytes_count, types_count;
    const char *libnccl, *libnvml;
    struct nccl_place *places; /* of all ranks, in memory that they share */
    const struct nccl_case *cases[MOST];
    int case_count;
    bool dies; /* the last rank is to be killed */
};

/* ---- a rank ---------------------------------------------------------------------------------- */

void nccl_job_fail(const struct nccl_job *job, const char *format, ...)
{
    char line[512];
    va_list args;

    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    fprintf(stderr, "rank %d of %d: %s\n", job->rank, job->count, line);
    _exit(1);
}

void nccl_job_try(const struct nccl_job *job, int result, const char *what)
{
    if (result != NCCL_SUCCESS)
        nccl_job_fail(job, "%s: %s: %s", what, job->nccl->GetErrorString(result),
                      job->nccl->GetLastError(NULL));
}

/* A pipe keeps writes of this size whole. The next identity is sent only after all have joined by
 * this. */
static struct nccl_id exchange_id(struct nccl_job *job)
{
    struct nccl_id id;

    if (job->rank == 0) {
        NCCL_TRY(job, GetUniqueId(&id));
        for (int r = 1; r < job->count; r++)
            if (write(job->id_pipe[1], &id, sizeof(id)) != (ssize_t)sizeof(id))
                nccl_job_fail(job, "cannot send the identity of a communicator");
    } else if (read(job->id_pipe[0], &id, sizeof(id)) != (ssize_t)sizeof(id)) {
        nccl_job_fail(job, "no identity of a communicator from rank 0");
    }
    return id;
}

void *nccl_job_open(struct nccl_job *job)
{
    struct nccl_id id = exchange_id(job);
    void *comm;

    NCCL_TRY(job, CommInitRank(&comm, job->count, id, job->rank));
    return comm;
}

void nccl_job_close(struct nccl_job *job, void *comm)
{
    NCCL_TRY(job, CommFinalize(comm));
    NCCL_TRY(job, CommDestroy(comm));
}

static void take_buffers(struct nccl_job *job, size_t bytes)
{
    job->bytes = bytes;
    if (cudaMalloc((void **)&job->in, bytes) || cudaMalloc((void **)&job->out, bytes))
        nccl_job_fail(job, "no memory");
}

static void note_place(const struct nccl_job *job, const struct settings *s, const char *name,
                       long bytes)
{
    s->places[job->rank] = (struct nccl_place){name, bytes};
}

static void run_case(struct nccl_job *job, const struct settings *s,
                     const struct nccl_case *the_case)
{
    for (int b = 0; b < s->bytes_count; b++)
        for (int t = 0; t < s->types_count; t++) {
            take_buffers(job, (size_t)s->bytes[b]);
            job->type = (int)s->types[t];
            note_place(job, s, the_case->name, s->bytes[b]);
            the_case->run(job);
            cudaFree(job->in);
            cudaFree(job->out);
        }
}

/* Two processes on one GPU are refused unless they seem to be on different hosts. RDMA devices, if
 * they are not real (tests/fakes/ibverbs), are each host's own. */
static void prepare_environment(int rank)
{
    char host[32];

    snprintf(host, sizeof(host), "host-%d", rank);
    setenv("NCCL_HOSTID", host, 1);
    setenv("FAKE_VERBS_HOST", host, 0);
    snprintf(host, sizeof(host), "%d", rank);
    setenv("FAKE_VERBS_RANK", host, 0);
    setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    setenv("NCCL_RAS_ENABLE", "0", 0);
    setenv("NCCL_PAT_ENABLE", "0", 0);
}

static void run_rank(const struct settings *s, struct nccl_job *job)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prepare_environment(job->rank);
    job->nccl = nccl_api_load(s->libnccl, s->libnvml);
    if (!job->nccl)
        exit(2);
    cudaSetDevice(0);
    if (cudaStreamCreateWithFlags(&job->stream, 0))
        nccl_job_fail(job, "no stream");
    job->comm = nccl_job_open(job);
    for (int i = 0; i < s->case_count; i++)
        run_case(job, s, s->cases[i]);
    note_place(job, s, "close", 0);
    if (job->comm)
        nccl_job_close(job, job->comm);
    cudaStreamDestroy(job->stream);
    exit(0);
}

/* ---- without cases: whether there could be any ----------------------------------------------- */

static int check_library(const struct settings *s)
{
    const struct nccl_api *nccl = nccl_api_load(s->libnccl, s->libnvml);
    int version = 0;

    if (!nccl)
        return 2;
    nccl->GetVersion(&version);
    const char *known = sim_known_instead(version);
    if (known)
        printf("NCCL %d: its kernels' structures are known for %s only\n", version, known);
    return known ? 77 : 0;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static long now_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

/* Whether a rank ended as it should. */
static bool has_ended_well(const struct settings *s, int rank, int status)
{
    if (s->dies && rank == s->ranks - 1)
        return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    if (WIFSIGNALED(status))
        fprintf(stderr, "rank %d was killed: %s\n", rank, strsignal(WTERMSIG(status)));
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static int rank_of(const pid_t pids[], long ranks, pid_t pid)
{
    int rank = 0;

    while (rank < ranks && pids[rank] != pid)
        rank++;
    return rank;
}

/* Wait for SIGCHLD or the deadline. */
static bool is_in_time(const sigset_t *child, long until_s)
{
    struct timespec left = {until_s - now_s(), 0};

    if (left.tv_sec > 0 && (sigtimedwait(child, NULL, &left) >= 0 || errno == EINTR))
        return true;
    return left.tv_sec > 0 && now_s() < until_s;
}

static void tell_places(const struct settings *s, const pid_t pids[])
{
    fprintf(stderr, "not done after %ld seconds\n", s->seconds);
    for (int r = 0; r < s->ranks; r++)
        fprintf(stderr, "rank %d %s %s with %ld bytes\n", r, pids[r] ? "is in" : "left after",
                s->places[r].name ? s->places[r].name : "open", s->places[r].bytes);
}

static int await_ranks(const struct settings *s, const sigset_t *child, pid_t pids[])
{
    long until_s = now_s() + s->seconds;
    bool is_well = true;
    int left = (int)s->ranks, status;

    while (left && is_well) {
        pid_t pid = waitpid(-1, &status, WNOHANG);
        if (pid > 0) {
            int rank = rank_of(pids, s->ranks, pid);
            is_well = has_ended_well(s, rank, status);
            pids[rank] = 0;
            left--;
        } else if (!is_in_time(child, until_s)) {
            tell_places(s, pids);
            is_well = false;
        }
    }
    for (int r = 0; r < s->ranks; r++)
        if (pids[r] > 0)
            kill(pids[r], SIGKILL);
    while (waitpid(-1, &status, 0) > 0)
        ;
    return is_well ? 0 : 1;
}

static int run_job(struct settings *s)
{
    struct nccl_job job = {.count = (int)s->ranks};
    pid_t pids[MOST_RANKS] = {0};
    sigset_t child, before;

    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, &before);
    s->places = mmap(NULL, MOST_RANKS * sizeof(*s->places), PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (s->places == MAP_FAILED || pipe(job.id_pipe)) {
        perror("nccl-job");
        return 1;
    }
    for (job.rank = 0; job.rank < job.count; job.rank++) {
        pids[job.rank] = fork();
        if (pids[job.rank] == 0) {
            sigprocmask(SIG_SETMASK, &before, NULL);
            run_rank(s, &job);
        }
        if (pids[job.rank] < 0)
            perror("fork");
    }
    return await_ranks(s, &child, pids);
}

/* ---- arguments ------------------------------------------------------------------------------- */

static bool read_list(const char *text, long out[], int *count)
{
    char *end;

    for (*count = 0; *count < MOST; text = end + 1) {
        out[(*count)++] = strtol(text, &end, 10);
        if (end == text || (*end && *end != ','))
            return false;
        if (!*end)
            return true;
    }
    return false;
}

static bool read_option(struct settings *s, const char *name, const char *value)
{
    long number[MOST];
    int count;

    if (!strcmp(name, "--bytes"))
        return read_list(value, s->bytes, &s->bytes_count);
    if (!strcmp(name, "--types"))
        return read_list(value, s->types, &s->types_count);
    if (!read_list(value, number, &count) || count != 1 || number[0] < 1)
        return false;
    if (!strcmp(name, "--ranks"))
        s->ranks = number[0];
    else if (!strcmp(name, "--seconds"))
        s->seconds = number[0];
    else
        return false;
    return s->ranks >= 2 && s->ranks <= MOST_RANKS;
}

static const struct nccl_case *find_case(const char *name)
{
    for (const struct nccl_case *c = nccl_cases; c->name; c++)
        if (!strcmp(c->name, name))
            return c;
    for (const struct nccl_case *c = nccl_end_cases; c->name; c++)
        if (!strcmp(c->name, name))
            return c;
    return NULL;
}

static bool read_arguments(struct settings *s, char **args)
{
    for (; args[0] && !strncmp(args[0], "--", 2); args += 2)
        if (!args[1] || !read_option(s, args[0], args[1]))
            return false;
    if (!args[0] || !args[1])
        return false;
    s->libnccl = *args++;
    s->libnvml = *args++;
    for (; *args; args++) {
        if (s->case_count == MOST || !(s->cases[s->case_count++] = find_case(*args)))
            return false;
        s->dies |= !strcmp(*args, "peer-death");
    }
    return true;
}

int main(int argc, char **argv)
{
    struct settings s = {.ranks = 2,
                         .seconds = 240,
                         .bytes = {1 << 20},
                         .bytes_count = 1,
                         .types = {NCCL_FLOAT32},
                         .types_count = 1};

    (void)argc;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!read_arguments(&s, argv + 1)) {
        fputs(usage, stderr);
        return 2;
    }
    return s.case_count ? run_job(&s) : check_library(&s);
}
