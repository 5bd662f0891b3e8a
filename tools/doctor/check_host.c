/* SPDX-License-Identifier: Apache-2.0
 *
 * check_host.c - what the process may have of its machine: locked memory, open files, the container's
 * processors and memory; /dev/shm, which NCCL's shared memory comes from, and huge pages.
 */
#include "config.h"

#include "doctor/doctor.h"
#include "doctor/library.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double mib = 1024.0 * 1024, gib = 1024.0 * 1024 * 1024;

/* ---- limits: setrlimit(2) ------------------------------------------------------------------- */

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
    const bool rdma = tree_has(&d->tree, "/sys/class/infiniband/.");
    double bytes;

    if (!soft_limit(d, "Max locked memory", &bytes))
        doctor_say(d, DOCTOR_UNKNOWN, "the limit of locked memory cannot be read\v%s", file);
    else if (bytes < 0 || bytes >= 64 * gib)
        doctor_say(d, DOCTOR_FINE, "locked memory is not limited\v%s", file);
    else
        doctor_say(d, rdma ? DOCTOR_FAULT : DOCTOR_FINE,
                   "only %.1f MiB of memory may be locked%s\v%s\v"
                   "registering memory for RDMA fails: 'Cannot allocate memory'\v"
                   "ulimit -l unlimited; limits.conf or LimitMEMLOCK=infinity for services, "
                   "--ulimit memlock=-1 for containers",
                   bytes / mib, rdma ? "" : ", and no RDMA device needs more", file);
}

/* A connection over sockets or shared memory has one at each end at least, and NCCL makes some tens
 * for each peer. */
static void look_at_files(struct doctor *d)
{
    const double least = 1024;
    double files;

    if (soft_limit(d, "Max open files", &files) && files >= 0 && files < least)
        doctor_say(d, DOCTOR_WARNING,
                   "only %.0f files may be open\v/proc/%s/limits, Max open files\v"
                   "connections to many peers fail: 'Too many open files'\v"
                   "ulimit -n 65536; limits.conf or LimitNOFILE for services, --ulimit nofile=65536 "
                   "for containers", files, d->process);
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
    const double processors = quota_us / period_us, wanted = 2.0 * devices_gpu_count(d) + 2;
    doctor_say(d, processors < wanted ? DOCTOR_WARNING : DOCTOR_FINE,
               "the container may use %.1f processors\v%s/cpu.max\v"
               "NCCL's threads spin, two a GPU, and are stopped when the share is used up; some %.0f "
               "are wanted\v"
               "raise the limit, or bind to processors (cpuset) instead", processors, group, wanted);
}

static void look_at_memory(struct doctor *d, const char *group)
{
    double limit = 0, used = 0;
    char line[256];

    if (!tree_line(&d->tree, line, "%s/memory.max", group) || !strcmp(line, "max"))
        return;
    limit = strtod(line, NULL);
    const bool known = tree_number(&d->tree, &used, "%s/memory.current", group);
    doctor_say(d, known && used > 0.9 * limit ? DOCTOR_WARNING : DOCTOR_FINE,
               "the container uses %.1f of %.1f GiB of memory\v%s/memory.max\v"
               "pinned buffers may not fit, and the kernel may kill the job\v"
               "raise the container's memory limit", used / gib, limit / gib, group);
}

void doctor_limits(struct doctor *d)
{
    struct tree_path group;

    look_at_memlock(d);
    look_at_files(d);
    if (!own_group(d, &group)) {
        doctor_say(d, DOCTOR_UNKNOWN,
                   "no limits of a cgroup (version 2) can be read\v/proc/%s/cgroup, /sys/fs/cgroup\v"
                   "a share of processors or memory may be set all the same", d->process);
        return;
    }
    look_at_processors(d, group.text);
    look_at_memory(d, group.text);
}

/* ---- shared memory, huge pages -------------------------------------------------------------- */

struct mount {
    double bytes; /* 0: half of the memory, which is the default */
    bool is_read_only;
};

/* What is seen at a place is what was mounted there last. */
static char *last_line(char *lines, const char *place)
{
    char *line = NULL;

    for (char *next = lines; next && (next = strstr(next, place)); next++)
        line = next;
    if (line)
        line[strcspn(line, "\n")] = 0;
    return line;
}

/* proc(5), mountinfo: fields, among them the place and options, then " - tmpfs NAME OPTIONS". */
static bool find_shm(struct doctor *d, struct mount *out)
{
    size_t len;
    char *lines = tree_read(&d->tree, &len, "/proc/%s/mountinfo", d->process), unit = 0;
    const char *line = last_line(lines, " /dev/shm ");
    const char *size = line ? strstr(line, "size=") : NULL;
    const char *after = line ? strstr(line, " - ") : NULL;

    *out = (struct mount){0};
    if (size && sscanf(size, "size=%lf%c", &out->bytes, &unit) == 2)
        out->bytes *= unit == 'k' ? 1024 : unit == 'm' ? mib : unit == 'g' ? gib : 1;
    if (after)
        out->is_read_only = !strncmp(line, " /dev/shm ro", 12) || strstr(after, " ro,");
    const bool found = line;
    free(lines);
    return found;
}

static void look_at_shm(struct doctor *d)
{
    const char *file = doctor_text(d, "/proc/%s/mountinfo", d->process);
    struct mount shm;

    if (!find_shm(d, &shm))
        doctor_say(d, DOCTOR_UNKNOWN,
                   "nothing is mounted on /dev/shm\v%s\v"
                   "processes of one host may have no memory to share\v"
                   "mount -t tmpfs shm /dev/shm", file);
    else if (shm.is_read_only)
        doctor_say(d, DOCTOR_FAULT,
                   "/dev/shm is read-only\v%s\v"
                   "processes of one host have no memory to share, and nothing is counted for "
                   "'dualpipe stat'\v"
                   "mount -o remount,rw /dev/shm", file);
    else if (shm.bytes && shm.bytes < gib)
        doctor_say(d, DOCTOR_FAULT,
                   "/dev/shm has room for %.0f MiB only\v%s\v"
                   "NCCL stops with 'No space left on device' when processes of one host share more\v"
                   "docker run --shm-size=1g, or --ipc=host", shm.bytes / mib, file);
    else if (shm.bytes)
        doctor_say(d, DOCTOR_FINE, "/dev/shm has room for %.0f GiB\v%s", shm.bytes / gib, file);
    else
        doctor_say(d, DOCTOR_FINE, "/dev/shm may take half of the memory\v%s", file);
}

/* "always [madvise] never": the one in brackets is on. */
static void look_at_huge_pages(struct doctor *d)
{
    static const char file[] = "/sys/kernel/mm/transparent_hugepage/enabled";
    double reserved = 0;
    char line[256];

    tree_number(&d->tree, &reserved, "/proc/sys/vm/nr_hugepages");
    if (!tree_line(&d->tree, line, file))
        doctor_say(d, DOCTOR_UNKNOWN, "whether huge pages are used cannot be read\v%s", file);
    else if (strstr(line, "[never]") && !reserved)
        doctor_say(d, DOCTOR_WARNING,
                   "huge pages are switched off, and none are reserved\v%s\v"
                   "large host buffers cost the processor and the network card many entries for "
                   "addresses\v"
                   "echo madvise >%s", file, file);
    else
        doctor_say(d, DOCTOR_FINE, "huge pages: %s, %.0f reserved\v%s", line, reserved, file);
}

void doctor_memory(struct doctor *d)
{
    look_at_shm(d);
    look_at_huge_pages(d);
}
