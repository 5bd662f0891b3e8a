/* SPDX-License-Identifier: Apache-2.0
 *
 * jobs.c - the training jobs of this user on this machine, from the pages of their processes.
 */
#include "config.h"

#include "stat/stat.h"
#include "stat/train_page.h"

#include <dualpipe/pipeline.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

enum { JOB, RANK, PID, SCHEDULE, SENTENCE }; /* fields of labels */

static const struct stat_metric metrics[] = {
    {"steps_total", "counter", "Steps done.", TRAIN_STEP},
    {"loss", "gauge", "Of the last step.", TRAIN_LOSS},
    {"tokens_per_second", "gauge", "Of the job, in the last step.", TRAIN_RATE},
    {"bubble_ratio", "gauge", "Share of the last step without compute.", TRAIN_BUBBLE},
    {"compute_seconds", "gauge", "Compute of the last step.", TRAIN_COMPUTE_MS},
    {"waited_seconds", "gauge", "Waits for messages of the last step.", TRAIN_WAITED_MS},
    {"sent_bytes_total", "counter", "Bytes of messages sent.", TRAIN_SENT},
    {"received_bytes_total", "counter", "Bytes of messages received.", TRAIN_RECEIVED},
    {"slow", "gauge", "Ranks and links that hold the others up, as this one knows.",
     TRAIN_SLOW_COUNT},
};

/* By rank; and what each says of slow ones. */
const struct stat_kind stat_train = {
    .page = &train_kind, .fields = {SENTENCE, SENTENCE + 1}, .set = "train",
    .labels = {"job", "rank", "pid"}, .metrics = metrics,
    .metric_count = sizeof(metrics) / sizeof(metrics[0])};

/* ---- ranks by job ---------------------------------------------------------------------------- */

static const char *job_of(const struct stat_row *row)
{
    return stat_field(row, JOB);
}

static long long number(const struct stat_row *row, int field)
{
    return atoll(stat_field(row, field));
}

/* Call it for the ranks of each job, from one to another, and all sentences. */
static void each_job(const struct stat_list *list,
                     void (*call)(const struct stat_row *rank, const struct stat_row *end,
                                  const struct stat_rows *said, void *user),
                     void *user)
{
    const struct stat_row *rank = list->count ? list->pages[0].sums[0].list : NULL;
    const struct stat_row *end = rank ? rank + list->pages[0].sums[0].count : NULL;

    for (const struct stat_row *first = rank; rank < end; first = rank) {
        while (rank < end && !strcmp(job_of(rank), job_of(first)))
            rank++;
        call(first, rank, &list->pages[0].sums[1], user);
    }
}

