/* SPDX-License-Identifier: Apache-2.0
 *
 * mix.c - `dualpipe mix COMMAND ...`: the table of its commands, what they share, and each of them:
 * show; check, which proves, or says what is wrong; simulate, a training run on paper beside the same
 * with all-reduce.
 */
#include "args.h"
#include "command.h"
#include "commands.h"
#include "draw/draw.h"
#include "files.h"

#include <dualpipe/mixing.h>

#include <jansson.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A command's values begin with it; zero them before args_parse. */
struct mix_args {
    int64_t workers, local, rounds, seed;
    const char *file;
};

extern const struct arg_group mix_graph_group; /* workers, local, ... */
extern const struct arg_group mix_file_group;  /* --file */

static const struct command commands[] = {
    {"show", "write it out, round by round", run_mix_show},
    {"check", "prove that it preserves the mean and reaches all workers, or say where it does not",
     run_mix_check},
    {"simulate", "train on paper: time per step, consensus, loss", run_mix_simulate},
    {0},
};

static const struct command_set set = {
    .name = "dualpipe mix",
    .about = "Mixing graphs for decentralized training: which workers average their parameters\n"
             "with which others, round by round. KIND is a built-in graph; --file FILE is one of\n"
             "your own, as the text that show writes.",
    .commands = commands,
    .examples = "  dualpipe mix show one-peer-exp -N 8 -o graph.txt\n"
                "  dualpipe mix check --file graph.txt\n"
                "  dualpipe mix simulate one-peer-exp -N 4096\n",
};

int run_mix(int argc, char **argv)
{
    return command_dispatch(&set, argc, argv);
}

/* ---- options ---------------------------------------------------------------------------------- */

#define AT(member) .offset = offsetof(struct mix_args, member)

static const struct arg graph_args[] = {
    {"workers", 'N', "N", "how many there are (default 8)", ARG_INT, AT(workers), .min = 1,
     .max = DP_GRAPH_MAX_WORKERS},
    {"local", 'L', "N", "workers of a node (default LOCAL_WORLD_SIZE, or 1)", ARG_INT, AT(local),
     .min = 1, .max = DP_GRAPH_MAX_WORKERS},
    {"rounds", 0, "N", "rounds of random-matching (default 2 log2 of the workers)", ARG_INT, AT(rounds),
     .min = 1, .max = 65536},
    {"seed", 0, "N", "of random-matching, and of a simulation", ARG_INT, AT(seed), .max = 9e15},
};
static const struct arg file_args[] = {
    {"file", 0, "FILE", "your own graph instead of KIND (- for stdin)", ARG_STRING, AT(file)},
};

const struct arg_group mix_graph_group = ARG_GROUP("which graph", graph_args);
const struct arg_group mix_file_group = ARG_GROUP("or", file_args);

/* "complete|ring|...": every built-in graph, for --help. */
static const char *mix_kinds(void)
{
    static char list[512];
    size_t len = 0;

    if (*list)
        return list;
    for (int i = 0; dp_graph_name(i) && len < sizeof(list); i++)
        len += (size_t)snprintf(list + len, sizeof(list) - len, "%s%s", i ? "|" : "",
                                dp_graph_name(i));
    return list;
}

/* ---- the graph --------------------------------------------------------------------------------- */

enum { WORKERS = 8 };

/* An EXIT_ value; what is wrong has been said. */
static int build_graph(const struct mix_args *a, const char *name, struct dp_graph **out)
{
    int err = dp_graph_new(
        &(struct dp_graph_spec){
            .name = name,
            .workers = a->workers ? (int)a->workers : WORKERS,
            .local = (int)a->local,
            .rounds = (int)a->rounds,
            .seed = (uint64_t)a->seed,
        },
        out);

    return err ? command_failed(err) : 0;
}

static int read_graph(const struct mix_args *a, bool check, struct dp_graph **out)
{
    size_t len;
    char *text = input_read(a->file, INPUT_MOST, &len);

    if (!text)
        return command_misused("--file %s: %s", a->file, input_error(errno));
    command_mute(true);
    int err = dp_graph_read(text, len, out);
    free(text);
    if (err || !check)
        return command_read(a->file, err);
    err = dp_graph_check(*out, NULL);
    if (err)
        dp_graph_free(*out);
    return command_read(a->file, err);
}

