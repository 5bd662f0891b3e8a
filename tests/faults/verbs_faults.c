/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_faults.c - runs a net plugin over the stand-in for libibverbs, under many seeds: two ranks,
 * several connections each way, and all that may go wrong with RDMA. No message may be lost, doubled,
 * changed or written late; a connection may end with an error, but neither side may hang. Every third
 * seed has its messages in what stands for memory of GPUs, and flushes them. Every eighth
 * seed has a process for each rank; the others both in one thread, where a seed does the same again.
 *
 *      verbs-faults [--seeds FIRST-LAST] [--faults "WORDS"] [--limit S] [--verbose] PLUGIN.so
 *
 * --faults: these instead of the seed's own, as fake_verbs.h lists them. --limit: who is not done by
 * then hangs. --verbose: print what the plugin says. LD_LIBRARY_PATH names the directory of the
 * stand-in.
 */
#include "faults/traffic.h"
#include "scratch.h"

#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct {
    const char *file, *faults;
    unsigned long first, last;
    bool verbose;
    int limit_s;
    const struct net_caller *net;
    char dir[SCRATCH_LEN];
} setup = {.last = 99, .limit_s = 40};

/* ---- the fabric's directory -------------------------------------------------------------------- */

static void empty_dir(void)
{
    DIR *d = opendir(setup.dir);
    char path[512];

    for (struct dirent *e; d && (e = readdir(d));) {
        snprintf(path, sizeof(path), "%s/%s", setup.dir, e->d_name);
        unlink(path);
    }
    if (d)
        closedir(d);
}

/* ---- one seed ---------------------------------------------------------------------------------- */

struct process {
    pid_t pid;
    int from; /* its result comes here */
};

static void set_number(const char *name, int value)
{
    char text[16];

    snprintf(text, sizeof(text), "%d", value);
    setenv(name, text, 1);
}

static void set_environment(const struct plan *plan, int rank)
{
    set_number("FAKE_VERBS_RANK", rank);
    set_number("NCCL_IB_QPS_PER_CONNECTION", plan->qps);
    set_number("NCCL_IB_SPLIT_DATA_ON_QPS", plan->splits);
    set_number("NCCL_IB_ADAPTIVE_ROUTING", plan->adaptive);
    set_number("NCCL_IB_AR_THRESHOLD", 1000);
    set_number("DUALPIPE_NET_EAGER_GPU", plan->seed % 2 == 0);
    setenv("FAKE_VERBS_FAULTS", plan->faults, 1);
    setenv("FAKE_VERBS_FABRIC", setup.dir, 1);
    setenv("FAKE_VERBS_RETRY_MS", "10", 0);
}

static struct process start(struct traffic t)
{
    int ends[2];

    if (pipe(ends))
        abort();
    fflush(stdout);
    const struct process p = {fork(), ends[0]};
    if (p.pid) {
        close(ends[1]);
        return p;
    }
    struct traffic_result result;
    alarm(3 * (unsigned)setup.limit_s);
    set_environment(t.plan, t.rank);
    traffic_run(&t, &result);
    _exit(write(ends[1], &result, sizeof(result)) == sizeof(result) ? 0 : 1);
}

static void end(const struct process *p, struct traffic_result *out)
{
    int status = -1;
    const ssize_t n = read(p->from, out, sizeof(*out));

    close(p->from);
    waitpid(p->pid, &status, 0);
    if (n == sizeof(*out) && !status)
        return;
    *out = (struct traffic_result){.failed = 0};
    snprintf(out->wrong, sizeof(out->wrong), "the process ended with %s",
             WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "an error");
}

static struct {
    unsigned long seeds, bad;
    long connected, failed, messages;
} totals;

static void judge(const struct plan *plan, int rank, struct traffic_result *r)
{
    if (plan->is_mild && r->failed && !r->wrong[0])
        snprintf(r->wrong, sizeof(r->wrong), "%d connections ended, though nothing was broken",
                 r->failed);
    totals.connected += r->connected;
    totals.failed += r->failed;
    totals.messages += r->messages;
    if (r->wrong[0])
        printf("seed %llu, rank %d (%s): %s\n", (unsigned long long)plan->seed, rank,
               plan->faults, r->wrong);
}

static void run_alone(struct traffic t, struct traffic_result *r)
{
    t.is_alone = true;
    const struct process p = start(t);
    end(&p, r);
}

static void run_two(struct traffic t, struct traffic_result r[2])
{
    int there[2], back[2];

    if (pipe(there) || pipe(back))
        abort();
    t.in = back[0], t.out = there[1];
    const struct process a = start(t);
    t.rank = 1, t.in = there[0], t.out = back[1];
    const struct process b = start(t);
    close(there[0]), close(there[1]), close(back[0]), close(back[1]);
    end(&a, &r[0]);
    end(&b, &r[1]);
}

static void run_seed(unsigned long seed)
{
    struct traffic_result r[2] = {{.failed = 0}, {.failed = 0}};
    struct plan plan;

    plan_make(seed, setup.faults, &plan);
    const struct traffic t = {.net = setup.net, .plan = &plan, .limit_s = setup.limit_s,
                              .says_all = setup.verbose};
    if (seed % 8)
        run_alone(t, r);
    else
        run_two(t, r);
    judge(&plan, 0, &r[0]);
    judge(&plan, 1, &r[1]);
    totals.seeds++;
    totals.bad += r[0].wrong[0] || r[1].wrong[0];
    empty_dir();
}

/* ---- the whole --------------------------------------------------------------------------------- */

static bool parse(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const bool has_value = i + 1 < argc;
        if (!strcmp(argv[i], "--verbose")) {
            setup.verbose = true;
        } else if (!strcmp(argv[i], "--faults") && has_value) {
            setup.faults = argv[++i];
        } else if (!strcmp(argv[i], "--limit") && has_value) {
            setup.limit_s = atoi(argv[++i]);
        } else if (!strcmp(argv[i], "--seeds") && has_value) {
            char *rest;
            setup.first = setup.last = strtoul(argv[++i], &rest, 10);
            if (*rest == '-')
                setup.last = strtoul(rest + 1, &rest, 10);
            if (*rest || setup.last < setup.first)
                return false;
        } else if (!setup.file && argv[i][0] != '-') {
            setup.file = argv[i];
        } else {
            return false;
        }
    }
    return setup.file != NULL;
}

static bool load(void)
{
    void *library = dlopen(setup.file, RTLD_NOW | RTLD_LOCAL);

    setup.net = library ? net_caller_find(library, NEWEST_VERSION) : NULL;
    if (!setup.net)
        fprintf(stderr, "%s\n", library ? "the plugin has no table of version 12" : dlerror());
    return setup.net != NULL;
}

int main(int argc, char **argv)
{
    if (!parse(argc, argv)) {
        fprintf(stderr, "usage: verbs-faults [--seeds FIRST-LAST] [--faults \"WORDS\"] [--limit S] "
                        "[--verbose] PLUGIN.so\n");
        return 2;
    }
    if (!load() || !scratch_directory(setup.dir, "faults"))
        return 2;
    for (unsigned long seed = setup.first; seed <= setup.last; seed++)
        run_seed(seed);
    rmdir(setup.dir);
    printf("%lu seeds: %ld messages, %ld connections, of which %ld ended with an error\n", totals.seeds,
           totals.messages, totals.connected, totals.failed);
    if (totals.bad)
        printf("%lu seeds failed; to repeat one: verbs-faults --verbose --seeds N %s\n", totals.bad,
               setup.file);
    return totals.bad > 0;
}
