/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "stat/jobs.h"

#include "clock.h"
#include "command.h"
#include "stat/mapped.h"

#include <stdlib.h>

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
        const uint64_t since = dp_page_changes(&page->head);
        *out = *page;
        if (dp_page_is_steady(&page->head, since))
            break;
    }
    read_live(&page->live, &out->live);
    end_texts(out);
}

static const struct dp_page_kind job_pages = {TRAIN_PAGE_KIND};

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
    struct stat_mapped m = {0};
    int status = stat_map_all(&m, &job_pages, directory);

    *out = (struct stat_jobs){.refused = m.refused};
    for (int i = 0; i < m.count && !status; i++)
        status = add(out, m.pages[i].file, (const void *)m.pages[i].head);
    stat_mapped_fini(&m);
    out->read_ns = now_ns();
    if (out->count)
        qsort(out->ranks, (size_t)out->count, sizeof(*out->ranks), by_job_and_rank);
    return status;
}

void stat_jobs_fini(struct stat_jobs *jobs)
{
    free(jobs->ranks);
    *jobs = (struct stat_jobs){0};
}
