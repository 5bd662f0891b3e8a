/* SPDX-License-Identifier: Apache-2.0
 *
 * schedule_compare.c - `dualpipe schedule compare`: all kinds side by side, on the same devices,
 * with the same model and the same batch.
 *
 * The model is cut into P parts; costs are those of one part. A kind that cuts it finer (DualPipeV:
 * 2P stages) has ops that cost proportionally less and activation sets that are as much smaller.
 */
#include "command.h"
#include "commands.h"
#include "draw/draw.h"
#include "schedule_args.h"

#include <jansson.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct compare_args {
    struct schedule_args common;
    const char *format;
};

enum { KINDS_MAX = 32, TIME_LEN = 24 };

/* A column of figures of one kind. */
struct candidate {
    enum dp_schedule_kind kind;
    char why_not[256]; /* "": it is legal */
    int stages, weight_queue;
    int64_t makespan_ns, worst_bubble_ns;
    double bubble_ratio;
    double activations; /* peak of a rank, in sets of one part of the model */
    double parameters;  /* of a rank, in parts */
    size_t messages;
};

/* ---- measuring a kind ----------------------------------------------------------------------- */

static void take_figures(const struct dp_schedule *s, const struct dp_simulation *sim,
                         struct candidate *c)
{
    double part = (double)s->ranks / s->stages;
    int activations = 0;

    c->stages = s->stages;
    c->makespan_ns = sim->makespan_ns;
    c->bubble_ratio = sim->bubble_ratio;
    for (int rank = 0; rank < s->ranks; rank++) {
        const struct dp_rank_report *r = &sim->ranks[rank];
        activations = r->peak_activations > activations ? r->peak_activations : activations;
        if (r->peak_weight_queue > c->weight_queue)
            c->weight_queue = r->peak_weight_queue;
        if (r->bubble_ns > c->worst_bubble_ns)
            c->worst_bubble_ns = r->bubble_ns;
    }
    c->activations = activations * part;
    c->parameters = s->max_slots * part;
    for (size_t i = 0; i < s->first[s->ranks]; i++)
        c->messages += s->ops[i].kind == DP_OP_SEND_F || s->ops[i].kind == DP_OP_SEND_B ||
                       s->ops[i].kind == DP_OP_SEND_SKIP_F || s->ops[i].kind == DP_OP_SEND_SKIP_B;
}

static struct schedule_args part_costs(const struct schedule_args *a, const struct dp_schedule *s)
{
    struct schedule_args part = *a;
    double *const times[] = {&part.times.f, &part.times.i,  &part.times.w,
                             &part.times.b, &part.times.fb, &part.times.reduce};

    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++)
        *times[i] *= (double)s->ranks / s->stages;
    return part;
}

/* 0, or an error that is not about this kind: of the costs, of memory. */
static int measure(const struct schedule_args *a, struct candidate *c)
{
    int rank_map[NUMBERS_MAX], err;
    struct dp_schedule_spec spec = schedule_spec(a, c->kind, rank_map);
    struct dp_schedule *s;
    struct dp_simulation sim;
    struct dp_cost cost;

    if (c->kind != DP_SCHEDULE_DUALPIPE && c->kind != DP_SCHEDULE_DUALPIPEV)
        spec.slack = 0; /* those that have none are compared as they are */
    if (c->kind != DP_SCHEDULE_INTERLEAVED)
        spec.virtual_stages = 0;
    if ((err = schedule_fits(a, &spec)))
        return err;
    command_mute(true);
    err = dp_schedule_new(&spec, &s);
    command_mute(false);
    if (err == DP_EINVAL) {
        snprintf(c->why_not, sizeof(c->why_not), "%s", dp_last_error());
        return 0;
    }
    if (err)
        return command_failed(err);
    const struct schedule_args part = part_costs(a, s);
    if ((err = schedule_cost(&part, s, &cost)))
        goto free_schedule;
    if ((err = dp_schedule_simulate(s, &cost, 0, &sim))) {
        err = command_failed(err);
        goto free_schedule;
    }
    take_figures(s, &sim, c);
    dp_simulation_fini(&sim);
free_schedule:
    dp_schedule_free(s);
    return err;
}

/* ---- which kinds ---------------------------------------------------------------------------- */

static int choose_kinds(const struct operands *operands, struct candidate *c, int *count)
{
    *count = 0;
    for (int i = 0; i < operands->count && *count < KINDS_MAX; i++) {
        int err = dp_schedule_kind_parse(operands->items[i], &c[*count].kind);
        if (err)
            return command_failed(err);
        ++*count;
    }
    if (operands->count)
        return 0;
    for (int kind = DP_SCHEDULE_USER + 1; kind < DP_SCHEDULE_KINDS; kind++)
        c[(*count)++].kind = (enum dp_schedule_kind)kind;
    return 0;
}

/* ---- reports -------------------------------------------------------------------------------- */

static void print_costs(const struct schedule_args *a)
{
    const struct op_times *t = &a->times;
    double b = t->b > 0 ? t->b : t->i + t->w;
    char f[TIME_LEN], i[TIME_LEN], w[TIME_LEN], full[TIME_LEN], fb[TIME_LEN];

    printf("costs of 1/P of the model: F %s, B %s, I %s, W %s, F&B %s\n\n",
           draw_time((int64_t)t->f, f, TIME_LEN), draw_time((int64_t)b, full, TIME_LEN),
           draw_time((int64_t)t->i, i, TIME_LEN), draw_time((int64_t)t->w, w, TIME_LEN),
           draw_time((int64_t)(t->fb > 0 ? t->fb : t->f + b), fb, TIME_LEN));
}