static int load(const struct mix_args *a, const struct operands *operands, bool check,
                struct dp_graph **out)
{
    if (!a->file && !operands->count)
        return command_misused("which graph? expected one of %s, or --file FILE", mix_kinds());
    if (!a->file)
        return build_graph(a, operands->items[0], out);
    if (operands->count)
        return command_misused("'%s' and --file %s: expected one of the two", operands->items[0],
                               a->file);
    return read_graph(a, check, out);
}

/* A command about one graph: parse into *values, which begins with a struct mix_args, take the graph of
 * --file or of the kind that is the operand, and let act do something with it. A graph of a file has not
 * been checked; with `check` one that breaks a rule is refused. */
static int mix_run(const struct usage *usage, int argc, char **argv, void *values, bool check,
            int (*act)(const void *values, const struct dp_graph *g))
{
    struct usage own = *usage;
    struct operands operands;
    struct dp_graph *g;
    int status;

    own.operands = "[KIND]";
    own.operand_choices = mix_kinds();
    own.max_operands = 1;
    if (!args_parse(&own, argc, argv, values, &operands, &status))
        return status;
    if ((status = load(values, &operands, check, &g)))
        return status;
    status = act(values, g);
    dp_graph_free(g);
    return status;
}

/* ---- show: a graph as the text that --file reads back ------------------------------------------- */

struct show_args {
    struct mix_args common;
    const char *output;
};

static const struct arg show_rows[] = {
    {"output", 'o', "FILE", "where to (default standard output)", ARG_STRING,
     .offset = offsetof(struct show_args, output), .written = true},
};

static int show(const void *values, const struct dp_graph *g)
{
    const struct show_args *a = values;
    struct output out;
    char *text;
    int err = dp_graph_write(g, &text, NULL);

    if (err)
        return command_failed(err);
    int status = output_open(a->output, &out);
    if (!status) {
        fputs(text, out.file);
        status = output_close(&out, 0);
    }
    free(text);
    return status;
}

int run_mix_show(int argc, char **argv)
{
    const struct arg_group groups[] = {
        mix_graph_group, mix_file_group, ARG_GROUP("output", show_rows), {0}
    };
    const struct usage usage = {
        .command = "dualpipe mix show", .groups = groups,
        .about = "Write a mixing graph round by round, as the text that --file reads back.\n"
                 "{0 1} is a group whose members become its mean, {0 1}*0.7 one whose members keep\n"
                 "0.7 of their own; 0>1*0.5 says that worker 1 takes half of worker 0's value.",
        .examples = "  dualpipe mix show ring -N 4\n"
                    "  dualpipe mix show one-peer-exp -N 8 -o graph.txt\n",
    };
    struct show_args a = {0};

    return mix_run(&usage, argc, argv, &a, false, show);
}

/* ---- check: what was proven, or the first thing found wrong ---------------------------------- */

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

static const struct arg check_rows[] = {
    {"format", 'f', NULL, "what to print", ARG_CHOICE, .offset = offsetof(struct check_args, format),
     .fallback = "text", .choices = args_text_or_json},
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
        mix_graph_group, mix_file_group, ARG_GROUP("check", check_rows), {0}
    };
    const struct usage usage = {
        .command = "dualpipe mix check", .groups = groups,
        .about = "Prove that a mixing graph has every worker once in a round, preserves the mean of\n"
                 "all workers and connects them over its period, or name the rule that it breaks,\n"
                 "the round and the worker. Exit status 1: it breaks one.",
        .examples = "  dualpipe mix check ring -N 64\n"
                    "  dualpipe mix show ring -N 64 -o graph.txt\n"
                    "  dualpipe mix check --file graph.txt\n"
                    "  dualpipe mix check torus -N 16 --format json\n",
    };
    struct check_args a = {0};

    return mix_run(&usage, argc, argv, &a, false, check);
}

/* ---- simulate: a training run on paper, beside the same with all-reduce ---------------------- */

struct simulate_args {
    struct mix_args common;
    int64_t steps, deaths, staleness;
    double compute_ns, sigma, latency_ns, bandwidth, bytes, rate, factor;
    bool in_turn;
    const char *format, *output;
};

