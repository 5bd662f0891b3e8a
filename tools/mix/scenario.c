/* SPDX-License-Identifier: Apache-2.0 */
#include "mix/scenario.h"

#include <string.h>

#define AT(member) .offset = offsetof(struct scenario_args, member)

static const char *const problems[] = {"quadratic", "logistic", NULL};
static const struct arg options[SCENARIO_ARGS] = {
    {"steps", 0, "N", "of the run", ARG_INT, AT(steps), .fallback = "200", .min = 1, .max = 1e9},
    {"compute", 0, "TIME", "of a step, on average", ARG_TIME, AT(compute_ns), .fallback = "100ms"},
    {"sigma", 0, "S", "stragglers: deviation of the logarithm of a step's time", ARG_REAL, AT(sigma),
     .fallback = "0.2", .max = 10},
    {"bytes", 0, "SIZE", "of the parameters", ARG_BYTES, AT(bytes), .fallback = "0"},
    {"latency", 0, "TIME", "of a message", ARG_TIME, AT(latency_ns), .fallback = "0"},
    {"bandwidth", 0, "RATE", "of a link, as in 25GB/s; 0 is without limit", ARG_RATE, AT(bandwidth),
     .fallback = "0"},
    {"slow-links", 0, "SHARE", "share of the links that are slower", ARG_REAL, AT(slow_links),
     .fallback = "0", .max = 1},
    {"slow-factor", 0, "F", "by how much they are", ARG_REAL, AT(slow_factor), .fallback = "10",
     .max = 1e6},
    {"deaths", 0, "N", "workers that die, spread over the run", ARG_INT, AT(deaths), .min = 0,
     .max = DP_GRAPH_MAX_WORKERS},
    {"in-turn", 0, NULL, "wait for an exchange at once, not in the next step", ARG_FLAG, AT(in_turn)},
    {"staleness", 0, "N", "rounds in a row that may be left out while an exchange is late", ARG_INT,
     AT(staleness), .min = 0, .max = 1024},
    {"problem", 0, NULL, "what is learnt", ARG_CHOICE, AT(problem), .fallback = "quadratic",
     .choices = problems},
    {"rate", 0, "R", "learning rate", ARG_REAL, AT(rate), .fallback = "0.05", .max = 100},
    {"factor", 0, "A", "of mixing, up to 1", ARG_REAL, AT(factor), .fallback = "1", .max = 1},
};

void scenario_options(size_t offset, struct arg args[SCENARIO_ARGS])
{
    memcpy(args, options, sizeof(options));
    for (int i = 0; i < SCENARIO_ARGS; i++)
        args[i].offset += offset;
}

struct dp_mixing_scenario scenario_of(const struct mix_args *m, const struct scenario_args *a)
{
    return (struct dp_mixing_scenario){
        .steps = a->steps,
        .compute_ns = a->compute_ns,
        .sigma = a->sigma,
        .latency_ns = a->latency_ns,
        .bytes_per_ns = a->bandwidth,
        .message_bytes = a->bytes,
        .slow_links = a->slow_links,
        .slow_factor = a->slow_factor,
        .deaths = (int32_t)a->deaths,
        .in_turn = a->in_turn,
        .staleness = (int32_t)a->staleness,
        .problem = strcmp(a->problem, "logistic") ? DP_MIXING_QUADRATIC : DP_MIXING_LOGISTIC,
        .rate = a->rate,
        .factor = a->factor,
        .seed = (uint64_t)m->seed,
    };
}
