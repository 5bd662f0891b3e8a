/* SPDX-License-Identifier: Apache-2.0
 *
 * launcher.c - the variables of launchers. All of them give rank and size. torchrun also gives
 * the host of rank 0, and a port, but that one is torchrun's own: ours is the next. The others give
 * the job, from which all its processes derive the same port.
 */
#include "comm/settings.h"

#include "base/fail.h"
#include "base/hash.h"
#include "base/launchers.h"
#include "base/sized.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_PORT = 20000, PORTS = 10000 }; /* below the ports that the system gives away */

typedef const char *get_fn(const char *name);

static int read_number(get_fn *get, const char *name, int min, int max, int *out)
{
    const char *text = get(name);
    char *end;

    if (!text)
        return dp_fail(DP_EINVAL, "%s is not set: expected a number from %d to %d", name, min, max);
    long number = strtol(text, &end, 10);
    if (end == text || *end || number < min || number > max)
        return dp_fail(DP_EINVAL, "%s=%s: expected a number from %d to %d", name, text, min, max);
    *out = (int)number;
    return 0;
}

/* From what identifies the job. */
static int derive_port(get_fn *get, const struct dp_launcher *l)
{
    uint64_t hash = DP_HASH_BEGIN;

    for (int i = 0; i < 2; i++) {
        const char *text = l->job[i] ? get(l->job[i]) : NULL;
        if (text)
            hash = dp_hash_text(hash, text);
    }
    return FIRST_PORT + (int)(hash % PORTS);
}

/* The first host of Slurm's short form: "gpu[03-07,12],login" is gpu03 first. */
static bool first_host(const char *list, char *host, size_t len)
{
    size_t stem = strcspn(list, "[,"), digits = 0;
    const char *number = list + stem;

    if (list[stem] == '[') {
        number++;
        digits = strcspn(number, "-,]");
    }
    if (!stem || stem + digits >= len)
        return false;
    memcpy(host, list, stem);
    memcpy(host + stem, number, digits);
    host[stem + digits] = '\0';
    return true;
}

static bool is_one_host(get_fn *get, const struct dp_launcher *l)
{
    const char *here = get("OMPI_COMM_WORLD_LOCAL_SIZE"), *all = get(l->size);

    return here && all && !strcmp(here, all);
}

static int find_host(get_fn *get, const struct dp_launcher *l, char *host, size_t len)
{
    const char *master = get("MASTER_ADDR"), *nodes = get("SLURM_STEP_NODELIST");

    if (!nodes)
        nodes = get("SLURM_JOB_NODELIST");
    if (master && strlen(master) >= len)
        return dp_fail(DP_EINVAL, "MASTER_ADDR has %zu characters: expected a host of less than %zu",
                       strlen(master), len);
    if (master)
        strcpy(host, master);
    else if (is_one_host(get, l))
        snprintf(host, len, "127.0.0.1");
    else if (!nodes || !first_host(nodes, host, len))
        return dp_fail(DP_EINVAL,
                       "%s does not tell where rank 0 is: set MASTER_ADDR to its host, or "
                       "DUALPIPE_COMM_ADDRESS to host:port",
                       l->name);
    return 0;
}

static int find_port(get_fn *get, const struct dp_launcher *l, int64_t wanted, int *port)
{
    if (wanted) {
        *port = (int)wanted;
        return 0;
    }
    if (!get("MASTER_PORT") && !l->tells_port) {
        *port = derive_port(get, l);
        return 0;
    }
    int err = read_number(get, "MASTER_PORT", 1, 65534, port);
    if (!err)
        ++*port;
    return err;
}

static int find_address(get_fn *get, const struct dp_launcher *l,
                        const struct dp_comm_settings *settings, char out[DP_ADDRESS_TEXT])
{
    char host[DP_ADDRESS_TEXT - 16];
    int port, err;

    if (settings->address) {
        snprintf(out, DP_ADDRESS_TEXT, "%s", settings->address);
        return 0;
    }
    err = find_host(get, l, host, sizeof(host));
    if (!err)
        err = find_port(get, l, settings->port, &port);
    if (!err)
        snprintf(out, DP_ADDRESS_TEXT, strchr(host, ':') ? "[%s]:%d" : "%s:%d", host, port);
    return err;
}

int dp_launch_read(get_fn *get, const struct dp_comm_settings *settings, struct dp_launch *out)
{
    const struct dp_launcher *l = dp_launcher_find(get);
    struct dp_launch launch = {0};

    if (!l)
        return dp_fail_quietly(DP_ENOENT, "not started by torchrun, mpirun or srun: none of RANK, "
                               "OMPI_COMM_WORLD_RANK, PMI_RANK, PMIX_RANK, or SLURM_PROCID and "
                               "SLURM_STEP_ID, is set");
    int err = read_number(get, l->size, 1, 1 << 20, &launch.size);
    if (!err)
        err = read_number(get, l->rank, 0, launch.size - 1, &launch.rank);
    if (!err && launch.size > 1)
        err = find_address(get, l, settings, launch.address);
    if (!err)
        *out = launch;
    return err;
}

