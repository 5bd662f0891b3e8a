/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "train/watcher.h"

#include "clock.h"
#include "command.h"
#include "digest.h"
#include "draw/draw.h"
#include "files.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

/* ---- the page -------------------------------------------------------------------------------- */

/* A page that cannot be made where --stat-dir (`option`), or the variable, wants it is a warning; the
 * job goes on without. */
static void page_open(struct page *p, const char *option, int rank)
{
    static const char variable[] = "DUALPIPE_NET_STAT_DIR";
    const char *set = getenv(variable);

    p->at = dp_page_new(option ? option : set, &train_kind, p->path, sizeof(p->path), &p->fd);
    if (!p->at && (option || (set && *set)))
        fprintf(stderr, "dualpipe: warning: %s %s; 'dualpipe stat' will not show rank %d\n",
                option ? train_kind.option : variable, p->path, rank);
}

static void set(struct page *p, enum train_value what, int64_t n)
{
    dp_page_set(&p->at->rows[0].values[what], (uint64_t)n);
}

static void set_real(struct page *p, enum train_value what, double n)
{
    uint64_t bits;

    memcpy(&bits, &n, sizeof(bits));
    dp_page_set(&p->at->rows[0].values[what], bits);
}

static void page_close(struct page *p)
{
    if (!p->at)
        return;
    unlink(p->path);
    munmap(p->at, sizeof(*p->at));
    close(p->fd);
    *p = (struct page){0};
}

static void set_pace(struct page *p, const struct dp_rank_pace *pace)
{
    const bool is_known = pace->step_ns > 0, has_waited = pace->waited_for >= 0;

    set_real(p, TRAIN_BUBBLE, is_known ? 1 - pace->busy_ns / pace->step_ns : NAN);
    set_real(p, TRAIN_STEP_MS, is_known ? pace->step_ns * 1e-6 : NAN);
    set_real(p, TRAIN_COMPUTE_MS, is_known ? pace->busy_ns * 1e-6 : NAN);
    set_real(p, TRAIN_WAITED_MS, is_known ? pace->waited_ns * 1e-6 : NAN);
    set_real(p, TRAIN_WAITED_FOR, has_waited ? pace->waited_for : NAN);
    set_real(p, TRAIN_WAITED_FOR_MS, has_waited ? pace->waited_for_ns * 1e-6 : NAN);
}

static void set_slow(struct page *p, const struct dp_slow *slow, int count)
{
    set(p, TRAIN_SLOW_COUNT, count);
    for (int i = 0; i < TRAIN_SLOW; i++) {
        struct train_row *row = &p->at->rows[1 + i];
        if (i < count)
            dp_slow_text(&slow[i], row->label, TRAIN_TEXT);
        dp_page_set(&row->use, i < count ? p->use + 1 + (uint64_t)i : 0);
    }
}

/* ---- while it runs --------------------------------------------------------------------------- */

static int own_rank(const struct dp_comm *comm)
{
    return comm ? dp_comm_rank(comm) : 0;
}

/* A number that processes of a job have in common, and no other job has. */
static int agree_on_job(struct dp_comm *comm, uint64_t *job)
{
    if (getrandom(job, sizeof(*job), 0) < 0)
        *job = (uint64_t)now_ns();
    return comm ? dp_comm_broadcast(comm, job, sizeof(*job), 0) : 0;
}

/* The same of survivors, none of which may be waited for, and of those that join them: where they
 * meet, with what they have in common. */
static uint64_t job_of(const struct dp_comm_config *how)
{
    const char *words[] = {how->address, how->secret};
    uint64_t job = DIGEST_BEGIN;

    for (int i = 0; i < 2; i++)
        if (words[i])
            job = digest_bytes(job, words[i], strlen(words[i]));
    return job;
}

