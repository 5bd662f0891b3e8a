/* SPDX-License-Identifier: Apache-2.0
 *
 * offload.c - `dualpipe bench offload`: how well copies of a streamed model overlap with its compute,
 * over a link of a given speed between the two kinds of memory of the host device, or to a GPU.
 */
#include "bench/bench.h"
#include "bench/rig.h"
#include "command.h"
#include "commands.h"

#include <dualpipe/offload.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct values {
    struct bench_options common;
    const char *device;
    int64_t shards, slots, workers;
    double shard_bytes, link_bytes; /* of a GPU what copies of a shard take by themselves */
};

static bool is_host(const struct values *v)
{
    return !strcmp(v->device, "host");
}

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

static void visit(void *user)
{
    rig_wait_until(now_ns() + ((const struct model *)user)->visit_ns);
}

/* In the stream of a GPU, and at once on the host. */
static int pass(struct model *m, const struct dp_offload_call *call, const void *from, void *to)
{
    if (!is_host(m->v)) {
        int err = dp_device_call(call->queue, visit, m);
        return err ? err : dp_device_copy(call->queue, to, from, sizeof(m->x));
    }
    visit(m);
    memcpy(to, from, sizeof(m->x));
    return 0;
}

static int forward(void *user, const struct dp_offload_call *call, const DLTensor *in,
                   DLTensor *out)
{
    return pass(user, call, in[0].data, out[0].data);
}

