/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_stat.c - pages of `dualpipe stat` with anything in them, as a program with a fault may leave
 * there: of the net plugin, the preload library, the profiler and a training job. The first byte says
 * which page; then three bytes of a place, and eight to be written there; and so on. All are read and
 * shown in every format. A child holds the locks by which a page is that of a live process.
 */
#include "config.h"

#include "fuzz.h"
#include "scratch.h"

#include "page_head.h"
#include "stat/stat.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

static const struct stat_kind *const kinds[] = {&stat_net, &stat_preload, &stat_profile, &stat_train};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]), PLACE = 3, VALUE = 8 };

static char folder[SCRATCH_LEN];
static uint8_t *pages[KINDS];
static pid_t holder;

/* ---- the pages ------------------------------------------------------------------------------- */

/* With some rows, so that there is more than a head. */
static void clear(int kind)
{
    const struct dp_page_kind *k = kinds[kind]->page;

    memset(pages[kind], 0, k->bytes);
    page_head_fill(k, (void *)pages[kind]);
    for (uint32_t i = 0; i < k->rows; i += 1 + i / 2) {
        struct dp_page_row *row = (void *)(pages[kind] + k->rows_at + i * k->row_bytes);
        row->use = 2 + i;
        snprintf(row->label, sizeof(row->label), "%u\tsend\t3", i % 4);
        if (i)
            row->values[0] = 1;
    }
}

static int make(int kind)
{
    char path[SCRATCH_LEN + 32];

    snprintf(path, sizeof(path), "%s/1-0%s", folder, kinds[kind]->page->suffix);
    const int fd = open(path, O_RDWR | O_CREAT, 0600);
    must(fd >= 0 && !ftruncate(fd, kinds[kind]->page->bytes));
    pages[kind] = mmap(NULL, kinds[kind]->page->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
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

static void write_json(json_t *all)
{
    must(all && !json_dumpf(all, stdout, JSON_INDENT(2)));
    json_decref(all);
}

static void show(FILE *nowhere)
{
    const struct stat_list before = {.count = 0};
    struct stat_list lists[KINDS];

    for (int i = 0; i < KINDS; i++) {
        must(!stat_read(kinds[i], folder, &lists[i]));
        must(lists[i].count + lists[i].refused == 1);
        stat_prometheus(nowhere, &lists[i]);
    }
    stat_net_print(&lists[0], &before, true);
    stat_preload_print(&lists[1]);
    stat_profile_print(&lists[2]);
    stat_jobs_print(&lists[3]);
    write_json(stat_net_json(&lists[0]));
    write_json(stat_preload_json(&lists[1]));
    write_json(stat_profile_json(&lists[2]));
    write_json(stat_jobs_json(&lists[3]));
    for (int i = 0; i < KINDS; i++)
        stat_list_fini(&lists[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const int kind = size ? data[0] % KINDS : 0;

    if (!holder)
        begin();
    for (size_t at = 1; at + PLACE + VALUE <= size; at += PLACE + VALUE) {
        const uint32_t place = (uint32_t)data[at] << 16 | (uint32_t)data[at + 1] << 8 | data[at + 2];
        memcpy(pages[kind] + place % (kinds[kind]->page->bytes - VALUE), data + at + PLACE, VALUE);
    }
    /* A reader waits while the writer is between two changes, which is an odd number. */
    pages[kind][offsetof(struct dp_page_head, changes)] &= 0xfe;
    FILE *nowhere = fopen("/dev/null", "w");
    must(nowhere);
    show(nowhere);
    fclose(nowhere);
    clear(kind);
    return 0;
}