static void open_page(struct watcher *w, struct dp_comm *comm, uint64_t job)
{
    static const enum train_value unknown[] = {TRAIN_LOSS, TRAIN_HELD_OUT, TRAIN_RATE, TRAIN_ALL_BUBBLE};
    const struct settings *s = w->settings;
    const struct dp_trainer_parts *p = w->parts;
    const int ranks = p->schedule ? p->schedule->ranks : s->how.schedule.ranks;
    struct page *page = &w->page;

    if (s->stat_dir && !strcmp(s->stat_dir, "none"))
        return;
    page_open(page, s->stat_dir, own_rank(comm));
    if (!page->at)
        return;
    snprintf(page->at->rows[0].label, DP_PAGE_LABEL, "%016" PRIx64 "\t%d\t%ld\t%.64s", job,
             own_rank(comm), (long)getpid(), s->schedule_name);
    set(page, TRAIN_PROCESSES, ranks * p->replicas);
    set(page, TRAIN_RANKS, ranks);
    set(page, TRAIN_REPLICAS, p->replicas);
    set(page, TRAIN_MICROBATCHES, s->how.microbatches);
    set(page, TRAIN_PIPELINE_RANK, p->rank);
    set(page, TRAIN_STEPS, s->steps);
    set(page, TRAIN_STEP, (int64_t)s->from.step);
    for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++)
        set_real(page, unknown[i], NAN);
    set_pace(page, &(struct dp_rank_pace){.waited_for = -1});
    set(page, TRAIN_OPENED_NS, page->at->head.opened_ns);
    for (int i = 0; i < TRAIN_SLOW; i++)
        dp_page_set(&page->at->rows[1 + i].values[TRAIN_RANK], 1);
    page->use = job << 20 | (uint64_t)(own_rank(comm) + 1) << 4;
    atomic_store_explicit(&page->at->rows[0].use, page->use, memory_order_release);
    if (p->recorder)
        dp_recorder_show(p->recorder, (struct dp_live *)(void *)&page->at->rows[0].values[TRAIN_DOING]);
}

int watcher_init(struct watcher *w, const struct settings *s, const struct dp_trainer_parts *parts,
                 struct dp_comm *comm, const struct dp_comm_config *how)
{
    const int processes = settings_processes(s);
    uint64_t job = s->how.survive && how ? job_of(how) : 0;

    *w = (struct watcher){.settings = s, .parts = parts, .stepped_ns = now_ns()};
    w->paces = calloc((size_t)processes, sizeof(*w->paces));
    int err = w->paces ? 0 : DP_ENOMEM;
    if (!err && !s->how.survive)
        err = agree_on_job(comm, &job);
    if (!err && comm && !s->how.survive)
        err = dp_watch_new(parts->schedule, processes, &w->watch);
    if (!err)
        open_page(w, comm, job);
    return err;
}

void watcher_fini(struct watcher *w)
{
    page_close(&w->page);
    dp_watch_free(w->watch);
    free(w->paces);
    *w = (struct watcher){0};
}

/* Replica after replica, in each the pipeline ranks, which a placement may have mapped. */
static const struct dp_rank_pace *pace_of(const struct watcher *w, const struct dp_rank_pace *paces,
                                          int i)
{
    const struct dp_schedule *s = w->parts->schedule;

    return s ? &paces[i / s->ranks * s->ranks + s->group_rank[i % s->ranks]] : &paces[i];
}

bool watcher_paces(struct watcher *w, const struct dp_rank_pace *paces)
{
    if (!w->watch)
        return false;
    for (int i = 0; i < settings_processes(w->settings); i++)
        w->paces[i] = *pace_of(w, paces, i);
    return dp_watch_step(w->watch, w->paces);
}

static bool is_among(const struct dp_slow *list, int count, const struct dp_slow *wanted)
{
    for (int i = 0; i < count; i++)
        if (list[i].kind == wanted->kind && list[i].rank == wanted->rank &&
            (wanted->kind == DP_SLOW_COMPUTE || list[i].peer == wanted->peer))
            return true;
    return false;
}

static void list_slow(struct watcher *w,
                      void (*told)(void *user, const struct dp_slow *slow, bool begun), void *user)
{
    struct dp_slow before[WATCHER_SLOW];
    const int count = w->slow_count;

    if (!w->watch)
        return;
    memcpy(before, w->slow, sizeof(before));
    w->slow_count = dp_watch_list(w->watch, w->slow, WATCHER_SLOW);
    for (int i = 0; i < w->slow_count; i++)
        if (!is_among(before, count, &w->slow[i]))
            told(user, &w->slow[i], true);
    for (int i = 0; i < count; i++)
        if (!is_among(w->slow, w->slow_count, &before[i]))
            told(user, &before[i], false);
}