static int backward(void *user, const struct dp_offload_call *call, const DLTensor *gout,
                    DLTensor *gin)
{
    return pass(user, call, gout[0].data, gin[0].data);
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

static int open_device(const struct values *v, struct dp_device **out)
{
    const struct dp_host_link link = {v->link_bytes, v->link_bytes, 0, 0};

    return is_host(v) ? dp_device_host_open_link((int)v->workers, &link, out)
                      : dp_device_open(v->device, out);
}

static int open_model(struct model *m, const struct values *v, bool overlap)
{
    m->v = v;
    int err = new_layers(m);
    if (!err) {
        name_layers(m);
        err = open_device(v, &m->dev);
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

/* ---- the link to a GPU ------------------------------------------------------------------------ */

struct way {
    struct dp_device_stream *stream;
    struct dp_device_event *done;
    void *here, *there; /* on the host, on the device */
};

struct link {
    struct dp_device *dev;
    size_t bytes; /* of a copy */
    struct way up, down;
};

static int open_way(const struct link *l, struct way *w)
{
    int err = dp_device_stream_new(l->dev, DP_PRIORITY_NORMAL, &w->stream);

    if (!err)
        err = dp_device_event_new(l->dev, &w->done);
    return err ? err : dp_device_alloc(l->dev, DP_MEMORY_DEVICE, l->bytes, &w->there);
}

/* The model's own pinned memory, which is where copies of shards come from. */
static int open_link(const struct model *m, struct link *l)
{
    int32_t count;
    const struct dp_parameter *pinned = dp_offload_parameters(m->o, &count);

    *l = (struct link){.dev = m->dev, .bytes = (size_t)m->elements * sizeof(float)};
    l->up.here = pinned[0].value->data;
    l->down.here = pinned[1].value->data;
    int err = open_way(l, &l->up);
    return err ? err : open_way(l, &l->down);
}

static void close_way(struct link *l, struct way *w)
{
    if (w->there)
        dp_device_free(l->dev, DP_MEMORY_DEVICE, w->there);
    dp_device_event_free(w->done);
    dp_device_stream_free(w->stream);
}

static int copy(const struct link *l, const struct way *w)
{
    return w == &l->up ? dp_device_copy(w->stream, w->there, w->here, l->bytes)
                       : dp_device_copy(w->stream, w->here, w->there, l->bytes);
}

/* GB/s of one way, or of two at once. */
static int time_copies(const struct link *l, const struct way *const ways[2], double *rate)
{
    enum { COPIES = 16 };
    const int64_t began = now_ns(), longest_ns = INT64_C(60000000000);
    int err = 0, count = 0;

    for (int i = 0; i < 2 * COPIES && !err; i++)
        if (ways[i % 2]) {
            err = copy(l, ways[i % 2]);
            count++;
        }
    for (int i = 0; i < 2 && !err; i++)
        if (ways[i] && !(err = dp_device_event_record(ways[i]->done, ways[i]->stream)))
            err = dp_device_event_wait(ways[i]->done, longest_ns);
    *rate = (double)l->bytes * count / (double)(now_ns() - began);
    return err;
}

enum { UP, DOWN, BOTH, WAYS };

static int sample_link(void *user, double *figures)
{
    const struct link *l = user;
    const struct way *const ways[WAYS][2] = {{&l->up, NULL}, {NULL, &l->down}, {&l->up, &l->down}};
    int err = 0;

    for (int i = 0; i < WAYS && !err; i++)
        err = time_copies(l, ways[i], &figures[i]);
    if (err)
        command_failed(err);
    return err;
}

/* The first sample warms up; the second says how long loads take. */
static int measure_link(struct link *l, struct values *v, struct bench_case *c)
{
    static const char *const names[WAYS] = {"copies alone: up", "copies alone: down",
                                            "copies alone: both ways at once"};
    double rates[WAYS];
    int err = sample_link(l, rates);

    if (!err)
        err = sample_link(l, rates);
    v->link_bytes = rates[UP] * 1e9;
    *c = (struct bench_case){.sample = sample_link, .user = l, .figure_count = WAYS};
    for (int i = 0; i < WAYS; i++)
        c->figures[i] =
            (struct bench_figure){.what = names[i], .unit = "GB/s", .target_is_floor = true};
    return err;
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
    int err = open_model(&job->overlapped, v, true);

    if (!err)
        err = open_model(&job->serial, v, false);
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

static void write_title(const struct values *v, const struct dp_device *dev, char *title,
                        size_t len)
{
    const int node = dp_device_numa_node(dev);

    if (is_host(v))
        snprintf(title, len, "offload, overlap of copies and compute");
    else if (node < 0)
        snprintf(title, len, "offload, %s, of no NUMA node", v->device);
    else
        snprintf(title, len, "offload, %s, pinned memory on NUMA node %d", v->device, node);
}

static int measure_all(struct values *v, struct job *jobs, struct link *link)
{
    struct bench_case cases[BOUNDS + 1];
    const int count = is_host(v) ? BOUNDS : BOUNDS + 1;
    char title[96];
    int err = 0;

    for (int b = 0; b < BOUNDS && !err; b++)
        err = open_job(&jobs[b], &cases[b], v, b);
    if (!err && !is_host(v)) {
        err = open_link(&jobs[0].overlapped, link);
        err = err ? err : measure_link(link, v, &cases[BOUNDS]);
    }
    for (int b = 0; b < BOUNDS && !err; b++) {
        set_times(&jobs[b].overlapped, bounds[b].compute);
        set_times(&jobs[b].serial, bounds[b].compute);
    }
    if (!err)
        err = bench_run(cases, count, &v->common);
    if (err)
        return err;
    write_title(v, jobs[0].overlapped.dev, title, sizeof(title));
    bench_report(title, cases, count, &v->common);
    return 0;
}

static int measure(struct values *v)
{
    struct job *jobs = calloc(BOUNDS, sizeof(*jobs));
    struct link link = {0};
    int err = jobs ? measure_all(v, jobs, &link) : DP_ENOMEM;

    close_way(&link, &link.up);
    close_way(&link, &link.down);
    for (int b = 0; b < BOUNDS && jobs; b++) {
        close_model(&jobs[b].overlapped);
        close_model(&jobs[b].serial);
    }
    free(jobs);
    return err ? command_failed(err) : EXIT_OK;
}

/* ---- the command ---------------------------------------------------------------------------- */

#define AT(member) .offset = offsetof(struct values, member)

static const struct arg args[] = {
    {"device", 0, "NAME", "host, cuda or cuda:N", ARG_STRING, AT(device), .fallback = "host"},
    {"shards", 'n', "N", "of the model", ARG_INT, AT(shards), .fallback = "64", .min = 2, .max = 1000},
    {"slots", 'k', "N", "on the device", ARG_INT, AT(slots), .fallback = "3", .min = 2, .max = 64},
    {"workers", 'w', "N", "threads of the host that copy (default 2)", ARG_INT,
     AT(workers), .min = 1, .max = 64},
    {"shard-bytes", 0, "SIZE",
     "of parameters in a shard; the models together hold 12 (N + 1) times as much, pinned for a GPU",
     ARG_BYTES, AT(shard_bytes), .fallback = "1M", .min = 4, .max = 1 << 30},
    {"link", 0, "SIZE", "bytes a second that the host's link takes, each way (default 250M)", ARG_BYTES,
     AT(link_bytes), .min = 1e6, .max = 1e12},
};

int run_bench_offload(int argc, char **argv)
{
    const struct arg_group groups[] = {ARG_GROUP("what", args), bench_group, {0}};
    const struct usage usage = {
        .command = "dualpipe bench offload", .groups = groups,
        .about = "Stream a model whose layers sleep through the host device, over a link of a given\n"
                 "speed, or through a GPU, and divide the longer one of compute and copies by the time\n"
                 "of a step, and the critical path: the same with the visits beside which no slot is\n"
                 "free for a copy. Forward and backward take equally long, and nothing is updated in\n"
                 "between. Beside it the same with one slot, where nothing overlaps.\n"
                 "The link of a GPU is measured first, by copies of shards alone; pinned memory is on\n"
                 "the NUMA node of the GPU, which the title names.",
        .examples = "  dualpipe bench offload\n"
                    "  dualpipe bench offload -n 12 --shard-bytes 16M --link 2G --json\n"
                    "  dualpipe bench offload --device cuda -n 16 --shard-bytes 64M\n",
    };
    struct operands operands;
    struct values v;
    int status;

    if (!args_parse(&usage, argc, argv, &v, &operands, &status))
        return status;
    if (v.slots >= v.shards)
        return command_misused("%lld slots for %lld shards: expected fewer, or nothing is copied",
                               (long long)v.slots, (long long)v.shards);
    if (!is_host(&v) && strcmp(v.device, "cuda") && strncmp(v.device, "cuda:", 5))
        return command_misused("--device %s: expected host, cuda or cuda:N", v.device);
    if (!is_host(&v) && (v.workers || v.link_bytes > 0))
        return command_misused("--device %s: expected no --%s, which is of the host device", v.device,
                               v.workers ? "workers" : "link");
    if (!v.workers)
        v.workers = 2;
    if (!(v.link_bytes > 0))
        v.link_bytes = 250e6;
    return measure(&v);
}
