/* SPDX-License-Identifier: Apache-2.0
 *
 * compare.c - `dualpipe mix compare`: all kinds side by side, for the same workers and the same model.
 */
#include "command.h"
#include "commands.h"
#include "draw/draw.h"
#include "mix/scenario.h"
#include "terminal.h"

#include <jansson.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

struct compare_args {
    struct mix_args common;
    struct scenario_args scenario;
    const char *format;
};

enum { KINDS_MAX = 64, TIME_LEN = 24 };

/* Figures of one kind. */
struct candidate {
    const char *name;
    char why_not[256]; /* "": it is possible */
    int32_t period;
    struct mix_traffic traffic;
    double sigma, rate; /* of a period, and of a round on average */
    double step_ns, ratio, consensus, loss;
};

static int simulate(const struct dp_graph *g, const struct dp_mixing_scenario *s, struct candidate *c)
{
    struct dp_mixing_run run;

    command_mute(true);
    int err = dp_mixing_simulate(g, s, &run);
    command_mute(false);
    if (err == DP_EINVAL) {
        snprintf(c->why_not, sizeof(c->why_not), "%s", dp_last_error());
        return 0;
    }
    if (err)
        return command_failed(err);
    const struct dp_mixing_sample *last = &run.samples[run.sample_count - 1];
    c->step_ns = run.step_ns;
    c->ratio = run.step_ns / run.ideal_ns;
    c->consensus = last->consensus;
    c->loss = last->loss;
    dp_mixing_run_fini(&run);
    return 0;
}

static int take_figures(const struct compare_args *a, const struct dp_graph *g, struct candidate *c)
{
    struct dp_mixing_scenario s = scenario_of(&a->common, &a->scenario);
    int err = dp_graph_contraction(g, 0, g->period, &c->sigma);

    if (err)
        return command_failed(err);
    c->period = g->period;
    c->traffic = mix_traffic(g);
    c->rate = pow(c->sigma, 1.0 / g->period);
    return simulate(g, &s, c);
}

static int measure(const struct compare_args *a, struct candidate *c)
{
    struct dp_graph_spec spec = {
        .name = c->name,
        .workers = a->common.workers ? (int)a->common.workers : 8,
        .local = (int)a->common.local,
        .rounds = (int)a->common.rounds,
        .seed = (uint64_t)a->common.seed,
    };
    struct dp_graph *g;

    command_mute(true);
    int err = dp_graph_new(&spec, &g);
    command_mute(false);
    if (err == DP_EINVAL) {
        snprintf(c->why_not, sizeof(c->why_not), "%s", dp_last_error());
        return 0;
    }
    if (err)
        return command_failed(err);
    err = take_figures(a, g, c);
    dp_graph_free(g);
    return err;
}

/* ---- reports ----------------------------------------------------------------------------------- */

static void print_row(const struct candidate *c)
{
    char step[TIME_LEN];

    if (*c->why_not) {
        printf("%-21s  not possible: %s\n", c->name, c->why_not);
        return;
    }
    printf("%-21s %6d %8d %8.3f %9.4f %9.4f %10s %7.3f %10.3g %10.5g\n", c->name, c->period,
           c->traffic.partners, c->traffic.sent, c->sigma, c->rate,
           draw_time((int64_t)c->step_ns, step, TIME_LEN), c->ratio, c->consensus, c->loss);
}

static void print_table(const struct candidate *c, int count, int workers)
{
    printf("%d workers\n\n%-21s %6s %8s %8s %9s %9s %10s %7s %10s %10s\n", workers, "kind", "rounds",
           "partners", "sent", "sigma", "a round", "per step", "ratio", "consensus", "loss");
    for (int i = 0; i < count; i++)
        print_row(&c[i]);
    putchar('\n');
    fold_paragraph(stdout,
                   "partners: most others of a worker in a round; sent: times the parameters, of the\n"
                   "average worker in a round; sigma: what is left of the distance to the mean after\n"
                   "a period, at most, and for a round on average; per step, ratio to the computing\n"
                   "time, consensus and loss: of a simulated run (dualpipe mix simulate)");
}

