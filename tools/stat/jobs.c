/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "clock.h"
#include "command.h"
#include "stat/stat.h"

#include <dualpipe/pipeline.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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

/* ---- what is shown of them ------------------------------------------------------------------- */

/* Ranks of a job begin at `first`; where they end. */
static int end_of(const struct stat_jobs *jobs, int first)
{
    int end = first;

    while (end < jobs->count && jobs->ranks[end].page.job == jobs->ranks[first].page.job)
        end++;
    return end;
}

/* A share of the step in which a rank did not compute. */
static double bubble_of(const struct dp_rank_pace *pace)
{
    return pace->step_ns > 0 ? 1 - pace->busy_ns / pace->step_ns : NAN;
}

/* A wait that goes on, in ns; 0: none. */
static int64_t wait_ns(const struct stat_jobs *jobs, const struct dp_live *live)
{
    const int64_t ns = jobs->read_ns - live->waiting_since_ns;

    return live->waiting_since_ns && ns > 0 ? ns : 0;
}

/* ---- for people ------------------------------------------------------------------------------ */

static const char *share_text(double share, char *text, size_t len)
{
    if (isnan(share))
        snprintf(text, len, "-");
    else
        snprintf(text, len, "%.0f %%", 100 * share);
    return text;
}

/* What it waits for now, if it has for long; else what it waited for most in its last step. */
static const char *wait_text(const struct stat_jobs *jobs, const struct train_page *p, char *text,
                             size_t len)
{
    const int64_t now_ns = wait_ns(jobs, &p->live);
    const struct dp_rank_pace *pace = &p->now.pace;

    if (now_ns >= 1000000000)
        snprintf(text, len, "rank %" PRId64 ", for %.1f s now", p->live.waiting_for,
                 (double)now_ns * 1e-9);
    else if (pace->waited_for >= 0)
        snprintf(text, len, "rank %d, %.3g ms a step", pace->waited_for,
                 pace->waited_for_ns * 1e-6);
    else
        snprintf(text, len, "-");
    return text;
}

static void print_job(const struct train_page *p)
{
    const struct train_page_step *now = &p->now;
    char bubble[16];

    printf("\ntraining job of %d process%s: %s, %d micro-batches", p->processes,
           p->processes == 1 ? "" : "es", p->schedule, p->microbatches);
    if (p->replicas > 1)
        printf(", %d replicas of %d rank%s", p->replicas, p->ranks, p->ranks > 1 ? "s" : "");
    printf("\nstep %" PRIu64 "/%" PRId64, now->step, p->steps);
    if (!isnan(now->loss))
        printf("  loss %.3f", now->loss);
    if (!isnan(now->held_out))
        printf("  held-out %.3f", now->held_out);
    if (!isnan(now->tokens_per_second))
        printf("  %.1fk tokens/s", now->tokens_per_second * 1e-3);
    if (!isnan(now->bubble))
        printf("  bubble %s", share_text(now->bubble, bubble, sizeof(bubble)));
    putchar('\n');
}

static void print_rank(const struct stat_jobs *jobs, const struct train_page *p)
{
    const double ago_s = (double)(jobs->read_ns - p->now.ended_ns) * 1e-9;
    char bubble[16], wait[64], sent[16], received[16], doing[80], ago[32] = "-";

    if (p->now.ended_ns)
        snprintf(ago, sizeof(ago), "%.1f s", ago_s > 0 ? ago_s : 0);
    printf("%4d %8" PRId64 " %7" PRIu64 " %8s %7s  %-26s %9s %9s  %s\n", p->rank, p->head.pid,
           p->now.step, ago, share_text(bubble_of(&p->now.pace), bubble, sizeof(bubble)),
           wait_text(jobs, p, wait, sizeof(wait)),
           stat_bytes_text((double)p->live.sent_bytes, sent, sizeof(sent)),
           stat_bytes_text((double)p->live.received_bytes, received, sizeof(received)),
           dp_pipeline_doing_text(p->live.doing, doing, sizeof(doing)));
}

/* Each process says what it knows; the same text once. */
static bool is_said(const struct stat_jobs *jobs, int first, int rank, const char *text)
{
    for (int r = first; r < rank; r++)
        for (int i = 0; i < jobs->ranks[r].page.now.slow_count; i++)
            if (!strcmp(jobs->ranks[r].page.now.slow[i], text))
                return true;
    return false;
}

static void print_slow(const struct stat_jobs *jobs, int first, int end)
{
    for (int r = first; r < end; r++)
        for (int i = 0; i < jobs->ranks[r].page.now.slow_count; i++)
            if (!is_said(jobs, first, r, jobs->ranks[r].page.now.slow[i]))
                printf("slow: %s\n", jobs->ranks[r].page.now.slow[i]);
}

void stat_jobs_print(const struct stat_jobs *jobs)
{
    for (int first = 0, end; first < jobs->count; first = end) {
        end = end_of(jobs, first);
        print_job(&jobs->ranks[first].page);
        printf("%4s %8s %7s %8s %7s  %-26s %9s %9s  %s\n", "rank", "process", "step", "ago",
               "bubble", "waits for", "sent", "received", "last op");
        for (int r = first; r < end; r++)
            print_rank(jobs, &jobs->ranks[r].page);
        print_slow(jobs, first, end);
    }
}

/* ---- for programs ---------------------------------------------------------------------------- */

static void set_number(json_t *o, const char *name, double value)
{
    if (isfinite(value))
        json_object_set_new(o, name, json_real(value));
}

