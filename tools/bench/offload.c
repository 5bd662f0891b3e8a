/* SPDX-License-Identifier: Apache-2.0
 *
 * offload.c - `dualpipe bench offload`: how well copies of a streamed model overlap with its compute,
 * over a link of a given speed between the two kinds of memory of the host device.
 */
#include "bench/bench.h"
#include "bench/rig.h"
#include "command.h"
#include "commands.h"

#include <dualpipe/offload.h>

#include <stdio.h>
#include <stdlib.h>

struct values {
    struct bench_options common;
    int64_t shards, slots, workers;
    double shard_bytes, link_bytes;
};

/* Compute over copies. */
static const struct {
    const char *name;
    double compute;
} bounds[] = {{"compute-bound", 2}, {"balanced", 1}, {"copy-bound", 0.5}};
enum { BOUNDS = sizeof(bounds) / sizeof(bounds[0]), STEPS = 2 };

/* One model: layers of one parameter each, that sleep. */
struct model {
    const struct values *v;
    struct dp_device *dev;
    struct dp_offload *o;
    struct dp_border border;
    struct dp_offload_layer *layers;
    struct dp_parameter *parameters;
    char (*names)[24];
    int64_t elements;
    DLTensor *values;
    float *data, x;
    int64_t visit_ns; /* what one call of a layer takes */
    int64_t limit_ns; /* of a step: the longer one of compute and copies up */
    int64_t path_ns;  /* with what cannot overlap */
};

struct job {
    struct model overlapped, serial;
    char names[4][64];
};

/* ---- the model ------------------------------------------------------------------------------ */

static int forward(void *user, const struct dp_offload_call *call, const DLTensor *in,
                   DLTensor *out)
{
    const struct model *m = user;

    (void)call;
    rig_wait_until(now_ns() + m->visit_ns);
    *(float *)out[0].data = *(const float *)in[0].data;
    return 0;
}

static int backward(void *user, const struct dp_offload_call *call, const DLTensor *gout,
                    DLTensor *gin)
{
    const struct model *m = user;

    (void)call;
    rig_wait_until(now_ns() + m->visit_ns);
    *(float *)gin[0].data = *(const float *)gout[0].data;
    return 0;
}

static const struct dp_offload_layer_ops sleeper = {forward, backward};

static int new_layers(struct model *m)
{
    size_t count = (size_t)m->v->shards;

    m->elements = (int64_t)(m->v->shard_bytes / sizeof(float));
    m->layers = calloc(count, sizeof(*m->layers));
    m->parameters = calloc(count, sizeof(*m->parameters));
    m->names = calloc(count, sizeof(*m->names));
    m->values = calloc(count, sizeof(*m->values));
    m->data = calloc((size_t)m->elements * count, sizeof(float));
    if (!m->layers || !m->parameters || !m->names || !m->values || !m->data)
        return command_broke("no memory for a model"), DP_ENOMEM;
    m->border = (struct dp_border){1, {{.dtype = {kDLFloat, 32, 1}, .ndim = 1, .shape = {1}}}};
    return 0;
}

static void name_layers(struct model *m)
{
    for (int64_t l = 0; l < m->v->shards; l++) {
        snprintf(m->names[l], sizeof(m->names[l]), "%lld", (long long)l);
        m->values[l] = (DLTensor){.data = m->data + l * m->elements,
                               .device = {kDLCPU, 0},
                               .ndim = 1,
                               .dtype = {kDLFloat, 32, 1},
                               .shape = &m->elements};
        m->parameters[l] = (struct dp_parameter){.name = m->names[l], .value = &m->values[l]};
        m->layers[l] = (struct dp_offload_layer){.ops = &sleeper,
                                                 .user = m,
                                                 .parameters = &m->parameters[l],
                                                 .parameter_count = 1,
                                                 .out = &m->border};
    }
}

/* Shards go up twice, but for those that are still there when a forward or a backward begins; each
 * direction has the link to itself. Twice a step, where the walk over the shards turns, all slots are
 * full of what comes next, so the link has nothing to do during two visits, of n shards in K slots:
 *
 *      up       n-2 | n-1 |               n-K-1 | ..        1 | 0 |             K | ..
 *      compute      | ..  | F n-1 | B n-1 | ..                    | B 0 | F 0 | ..
 */
static void set_times(struct model *m, double compute_over_copies)
{
    double load_ns = (double)m->elements * sizeof(float) / m->v->link_bytes * 1e9;
    double copies_ns = load_ns * 2 * (double)(m->v->shards - m->v->slots);
    double compute_ns = copies_ns * compute_over_copies;

    m->visit_ns = (int64_t)(compute_ns / (2 * (double)m->v->shards));
    m->limit_ns = (int64_t)(compute_ns > copies_ns ? compute_ns : copies_ns);
    m->path_ns = (int64_t)copies_ns + 4 * m->visit_ns;
    if (m->path_ns < m->limit_ns)
        m->path_ns = m->limit_ns;
}

static int open_model(struct model *m, const struct values *v, bool overlap, double ratio)
{
    struct dp_host_link link = {v->link_bytes, v->link_bytes, 0, 0};

    m->v = v;
    int err = new_layers(m);
    if (!err) {
        name_layers(m);
        set_times(m, ratio);
        err = dp_device_host_open_link((int)v->workers, &link, &m->dev);
    }
    if (!err)
        err = dp_offload_open(
            &(struct dp_offload_config){.device = m->dev,
                                        .layers = m->layers,
                                        .layer_count = (int32_t)v->shards,
                                        .input = &m->border,
                                        .slices = (int32_t)v->shards,
                                        .slots = overlap ? (int32_t)v->slots : 1,
                                        .distance = overlap ? (int32_t)v->slots - 1 : 0,
                                        .drop_at_once = !overlap},
            &m->o);
    return err;
}