static void print_json(const struct candidate *c, int count, int workers)
{
    json_t *kinds = json_array();

    for (int i = 0; i < count; i++, c++)
        json_array_append_new(
            kinds,
            *c->why_not
                ? json_pack("{ss, sb, ss}", "kind", c->name, "possible", 0, "why_not", c->why_not)
                : json_pack("{ss, sb, si, si, sf, sf, sf, sf, sf, sf}", "kind", c->name, "possible",
                            1, "rounds", c->period, "partners", c->traffic.partners, "sent",
                            c->traffic.sent, "sigma", c->sigma, "step_ns", c->step_ns, "ratio",
                            c->ratio, "consensus", c->consensus, "loss", c->loss));
    json_t *j = json_pack("{si, so}", "workers", workers, "kinds", kinds);
    json_dumpf(j, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    putchar('\n');
    json_decref(j);
}

/* ---- the command ------------------------------------------------------------------------------- */

static bool is_kind(const char *name)
{
    for (int i = 0; dp_graph_name(i); i++)
        if (!strcmp(name, dp_graph_name(i)))
            return true;
    return false;
}

/* The library says what there is for a name that it does not know. */
static int check_kinds(const struct compare_args *a, const struct operands *operands)
{
    struct dp_graph *unused;

    for (int i = 0; i < operands->count; i++)
        if (!is_kind(operands->items[i]))
            return mix_build(&a->common, operands->items[i], &unused);
    return 0;
}

static int choose_kinds(const struct operands *operands, struct candidate *c)
{
    int count = 0;

    for (int i = 0; i < operands->count && count < KINDS_MAX; i++)
        c[count++].name = operands->items[i];
    for (int i = 0; !operands->count && dp_graph_name(i) && count < KINDS_MAX; i++)
        c[count++].name = dp_graph_name(i);
    return count;
}

/* What is wrong with all is an error. */
static int check_possible(const struct candidate *c, int count)
{
    for (int i = 0; i < count; i++)
        if (!*c[i].why_not)
            return 0;
    return command_misused("%s", c->why_not);
}

static const char *const formats[] = {"text", "json", NULL};
static const struct arg args[] = {
    {"format", 'f', NULL, "what to print", ARG_CHOICE,
     .offset = offsetof(struct compare_args, format), .fallback = "text", .choices = formats},
};

int run_mix_compare(int argc, char **argv)
{
    struct arg scenario[SCENARIO_ARGS];
    const struct arg_group groups[] = {
        mix_graph_group, {"the run", scenario, SCENARIO_ARGS},
        {"output", args, sizeof(args) / sizeof(args[0])}, {0},
    };
    const struct usage usage = {
        .command = "dualpipe mix compare",
        .operands = "[KIND...]",
        .operand_choices = mix_kinds(),
        .about = "Set kinds of mixing graphs side by side (all, if none is named) for the same\n"
                 "workers and the same run: rounds, traffic, contraction, time per step, loss. Says\n"
                 "why where a kind is not possible.",
        .groups = groups,
        .examples = "  dualpipe mix compare -N 64 --local 8\n"
                    "  dualpipe mix compare ring torus hypercube -N 60 --sigma 0.3\n"
                    "  dualpipe mix compare -N 32 --bytes 1GB --bandwidth 10GB/s --format json\n",
    };
    struct compare_args a = {0};
    struct candidate candidates[KINDS_MAX] = {0};
    struct operands operands;
    int status;

    scenario_options(offsetof(struct compare_args, scenario), scenario);
    if (!args_parse(&usage, argc, argv, &a, &operands, &status))
        return status;
    if ((status = check_kinds(&a, &operands)))
        return status;
    const int count = choose_kinds(&operands, candidates);
    const int workers = a.common.workers ? (int)a.common.workers : 8;
    for (int i = 0; i < count; i++)
        if ((status = measure(&a, &candidates[i])))
            return status;
    if ((status = check_possible(candidates, count)))
        return status;
    if (!strcmp(a.format, "json"))
        print_json(candidates, count, workers);
    else
        print_table(candidates, count, workers);
    return EXIT_OK;
}