/* A number that may be missing: then -1. */
static int read_if_there(get_fn *get, const char *name, int *out)
{
    *out = -1;
    return name && get(name) ? read_number(get, name, 0, 1 << 20, out) : 0;
}

int dp_process_read(get_fn *get, struct dp_process *out)
{
    const struct dp_launcher *l = dp_launcher_find(get);

    *out = (struct dp_process){.rank = -1, .size = -1, .local_rank = -1, .local_size = -1,
                               .gpu = -1};
    if (!l)
        return 0;
    out->launcher = l->name;
    int err = read_if_there(get, l->rank, &out->rank);
    if (!err)
        err = read_if_there(get, l->size, &out->size);
    if (!err)
        err = read_if_there(get, l->local_rank, &out->local_rank);
    if (!err && out->local_rank >= 0)
        out->gpu = dp_launcher_gpu(out->local_rank, get("CUDA_VISIBLE_DEVICES"));
    return err ? err : read_if_there(get, l->local_size, &out->local_size);
}

int dp_process_from_env(struct dp_process *out)
{
    if (!out)
        return dp_fail(DP_EINVAL, "no place for what the launcher tells");
    return dp_process_read(dp_foreign_variable, out);
}

int dp_process_own_gpu(const struct dp_process *process, const char *list, const char **own,
                       size_t *len)
{
    int count = 1;

    if (process->local_rank < 0 || process->local_size < 1 ||
        process->local_rank >= process->local_size)
        return dp_fail(DP_EINVAL,
                       "local rank %d of %d: expected both from the launcher, as torchrun's "
                       "LOCAL_RANK and LOCAL_WORLD_SIZE",
                       process->local_rank, process->local_size);
    for (const char *c = list; *c; c++)
        count += *c == ',';
    if (count != process->local_size)
        return dp_fail(DP_EINVAL,
                       "CUDA_VISIBLE_DEVICES=%s: %d GPUs, expected %d, one for each process of this "
                       "host",
                       list, count, process->local_size);
    for (int i = 0; i < process->local_rank; i++)
        list = strchr(list, ',') + 1;
    *own = list;
    *len = strcspn(list, ",");
    return *len ? 0 : dp_fail(DP_EINVAL, "CUDA_VISIBLE_DEVICES: nothing at place %d, expected a GPU",
                              process->local_rank);
}

int dp_process_keep_own_gpu(const struct dp_process *process, bool *has_gpu)
{
    const char *list = dp_foreign_variable("CUDA_VISIBLE_DEVICES"), *own;
    char gpu[128];
    size_t len;

    if (!process || !has_gpu)
        return dp_fail(DP_EINVAL, "the GPU of a process: expected the process and a place for the "
                                  "answer");
    int err = list ? dp_process_own_gpu(process, list, &own, &len) : 0;
    if (!err && list && len >= sizeof(gpu))
        err = dp_fail(DP_EINVAL,
                      "CUDA_VISIBLE_DEVICES: a name of %zu characters, expected at most %zu", len,
                      sizeof(gpu) - 1);
    if (err)
        return err;
    if (list) {
        memcpy(gpu, own, len);
        gpu[len] = '\0';
        if (setenv("CUDA_VISIBLE_DEVICES", gpu, 1))
            return dp_fail(DP_ENOMEM, "no memory for CUDA_VISIBLE_DEVICES=%s", gpu);
    }
    *has_gpu = list;
    return 0;
}

int dp_comm_config_from_env_sized(struct dp_comm_config *config, size_t size)
{
    /* One per process: the environment is one, too. */
    static struct dp_launch launch;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    struct dp_comm_settings settings;

    if (!config)
        return dp_fail(DP_EINVAL, "no config to fill from the environment");
    int err = dp_options_read(&dp_comm_option_area, &settings);
    if (err)
        return err;
    pthread_mutex_lock(&lock);
    err = dp_launch_read(dp_foreign_variable, &settings, &launch);
    pthread_mutex_unlock(&lock);
    if (err)
        return err;
    const struct dp_comm_config own = {
        .rank = launch.rank,
        .size = launch.size,
        .address = launch.size > 1 ? launch.address : NULL,
        .transport = settings.transport,
        .secret = settings.secret,
        .timeout_ns = settings.timeout_ms * 1000000,
    };
    dp_sized_give(config, size, &own, sizeof(own));
    return 0;
}
