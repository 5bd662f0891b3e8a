/* SPDX-License-Identifier: Apache-2.0 */
#include "train/memory.h"

#include "command.h"
#include "train/gpt_layers.h"

#include <math.h>
#include <stdio.h>
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

/* Bytes at a border, of one micro-batch: activation or gradient. */
static double border_bytes(const struct settings *s)
{
    const struct gpt_config *c = &s->model;
    double width = c->width > GPT_BYTES ? c->width : GPT_BYTES;

    return (double)c->batch * c->context * width * sizeof(real);
}

/* Most micro-batches that a rank has begun and not finished, over all its slots. */
static double peak_of(const struct dp_schedule *s, int rank)
{
    const struct dp_op *ops = dp_schedule_ops(s, rank);
    int live = 0, peak = 0;

    for (size_t i = 0; i < dp_schedule_count(s, rank); i++) {
        live += ops[i].kind == DP_OP_F;
        peak = live > peak ? live : peak;
        live -= ops[i].kind == DP_OP_B || ops[i].kind == DP_OP_W;
    }
    return peak;
}

/* Weights, which late updates take twice, gradients, two averages, and gradients on their way, all on
 * the host; and what is called the device is the host's memory, too. */
static double memory_offloaded(const struct settings *s)
{
    struct gpt_stage_size size = gpt_stage_size(&s->model, 0, 1);
    double borders =
        s->offload.activations ? border_bytes(s) * (double)s->microbatches * (double)s->layers : 0;

    return process_bytes + (s->late ? 5.5 : 4.5) * (double)size.param_count * sizeof(real) + borders +
           fmin(s->device_memory,
                2 * (double)size.param_count * sizeof(real) +
                    (double)s->microbatches * ((double)size.save_bytes + 4 * border_bytes(s)));
}

double memory_of_rank(const struct settings *s, int rank)
{
    if (s->offload.text && !s->training)
        return memory_offloaded(s);
    const int stages = s->training ? s->training->stages : 1;
    const int slots = s->training ? dp_schedule_slot_count(s->training, rank) : 1;
    /* Weights, gradients, two averages of AdamW; in the fixed order, and where updates are late,
     * another set of gradients; to mix, two blocks for exchanges and what an average replaced, and two
     * that local SGD keeps. */
    const double mixing = s->graph ? 3 + 2 * (s->how.mixing.algorithm == DP_MIXER_LOCAL_SGD) : 0;
    const double copies = (s->any_order ? 4 : 5) + s->late + mixing;
    double peak = s->training ? peak_of(s->training, rank) : 1, bytes = process_bytes;

    for (int i = 0; i < slots; i++) {
        int stage = s->training ? dp_schedule_slot(s->training, rank, i)->stage : 0;
        struct gpt_stage_size size = gpt_stage_size(&s->model, stage, stages);
        bytes += copies * (double)size.param_count * sizeof(real) + (double)size.scratch_bytes;
        bytes += peak / slots * ((double)size.save_bytes + 2 * border_bytes(s));
        bytes += (double)size.save_bytes; /* to evaluate */
    }
    return bytes;
}

/* ---- the verdict ---------------------------------------------------------------------------- */

static bool fits(const char *who_needs, double needed, double limit, const char *limit_name)
{
    const double mib = 1024.0 * 1024;

    if (needed <= limit)
        return true;
    command_misused("%s about %.0f MiB of memory, expected at most the %.0f MiB that %s; lower "
                    "--width, --layers, --batch or --context",
                    who_needs, needed / mib, fmax(limit, 0) / mib, limit_name);
    return false;
}

bool memory_check(const struct settings *s, int local, const struct memory_limits *limits)
{
    double most = 0, all = 0;

    if (settings_on_cuda(s))
        return true; /* what is needed is the GPU's */
    for (int rank = 0; rank < s->ranks; rank++) {
        double bytes = memory_of_rank(s, rank);
        most = fmax(most, bytes);
        all += bytes;
    }
    all *= (double)local / (double)s->ranks;
    return fits("a rank needs", most, limits->process_bytes,
                "the limit of a process leaves (ulimit -v)") &&
           fits("all ranks need", all, limits->group_bytes, "this control group has left") &&
           fits("all ranks need", all, limits->available_bytes, "this machine has available");
}
