/* SPDX-License-Identifier: Apache-2.0
 *
 * simulate.c - `dualpipe mix simulate`: a training run on paper, beside the same with all-reduce.
 */
#include "command.h"
#include "commands.h"
#include "draw/draw.h"
#include "files.h"
#include "mix/mix.h"

#include <jansson.h>

#include <string.h>
#include <time.h>

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

static void print_json(FILE *to, const struct dp_graph *g, const struct dp_mixing_run runs[2],
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
        print_json(out.file, g, runs, cost_ns);
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

#define AT(member) .offset = offsetof(struct simulate_args, member)

static const struct arg run_args[] = {
    {"steps", 0, "N", "of the run", ARG_INT, AT(steps), .fallback = "200", .min = 1, .max = 1e9},
    {"compute", 0, "TIME", "of a step, on average", ARG_TIME, AT(compute_ns), .fallback = "100ms"},
    {"sigma", 0, "S", "stragglers: deviation of the logarithm of a step's time", ARG_REAL, AT(sigma),
     .fallback = "0.2", .max = 10},
    {"bytes", 0, "SIZE", "of the parameters", ARG_BYTES, AT(bytes), .fallback = "0"},
    {"latency", 0, "TIME", "of a message", ARG_TIME, AT(latency_ns), .fallback = "0"},
    {"bandwidth", 0, "RATE", "of a link, as in 25GB/s; 0 is without limit", ARG_RATE, AT(bandwidth),
     .fallback = "0"},
    {"deaths", 0, "N", "workers that die, spread over the run", ARG_INT, AT(deaths), .min = 0,
     .max = DP_GRAPH_MAX_WORKERS},
    {"in-turn", 0, NULL, "wait for an exchange at once, not in the next step", ARG_FLAG, AT(in_turn)},
    {"staleness", 0, "N", "rounds in a row that may be left out while an exchange is late", ARG_INT,
     AT(staleness), .min = 0, .max = 1024},
    {"rate", 0, "R", "learning rate", ARG_REAL, AT(rate), .fallback = "0.05", .max = 100},
    {"factor", 0, "A", "of mixing, up to 1", ARG_REAL, AT(factor), .fallback = "1", .max = 1},
};

static const char *const formats[] = {"text", "json", NULL};
static const struct arg output_args[] = {
    {"format", 'f', NULL, "what to write", ARG_CHOICE, AT(format), .fallback = "text",
     .choices = formats},
    {"output", 'o', "FILE", "where to (default standard output)", ARG_STRING, AT(output),
     .written = true},
};

int run_mix_simulate(int argc, char **argv)
{
    const struct arg_group groups[] = {
        mix_graph_group,
        mix_file_group,
        {"the run", run_args, sizeof(run_args) / sizeof(run_args[0])},
        {"output", output_args, sizeof(output_args) / sizeof(output_args[0])},
        {0},
    };
    const struct usage usage = {
        .command = "dualpipe mix simulate",
        .operands = "[KIND]",
        .operand_choices = mix_kinds(),
        .max_operands = 1,
        .about = "Train on paper: how long a step takes when some workers are slow or die, how far the\n"
                 "workers are from each other, and how the loss of their mean falls; beside the same\n"
                 "run with an all-reduce of gradients.",
        .groups = groups,
        .examples = "  dualpipe mix simulate one-peer-exp -N 4096\n"
                    "  dualpipe mix simulate ring -N 64 --bytes 1GB --bandwidth 10GB/s --sigma 0.1\n"
                    "  dualpipe mix simulate torus -N 64 --deaths 8 --format json\n",
    };
    struct simulate_args a = {0};

    return mix_run(&usage, argc, argv, &a, true, simulate);
}