static json_t *json_rank(const struct stat_jobs *jobs, const struct stat_rank *rank)
{
    const struct train_page *p = &rank->page;
    const struct dp_rank_pace *pace = &p->now.pace;
    char doing[80];
    json_t *slow = json_array();
    json_t *o = json_pack("{s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:s}", "rank", p->rank,
                          "pipeline_rank", p->pipeline_rank, "pid", (json_int_t)p->head.pid, "opened_ns",
                          (json_int_t)p->head.opened_ns, "step", (json_int_t)p->now.step, "sent_bytes",
                          (json_int_t)p->live.sent_bytes, "received_bytes",
                          (json_int_t)p->live.received_bytes, "doing",
                          dp_pipeline_doing_text(p->live.doing, doing, sizeof(doing)));

    for (int i = 0; i < p->now.slow_count; i++)
        json_array_append_new(slow, json_string(p->now.slow[i]));
    json_object_set_new(o, "slow", slow);
    set_number(o, "bubble", bubble_of(pace));
    if (pace->step_ns > 0) {
        set_number(o, "step_ms", pace->step_ns * 1e-6);
        set_number(o, "compute_ms", pace->busy_ns * 1e-6);
        set_number(o, "waited_ms", pace->waited_ns * 1e-6);
    }
    if (pace->waited_for >= 0)
        json_object_set_new(o, "waited_for", json_integer(pace->waited_for));
    if (p->live.waiting_since_ns) {
        json_object_set_new(o, "waiting_for", json_integer((json_int_t)p->live.waiting_for));
        json_object_set_new(o, "waiting_ns", json_integer((json_int_t)wait_ns(jobs, &p->live)));
    }
    return o;
}

static json_t *json_job(const struct stat_jobs *jobs, int first, int end)
{
    const struct train_page *p = &jobs->ranks[first].page;
    json_t *ranks = json_array();
    char job[20];

    snprintf(job, sizeof(job), "%016" PRIx64, p->job);
    for (int r = first; r < end; r++)
        json_array_append_new(ranks, json_rank(jobs, &jobs->ranks[r]));
    json_t *o = json_pack("{s:s, s:s, s:i, s:i, s:i, s:i, s:I, s:I, s:o}", "job", job, "schedule",
                          p->schedule, "processes", p->processes, "pipeline_ranks", p->ranks,
                          "replicas", p->replicas, "microbatches", p->microbatches, "steps",
                          (json_int_t)p->steps, "step", (json_int_t)p->now.step, "ranks", ranks);
    set_number(o, "loss", p->now.loss);
    set_number(o, "held_out", p->now.held_out);
    set_number(o, "tokens_per_second", p->now.tokens_per_second);
    set_number(o, "bubble", p->now.bubble);
    return o;
}

json_t *stat_jobs_json(const struct stat_jobs *jobs)
{
    json_t *all = json_array();

    for (int first = 0, end; first < jobs->count; first = end) {
        end = end_of(jobs, first);
        json_array_append_new(all, json_job(jobs, first, end));
    }
    return all;
}

/* ---- for Prometheus -------------------------------------------------------------------------- */

enum figure { STEP, LOSS, RATE, BUBBLE, COMPUTE, WAITED, SENT, RECEIVED, SLOW };

static double figure_of(const struct train_page *p, enum figure figure)
{
    const struct train_page_step *now = &p->now;
    const bool timed = now->pace.step_ns > 0;

    switch (figure) {
    case STEP:
        return (double)now->step;
    case LOSS:
        return now->loss;
    case RATE:
        return now->tokens_per_second;
    case BUBBLE:
        return bubble_of(&now->pace);
    case COMPUTE:
        return timed ? now->pace.busy_ns * 1e-9 : NAN;
    case WAITED:
        return timed ? now->pace.waited_ns * 1e-9 : NAN;
    case SENT:
        return (double)p->live.sent_bytes;
    case RECEIVED:
        return (double)p->live.received_bytes;
    default:
        return now->slow_count;
    }
}

void stat_jobs_prometheus(FILE *to, const struct stat_jobs *jobs)
{
    static const struct {
        const char *name, *type, *help;
    } figures[] = {
        [STEP] = {"steps_total", "counter", "Steps done."},
        [LOSS] = {"loss", "gauge", "Of the last step."},
        [RATE] = {"tokens_per_second", "gauge", "Of the job, in the last step."},
        [BUBBLE] = {"bubble_ratio", "gauge", "Share of the last step without compute."},
        [COMPUTE] = {"compute_seconds", "gauge", "Compute of the last step."},
        [WAITED] = {"waited_seconds", "gauge", "Waits for messages of the last step."},
        [SENT] = {"sent_bytes_total", "counter", "Bytes of messages sent."},
        [RECEIVED] = {"received_bytes_total", "counter", "Bytes of messages received."},
        [SLOW] = {"slow", "gauge", "Ranks and links that hold the others up, as this one knows."},
    };

    for (size_t f = 0; f < sizeof(figures) / sizeof(figures[0]) && jobs->count; f++) {
        stat_put_head(to, "train", figures[f].name, figures[f].type, figures[f].help);
        for (int r = 0; r < jobs->count; r++) {
            const struct train_page *p = &jobs->ranks[r].page;
            const double value = figure_of(p, (enum figure)f);
            if (!isnan(value))
                fprintf(to,
                        "dualpipe_train_%s{job=\"%016" PRIx64 "\",rank=\"%d\",pid=\"%" PRId64
                        "\"} %.17g\n",
                        figures[f].name, p->job, p->rank, p->head.pid, value);
        }
    }
}
