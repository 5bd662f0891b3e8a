/* SPDX-License-Identifier: Apache-2.0
 *
 * segments.c - `dp-bench segments`: overlapped pairs of stages that are lists of segments, whose
 * segments sleep, against the shortest order that there is.
 */
#include "bench/bench.h"
#include "bench/rig.h"
#include "command.h"
#include "tests/bench/dp_bench/dp_bench.h"

#include <dualpipe/segments.h>

#include <stdio.h>
#include <string.h>

enum { SEGMENTS = 4, CASES = 3, SAMPLE_MS = 250 };

struct values {
    struct bench_options common;
    double unit_ns;
};

/* In units: attention, dispatch, experts, combine, and back. */
static const struct shape {
    const char *what;
    int forward[SEGMENTS], backward[SEGMENTS];
    bool first_communicates; /* of the backward */
} shapes[CASES] = {
    {"40 % communication: pair over the best order", {3, 2, 3, 2}, {4, 6, 4, 6}, true},
    {"20 % communication: pair over the best order", {4, 1, 4, 1}, {8, 2, 8, 2}, false},
    {"half each, uneven: pair over the best order", {5, 3, 2, 4}, {3, 6, 7, 4}, true},
};

enum { OVER_BEST, PAIR, IN_TURN, FIGURES };

struct sampler {
    const struct shape *shape;
    struct dp_segment_worker *worker;
    struct dp_segment forward[SEGMENTS], backward[SEGMENTS];
    int64_t best_ns, in_turn_ns;
};

/* How long a segment sleeps stands where its stage's save area would. */
struct sleeper {
    const int *units;
    double unit_ns;
    int next;
};

static int sleep_on(struct sleeper *s)
{
    rig_wait_until(now_ns() + (int64_t)(s->unit_ns * s->units[s->next]));
    s->next = (s->next + 1) % SEGMENTS;
    return 0;
}

static int run_segment(void *user, const struct dp_segment_call *call)
{
    struct sleeper *both = user;

    return sleep_on(&both[call->out == NULL]);
}

static void fill(struct dp_segment *list, const int *units, bool communicates, double unit_ns)
{
    for (int k = 0; k < SEGMENTS; k++)
        list[k] = (struct dp_segment){
            .resource = (k + communicates) % 2 ? DP_RESOURCE_COMMUNICATION : DP_RESOURCE_COMPUTE,
            .cost_ns = (int64_t)(units[k] * unit_ns),
            .run = run_segment};
}

static int prepare(struct sampler *s, const struct shape *shape, double unit_ns)
{
    struct dp_segment_place places[2 * SEGMENTS];

    s->shape = shape;
    fill(s->forward, shape->forward, false, unit_ns);
    fill(s->backward, shape->backward, shape->first_communicates, unit_ns);
    for (int k = 0; k < SEGMENTS; k++)
        s->in_turn_ns += s->forward[k].cost_ns + s->backward[k].cost_ns;
    return dp_segments_order(s->forward, SEGMENTS, s->backward, SEGMENTS, places, &s->best_ns);
}

static int sample(void *user, double *figures)
{
    struct sampler *s = user;
    const double unit_ns = (double)s->forward[0].cost_ns / s->shape->forward[0];
    struct sleeper both[2] = {{s->shape->forward, unit_ns, 0}, {s->shape->backward, unit_ns, 0}};
    struct dp_segmented_stage stage = {.worker = s->worker, .forward = s->forward,
                                       .forward_count = SEGMENTS, .backward = s->backward,
                                       .backward_count = SEGMENTS, .user = both};
    DLTensor out = {0}, gin = {0};
    const struct dp_pair pair = {.forward = {.user = &stage, .out = &out},
                                 .backward = {.user = &stage, .gin = &gin}};
    const int times = 1 + (int)(SAMPLE_MS * 1000000LL / s->best_ns);
    const int64_t began_ns = now_ns();
    int err = 0;

    for (int i = 0; i < times && !err; i++)
        err = dp_segment_stage_ops()->fwd_bwd(&pair);
    const double pair_ns = (double)(now_ns() - began_ns) / times;
    figures[OVER_BEST] = pair_ns / (double)s->best_ns;
    figures[PAIR] = pair_ns / 1e6;
    figures[IN_TURN] = pair_ns / (double)s->in_turn_ns;
    return err;
}

static int measure(const struct values *v)
{
    static struct bench_case cases[CASES];
    struct sampler samplers[CASES] = {0};
    struct dp_segment_worker *worker = NULL;
    int err = dp_segment_worker_new(&worker);

    for (int i = 0; i < CASES && !err; i++) {
        samplers[i].worker = worker;
        err = prepare(&samplers[i], &shapes[i], v->unit_ns);
        cases[i] = (struct bench_case){
            .sample = sample, .user = &samplers[i], .figure_count = FIGURES, .figures = {
                [OVER_BEST] = {.what = shapes[i].what, .unit = "", .target = 1.05},
                [PAIR] = {.what = "  pair", .unit = "ms"},
                [IN_TURN] = {.what = "  over all segments in turn", .unit = ""}}};
    }
    if (err)
        command_failed(err);
    else
        err = bench_run(cases, CASES, &v->common);
    if (!err)
        bench_report("pairs of stages of segments", cases, CASES, &v->common);
    dp_segment_worker_free(worker);
    return err ? EXIT_FAILED : EXIT_OK;
}

#define AT(member) .offset = offsetof(struct values, member)

static const struct arg args[] = {
    {"unit", 0, "TIME", "segments sleep 1 to 8 of it", ARG_TIME, AT(unit_ns), .fallback = "1ms",
     .min = 1e4, .max = 1e9},
};

int run_bench_segments(int argc, char **argv)
{
    const struct arg_group groups[] = {
        {"which segments", args, sizeof(args) / sizeof(args[0])}, bench_group, {0},
    };
    const struct usage usage = {
        .command = "dp-bench segments",
        .about = "Overlapped pairs of a forward and a backward that are lists of segments, of compute\n"
                 "and of communication in turn, which sleep: how long a pair takes on two threads,\n"
                 "over the shortest order of its segments, and over all of them one by one.",
        .groups = groups,
        .examples = "  dp-bench segments\n"
                    "  dp-bench segments --unit 200us\n",
    };
    struct values v = {0};
    struct operands operands;
    int status;

    if (!args_parse(&usage, argc, argv, &v, &operands, &status))
        return status;
    return measure(&v);
}
