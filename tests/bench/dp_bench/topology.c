/* SPDX-License-Identifier: Apache-2.0
 *
 * topology.c - `dp-bench topology`: how long a machine of 256 GPUs takes from the shell,
 * and how long 1024 hosts take to build and to read. Beside lstopo: tests/bench/topology.sh.
 */
#include "bench/bench.h"
#include "command.h"
#include "tests/bench/dp_bench/dp_bench.h"

#include <dualpipe/topology.h>

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SAMPLE_NS INT64_C(100000000)
#define MACHINE "numa:8 root:4 switch:1 gpu:8 nic:8 cpus=16"
#define CLUSTER "dgx-h100 host:1024"

extern char **environ;

struct rig {
    char *cluster; /* as JSON */
    size_t cluster_len;
};

/* ---- programs ------------------------------------------------------------------------------- */

/* Run a program to its end, which prints to nowhere. 0, or DP_EIO. */
static int run_program(const char *const *argv)
{
    posix_spawn_file_actions_t quiet;
    pid_t pid;
    int status = -1;

    posix_spawn_file_actions_init(&quiet);
    posix_spawn_file_actions_addopen(&quiet, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&quiet, 2, "/dev/null", O_WRONLY, 0);
    int err = posix_spawnp(&pid, argv[0], &quiet, NULL, (char *const *)argv, environ);
    posix_spawn_file_actions_destroy(&quiet);
    if (!err)
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
            ;
    return !err && WIFEXITED(status) && !WEXITSTATUS(status) ? 0 : DP_EIO;
}

static int run_ours(void *user)
{
    const char *const given = getenv("DUALPIPE"), *const program = given ? given : "dualpipe";
    const char *const argv[] = {program, "topo", "show", "--synthetic", MACHINE, NULL};

    (void)user;
    int err = run_program(argv);
    if (err)
        command_broke("%s topo show --synthetic '%s' failed; DUALPIPE=FILE says where it is",
                      program, MACHINE);
    return err;
}

/* ---- the library ---------------------------------------------------------------------------- */

static int build_cluster(void *user)
{
    struct dp_topology *t;
    int err = dp_topology_new_synthetic(CLUSTER, &t);

    (void)user;
    if (!err)
        dp_topology_free(t);
    return err;
}

static int read_cluster(void *user)
{
    const struct rig *rig = user;
    struct dp_topology *t;
    int err = dp_topology_read(rig->cluster, rig->cluster_len, DP_TOPOLOGY_JSON, &t);

    if (!err)
        dp_topology_free(t);
    return err;
}

/* ---- samples -------------------------------------------------------------------------------- */

/* ms of one, over a sample of several. */
static int time_one(int (*run)(void *user), void *user, double *figures)
{
    int64_t began = now_ns(), now;
    int count = 0, err;

    do {
        err = run(user);
        count++;
        now = now_ns();
    } while (!err && now < began + SAMPLE_NS);
    figures[0] = (double)(now - began) / 1e6 / count;
    return err;
}

static int sample_topo(void *user, double *figures)
{
    return time_one(run_ours, user, figures);
}

static int sample_build(void *user, double *figures)
{
    return time_one(build_cluster, user, figures);
}

static int sample_read(void *user, double *figures)
{
    return time_one(read_cluster, user, figures);
}

/* ---- what is measured ----------------------------------------------------------------------- */

static int write_cluster(struct rig *rig)
{
    struct dp_topology *t;
    int err = dp_topology_new_synthetic(CLUSTER, &t);

    if (err)
        return err;
    err = dp_topology_write(t, DP_TOPOLOGY_JSON, &rig->cluster, &rig->cluster_len);
    dp_topology_free(t);
    return err;
}

static int measure(const struct bench_options *options)
{
    struct rig rig = {.cluster = NULL};
    struct bench_case cases[] = {
        {.sample = sample_topo, .user = &rig, .figure_count = 1,
         .figures = {{.what = "256 GPUs, with its process", .unit = "ms", .target = 30}}},
        {.sample = sample_build, .user = &rig, .figure_count = 1,
         .figures = {{.what = "1024 hosts, built", .unit = "ms", .target = 1000}}},
        {.sample = sample_read, .user = &rig, .figure_count = 1,
         .figures = {{.what = "1024 hosts, from JSON", .unit = "ms", .target = 1000}}},
    };
    const int count = sizeof(cases) / sizeof(cases[0]);
    int err = write_cluster(&rig);

    if (!err && !(err = bench_run(cases, count, options)))
        bench_report("topology", cases, count, options);
    free(rig.cluster);
    return err ? command_failed(err) : EXIT_OK;
}

int run_bench_topology(int argc, char **argv)
{
    const struct arg_group groups[] = {bench_group, {0}};
    const struct usage usage = {
        .command = "dp-bench topology",
        .about = "Time dualpipe topo show of a machine of 256 GPUs, process and all; and build 1024\n"
                 "hosts of 8 GPUs, and read them from JSON.",
        .groups = groups,
        .examples = "  dp-bench topology\n"
                    "  dp-bench topology --json\n",
    };
    struct operands operands;
    struct bench_options options;
    int status;

    if (!args_parse(&usage, argc, argv, &options, &operands, &status))
        return status;
    return measure(&options);
}
