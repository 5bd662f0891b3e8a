/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "stat/jobs.h"

#include "command.h"
#include "stat/mapped.h"
#include "stat/pages.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

enum { TRIES = 1000 };

/* ---- a page ---------------------------------------------------------------------------------- */

static void end_texts(struct train_page *p)
{
    p->schedule[sizeof(p->schedule) - 1] = '\0';
    for (int i = 0; i < TRAIN_PAGE_SLOW; i++)
        p->now.slow[i][TRAIN_PAGE_TEXT - 1] = '\0';
    if (p->now.slow_count < 0 || p->now.slow_count > TRAIN_PAGE_SLOW)
        p->now.slow_count = 0;
}

static void read_live(const struct dp_live *from, struct dp_live *to)
{
    to->doing = __atomic_load_n(&from->doing, __ATOMIC_RELAXED);
    to->waiting_since_ns = __atomic_load_n(&from->waiting_since_ns, __ATOMIC_RELAXED);
    to->waiting_for = __atomic_load_n(&from->waiting_for, __ATOMIC_RELAXED);
    to->sent_bytes = __atomic_load_n(&from->sent_bytes, __ATOMIC_RELAXED);
    to->received_bytes = __atomic_load_n(&from->received_bytes, __ATOMIC_RELAXED);
}

/* Of a process that was stopped in the middle of a change, what is there is shown. */
static void read_moment(const struct train_page *page, struct train_page *out)
{
    for (int i = 0; i < TRIES; i++) {
        const uint64_t since = __atomic_load_n(&page->changes, __ATOMIC_ACQUIRE);
        *out = *page;
        dpn_stat_fence();
        if (since % 2 == 0 && since == __atomic_load_n(&page->changes, __ATOMIC_RELAXED))
            break;
    }
    read_live(&page->live, &out->live);
    end_texts(out);
}

/* ---- a file ---------------------------------------------------------------------------------- */

static int add(struct stat_jobs *jobs, const char *file, const struct train_page *page)
{
    struct stat_rank *more = realloc(jobs->ranks, ((size_t)jobs->count + 1) * sizeof(*jobs->ranks));

    if (!more)
        return command_broke("no memory for %d processes", jobs->count + 1);
    jobs->ranks = more;
    struct stat_rank *rank = &more[jobs->count++];
    snprintf(rank->file, sizeof(rank->file), "%s", file);
    read_moment(page, &rank->page);
    return 0;
}

static const struct stat_mapped_kind job_pages = {TRAIN_PAGE_SUFFIX, TRAIN_PAGE_MAGIC,
                                                  TRAIN_PAGE_VERSION, sizeof(struct train_page),
                                                  "a training job"};

static int read_file(const char *directory, const char *file, int fd, struct stat_jobs *jobs)
{
    int status = stat_check_page(&job_pages, directory, file, fd);

    if (status)
        return status;
    const struct train_page *page = mmap(NULL, sizeof(*page), PROT_READ, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED)
        return command_broke("cannot read %s/%s: %s", directory, file, strerror(errno));
    status = add(jobs, file, page);
    munmap((void *)(uintptr_t)page, sizeof(*page));
    return status;
}

/* ---- the directory --------------------------------------------------------------------------- */

static bool is_page(const char *name)
{
    const size_t len = strlen(name), end = strlen(TRAIN_PAGE_SUFFIX);

    return len > end && !strcmp(name + len - end, TRAIN_PAGE_SUFFIX);
}

static void read_entry(const char *directory, int dir, const char *name, struct stat_jobs *jobs)
{
    const int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

    if (fd < 0 && errno == ENOENT)
        return; /* it has just ended */
    const int status =
        fd < 0 ? command_broke("cannot read %s/%s: %s", directory, name, strerror(errno))
               : read_file(directory, name, fd, jobs);
    if (status < 0)
        unlinkat(dir, name, 0);
    jobs->refused += status > 0;
    if (fd >= 0)
        close(fd);
}

static int by_job_and_rank(const void *a, const void *b)
{
    const struct train_page *x = &((const struct stat_rank *)a)->page;
    const struct train_page *y = &((const struct stat_rank *)b)->page;

    if (x->job != y->job)
        return x->job < y->job ? -1 : 1;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

int stat_jobs_read(const char *directory, struct stat_jobs *out)
{
    struct timespec now;
    char usual[64];

    *out = (struct stat_jobs){0};
    snprintf(usual, sizeof(usual), DPN_STAT_DIRECTORY "%ld", (long)geteuid());
    const char *name = directory ? directory : usual;
    DIR *list = opendir(name);
    if (!list && errno == ENOENT && !directory)
        return 0;
    if (!list)
        return command_misused("cannot open the directory %s: %s", name, strerror(errno));
    for (struct dirent *e; (e = readdir(list));)
        if (is_page(e->d_name))
            read_entry(name, dirfd(list), e->d_name, out);
    closedir(list);
    clock_gettime(CLOCK_MONOTONIC, &now);
    out->read_ns = now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
    if (out->count)
        qsort(out->ranks, (size_t)out->count, sizeof(*out->ranks), by_job_and_rank);
    return 0;
}

void stat_jobs_fini(struct stat_jobs *jobs)
{
    free(jobs->ranks);
    *jobs = (struct stat_jobs){0};
}
