/* SPDX-License-Identifier: Apache-2.0
 *
 * mixing_runs.c - whole runs of decentralized SGD.
 */
#include "golden_check/golden.h"
#include "mixer_now.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

/* A record is one run of several workers, who are threads here. */
enum { WORKERS_MAX = 64, TENSORS_MAX = 64 };

struct worker {
    pthread_t thread;
    struct dp_comm *comm;
    const struct dp_graph *graph;
    const json_t *cfg, *recorded;
    double tolerance; /* of sums that another order rounds otherwise; 0: bit for bit */
    char wrong[256];  /* "": as recorded */
    int32_t count;
    struct dp_parameter parameters[TENSORS_MAX];
    DLTensor values[TENSORS_MAX], grads[TENSORS_MAX];
    int64_t sizes[TENSORS_MAX];
    char names[TENSORS_MAX][16];
};

static bool is_decent_dpsgd(const json_t *value)
{
    return golden_all_have(value, KEYS("cfg", "ranks"));
}

static void worker_is_wrong(struct worker *w, const char *what, int t)
{
    if (!*w->wrong)
        snprintf(w->wrong, sizeof(w->wrong), "%s of iteration %d%s%s", what, t,
                 dp_comm_aborted(w->comm, NULL) ? ": " : "",
                 dp_comm_aborted(w->comm, NULL) ? dp_last_error() : "");
}

static bool near(double a, double b, double tolerance)
{
    return a == b || fabs(a - b) <= tolerance * fmax(1, fmax(fabs(a), fabs(b)));
}

static bool same_values(const struct worker *w, const json_t *recorded, double tolerance)
{
    bool same = json_array_size(recorded) == (size_t)w->count;

    for (int32_t i = 0; i < w->count && same; i++) {
        const json_t *list = json_array_get(recorded, (size_t)i);
        const double *x = w->values[i].data;
        same = json_array_size(list) == (size_t)w->sizes[i];
        for (int64_t k = 0; k < w->sizes[i] && same; k++)
            same = near(x[k], json_number_value(json_array_get(list, (size_t)k)), tolerance);
    }
    return same;
}

static void read_values(const json_t *recorded, DLTensor *tensors, int32_t count, bool add)
{
    for (int32_t i = 0; i < count; i++)
        for (int64_t k = 0; k < tensors[i].shape[0]; k++) {
            const json_t *list = json_array_get(recorded, (size_t)i);
            double *x = (double *)tensors[i].data + k;
            *x = (add ? *x : 0) + json_number_value(json_array_get(list, (size_t)k));
        }
}

static bool describe_parameters(struct worker *w)
{
    const json_t *sizes = json_object_get(w->cfg, "sizes");

    w->count = (int32_t)json_array_size(sizes);
    if (w->count > TENSORS_MAX)
        return false;
    for (int32_t i = 0; i < w->count; i++) {
        w->sizes[i] = json_integer_value(json_array_get(sizes, (size_t)i));
        w->values[i] = (DLTensor){.device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLFloat, 64, 1},
                                  .shape = &w->sizes[i]};
        w->grads[i] = w->values[i];
        w->values[i].data = calloc((size_t)w->sizes[i], sizeof(double));
        w->grads[i].data = calloc((size_t)w->sizes[i], sizeof(double));
        snprintf(w->names[i], sizeof(w->names[i]), "p%d", i);
        w->parameters[i] = (struct dp_parameter){.name = w->names[i], .value = &w->values[i],
                                                 .grad = &w->grads[i]};
    }
    return true;
}

static void compare_buckets(struct worker *w, const struct dp_mixer *mixer)
{
    const json_t *buckets = json_object_get(w->recorded, "buckets");
    const json_t *lengths = json_object_get(w->recorded, "block_numel");
    bool same = json_array_size(buckets) == (size_t)mixer_now(mixer).buckets;

    for (int32_t b = 0; same && b < mixer_now(mixer).buckets; b++) {
        const json_t *bucket = json_array_get(buckets, (size_t)b);
        const int32_t *parameters;
        int64_t elements;
        int32_t count = dp_mixer_bucket(mixer, b, &parameters, &elements);
        same = golden_same(bucket, parameters, count) &&
               json_integer_value(json_array_get(lengths, (size_t)b)) == elements;
    }
    if (!same)
        worker_is_wrong(w, "buckets", 1);
}

static int run_iteration(struct worker *w, struct dp_mixer *mixer, size_t t)
{
    const json_t *seen = json_object_get(w->recorded, "params_seen_by_forward"), *i;
    const json_t *grads = json_object_get(w->recorded, "grads");
    size_t k;
    int err = dp_mixer_forward(mixer, true);

    if (err)
        return err;
    if (!same_values(w, json_array_get(seen, t), w->tolerance))
        worker_is_wrong(w, "parameters", (int)t);
    read_values(json_array_get(grads, t), w->grads, w->count, true);
    json_array_foreach(json_object_get(w->recorded, "trace"), k, i)
        err = err ? err : dp_mixer_ready(mixer, (int32_t)json_integer_value(i));
    return err ? err : dp_mixer_step(mixer);
}