void watcher_tell(struct watcher *w, const struct progress *p,
                  void (*told)(void *user, const struct dp_slow *slow, bool begun), void *user)
{
    const struct settings *s = w->settings;
    const struct dp_trainer_parts *parts = w->parts;
    const int64_t ended_ns = now_ns();
    struct dp_rank_pace pace = {.waited_for = -1};
    struct page *page = &w->page;

    list_slow(w, told, user);
    if (!page->at)
        return;
    if (parts->recorder && !parts->queued)
        (void)dp_recorder_pace(parts->recorder, parts->schedule, parts->rank, &pace);
    dp_page_begin_change(&page->at->head);
    set(page, TRAIN_STEP, (int64_t)p->step);
    set(page, TRAIN_ENDED, ended_ns);
    set_real(page, TRAIN_LOSS, p->result.loss);
    if (!isnan(p->held_out))
        set_real(page, TRAIN_HELD_OUT, p->held_out);
    if (!isnan(p->bubble))
        set_real(page, TRAIN_ALL_BUBBLE, p->bubble);
    set_real(page, TRAIN_RATE, (double)s->how.rows * (double)s->model.context * 1e9 /
                                   (double)(ended_ns - w->stepped_ns));
    set_pace(page, &pace);
    set_slow(page, w->slow, w->slow_count < TRAIN_SLOW ? w->slow_count : TRAIN_SLOW);
    dp_page_end_change(&page->at->head);
    w->stepped_ns = ended_ns;
}

/* ---- the last step --------------------------------------------------------------------------- */

static int measure(const struct dp_trainer_parts *p, const struct dp_timeline *t,
                   struct step_times *times)
{
    struct dp_trace_report report;

    int err = dp_trace_report(t, p->schedule, &report);
    if (err)
        return err;
    times->step_ms = (double)report.makespan_ns * 1e-6;
    if (!p->queued) {
        times->bubble = report.bubble_ratio;
        times->simulated_ms = (double)report.simulated_ns * 1e-6;
    }
    return 0;
}

static int write_trace(FILE *f, const struct dp_timeline *t, const struct dp_schedule *s)
{
    char *json;
    size_t len;

    int err = dp_timeline_write_perfetto(t, s, &json, &len);
    if (err)
        return err;
    err = fwrite(json, 1, len, f) == len ? 0 : DP_EIO;
    free(json);
    return err;
}

static int write_drawing(FILE *f, const struct dp_timeline *t, const struct dp_schedule *s)
{
    return draw_svg(f, t, s, &(struct draw_options){.arrows = true});
}

typedef int (*write_fn)(FILE *f, const struct dp_timeline *t, const struct dp_schedule *s);

static const write_fn writers[DRAWN] = {write_drawing, write_trace};

/* The sentence has been printed if it fails. */
static bool write_file(const char *path, write_fn write, const struct dp_trainer_parts *p,
                       const struct dp_timeline *t)
{
    struct output out;

    if (!path)
        return true;
    if (output_open(path, &out) != EXIT_OK)
        return false;
    return output_close(&out, write(out.file, t, p->schedule)) == EXIT_OK;
}

int timeline_take(const struct dp_trainer_parts *p, const char *const *files,
                  struct dp_watch *watch, struct step_times *times)
{
    struct dp_timeline t;
    bool first = !p->pipe || dp_comm_rank(p->pipe) == 0;

    *times = (struct step_times){.bubble = NAN, .step_ms = NAN, .simulated_ms = NAN};
    int err = dp_recorder_gather(p->recorder, p->schedule, p->pipe, &t);
    if (err || !first)
        return err;
    err = measure(p, &t, times);
    if (!err && watch)
        err = dp_watch_links(watch, &t);
    for (int i = 0; i < DRAWN && !err && files; i++)
        times->unwritten[i] = !write_file(files[i], writers[i], p, &t);
    dp_timeline_fini(&t);
    return err;
}
