/* SPDX-License-Identifier: Apache-2.0
 *
 * schedule_simulate.c - `dualpipe schedule simulate`: how long a step takes on paper, and where its
 * time and memory go.
 */
#include "command.h"
#include "commands.h"
#include "draw/parts.h"
#include "schedule_args.h"

#include <jansson.h>

#include <stdio.h>
#include <string.h>

struct simulate_args {
    struct schedule_args common;
    bool critical;
    const char *format;
};

enum { TIME_LEN = 24, LINE = 96 };

/* ---- as text -------------------------------------------------------------------------------- */

static void print_ranks(const struct dp_schedule *s, const struct dp_simulation *sim)
{
    char busy[TIME_LEN], bubble[TIME_LEN], waiting[TIME_LEN];

    printf("\n  rank        busy      bubble     waiting  activations  weight queue\n");
    for (int rank = 0; rank < s->ranks; rank++) {
        const struct dp_rank_report *r = &sim->ranks[rank];
        printf("%6d  %10s  %10s  %10s  %11d  %12d\n", rank, draw_time(r->busy_ns, busy, TIME_LEN),
               draw_time(r->bubble_ns, bubble, TIME_LEN),
               draw_time(r->waiting_ns, waiting, TIME_LEN), r->peak_activations,
               r->peak_weight_queue);
    }
}

/* The path, a line for each stay on a rank, broken where lines grow long. */
static void print_critical(const struct dp_simulation *sim)
{
    int column = 0, rank = -1;

    printf("\ncritical path");
    for (size_t i = 0; i < sim->critical_count; i++) {
        char label[DRAW_LABEL_LEN];
        const struct dp_span *span = &sim->critical[i];
        int len = draw_label(span, label);
        if (span->rank != rank)
            column = printf("\n  rank %d ", rank = span->rank) - 1;
        else if (column + len >= LINE)
            column = printf("\n          ") - 1;
        column += printf(" %.*s", len, label);
    }
    putchar('\n');
}

static void print_text(const struct dp_schedule *s, const struct dp_simulation *sim, bool critical)
{
    char title[96], makespan[TIME_LEN];

    draw_title(s, title, sizeof(title));
    printf("%s\n\n", title);
    printf("  makespan  %s\n", draw_time(sim->makespan_ns, makespan, TIME_LEN));
    printf("  bubble    %.2f %% of all ranks' time\n", 100 * sim->bubble_ratio);
    printf("  critical  %zu ops%s\n", sim->critical_count,
           critical ? "" : " (--critical lists them)");
    print_ranks(s, sim);
    if (critical)
        print_critical(sim);
}

/* ---- as JSON -------------------------------------------------------------------------------- */

static json_t *json_ranks(const struct dp_schedule *s, const struct dp_simulation *sim)
{
    json_t *all = json_array();

    for (int rank = 0; rank < s->ranks; rank++) {
        const struct dp_rank_report *r = &sim->ranks[rank];
        json_array_append_new(
            all, json_pack("{si, sI, sI, sI, si, si}", "rank", rank, "busy_ns",
                           (json_int_t)r->busy_ns, "bubble_ns", (json_int_t)r->bubble_ns,
                           "waiting_ns", (json_int_t)r->waiting_ns, "peak_activations",
                           r->peak_activations, "peak_weight_queue", r->peak_weight_queue));
    }
    return all;
}

static json_t *json_critical(const struct dp_simulation *sim)
{
    json_t *all = json_array();

    for (size_t i = 0; i < sim->critical_count; i++) {
        const struct dp_span *span = &sim->critical[i];
        char label[DRAW_LABEL_LEN];
        int len = draw_label(span, label);
        json_array_append_new(all, json_pack("{si, ss%, sI, sI}", "rank", span->rank, "op", label,
                                             (size_t)len, "start_ns", (json_int_t)span->start_ns,
                                             "end_ns", (json_int_t)span->end_ns));
    }
    return all;
}

static void print_json(const struct dp_schedule *s, const struct dp_simulation *sim)
{
    json_t *j = json_pack("{ss, si, si, sI, sf, so, so}", "kind", dp_name(DP_NAMES_SCHEDULE, s->kind),
                          "ranks", s->ranks, "microbatches", s->microbatches, "makespan_ns",
                          (json_int_t)sim->makespan_ns, "bubble_ratio", sim->bubble_ratio,
                          "per_rank", json_ranks(s, sim), "critical_path", json_critical(sim));

    json_dumpf(j, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(j);
}

/* ---- the command ---------------------------------------------------------------------------- */

#define AT(member) .offset = offsetof(struct simulate_args, member)

static const struct arg args[] = {
    {"critical", 0, NULL, "list the ops of the critical path", ARG_FLAG, AT(critical)},
    {"format", 'f', NULL, "what to print", ARG_CHOICE, AT(format), .fallback = "text",
     .choices = args_text_or_json},
};

static int simulate(const void *values, const struct dp_schedule *s)
{
    const struct simulate_args *a = values;
    struct dp_simulation sim;
    struct dp_cost cost;
    int status = schedule_cost(&a->common, s, &cost), err;

    if (status)
        return status;
    if ((err = dp_schedule_simulate(s, &cost, DP_SIMULATE_CRITICAL, &sim)))
        return command_failed(err);
    if (!strcmp(a->format, "json"))
        print_json(s, &sim);
    else
        print_text(s, &sim, a->critical);
    dp_simulation_fini(&sim);
    return EXIT_OK;
}

int run_schedule_simulate(int argc, char **argv)
{
    const struct arg_group groups[] = {
        schedule_size_group, schedule_file_group, schedule_cost_group, schedule_scale_group,
        ARG_GROUP("output", args), {0}
    };
    const struct usage usage = {
        .command = "dualpipe schedule simulate", .groups = groups,
        .about = "Carry a schedule out on paper: sends are eager, receives are posted early, and\n"
                 "an op waits only for what it needs. Bubble is the time in which a rank computes\n"
                 "nothing, waiting the part of it between its first and last op; activations are\n"
                 "the micro-batches alive at once.",
        .examples = "  dualpipe schedule simulate dualpipe -P 8 -M 20\n"
                    "  dualpipe schedule simulate 1f1b -P 8 -M 20 --cost f=5ms,b=15ms \\\n"
                    "      --latency 30us --bandwidth 25GB/s --message-bytes 16MiB --critical\n"
                    "  dualpipe schedule simulate gpipe -P 4 -M 8 --rank-scale 1,1,1.5,1\n",
    };
    struct simulate_args a = {0};

    return schedule_run(&usage, argc, argv, &a, simulate);
}