enum { TIME_LEN = 24, LINES = 10 };

static double now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* ---- reports ----------------------------------------------------------------------------------- */

static void print_run(FILE *to, const char *name, const struct dp_mixing_run *run)
{
    const struct dp_mixing_sample *last = &run->samples[run->sample_count - 1];
    char step[TIME_LEN];

    fprintf(to, "  %-22s %10s  %6.3f  %6.1f %%  %10.3g  %10.6g\n", name,
            draw_time((int64_t)run->step_ns, step, TIME_LEN), run->step_ns / run->ideal_ns,
            100 * run->waited, last->consensus, last->loss);
}

static void print_samples(FILE *to, const struct dp_mixing_run *run, const struct dp_mixing_run *all)
{
    const int32_t count = run->sample_count;
    char when[TIME_LEN];

    fprintf(to, "\n  %8s  %10s  %7s  %10s  %10s  %14s\n", "step", "time", "alive", "consensus", "loss",
            "all-reduce");
    for (int k = 0; k <= LINES; k++) {
        const int32_t i = (int32_t)((int64_t)k * (count - 1) / LINES);
        const struct dp_mixing_sample *p = &run->samples[i];
        if (k && i == (int32_t)((int64_t)(k - 1) * (count - 1) / LINES))
            continue;
        fprintf(to, "  %8lld  %10s  %7d  %10.3g  %10.6g  %14.6g\n", (long long)p->step,
                draw_time((int64_t)p->time_ns, when, TIME_LEN), p->alive, p->consensus, p->loss,
                all->samples[i].loss);
    }
}

static void print_text(FILE *to, const struct dp_graph *g, const struct dp_mixing_run runs[2],
                       double cost_ns)
{
    fprintf(to, "%s, %d workers, %lld steps\n\n", g->name, g->workers,
            (long long)runs[0].samples[runs[0].sample_count - 1].step);
    fprintf(to, "  %-22s %10s  %6s  %8s  %10s  %10s\n", "", "per step", "ratio", "waiting",
            "consensus", "loss");
    print_run(to, g->name, &runs[0]);
    print_run(to, "all-reduce", &runs[1]);
    print_samples(to, &runs[0], &runs[1]);
    fprintf(to, "\nratio: to the average computing time; consensus: root mean square distance to the\n"
                "mean of all workers; loss: of that mean. A mix changes the mean by %.1g of it at\n"
                "most. %.0f ns of a processor for a worker's step.\n", runs[0].mean_error, cost_ns);
}

static json_t *json_of(const struct dp_mixing_run *run)
{
    json_t *samples = json_array();

    for (int32_t i = 0; i < run->sample_count; i++) {
        const struct dp_mixing_sample *p = &run->samples[i];
        json_array_append_new(samples, json_pack("{sI, sf, si, sf, sf}", "step", (json_int_t)p->step,
                                                 "time_ns", p->time_ns, "alive", p->alive,
                                                 "consensus", p->consensus, "loss", p->loss));
    }
    return json_pack("{sf, sf, sf, sf, sf, so}", "step_ns", run->step_ns, "ratio",
                     run->step_ns / run->ideal_ns, "waited", run->waited, "passed", run->passed,
                     "mean_error", run->mean_error, "samples", samples);
}