static const char *doing_text(const struct stat_row *row, char *text, size_t len)
{
    return dp_pipeline_doing_text(row->values[TRAIN_DOING], text, len);
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
static const char *wait_text(const struct stat_row *row, char *text, size_t len)
{
    if (row->values[TRAIN_WAITING_NS] >= 1000000000)
        snprintf(text, len, "rank %" PRId64 ", for %.1f s now", (int64_t)row->values[TRAIN_WAITING_FOR],
                 (double)row->values[TRAIN_WAITING_NS] * 1e-9);
    else if (!isnan(stat_real(row, TRAIN_WAITED_FOR)))
        snprintf(text, len, "rank %.0f, %.3g ms a step", stat_real(row, TRAIN_WAITED_FOR),
                 stat_real(row, TRAIN_WAITED_FOR_MS));
    else
        snprintf(text, len, "-");
    return text;
}

static void print_known(const char *before, int digits, double value, const char *after)
{
    if (!isnan(value))
        printf("%s%.*f%s", before, digits, value, after);
}

static void print_job(const struct stat_row *row)
{
    const uint64_t *n = row->values;
    const int processes = (int)n[TRAIN_PROCESSES], ranks = (int)n[TRAIN_RANKS];

    printf("\ntraining job of %d process%s: %s, %d micro-batches", processes, processes == 1 ? "" : "es",
           stat_field(row, SCHEDULE), (int)n[TRAIN_MICROBATCHES]);
    if ((int)n[TRAIN_REPLICAS] > 1)
        printf(", %d replicas of %d rank%s", (int)n[TRAIN_REPLICAS], ranks, ranks > 1 ? "s" : "");
    printf("\nstep %" PRIu64 "/%" PRId64, n[TRAIN_STEP], (int64_t)n[TRAIN_STEPS]);
    print_known("  loss ", 3, stat_real(row, TRAIN_LOSS), "");
    print_known("  held-out ", 3, stat_real(row, TRAIN_HELD_OUT), "");
    print_known("  ", 1, stat_real(row, TRAIN_RATE) * 1e-3, "k tokens/s");
    print_known("  bubble ", 0, stat_real(row, TRAIN_ALL_BUBBLE) * 100, " %");
    putchar('\n');
}

static void print_rank(const struct stat_row *rank)
{
    const uint64_t *n = rank->values;
    char bubble[16], wait[80], sent[16], received[16], doing[80], ago[32] = "-";

    if (n[TRAIN_ENDED])
        snprintf(ago, sizeof(ago), "%.1f s", (double)n[TRAIN_ENDED] * 1e-9);
    printf("%4lld %8lld %7" PRIu64 " %8s %7s  %-26s %9s %9s  %s\n", number(rank, RANK),
           number(rank, PID), n[TRAIN_STEP], ago,
           share_text(stat_real(rank, TRAIN_BUBBLE), bubble, sizeof(bubble)),
           wait_text(rank, wait, sizeof(wait)),
           stat_bytes_text((double)n[TRAIN_SENT], sent, sizeof(sent)),
           stat_bytes_text((double)n[TRAIN_RECEIVED], received, sizeof(received)),
           doing_text(rank, doing, sizeof(doing)));
}

/* Each process says what it knows; the same text of a job once. */
static bool is_said(const struct stat_rows *said, int before)
{
    const struct stat_row *row = &said->list[before];

    for (int i = 0; i < before; i++)
        if (!strcmp(job_of(&said->list[i]), job_of(row)) &&
            !strcmp(stat_field(&said->list[i], SENTENCE), stat_field(row, SENTENCE)))
            return true;
    return false;
}

static void print_ranks(const struct stat_row *rank, const struct stat_row *end,
                        const struct stat_rows *said, void *user)
{
    const char *job = job_of(rank);

    (void)user;
    print_job(rank);
    printf("%4s %8s %7s %8s %7s  %-26s %9s %9s  %s\n", "rank", "process", "step", "ago", "bubble",
           "waits for", "sent", "received", "last op");
    for (; rank < end; rank++)
        print_rank(rank);
    for (int i = 0; i < said->count; i++)
        if (!strcmp(job_of(&said->list[i]), job) && !is_said(said, i))
            printf("slow: %s\n", stat_field(&said->list[i], SENTENCE));
}

void stat_jobs_print(const struct stat_list *list)
{
    each_job(list, print_ranks, NULL);
}

/* ---- for programs ---------------------------------------------------------------------------- */

static json_t *json_rank(const struct stat_row *rank, const struct stat_rows *said)
{
    const uint64_t *n = rank->values;
    json_t *slow = json_array();
    char doing[80];
    json_t *o = json_pack("{s:I, s:I, s:I, s:s}", "rank", (json_int_t)number(rank, RANK),
                          "pipeline_rank", (json_int_t)n[TRAIN_PIPELINE_RANK], "pid",
                          (json_int_t)number(rank, PID), "doing",
                          doing_text(rank, doing, sizeof(doing)));

    for (int i = 0; i < said->count; i++)
        if (stat_is_part(&said->list[i], rank))
            json_array_append_new(slow, json_string(stat_field(&said->list[i], SENTENCE)));
    json_object_set_new(o, "slow", slow);
    stat_json_values(o, &stat_train, rank, TRAIN_STEP, TRAIN_STEP);
    stat_json_values(o, &stat_train, rank, TRAIN_OPENED_NS, TRAIN_OPENED_NS);
    stat_json_values(o, &stat_train, rank, TRAIN_BUBBLE, TRAIN_WAITED_MS);
    if (isfinite(stat_real(rank, TRAIN_WAITED_FOR)))
        json_object_set_new(o, "waited_for",
                            json_integer((json_int_t)stat_real(rank, TRAIN_WAITED_FOR)));
    stat_json_values(o, &stat_train, rank, n[TRAIN_WAITING_NS] ? TRAIN_WAITING_NS : TRAIN_SENT,
                     TRAIN_RECEIVED);
    return o;
}

static void json_job(const struct stat_row *rank, const struct stat_row *end,
                     const struct stat_rows *said, void *jobs)
{
    json_t *o = json_pack("{s:s, s:s}", "job", job_of(rank), "schedule", stat_field(rank, SCHEDULE));
    json_t *ranks = json_array();

    stat_json_values(o, &stat_train, rank, TRAIN_PROCESSES, TRAIN_RATE);
    if (isfinite(stat_real(rank, TRAIN_ALL_BUBBLE)))
        json_object_set_new(o, "bubble", json_real(stat_real(rank, TRAIN_ALL_BUBBLE)));
    for (; rank < end; rank++)
        json_array_append_new(ranks, json_rank(rank, said));
    json_object_set_new(o, "ranks", ranks);
    json_array_append_new(jobs, o);
}

json_t *stat_jobs_json(const struct stat_list *list)
{
    json_t *jobs = json_array();

    each_job(list, json_job, jobs);
    return jobs;
}
