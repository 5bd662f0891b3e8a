/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_stat.c - pages of `dualpipe stat` with anything in them, as a program with a fault may leave there:
 * of the net plugin, the preload library, the profiler and a training job. The first byte says which page;
 * then three bytes of a place, and eight to be written there; and so on. All are read and shown in every
 * format. A child holds the locks by which a page is that of a live process.
 */
#include "config.h"

#include "fuzz.h"
#include "scratch.h"

#include "offload/preload/page.h"
#include "stat/stat.h"
#include "stat/train_page.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

static const struct dp_page_kind kinds[] = {
    {DPN_STAT_KIND}, {DPO_PAGE_KIND}, {DPN_PROFILE_KIND}, {TRAIN_PAGE_KIND}};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]), PLACE = 3, VALUE = 8 };

static char folder[SCRATCH_LEN];
static uint8_t *pages[KINDS];
static pid_t holder;

/* ---- the pages ------------------------------------------------------------------------------- */

static void clear(int kind)
{
    struct dp_page_head head = {
        .version = kinds[kind].version, .bytes = kinds[kind].bytes, .pid = 1};

    memcpy(head.magic, kinds[kind].magic, sizeof(head.magic));
    memset(pages[kind], 0, kinds[kind].bytes);
    memcpy(pages[kind], &head, sizeof(head));
}

static int make(int kind)
{
    char path[SCRATCH_LEN + 32];

    snprintf(path, sizeof(path), "%s/1-0%s", folder, kinds[kind].suffix);
    const int fd = open(path, O_RDWR | O_CREAT, 0600);
    must(fd >= 0 && !ftruncate(fd, kinds[kind].bytes));
    pages[kind] = mmap(NULL, kinds[kind].bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    must(pages[kind] != MAP_FAILED);
    clear(kind);
    return fd;
}

_Noreturn static void hold_locks(const int *fds, int ready)
{
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int i = 0; i < KINDS; i++)
        must(!fcntl(fds[i], F_SETLK, &all));
    must(write(ready, "", 1) == 1);
    for (;;)
        pause();
}

static void end(void)
{
    kill(holder, SIGKILL);
    waitpid(holder, NULL, 0);
    scratch_remove(folder);
}

static void begin(void)
{
    int fds[KINDS], ready[2];
    char byte;

    must(scratch_directory(folder, "stat") && !pipe(ready));
    for (int i = 0; i < KINDS; i++)
        fds[i] = make(i);
    holder = fork();
    must(holder >= 0);
    if (!holder)
        hold_locks(fds, ready[1]);
    while (read(ready[0], &byte, 1) < 0)
        must(errno == EINTR);
    for (int i = 0; i < KINDS; i++)
        close(fds[i]);
    must(freopen("/dev/null", "w", stdout) && freopen("/dev/null", "w", stderr));
    atexit(end);
}

/* ---- reading them ---------------------------------------------------------------------------- */

static void show(FILE *nowhere)
{
    const struct stat_list before = {.count = 0};
    struct stat_mapped preload = {.count = 0}, profiles = {.count = 0};
    struct stat_list list;
    struct stat_jobs jobs;

    must(!stat_read(folder, &list) && !stat_jobs_read(folder, &jobs));
    must(list.count + list.refused == 1 && jobs.count + jobs.refused == 1);
    must(!stat_map_all(&preload, &stat_preload_kind, folder));
    must(!stat_map_all(&profiles, &stat_profile_kind, folder));
    stat_print_table(&list, &before, true);
    stat_print_preload(&preload);
    stat_profile_print(&profiles);
    stat_jobs_print(&jobs);
    must(!stat_print_json(&list, &preload, stat_profile_json(&profiles), stat_jobs_json(&jobs)));
    must(!stat_print_prometheus(nowhere, &list, &preload, &profiles));
    stat_jobs_prometheus(nowhere, &jobs);
    stat_mapped_fini(&preload);
    stat_mapped_fini(&profiles);
    stat_jobs_fini(&jobs);
    stat_list_fini(&list);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const int kind = size ? data[0] % KINDS : 0;

    if (!holder)
        begin();
    for (size_t at = 1; at + PLACE + VALUE <= size; at += PLACE + VALUE) {
        const uint32_t place = (uint32_t)data[at] << 16 | (uint32_t)data[at + 1] << 8 | data[at + 2];
        memcpy(pages[kind] + place % (kinds[kind].bytes - VALUE), data + at + PLACE, VALUE);
    }
    /* A reader waits while the writer is between two changes, which is an odd number. */
    pages[0][offsetof(struct dp_page_head, changes)] &= 0xfe;
    FILE *nowhere = fopen("/dev/null", "w");
    must(nowhere);
    show(nowhere);
    fclose(nowhere);
    clear(kind);
    return 0;
}
