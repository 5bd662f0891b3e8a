/* SPDX-License-Identifier: Apache-2.0
 *
 * check_memory.c - /dev/shm, which NCCL's shared memory comes from, and huge pages.
 */
#include "config.h"

#include "doctor/doctor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The size of the mount in bytes, 0 for half of the memory, which is the default: proc(5),
 * mountinfo: fields, among them the place, then " - tmpfs NAME OPTIONS". */
static bool shm_size(struct doctor *d, double *bytes)
{
    size_t len;
    char *lines = tree_read(&d->tree, &len, "/proc/%s/mountinfo", d->process), unit = 0;
    char *line = lines ? strstr(lines, " /dev/shm ") : NULL;
    bool found = line;

    if (line) {
        line[strcspn(line, "\n")] = 0;
        const char *size = strstr(line, "size=");
        *bytes = 0;
        if (size && sscanf(size, "size=%lf%c", bytes, &unit) == 2)
            *bytes *= unit == 'k' ? 1024 : unit == 'm' ? 1048576 : unit == 'g' ? 1073741824 : 1;
    }
    free(lines);
    return found;
}

static void look_at_shm(struct doctor *d)
{
    const char *file = doctor_text(d, "/proc/%s/mountinfo", d->process);
    double bytes, least = 1024.0 * 1024 * 1024;

    if (!shm_size(d, &bytes))
        doctor_add(d, (struct finding){
            .severity = DOCTOR_UNKNOWN,
            .what = "nothing is mounted on /dev/shm",
            .evidence = file,
            .consequence = "processes of one host may have no memory to share",
            .remedy = "mount -t tmpfs shm /dev/shm"});
    else if (bytes && bytes < least)
        doctor_add(d, (struct finding){
            .severity = DOCTOR_FAULT,
            .what = doctor_text(d, "/dev/shm has room for %.0f MiB only", bytes / 1048576),
            .evidence = file,
            .consequence = "NCCL stops with 'No space left on device' when processes of one host "
                           "share more",
            .remedy = "docker run --shm-size=1g, or --ipc=host"});
    else
        doctor_add(d, (struct finding){
            .what = bytes ? doctor_text(d, "/dev/shm has room for %.0f GiB", bytes / least)
                          : "/dev/shm may take half of the memory", .evidence = file});
}

/* "always [madvise] never": the one in brackets is on. */
static void look_at_huge_pages(struct doctor *d)
{
    static const char file[] = "/sys/kernel/mm/transparent_hugepage/enabled";
    double reserved = 0;
    char line[256];

    tree_number(&d->tree, &reserved, "/proc/sys/vm/nr_hugepages");
    if (!tree_line(&d->tree, line, file))
        doctor_add(d, (struct finding){.severity = DOCTOR_UNKNOWN,
                                       .what = "whether huge pages are used cannot be read",
                                       .evidence = file});
    else if (strstr(line, "[never]") && !reserved)
        doctor_add(d, (struct finding){
            .severity = DOCTOR_WARNING,
            .what = "huge pages are switched off, and none are reserved",
            .evidence = file,
            .consequence = "large host buffers cost the processor and the network card many "
                           "entries for addresses",
            .remedy = "echo madvise >/sys/kernel/mm/transparent_hugepage/enabled"});
    else
        doctor_add(d, (struct finding){
            .what = doctor_text(d, "huge pages: %s, %.0f reserved", line, reserved),
            .evidence = file});
}

void doctor_memory(struct doctor *d)
{
    look_at_shm(d);
    look_at_huge_pages(d);
}
