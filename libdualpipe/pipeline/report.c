/* SPDX-License-Identifier: Apache-2.0 */
#include <dualpipe/trace.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/text.h"

#include <stdlib.h>

/* ---- what was ------------------------------------------------------------------------------- */

struct live {
    int32_t activations, queue;
};

static void count_op(const struct dp_schedule *s, struct dp_op op, struct live *live,
                     struct dp_rank_report *rank)
{
    live->activations += op.kind == DP_OP_F;
    live->queue += op.kind == DP_OP_I;
    if (live->activations > rank->peak_activations)
        rank->peak_activations = live->activations;
    if (live->queue > rank->peak_weight_queue)
        rank->peak_weight_queue = live->queue;
    live->activations -= op.kind == DP_OP_B || op.kind == DP_OP_W ||
                         (op.kind == DP_OP_F && s->forward_only);
    live->queue -= op.kind == DP_OP_W;
}

/* The spans of one rank begin at *span; *span moves behind them. */
static void sum_rank(const struct dp_timeline *t, const struct dp_schedule *s, int rank,
                     size_t *span, struct dp_trace_report *out, int64_t *waited_ns)
{
    struct dp_rank_report *report = &out->ranks[rank];
    struct live live = {0};

    for (int peer = 0; peer < t->ranks; peer++)
        waited_ns[peer] = 0;
    for (; *span < t->count && t->spans[*span].rank == rank; ++*span) {
        const struct dp_span *now = &t->spans[*span];
        report->busy_ns += now->end_ns - now->start_ns;
        report->waiting_ns += now->waited_ns;
        if (now->waited_for >= 0)
            waited_ns[now->waited_for] += now->waited_ns;
        count_op(s, now->op, &live, report);
        if (now->pair.kind != DP_OP_NONE)
            count_op(s, now->pair, &live, report);
    }
    report->bubble_ns = t->makespan_ns - report->busy_ns;
    out->waited_for[rank] = -1;
    for (int peer = 0; peer < t->ranks; peer++)
        if (waited_ns[peer] > out->waited_for_ns[rank]) {
            out->waited_for[rank] = peer;
            out->waited_for_ns[rank] = waited_ns[peer];
        }
}

static int sum_ranks(const struct dp_timeline *t, const struct dp_schedule *s,
                     struct dp_trace_report *out)
{
    int64_t *waited_ns = calloc((size_t)t->ranks, sizeof(*waited_ns));
    double bubbles = 0;
    size_t span = 0;

    if (!waited_ns)
        return dp_fail(DP_ENOMEM, "no memory for a report of %d ranks", t->ranks);
    for (int rank = 0; rank < t->ranks; rank++) {
        sum_rank(t, s, rank, &span, out, waited_ns);
        bubbles += (double)out->ranks[rank].bubble_ns;
    }
    if (t->makespan_ns)
        out->bubble_ratio = bubbles / ((double)t->ranks * (double)t->makespan_ns);
    free(waited_ns);
    return 0;
}

/* ---- what could have been -------------------------------------------------------------------- */

/* An overlapped pair that was done as two calls counts at its F, where the simulator looks. */
static size_t place_of(const struct dp_schedule *s, const struct dp_span *span)
{
    size_t at = s->first[span->rank] + span->index;
    bool second = span->index && span->op.kind == DP_OP_B && s->ops[at - 1].overlap;
    return second ? at - 1 : at;
}

static int simulate(const struct dp_timeline *t, const struct dp_schedule *s, int64_t *makespan_ns)
{
    int64_t *op_ns = calloc(s->first[s->ranks] + 1, sizeof(*op_ns));
    struct dp_cost cost = {.op_ns = op_ns};
    struct dp_simulation sim;

    if (!op_ns)
        return dp_fail(DP_ENOMEM, "no memory for the durations of %zu ops", s->first[s->ranks]);
    for (size_t i = 0; i < t->count; i++)
        op_ns[place_of(s, &t->spans[i])] += t->spans[i].end_ns - t->spans[i].start_ns;
    int err = dp_schedule_simulate(s, &cost, 0, &sim);
    if (!err) {
        *makespan_ns = sim.makespan_ns;
        dp_simulation_fini(&sim);
    }
    free(op_ns);
    return err;
}

int dp_trace_report(const struct dp_timeline *t, const struct dp_schedule *s,
                    struct dp_trace_report *out)
{
    size_t ranks = (size_t)t->ranks;
    struct dp_trace_report report = {.rank_count = t->ranks, .makespan_ns = t->makespan_ns};
    int err;

    if (t->ranks != s->ranks)
        return dp_fail(DP_EINVAL, "a timeline of %d ranks, expected the schedule's %d", t->ranks,
                       s->ranks);
    report.ranks = calloc(ranks, sizeof(*report.ranks));
    report.waited_for = calloc(ranks, sizeof(*report.waited_for));
    report.waited_for_ns = calloc(ranks, sizeof(*report.waited_for_ns));
    if (!report.ranks || !report.waited_for || !report.waited_for_ns)
        err = dp_fail(DP_ENOMEM, "no memory for a report of %d ranks", t->ranks);
    else
        err = sum_ranks(t, s, &report);
    if (!err)
        err = simulate(t, s, &report.simulated_ns);
    if (err)
        dp_trace_report_fini(&report);
    else
        *out = report;
    return err;
}

void dp_trace_report_fini(struct dp_trace_report *report)
{
    free(report->ranks);
    free(report->waited_for);
    free(report->waited_for_ns);
    *report = (struct dp_trace_report){0};
}

/* ---- for people ----------------------------------------------------------------------------- */

static double ms(int64_t ns)
{
    return (double)ns / DP_NS_PER_MS;
}

static double percent(int64_t part_ns, int64_t whole_ns)
{
    return whole_ns ? 100.0 * (double)part_ns / (double)whole_ns : 0;
}

static void write_rank(struct dp_text *text, const struct dp_trace_report *report, int rank)
{
    const struct dp_rank_report *r = &report->ranks[rank];

    dp_text_addf(text, "%4d  %10.3f  %10.3f %5.1f %%  %10.3f", rank, ms(r->busy_ns),
                 ms(r->bubble_ns), percent(r->bubble_ns, report->makespan_ns), ms(r->waiting_ns));
    if (report->waited_for[rank] < 0)
        dp_text_addf(text, "  %-20s", "none");
    else
        dp_text_addf(text, "  rank %-4d %10.3f", report->waited_for[rank],
                     ms(report->waited_for_ns[rank]));
    dp_text_addf(text, "  %11d  %12d\n", r->peak_activations, r->peak_weight_queue);
}

int dp_trace_report_text(const struct dp_trace_report *report, char **text, size_t *len)
{
    struct dp_text t = {0};

    dp_text_addf(&t, "rank     busy ms   bubble ms            waiting   most for       ms     "
                     "activations  weight queue\n");
    for (int rank = 0; rank < report->rank_count; rank++)
        write_rank(&t, report, rank);
    dp_text_addf(&t, "step %.3f ms, bubble %.1f %%; with the same op times and no delay %.3f ms",
                 ms(report->makespan_ns), 100 * report->bubble_ratio, ms(report->simulated_ns));
    if (report->simulated_ns)
        dp_text_addf(&t, ", so %.3f times that",
                     (double)report->makespan_ns / (double)report->simulated_ns);
    dp_text_adds(&t, "\n");
    return dp_text_take(&t, text, len);
}