static void print_row(const struct candidate *c)
{
    char makespan[TIME_LEN], bubble[TIME_LEN];

    if (*c->why_not) {
        printf("%-11s  not possible: %s\n", dp_name(DP_NAMES_SCHEDULE, c->kind), c->why_not);
        return;
    }
    printf("%-11s %10s %8.2f %% %11s %12g %10gx %8d %8d %9zu\n", dp_name(DP_NAMES_SCHEDULE, c->kind),
           draw_time(c->makespan_ns, makespan, TIME_LEN), 100 * c->bubble_ratio,
           draw_time(c->worst_bubble_ns, bubble, TIME_LEN), c->activations, c->parameters,
           c->stages, c->weight_queue, c->messages);
}

static void print_table(const struct schedule_args *a, const struct candidate *c, int count)
{
    struct dp_schedule_spec spec = schedule_spec(a, c->kind, (int[NUMBERS_MAX]){0});

    printf("%d ranks, %d micro-batches%s; ", spec.ranks, spec.microbatches,
           spec.forward_only ? ", forward only" : "");
    print_costs(a);
    printf("%-11s %10s %10s %11s %12s %11s %8s %8s %9s\n", "kind", "makespan", "bubble",
           "worst rank", "activations", "parameters", "stages", "W queue", "messages");
    for (int i = 0; i < count; i++)
        print_row(&c[i]);
    putchar('\n');
    fold_paragraph(stdout,
                   "worst rank: the longest bubble of a rank; activations: most sets of 1/P of the\n"
                   "model alive on a rank; parameters: of a rank, 1x = 1/P of the model; W queue: most\n"
                   "weight parts waiting on a rank");
}

static void print_json(const struct schedule_args *a, const struct candidate *c, int count)
{
    struct dp_schedule_spec spec = schedule_spec(a, c->kind, (int[NUMBERS_MAX]){0});
    json_t *kinds = json_array();

    for (int i = 0; i < count; i++, c++) {
        const char *name = dp_name(DP_NAMES_SCHEDULE, c->kind);
        json_array_append_new(
            kinds,
            *c->why_not
                ? json_pack("{ss, sb, ss}", "kind", name, "possible", 0, "why_not", c->why_not)
                : json_pack("{ss, sb, sI, sf, sI, sf, sf, si, si, sI}", "kind", name, "possible", 1,
                            "makespan_ns", (json_int_t)c->makespan_ns, "bubble_ratio",
                            c->bubble_ratio, "worst_bubble_ns", (json_int_t)c->worst_bubble_ns,
                            "activations", c->activations, "parameters", c->parameters, "stages",
                            c->stages, "weight_queue", c->weight_queue, "messages",
                            (json_int_t)c->messages));
    }
    json_t *j = json_pack("{si, si, so}", "ranks", spec.ranks, "microbatches", spec.microbatches,
                          "kinds", kinds);
    json_dumpf(j, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(j);
}

/* ---- the command ---------------------------------------------------------------------------- */

static const struct arg args[] = {
    {"format", 'f', NULL, "what to print", ARG_CHOICE,
     .offset = offsetof(struct compare_args, format), .fallback = "text", .choices = args_text_or_json},
};

/* In a terminal: which kind is at work; NULL: none any more. */
static void tell_progress(const struct candidate *c, int done, int count)
{
    if (!isatty(STDERR_FILENO))
        return;
    if (c)
        fprintf(stderr, "\r\033[K%d of %d: %s", done + 1, count, dp_name(DP_NAMES_SCHEDULE, c->kind));
    else
        fputs("\r\033[K", stderr);
}

static int compare(const struct compare_args *a, const struct operands *operands)
{
    struct candidate candidates[KINDS_MAX] = {0};
    int count, status = choose_kinds(operands, candidates, &count);

    for (int i = 0; i < count && !status; i++) {
        tell_progress(&candidates[i], i, count);
        status = measure(&a->common, &candidates[i]);
    }
    tell_progress(NULL, 0, 0);
    if (status)
        return status;
    if (!strcmp(a->format, "json"))
        print_json(&a->common, candidates, count);
    else
        print_table(&a->common, candidates, count);
    return EXIT_OK;
}

int run_schedule_compare(int argc, char **argv)
{
    const struct arg_group groups[] = {
        schedule_size_group, schedule_cost_group, ARG_GROUP("output", args), {0}
    };
    const struct usage usage = {
        .command = "dualpipe schedule compare", .operands = "[KIND...]",
        .operand_choices = schedule_kinds(), .groups = groups,
        .about = "Set kinds of schedules side by side (all, if none is named) for the same\n"
                 "devices, model and batch: time, bubble, memory. Says why where a kind is not\n"
                 "possible. Costs are those of 1/P of the model; DualPipeV cuts it into 2P stages\n"
                 "of half the cost.",
        .examples = "  dualpipe schedule compare -P 8 -M 20\n"
                    "  dualpipe schedule compare -P 8 -M 20 --cost f=5,i=5,w=5,fb=13 --latency 100us\n"
                    "  dualpipe schedule compare 1f1b dualpipe -P 16 -M 64 --format json\n",
    };
    struct compare_args a = {0};
    struct operands operands;
    int status;

    if (!args_parse(&usage, argc, argv, &a, &operands, &status))
        return status;
    return compare(&a, &operands);
}
