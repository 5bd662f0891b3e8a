/* SPDX-License-Identifier: Apache-2.0
 *
 * check_memory.c - /dev/shm, which NCCL's shared memory comes from, and huge pages.
 */
#include "config.h"

#include "doctor/doctor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
        out->bytes *= unit == 'k' ? 1024 : unit == 'm' ? 1048576 : unit == 'g' ? 1073741824 : 1;
    if (after)
        out->is_read_only = !strncmp(line, " /dev/shm ro", 12) || strstr(after, " ro,");
    const bool found = line;
    free(lines);
    return found;
}

static void look_at_shm(struct doctor *d)
{
    const char *file = doctor_text(d, "/proc/%s/mountinfo", d->process);
    const double least = 1024.0 * 1024 * 1024;
    struct mount shm;

    if (!find_shm(d, &shm))
        doctor_add(d, DOCTOR_UNKNOWN, "nothing is mounted on /dev/shm", file,
                   "processes of one host may have no memory to share",
                   "mount -t tmpfs shm /dev/shm");
    else if (shm.is_read_only)
        doctor_add(d, DOCTOR_FAULT, "/dev/shm is read-only", file,
                   "processes of one host have no memory to share, and nothing is counted "
                   "for 'dualpipe stat'",
                   "mount -o remount,rw /dev/shm");
    else if (shm.bytes && shm.bytes < least)
        doctor_add(d, DOCTOR_FAULT,
                   doctor_text(d, "/dev/shm has room for %.0f MiB only", shm.bytes / 1048576), file,
                   "NCCL stops with 'No space left on device' when processes of one host "
                   "share more",
                   "docker run --shm-size=1g, or --ipc=host");
    else
        doctor_fine(d,
                    shm.bytes ? doctor_text(d, "/dev/shm has room for %.0f GiB", shm.bytes / least)
                              : "/dev/shm may take half of the memory",
                    file);
}

/* "always [madvise] never": the one in brackets is on. */
static void look_at_huge_pages(struct doctor *d)
{
    static const char file[] = "/sys/kernel/mm/transparent_hugepage/enabled";
    double reserved = 0;
    char line[256];

    tree_number(&d->tree, &reserved, "/proc/sys/vm/nr_hugepages");
    if (!tree_line(&d->tree, line, file))
        doctor_add(d, DOCTOR_UNKNOWN, "whether huge pages are used cannot be read", file, NULL,
                   NULL);
    else if (strstr(line, "[never]") && !reserved)
        doctor_add(d, DOCTOR_WARNING, "huge pages are switched off, and none are reserved", file,
                   "large host buffers cost the processor and the network card many "
                   "entries for addresses",
                   "echo madvise >/sys/kernel/mm/transparent_hugepage/enabled");
    else
        doctor_fine(d, doctor_text(d, "huge pages: %s, %.0f reserved", line, reserved), file);
}

void doctor_memory(struct doctor *d)
{
    look_at_shm(d);
    look_at_huge_pages(d);
}
