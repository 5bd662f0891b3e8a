/* SPDX-License-Identifier: Apache-2.0
 *
 * check.c - `dualpipe mix check`: what was proven, or the first thing found wrong.
 */
#include "command.h"
#include "commands.h"
#include "mix/mix.h"

#include <jansson.h>

#include <stdio.h>
#include <string.h>

struct check_args {
    struct mix_args common;
    const char *format;
};

/* What a round costs a worker. */
struct traffic {
    double sent;      /* blocks that the average worker sends in a round */
    int32_t partners; /* most others of a round */
};

/* A sum over k is counted as a ring's: 2 (k - 1) / k blocks of each worker. */
static struct traffic traffic_of(const struct dp_graph *g)
{
    struct traffic out = {0};
    double sent = 0;

    for (size_t i = 0; i < g->group_count; i++) {
        const int32_t count = g->groups[i].count;
        sent += count == 2 ? 2 : 2.0 * (count - 1);
        out.partners = count - 1 > out.partners ? count - 1 : out.partners;
    }
    for (int32_t t = 0; t < g->period; t++)
        for (int32_t w = 0; w < g->workers; w++) {
            size_t count, others = 0;
            const struct dp_mix_link *links = dp_graph_links(g, t, w, &count);
            for (size_t k = 0; k < count; k++)
                others += links[k].from != w;
            sent += (double)others;
            out.partners = (int32_t)others > out.partners ? (int32_t)others : out.partners;
        }
    out.sent = sent / g->workers / g->period;
    return out;
}

static void print_json(json_t *j)
{
    json_dumpf(j, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    putchar('\n');
    json_decref(j);
}

static int print_proof(const struct dp_graph *g, bool json)
{
    const struct traffic traffic = traffic_of(g);
    double sigma;
    int err = dp_graph_contraction(g, 0, g->period, &sigma);

    if (err)
        return command_failed(err);
    if (json) {
        print_json(json_pack("{sb, ss, si, si, si, sf, sf, si}", "valid", 1, "graph", g->name,
                             "workers", g->workers, "local", g->local, "period", g->period, "sigma",
                             sigma, "sent", traffic.sent, "partners", traffic.partners));
        return EXIT_OK;
    }
    printf("%s, %d workers, %d round%s: can be used\n\n", g->name, g->workers, g->period,
           g->period == 1 ? "" : "s");
    printf("  once       every worker is there once in every round\n");
    printf("  weight     all weights are from 0 to 1\n");
    if (g->push_sum)
        printf("  column     what a worker gives sums to one; push-sum divides by what it takes\n");
    else
        printf("  row        what a worker takes sums to one, and what it gives: the mean stays\n");
    printf("  connected  over the period every worker's value reaches every other\n\n");
    printf("  sigma      %.9g after a period: what is left of the distance to the mean, at most\n",
           sigma);
    printf("  traffic    %.3g times the parameters sent by a worker in a round; at most %d partner%s\n",
           traffic.sent, traffic.partners, traffic.partners == 1 ? "" : "s");
    return EXIT_OK;
}

static int print_finding(const struct dp_graph *g, const struct dp_graph_finding *f, bool json)
{
    if (json) {
        print_json(json_pack("{sb, ss, ss, si, si, ss}", "valid", 0, "graph", g->name, "rule",
                             dp_name(DP_NAMES_GRAPH_RULE, f->rule), "round", f->round, "worker",
                             f->worker, "text", f->text));
        return EXIT_FAILED;
    }
    printf("%s, %d workers, %d round%s: CANNOT be used\n\n", g->name, g->workers, g->period,
           g->period == 1 ? "" : "s");
    printf("  rule    %s\n", dp_name(DP_NAMES_GRAPH_RULE, f->rule));
    if (f->round >= 0)
        printf("  round   %d\n", f->round);
    if (f->worker >= 0)
        printf("  worker  %d\n", f->worker);
    return EXIT_FAILED;
}

static const char *const formats[] = {"text", "json", NULL};
static const struct arg args[] = {
    {"format", 'f', NULL, "what to print", ARG_CHOICE, .offset = offsetof(struct check_args, format),
     .fallback = "text", .choices = formats},
};

static int check(const void *values, const struct dp_graph *g)
{
    const struct check_args *a = values;
    const bool json = !strcmp(a->format, "json");
    struct dp_graph_finding finding;
    int err = dp_graph_check(g, &finding);

    if (!err)
        return print_proof(g, json);
    command_failed(err);
    return err == DP_EINVAL ? print_finding(g, &finding, json) : EXIT_FAILED;
}

int run_mix_check(int argc, char **argv)
{
    const struct arg_group groups[] = {
        mix_graph_group, mix_file_group, {"check", args, sizeof(args) / sizeof(args[0])}, {0},
    };
    const struct usage usage = {
        .command = "dualpipe mix check",
        .operands = "[KIND]",
        .operand_choices = mix_kinds(),
        .max_operands = 1,
        .about = "Prove that a mixing graph has every worker once in a round, preserves the mean of\n"
                 "all workers and connects them over its period, or name the rule that it breaks,\n"
                 "the round and the worker. Exit status 1: it breaks one.",
        .groups = groups,
        .examples = "  dualpipe mix check ring -N 64\n"
                    "  dualpipe mix show ring -N 64 -o graph.txt\n"
                    "  dualpipe mix check --file graph.txt\n"
                    "  dualpipe mix check torus -N 16 --format json\n",
    };
    struct check_args a = {0};

    return mix_run(&usage, argc, argv, &a, false, check);
}