static int run_iterations(struct worker *w, struct dp_mixer *mixer)
{
    const size_t steps = (size_t)golden_integer(w->cfg, "steps");
    const json_t *average = json_object_get(w->recorded, "global_avg");
    struct dp_mixer_average what = {.distance = true};
    int err = 0;

    for (size_t t = 0; t < steps && !err; t++)
        err = run_iteration(w, mixer, t);
    if (err)
        return err;
    compare_buckets(w, mixer);
    if (!same_values(w, json_object_get(w->recorded, "params_after_last_backward"), w->tolerance))
        worker_is_wrong(w, "parameters", (int)steps);
    if ((err = dp_mixer_average(mixer, &what)))
        return err;
    if (average && !same_values(w, average, 1e-14))
        worker_is_wrong(w, "average", (int)steps);
    if (!near(what.l2, golden_number(w->recorded, "d2c"), 1e-13))
        worker_is_wrong(w, "distance to the average", (int)steps);
    return 0;
}

static void run_mixer(struct worker *w)
{
    const struct dp_mixer_config config = {
        .parameters = w->parameters,
        .count = w->count,
        .optimizer = dp_optimizer_defaults(DP_OPTIMIZER_SGD),
        .rate = golden_number(w->cfg, "lr"),
        .graph = w->graph,
        .comm = w->comm,
        .bucket_bytes = golden_number(w->cfg, "bucket_mb") * 1024 * 1024,
        .separate = json_is_false(json_object_get(w->cfg, "view")),
        .factor = golden_number(w->cfg, "af"),
        .clip_norm = golden_number(w->cfg, "clip"),
        .compat = true,
    };
    struct dp_mixer *mixer = NULL;
    int err = dp_mixer_new(&config, &mixer);

    if (!err)
        err = run_iterations(w, mixer);
    if (err && !*w->wrong)
        snprintf(w->wrong, sizeof(w->wrong), "%s", dp_last_error());
    dp_mixer_free(mixer);
}

static void *run_worker(void *arg)
{
    struct worker *w = arg;
    const json_t *seen = json_object_get(w->recorded, "params_seen_by_forward");

    if (describe_parameters(w)) {
        read_values(json_array_get(seen, 0), w->values, w->count, false);
        run_mixer(w);
    } else {
        snprintf(w->wrong, sizeof(w->wrong), "more than %d parameters", TENSORS_MAX);
    }
    for (int32_t i = 0; i < w->count && i < TENSORS_MAX; i++) {
        free(w->values[i].data);
        free(w->grads[i].data);
    }
    dp_comm_close(w->comm);
    return NULL;
}

static double tolerance_of(const json_t *cfg, const struct dp_graph *g)
{
    bool pairs = golden_number(cfg, "clip") == 0 &&
                 golden_number(cfg, "af") == 1;

    for (size_t i = 0; i < g->group_count; i++)
        pairs = pairs && g->groups[i].count <= 2;
    return pairs ? 0 : 4e-15;
}

static bool run_workers(struct golden *g, size_t record, const json_t *cfg, const json_t *ranks,
                        const struct dp_graph *graph)
{
    static struct worker workers[WORKERS_MAX];
    struct dp_comm *comms[WORKERS_MAX];
    const int count = graph->workers;

    if (dp_comm_threads_new(count, comms))
        return FAIL(g, "%s", dp_last_error());
    for (int i = 0; i < count; i++) {
        workers[i] = (struct worker){.comm = comms[i], .graph = graph, .cfg = cfg,
                                     .recorded = json_array_get(ranks, (size_t)i),
                                     .tolerance = tolerance_of(cfg, graph)};
        pthread_create(&workers[i].thread, NULL, run_worker, &workers[i]);
    }
    for (int i = 0; i < count; i++)
        pthread_join(workers[i].thread, NULL);
    for (int i = 0; i < count; i++)
        if (*workers[i].wrong)
            return FAIL(g, "run %zu, worker %d: %s", record, i, workers[i].wrong);
    return true;
}

static bool check_run(struct golden *g, size_t number, const json_t *record)
{
    const json_t *cfg = json_object_get(record, "cfg"), *ranks = json_object_get(record, "ranks");
    const int world = (int)golden_integer(cfg, "world");
    struct dp_graph *graph;

    if (world > WORKERS_MAX || json_array_size(ranks) != (size_t)world)
        return FAIL(g, "run %zu: %d workers, %zu are recorded", number, world,
                    json_array_size(ranks));
    if (dp_graph_new(
            &(struct dp_graph_spec){
                .name = golden_string(cfg, "topo"),
                .workers = world,
                .local = (int)golden_integer(cfg, "local"),
            },
            &graph))
        return FAIL(g, "%s", dp_last_error());
    bool right = run_workers(g, number, cfg, ranks, graph);
    dp_graph_free(graph);
    return right;
}

static bool check_decent_dpsgd(struct golden *g)
{
    return golden_each(g, g->value, check_run) &&
           PASS(g, "all %zu runs", json_array_size(g->value));
}

const struct golden_kind golden_mixing_runs = {is_decent_dpsgd, check_decent_dpsgd};