static void write_json(FILE *to, const struct dp_graph *g, const struct dp_mixing_run runs[2],
                       double cost_ns)
{
    json_t *j = json_pack("{ss, si, sf, so, so}", "graph", g->name, "workers", g->workers,
                          "ns_per_worker_step", cost_ns, "mixing", json_of(&runs[0]), "all_reduce",
                          json_of(&runs[1]));

    json_dumpf(j, to, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    putc('\n', to);
    json_decref(j);
}

/* ---- the command ------------------------------------------------------------------------------- */

static int report(const struct simulate_args *a, const struct dp_graph *g,
                  const struct dp_mixing_run runs[2], double cost_ns)
{
    struct output out;
    int status = output_open(a->output, &out);

    if (status)
        return status;
    if (!strcmp(a->format, "json"))
        write_json(out.file, g, runs, cost_ns);
    else
        print_text(out.file, g, runs, cost_ns);
    return output_close(&out, 0);
}

static struct dp_mixing_scenario scenario_of(const struct simulate_args *a)
{
    return (struct dp_mixing_scenario){
        .steps = a->steps,
        .compute_ns = a->compute_ns,
        .sigma = a->sigma,
        .latency_ns = a->latency_ns,
        .bytes_per_ns = a->bandwidth,
        .message_bytes = a->bytes,
        .deaths = (int32_t)a->deaths,
        .in_turn = a->in_turn,
        .staleness = (int32_t)a->staleness,
        .rate = a->rate,
        .factor = a->factor,
        .seed = (uint64_t)a->common.seed,
    };
}

static int simulate(const void *values, const struct dp_graph *g)
{
    const struct simulate_args *a = values;
    struct dp_mixing_scenario s = scenario_of(a);
    struct dp_mixing_run runs[2];
    double begin = now_ns();
    int err = dp_mixing_simulate(g, &s, &runs[0]);

    if (err)
        return command_failed(err);
    double cost_ns = (now_ns() - begin) / (double)runs[0].worker_steps;
    s.all_reduce = true;
    err = dp_mixing_simulate(g, &s, &runs[1]);
    if (err) {
        dp_mixing_run_fini(&runs[0]);
        return command_failed(err);
    }
    int status = report(a, g, runs, cost_ns);
    dp_mixing_run_fini(&runs[0]);
    dp_mixing_run_fini(&runs[1]);
    return status;
}

#define IN(member) .offset = offsetof(struct simulate_args, member)

static const struct arg run_args[] = {
    {"steps", 0, "N", "of the run", ARG_INT, IN(steps), .fallback = "200", .min = 1, .max = 1e9},
    {"compute", 0, "TIME", "of a step, on average", ARG_TIME, IN(compute_ns), .fallback = "100ms"},
    {"sigma", 0, "S", "stragglers: deviation of the logarithm of a step's time", ARG_REAL, IN(sigma),
     .fallback = "0.2", .max = 10},
    {"bytes", 0, "SIZE", "of the parameters", ARG_BYTES, IN(bytes), .fallback = "0"},
    {"latency", 0, "TIME", "of a message", ARG_TIME, IN(latency_ns), .fallback = "0"},
    {"bandwidth", 0, "RATE", "of a link, as in 25GB/s; 0 is without limit", ARG_RATE, IN(bandwidth),
     .fallback = "0"},
    {"deaths", 0, "N", "workers that die, spread over the run", ARG_INT, IN(deaths),
     .max = DP_GRAPH_MAX_WORKERS},
    {"in-turn", 0, NULL, "wait for an exchange at once, not in the next step", ARG_FLAG, IN(in_turn)},
    {"staleness", 0, "N", "rounds in a row that may be left out while an exchange is late", ARG_INT,
     IN(staleness), .max = 1024},
    {"rate", 0, "R", "learning rate", ARG_REAL, IN(rate), .fallback = "0.05", .max = 100},
    {"factor", 0, "A", "of mixing, up to 1", ARG_REAL, IN(factor), .fallback = "1", .max = 1},
};

static const struct arg output_args[] = {
    {"format", 'f', NULL, "what to write", ARG_CHOICE, IN(format), .fallback = "text",
     .choices = args_text_or_json},
    {"output", 'o', "FILE", "where to (default standard output)", ARG_STRING, IN(output),
     .written = true},
};

int run_mix_simulate(int argc, char **argv)
{
    const struct arg_group groups[] = {
        mix_graph_group, mix_file_group, ARG_GROUP("the run", run_args),
        ARG_GROUP("output", output_args), {0}
    };
    const struct usage usage = {
        .command = "dualpipe mix simulate", .groups = groups,
        .about = "Train on paper: how long a step takes when some workers are slow or die, how far the\n"
                 "workers are from each other, and how the loss of their mean falls; beside the same\n"
                 "run with an all-reduce of gradients.",
        .examples = "  dualpipe mix simulate one-peer-exp -N 4096\n"
                    "  dualpipe mix simulate ring -N 64 --bytes 1GB --bandwidth 10GB/s --sigma 0.1\n"
                    "  dualpipe mix simulate torus -N 64 --deaths 8 --format json\n",
    };
    struct simulate_args a = {0};

    return mix_run(&usage, argc, argv, &a, true, simulate);
}