static void close_model(struct model *m)
{
    dp_offload_close(m->o);
    dp_device_close(m->dev);
    free(m->layers);
    free(m->parameters);
    free(m->names);
    free(m->values);
    free(m->data);
}

/* ---- samples -------------------------------------------------------------------------------- */

static int step(struct model *m)
{
    int64_t one = 1;
    DLTensor x = {.data = &m->x, .device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLFloat, 32, 1},
                  .shape = &one};
    const DLTensor *in[1] = {&x};
    int err = dp_offload_forward(m->o, &(struct dp_offload_step){.inputs = in, .training = true,
                                                                     .unchanged = true});

    return err ? err : dp_offload_backward(m->o, &(struct dp_offload_gradients){.gouts = in});
}

/* Of a step, in ns; the first one warms up. */
static int time_steps(struct model *m, double *step_ns)
{
    int err = step(m);
    int64_t began = now_ns();

    for (int i = 0; i < STEPS && !err; i++)
        err = step(m);
    if (!err)
        err = dp_offload_finish(m->o);
    *step_ns = (double)(now_ns() - began) / STEPS;
    return err;
}

enum { OVERLAP, PATH, STEP, SERIAL, FIGURES };

static int sample(void *user, double *figures)
{
    struct job *job = user;
    double overlapped_ns, serial_ns;
    int err = time_steps(&job->overlapped, &overlapped_ns);

    if (!err)
        err = time_steps(&job->serial, &serial_ns);
    if (err) {
        command_failed(err);
        return err;
    }
    figures[OVERLAP] = (double)job->overlapped.limit_ns / overlapped_ns;
    figures[PATH] = (double)job->overlapped.path_ns / overlapped_ns;
    figures[STEP] = overlapped_ns / 1e6;
    figures[SERIAL] = serial_ns / overlapped_ns;
    return 0;
}

static int open_job(struct job *job, struct bench_case *c, const struct values *v, int bound)
{
    static const char *const what[] = {"max(compute, copies) over the step",
                                       "critical path over the step", "step",
                                       "the same without overlap, over it"};
    static const char *const units[] = {"x", "x", "ms", "x"};
    int err = open_model(&job->overlapped, v, true, bounds[bound].compute);

    if (!err)
        err = open_model(&job->serial, v, false, bounds[bound].compute);
    *c = (struct bench_case){.sample = sample, .user = job, .figure_count = FIGURES};
    for (int i = 0; i < FIGURES; i++) {
        snprintf(job->names[i], sizeof(job->names[i]), "%s: %s", bounds[bound].name, what[i]);
        c->figures[i] = (struct bench_figure){.what = job->names[i],
                                              .unit = units[i],
                                              .target = i == OVERLAP ? 0.95 : 0,
                                              .target_is_floor = true};
    }
    return err;
}

static int measure(const struct values *v)
{
    struct job *jobs = calloc(BOUNDS, sizeof(*jobs));
    struct bench_case cases[BOUNDS];
    int err = jobs ? 0 : DP_ENOMEM;

    for (int b = 0; b < BOUNDS && !err; b++)
        err = open_job(&jobs[b], &cases[b], v, b);
    if (!err)
        err = bench_run(cases, BOUNDS, &v->common);
    if (!err)
        bench_report("offload, overlap of copies and compute", cases, BOUNDS, &v->common);
    for (int b = 0; b < BOUNDS && jobs; b++) {
        close_model(&jobs[b].overlapped);
        close_model(&jobs[b].serial);
    }
    free(jobs);
    return err ? command_failed(err) : EXIT_OK;
}

/* ---- the command ---------------------------------------------------------------------------- */

static const struct arg args[] = {
    {"shards", 'n', "N", "of the model", ARG_INT, .offset = offsetof(struct values, shards),
     .fallback = "64", .min = 2, .max = 1000},
    {"slots", 'k', "N", "on the device", ARG_INT, .offset = offsetof(struct values, slots),
     .fallback = "3", .min = 2, .max = 64},
    {"workers", 'w', "N", "threads that copy", ARG_INT, .offset = offsetof(struct values, workers),
     .fallback = "2", .min = 1, .max = 64},
    {"shard-bytes", 0, "SIZE", "of parameters in a shard", ARG_BYTES,
     .offset = offsetof(struct values, shard_bytes), .fallback = "1M", .min = 4, .max = 1 << 30},
    {"link", 0, "SIZE", "bytes a second that the link takes, each way", ARG_BYTES,
     .offset = offsetof(struct values, link_bytes), .fallback = "250M", .min = 1e6, .max = 1e12},
};

int run_bench_offload(int argc, char **argv)
{
    const struct arg_group groups[] = {
        {"what", args, sizeof(args) / sizeof(args[0])},
        bench_group,
        {0},
    };
    const struct usage usage = {
        .command = "dualpipe bench offload",
        .about = "Stream a model whose layers sleep through the host device, over a link of a given\n"
                 "speed, and divide the longer one of compute and copies by the time of a step, and\n"
                 "the critical path: the same with the visits beside which no slot is free for a copy.\n"
                 "Forward and backward take equally long, and nothing is updated in between. Beside\n"
                 "it the same with one slot, where nothing overlaps.",
        .groups = groups,
        .examples = "  dualpipe bench offload\n"
                    "  dualpipe bench offload -n 12 --shard-bytes 16M --link 2G --json\n",
    };
    struct operands operands;
    struct values v;
    int status;

    if (!args_parse(&usage, argc, argv, &v, &operands, &status))
        return status;
    if (v.slots >= v.shards)
        return command_misused("%lld slots for %lld shards: expected fewer, or nothing is copied",
                               (long long)v.slots, (long long)v.shards);
    return measure(&v);
}
