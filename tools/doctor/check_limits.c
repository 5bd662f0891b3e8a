/* SPDX-License-Identifier: Apache-2.0
 *
 * check_limits.c - what the process may have: locked memory, open files, processors, memory.
 */
#include "config.h"

#include "doctor/doctor.h"
#include "doctor/library.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double mib = 1024.0 * 1024, gib = 1024.0 * 1024 * 1024;

/* ---- locked memory: setrlimit(2) ------------------------------------------------------------ */

/* The soft limit of a line of /proc/PID/limits; -1: unlimited. */
static bool soft_limit(struct doctor *d, const char *name, double *limit)
{
    size_t len;
    char *lines = tree_read(&d->tree, &len, "/proc/%s/limits", d->process), word[32];
    const char *line = lines ? strstr(lines, name) : NULL;
    bool found = line && sscanf(line + strlen(name), "%31s", word) == 1;

    free(lines);
    if (found)
        *limit = strcmp(word, "unlimited") ? strtod(word, NULL) : -1;
    return found;
}

/* Every registered buffer is locked. NCCL's own take some 10 MiB a channel and peer. */
static void look_at_memlock(struct doctor *d)
{
    const char *file = doctor_text(d, "/proc/%s/limits, Max locked memory", d->process);
    double bytes;

    if (!soft_limit(d, "Max locked memory", &bytes)) {
        doctor_add(d, DOCTOR_UNKNOWN, "the limit of locked memory cannot be read", file, NULL,
                   NULL);
        return;
    }
    if (bytes < 0 || bytes >= 64 * gib) {
        doctor_fine(d, "locked memory is not limited", file);
        return;
    }
    bool rdma = tree_has(&d->tree, "/sys/class/infiniband/.");
    doctor_add(d, rdma ? DOCTOR_FAULT : DOCTOR_FINE,
               doctor_text(d, "only %.1f MiB of memory may be locked%s", bytes / mib,
                           rdma ? "" : ", and no RDMA device needs more"),
               file, rdma ? "registering memory for RDMA fails: 'Cannot allocate memory'" : NULL,
               rdma ? "ulimit -l unlimited; limits.conf or LimitMEMLOCK=infinity for services, "
                      "--ulimit memlock=-1 for containers"
                    : NULL);
}

/* A connection over sockets or shared memory has one at each end at least, and NCCL makes some tens
 * for each peer. */
static void look_at_files(struct doctor *d)
{
    const double least = 1024;
    double files;

    if (!soft_limit(d, "Max open files", &files) || files < 0 || files >= least)
        return;
    doctor_add(d, DOCTOR_WARNING, doctor_text(d, "only %.0f files may be open", files),
               doctor_text(d, "/proc/%s/limits, Max open files", d->process),
               "connections to many peers fail: 'Too many open files'",
               "ulimit -n 65536; limits.conf or LimitNOFILE for services, --ulimit nofile=65536 "
               "for containers");
}

/* ---- the container's share: cgroups(7), version 2 ------------------------------------------- */

/* The group's directory: "0::/path" in /proc/PID/cgroup. A container sees its own as "/". */
static bool own_group(struct doctor *d, struct tree_path *dir)
{
    size_t len;
    char *lines = tree_read(&d->tree, &len, "/proc/%s/cgroup", d->process), name[512] = "";
    const char *line = lines ? strstr(lines, "0::/") : NULL;
    bool found = line && sscanf(line + 3, "%511[^\n]", name) == 1;

    free(lines);
    if (found)
        snprintf(dir->text, sizeof(dir->text), "/sys/fs/cgroup%s", strcmp(name, "/") ? name : "");
    return found && tree_has(&d->tree, "%s/cgroup.controllers", dir->text);
}

/* "200000 100000": two processors' time, in us of each period; "max 100000": all. */
static void look_at_processors(struct doctor *d, const char *group)
{
    double quota_us, period_us;
    char line[256];

    if (!tree_line(&d->tree, line, "%s/cpu.max", group) ||
        sscanf(line, "%lf %lf", &quota_us, &period_us) != 2 || period_us <= 0)
        return;
    double processors = quota_us / period_us, wanted = 2.0 * devices_gpu_count(d) + 2;
    bool few = processors < wanted;
    doctor_add(d, few ? DOCTOR_WARNING : DOCTOR_FINE,
               doctor_text(d, "the container may use %.1f processors", processors),
               doctor_text(d, "%s/cpu.max", group),
               few ? doctor_text(d,
                                 "NCCL's threads spin, two a GPU, and are stopped when "
                                 "the share is used up; some %.0f are wanted",
                                 wanted)
                   : NULL,
               few ? "raise the limit, or bind to processors (cpuset) instead" : NULL);
}

static void look_at_memory(struct doctor *d, const char *group)
{
    double limit = 0, used = 0;
    char line[256];

    if (!tree_line(&d->tree, line, "%s/memory.max", group) || !strcmp(line, "max"))
        return;
    limit = strtod(line, NULL);
    bool known = tree_number(&d->tree, &used, "%s/memory.current", group);
    bool tight = known && used > 0.9 * limit;
    doctor_add(
        d, tight ? DOCTOR_WARNING : DOCTOR_FINE,
        doctor_text(d, "the container uses %.1f of %.1f GiB of memory", used / gib, limit / gib),
        doctor_text(d, "%s/memory.max", group),
        tight ? "pinned buffers may not fit, and the kernel may kill the job" : NULL,
        tight ? "raise the container's memory limit" : NULL);
}

void doctor_limits(struct doctor *d)
{
    struct tree_path group;

    look_at_memlock(d);
    look_at_files(d);
    if (!own_group(d, &group)) {
        doctor_add(d, DOCTOR_UNKNOWN, "no limits of a cgroup (version 2) can be read",
                   doctor_text(d, "/proc/%s/cgroup, /sys/fs/cgroup", d->process),
                   "a share of processors or memory may be set all the same", NULL);
        return;
    }
    look_at_processors(d, group.text);
    look_at_memory(d, group.text);
}
