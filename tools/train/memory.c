/* SPDX-License-Identifier: Apache-2.0 */
#include "train/memory.h"

#include "command.h"
#include "train/host.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* A process with its libraries, stacks and the buffers of BLAS, before it holds any model. */
static const double process_bytes = 24.0 * 1024 * 1024;

/* ---- what there is ------------------------------------------------------------------------- */

/* The number after `key` in a file, times unit; infinite if there is none. */
static double read_number(const char *root, const char *path, const char *key, double unit)
{
    char name[512], line[256];
    double value = INFINITY, found;

    snprintf(name, sizeof(name), "%s%s", root, path);
    FILE *f = fopen(name, "re");
    while (f && fgets(line, sizeof(line), f))
        if (!strncmp(line, key, strlen(key)) && sscanf(line + strlen(key), "%lf", &found) == 1 &&
            isinf(value))
            value = found * unit;
    if (f)
        fclose(f);
    return value;
}

static double group_left(const char *root)
{
    double v2 = read_number(root, "/sys/fs/cgroup/memory.max", "", 1) -
                read_number(root, "/sys/fs/cgroup/memory.current", "", 1);
    double v1 = read_number(root, "/sys/fs/cgroup/memory/memory.limit_in_bytes", "", 1) -
                read_number(root, "/sys/fs/cgroup/memory/memory.usage_in_bytes", "", 1);

    return fmin(isfinite(v2) ? v2 : INFINITY, isfinite(v1) ? v1 : INFINITY);
}

/* What RLIMIT_AS leaves, beyond what is mapped now. */
static double process_left(const char *root)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_AS, &limit) || limit.rlim_cur == RLIM_INFINITY)
        return INFINITY;
    double mapped = read_number(root, "/proc/self/statm", "", (double)sysconf(_SC_PAGESIZE));
    return (double)limit.rlim_cur - mapped;
}

void memory_limits_read(const char *root, struct memory_limits *limits)
{
    *limits = (struct memory_limits){
        .available_bytes = read_number(root, "/proc/meminfo", "MemAvailable:", 1024),
        .group_bytes = group_left(root),
        .process_bytes = process_left(root),
    };
}

double memory_peak(const char *root)
{
    const double bytes = read_number(root, "/proc/self/status", "VmHWM:", 1024);

    return isfinite(bytes) ? bytes : 0;
}

/* ---- what is needed ------------------------------------------------------------------------- */

/* What the trainer holds, or, where that is too much to be measured, weights, gradients and two
 * averages; beside it gradients that are used late, what mixes (two blocks for exchanges, what an
 * average replaced, and two that local SGD keeps), and weights on what is called the device, which is
 * the host's, too. */
int memory_of_ranks(const struct settings *s, double *bytes)
{
    const int ranks = s->how.schedule.ranks;
    const double params = (double)gpt_parameter_count(&s->model) * sizeof(real) / ranks;
    const double mixing = s->graph ? 3 + 2 * (s->how.mixing.algorithm == DP_MIXER_LOCAL_SGD) : 0;
    size_t *held = calloc((size_t)ranks, sizeof(*held));

    command_mute(true);
    const int err = held ? host_measure(s, held) : DP_ENOMEM;
    command_mute(false);
    for (int rank = 0; rank < ranks; rank++)
        bytes[rank] = process_bytes + (err ? 4 * params : (double)held[rank]) +
                      fmin(s->device_memory, params) + (mixing + s->how.delay_update) * params;
    free(held);
    return err == DP_ENOMEM ? 0 : err;
}

/* ---- the verdict ---------------------------------------------------------------------------- */

static bool fits(const char *who_needs, double needed, double limit, const char *limit_name)
{
    const double mib = 1024.0 * 1024;

    return !refuse_if(needed > limit, "%s about %.0f MiB of memory, expected at most the %.0f MiB that "
                      "%s; lower --width, --layers, --batch or --context", who_needs, needed / mib,
                      fmax(limit, 0) / mib, limit_name);
}

int memory_check(const struct settings *s, int local, const struct memory_limits *limits)
{
    double most = 0, all = 0;
    double *bytes = calloc((size_t)s->how.schedule.ranks, sizeof(*bytes));

    const int err = !bytes || settings_on_cuda(s) ? 0 /* what is needed is the GPU's */
                                                  : memory_of_ranks(s, bytes);
    const int status = err ? command_failed(err) : EXIT_OK;
    for (int rank = 0; rank < s->how.schedule.ranks && bytes; rank++) {
        most = fmax(most, bytes[rank]);
        all += bytes[rank];
    }
    free(bytes);
    all *= (double)local / (double)s->how.schedule.ranks;
    if (status || (fits("a rank needs", most, limits->process_bytes,
                        "the limit of a process leaves (ulimit -v)") &&
                   fits("all ranks need", all, limits->group_bytes, "this control group has left") &&
                   fits("all ranks need", all, limits->available_bytes, "this machine has available")))
        return status;
    return EXIT_USAGE;
}
