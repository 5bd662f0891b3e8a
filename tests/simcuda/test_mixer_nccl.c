/* SPDX-License-Identifier: Apache-2.0
 *
 * Values in device memory mixed by a graph, by messages of NCCL: those of a dp_mixer of the host, behind
 * the work of a stream, and no wait of the host. The real libnccl on the simulated CUDA.
 */
#include "cmocka_all.h"
#include "mixer_now.h"
#include "simcuda/nccl_ranks.h"

#include "base/clock.h"
#include "device/device_ops.h"

#include <math.h>
#include <stdlib.h>

static const int64_t LONG_NS = 60 * DP_NS_PER_S;
static const char *why_not;

/* The second tensor follows the first one in memory, in the end on ranks of an even number only; the
 * third, of float64, does not. */
enum { TENSORS = 3, BYTES = 8192, WORKERS = 4, STEPS = 5, AVERAGED = 3 };
enum { MOST = 3336 }; /* of what values and gradients begin with */
static const int64_t sizes[TENSORS] = {700, 300, 333};
static size_t places[TENSORS] = {0, 700 * sizeof(float), 4096};
static const double rate = 0.5, factor = 0.75;

static DLDataType type_of(int t)
{
    return (DLDataType){kDLFloat, t == 2 ? 64 : 32, 1};
}

/* Tensors in some memory. */
struct tensors {
    char names[TENSORS][8];
    int64_t shape[TENSORS][1];
    DLTensor values[TENSORS], grads[TENSORS];
    struct dp_parameter list[TENSORS];
};

static void tensors_init(struct tensors *p, DLDevice where, char *values, char *grads)
{
    for (int t = 0; t < TENSORS; t++) {
        snprintf(p->names[t], sizeof(p->names[t]), "p%d", t % 1000);
        p->shape[t][0] = sizes[t];
        p->values[t] = (DLTensor){.data = values + places[t],
                                  .device = where,
                                  .ndim = 1,
                                  .dtype = type_of(t),
                                  .shape = p->shape[t]};
        p->grads[t] = p->values[t];
        p->grads[t].data = grads + places[t];
        p->list[t] = (struct dp_parameter){
            .name = p->names[t], .value = &p->values[t], .grad = &p->grads[t]};
    }
}

static double get(const char *memory, int t, int64_t i)
{
    return t == 2 ? ((const double *)(const void *)(memory + places[t]))[i]
                  : (double)((const float *)(const void *)(memory + places[t]))[i];
}

static void put(char *memory, int t, int64_t i, double x)
{
    if (t == 2)
        ((double *)(void *)(memory + places[t]))[i] = x;
    else
        ((float *)(void *)(memory + places[t]))[i] = (float)x;
}

/* step -1: the values that all begin with. Others: gradients times `scale`. */
static void fill(char *memory, int rank, int step, double scale)
{
    for (int t = 0; t < TENSORS; t++)
        for (int64_t i = 0; i < sizes[t]; i++) {
            const int64_t at = i * 2654435761 + t * 40503 + (step < 0 ? 0 : rank * 97 + step * 31);
            put(memory, t, i, (double)(float)((double)(at % 10007) / 3.0) * scale);
        }
}

/* The values after each step of a dp_mixer, and the average that all have after step AVERAGED. */
struct expected {
    _Alignas(16) char values[STEPS][BYTES], average[BYTES];
};

static int mix_on_host(struct dp_comm *comm, const struct dp_graph *graph, bool compat,
                       struct expected *out)
{
    static _Alignas(16) char values[BYTES], grads[BYTES];
    struct dp_mixer_config config = {.count = TENSORS, .graph = graph, .comm = comm,
                                     .optimizer = dp_optimizer_defaults(DP_OPTIMIZER_SGD),
                                     .rate = rate, .factor = factor, .separate = true,
                                     .compat = compat};
    struct tensors p;
    struct dp_mixer *mixer;

    tensors_init(&p, (DLDevice){kDLCPU, 0}, values, grads);
    fill(values, 0, -1, 1);
    config.parameters = p.list;
    config.optimizer.momentum = config.optimizer.weight_decay = 0;
    CHECK(!dp_mixer_new(&config, &mixer));
    for (int step = 0; step < STEPS; step++) {
        CHECK(!dp_mixer_forward(mixer, true));
        fill(grads, dp_comm_rank(comm), step, 1);
        for (int t = TENSORS - 1; t >= 0; t--)
            CHECK(!dp_mixer_ready(mixer, t));
        CHECK(!dp_mixer_step(mixer));
        memcpy(out->values[step], values, BYTES);
        if (step != AVERAGED)
            continue;
        CHECK(!dp_mixer_average(mixer, &(struct dp_mixer_average){.revert = true}));
        memcpy(out->average, values, BYTES);
        CHECK(!dp_mixer_revert(mixer));
    }
    dp_mixer_free(mixer);
    return 0;
}

/* ---- on the device --------------------------------------------------------------------------- */

struct rig {
    struct dp_device *dev;
    struct dp_device_stream *stream;
    struct dp_device_event *event;
    char *values, *grads; /* on the device */
    char *host;           /* pinned */
    struct tensors p;
    struct dp_comm *comm;
    bool by_mixer; /* the mixer calls the update */
    bool compat;
};

static int rig_open(struct rig *g, struct dp_comm *comm)
{
    void *memory[3];

    CHECK(!dp_device_cuda_open(0, &g->dev));
    CHECK(!dp_device_stream_new(g->dev, DP_PRIORITY_NORMAL, &g->stream));
    CHECK(!dp_device_event_new(g->dev, &g->event));
    CHECK(!dp_device_alloc(g->dev, DP_MEMORY_DEVICE, BYTES, &memory[0]));
    CHECK(!dp_device_alloc(g->dev, DP_MEMORY_DEVICE, BYTES, &memory[1]));
    CHECK(!dp_device_alloc(g->dev, DP_MEMORY_PINNED, BYTES, &memory[2]));
    g->values = memory[0];
    g->grads = memory[1];
    g->host = memory[2];
    tensors_init(&g->p, dp_device_dl(g->dev), g->values, g->grads);
    return 0;
}

static void rig_close(struct rig *g)
{
    dp_comm_close(g->comm);
    dp_device_free(g->dev, DP_MEMORY_PINNED, g->host);
    dp_device_free(g->dev, DP_MEMORY_DEVICE, g->grads);
    dp_device_free(g->dev, DP_MEMORY_DEVICE, g->values);
    dp_device_event_free(g->event);
    dp_device_stream_free(g->stream);
    dp_device_close(g->dev);
}

static int finish(struct rig *g)
{
    int err = dp_device_event_record(g->event, g->stream);

    return err ? err : dp_device_event_wait(g->event, LONG_NS);
}

static bool holds(struct rig *g, const char *expected, bool to_the_bit)
{
    if (dp_device_copy(g->stream, g->host, g->values, BYTES) || finish(g))
        return false;
    for (int t = 0; t < TENSORS; t++)
        for (int64_t i = 0; i < sizes[t]; i++) {
            const double x = get(g->host, t, i), y = get(expected, t, i);
            if (to_the_bit ? x != y : fabs(x - y) > 5e-6 * MOST) {
                printf("element %d of tensor %d is %.9g, expected %.9g%s\n", (int)i, t, x, y,
                       to_the_bit ? "" : ", nearly");
                return false;
            }
        }
    return true;
}

/* SGD with a rate that makes no rounding. */
static int update(void *user, struct dp_mixer_update_info *info)
{
    struct rig *g = user;
    struct dp_comm *comm = g->comm;

    CHECK(!info || (info->bucket == 0 && info->count == TENSORS && info->rate == rate &&
                    info->present[0] && info->present[1] && info->present[2] && !info->skip));
    for (int t = 0; t < TENSORS; t++)
        CHECK(!dp_device_add(g->stream, type_of(t), g->values + places[t], type_of(t),
                             g->grads + places[t], (size_t)sizes[t]));
    return 0;
}

static int step_once(struct dp_comm *comm, struct rig *g, struct dp_mixer *mixer, int step)
{
    CHECK(!dp_mixer_forward(mixer, true));
    fill(g->host, dp_comm_rank(comm), step, -rate);
    nccl_ranks_count_waits();
    CHECK(!dp_device_copy(g->stream, g->grads, g->host, BYTES));
    for (int t = 0; t < TENSORS; t++)
        CHECK(!dp_mixer_ready(mixer, t));
    if (!g->by_mixer && update(g, NULL))
        return -1;
    CHECK(!dp_mixer_step(mixer));
    CHECK(g->compat || nccl_ranks_waits() == 0);
    return 0;
}

static int mix_on_device(struct dp_comm *comm, struct rig *g, const struct dp_graph *graph,
                         const struct expected *expected, bool to_the_bit)
{
    const struct dp_mixer_config config = {.parameters = g->p.list, .count = TENSORS, .graph = graph,
                                           .comm = g->comm, .device = g->dev, .stream = g->stream,
                                           .factor = factor, .update = g->by_mixer ? update : NULL,
                                           .rate = rate, .user = g, .compat = g->compat};
    struct dp_mixer_average what = {.revert = true, .distance = g->compat};
    struct dp_mixer *mixer;

    CHECK(!dp_mixer_new(&config, &mixer));
    fill(g->host, 0, -1, 1);
    CHECK(!dp_device_copy(g->stream, g->values, g->host, BYTES) && !finish(g));
    for (int step = 0; step < STEPS; step++) {
        if (step_once(comm, g, mixer, step))
            return -1;
        /* A dp_mixer of the host keeps the first update back until there are buckets. */
        CHECK(step ? holds(g, expected->values[step], to_the_bit) : !finish(g));
        CHECK(!dp_mixer_forward(mixer, false) && mixer_now(mixer).iterations == step + 1);
        if (step != AVERAGED)
            continue;
        CHECK(!dp_mixer_average(mixer, &what));
        CHECK(holds(g, expected->average, false));
        CHECK(!dp_mixer_revert(mixer));
        CHECK(holds(g, expected->values[step], to_the_bit));
    }
    if (g->compat) { /* again, while the values of the last step are sent */
        CHECK(!dp_mixer_revert(mixer));
        CHECK(holds(g, expected->values[AVERAGED], to_the_bit));
    }
    CHECK(!dp_mixer_average(mixer, NULL));
    dp_mixer_free(mixer);
    return 0;
}

static int open_graph(struct dp_comm *comm, const char *name, struct dp_graph **out)
{
    CHECK(!dp_graph_new(&(struct dp_graph_spec){.name = name, .workers = WORKERS, .local = 1}, out));
    return 0;
}

/* Each is asked for alone, where nothing else is wrong. */
static int refuse_method(struct dp_comm *comm, struct dp_mixer_config config)
{
    const struct dp_loss_scale scale = dp_loss_scale_defaults();
    const struct {
        const char *says;
        struct dp_mixer_config with;
    } cases[] = {
        {"with another algorithm than d-psgd", {.algorithm = DP_MIXER_LOCAL_SGD}},
        {"with compression", {.compression = DP_COMPRESSION_INT8}},
        {"with staleness", {.staleness = 1}},
        {"with clipping", {.clip_norm = 1}},
        {"with a loss scale", {.loss_scale = &scale}},
    };
    struct dp_mixer *none = NULL;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct dp_mixer_config c = config;
        c.algorithm = cases[i].with.algorithm;
        c.compression = cases[i].with.compression;
        c.staleness = cases[i].with.staleness;
        c.clip_norm = cases[i].with.clip_norm;
        c.loss_scale = cases[i].with.loss_scale;
        CHECK(dp_mixer_new(&c, &none) == DP_EUNSUPPORTED);
        CHECK_SAYS(cases[i].says);
    }
    config.stream = NULL;
    CHECK(dp_mixer_new(&config, &none) == DP_ESTATE);
    CHECK_SAYS("without a stream");
    return 0;
}

static int refuse(struct dp_comm *comm, struct rig *g)
{
    struct dp_mixer_config config = {.parameters = g->p.list, .count = TENSORS, .comm = comm,
                                     .device = g->dev, .stream = g->stream};
    struct dp_mixer *none = NULL;
    struct dp_graph *sums, *one;

    CHECK(!dp_graph_new(&(struct dp_graph_spec){.name = "directed-exp", .workers = 1}, &sums));
    CHECK(!dp_graph_new(&(struct dp_graph_spec){.name = "complete", .workers = 1, .local = 1}, &one));
    config.graph = sums;
    CHECK(dp_mixer_new(&config, &none) == DP_EUNSUPPORTED);
    CHECK_SAYS("with push-sum, expected it without");
    config.graph = one;
    if (refuse_method(comm, config))
        return -1;
    CHECK(dp_mixer_new(&config, &none) == DP_EUNSUPPORTED);
    CHECK_SAYS("expected one of NCCL");
    g->p.values[0].dtype.bits = g->p.grads[0].dtype.bits = 16;
    CHECK(dp_mixer_new(&config, &none) == DP_EUNSUPPORTED);
    CHECK_SAYS("'p0': the device mixes no values of 16 bits");
    g->p.values[0].device.device_type = g->p.grads[0].device.device_type = kDLCPU;
    CHECK(dp_mixer_new(&config, &none) == DP_EUNSUPPORTED);
    CHECK_SAYS("'p0' is not in the memory of the device");
    dp_graph_free(one);
    dp_graph_free(sums);
    return 0;
}

static int mix_all(struct dp_comm *comm, void *arg)
{
    static const char *const graphs[] = {"ring", "torus", "complete", "one-peer-exp",
                                         /* compat: */ "complete", "one-peer-exp", "ring"};
    enum { COMPAT = 4, APART = 3 }; /* the first of these */
    static struct expected expected;
    struct dp_nccl_peer peers[WORKERS];
    struct dp_nccl_config nccl = {.peers = peers};
    struct dp_graph *graph;
    struct rig g = {0};

    (void)arg;
    if (rig_open(&g, comm) || open_graph(comm, "complete", &graph))
        return -1;
    nccl.device = g.dev;
    nccl.peer_count = dp_mixer_nccl_peers(graph, dp_comm_rank(comm), peers);
    CHECK(nccl.peer_count == WORKERS - 1);
    dp_graph_free(graph);
    CHECK(!dp_comm_nccl_open(comm, &nccl, &g.comm));
    for (size_t i = 0; i < sizeof(graphs) / sizeof(graphs[0]); i++) {
        const bool pairs = strcmp(graphs[i], "complete");
        g.by_mixer = i % 2;
        g.compat = i >= COMPAT;
        if (i == APART) { /* ranks are processes */
            places[1] += dp_comm_rank(comm) % 2 * 64;
            tensors_init(&g.p, dp_device_dl(g.dev), g.values, g.grads);
        }
        if (open_graph(comm, graphs[i], &graph) || mix_on_host(comm, graph, g.compat, &expected) ||
            mix_on_device(comm, &g, graph, &expected, pairs))
            return -1;
        dp_graph_free(graph);
    }
    rig_close(&g);
    return 0;
}

static int refuse_all(struct dp_comm *comm, void *arg)
{
    struct rig g = {0};

    (void)arg;
    if (rig_open(&g, comm) || refuse(comm, &g))
        return -1;
    rig_close(&g);
    return 0;
}

/* ---- ends ------------------------------------------------------------------------------------ */

struct fall {
    enum nccl_fall how;
    const char *graph;
};

static int open_mixer(struct dp_comm *comm, struct rig *g, const struct dp_graph *graph,
                      struct dp_mixer **out)
{
    struct dp_nccl_peer peers[WORKERS];
    struct dp_nccl_config nccl = {.device = g->dev, .peers = peers};
    struct dp_mixer_config config = {.parameters = g->p.list, .count = TENSORS, .graph = graph,
                                     .device = g->dev, .stream = g->stream};

    nccl.peer_count = dp_mixer_nccl_peers(graph, dp_comm_rank(comm), peers);
    CHECK(nccl.peer_count > 0 && !dp_comm_nccl_open(comm, &nccl, &g->comm));
    config.comm = g->comm;
    CHECK(!dp_mixer_new(&config, out));
    return 0;
}

static int iterate(struct dp_mixer *mixer)
{
    int err = dp_mixer_forward(mixer, true);

    for (int t = 0; t < TENSORS && !err; t++)
        err = dp_mixer_ready(mixer, t);
    return err ? err : dp_mixer_step(mixer);
}

/* A worker that is no neighbor of the culprit in a round gets what it waits for, once or twice. */
static int iterate_until_it_ends(struct dp_mixer *mixer)
{
    int err = 0;

    while (!err)
        err = iterate(mixer);
    return err;
}

/* The stream ends, too: nothing of the exchange is in it any more. */
static int survive(struct dp_comm *comm, struct rig *g, struct dp_mixer *mixer, const struct fall *fall)
{
    CHECK(!iterate(mixer) && !dp_mixer_forward(mixer, true));
    for (int t = 0; t < TENSORS; t++)
        CHECK(!dp_mixer_ready(mixer, t));
    CHECK(!nccl_ranks_have_queued(comm, fall->how));
    int err = dp_mixer_forward(mixer, true);
    CHECK(err || strcmp(fall->graph, "complete"));
    if (!err)
        err = iterate_until_it_ends(mixer);
    CHECK(!nccl_ranks_check_end(comm, fall->how, err));
    CHECK(!finish(g));
    CHECK(iterate(mixer) == DP_EABORTED);
    CHECK(dp_mixer_average(mixer, NULL) == DP_EABORTED);
    CHECK(!finish(g));
    nccl_ranks_have_ended();
    return 0;
}

static int mix_without_one(struct dp_comm *comm, void *arg)
{
    const struct fall *fall = arg;
    struct dp_mixer *mixer;
    struct dp_graph *graph;
    struct rig g = {0};

    if (rig_open(&g, comm) || open_graph(comm, fall->graph, &graph) ||
        open_mixer(comm, &g, graph, &mixer))
        return -1;
    const int err = dp_comm_rank(comm) == NCCL_CULPRIT
                        ? nccl_ranks_fall_out(g.comm, fall->how)
                        : survive(g.comm, &g, mixer, fall);
    if (err)
        return err;
    dp_mixer_free(mixer);
    dp_graph_free(graph);
    rig_close(&g);
    return 0;
}

static void a_worker_falls_out(enum nccl_fall how, const char *graph)
{
    struct fall fall = {how, graph};

    if (why_not)
        skip_because(why_not);
    assert_true(nccl_ranks_run_fall(mix_without_one, &fall.how));
}

static void a_death_ends_a_queued_exchange_on_all_and_is_named(void **state)
{
    (void)state;
    a_worker_falls_out(NCCL_DIES, "complete");
}

static void a_death_ends_workers_that_exchange_nothing_with_the_culprit(void **state)
{
    (void)state;
    a_worker_falls_out(NCCL_DIES, "ring");
}

static void an_abort_ends_a_queued_exchange_on_all_and_is_named(void **state)
{
    (void)state;
    a_worker_falls_out(NCCL_ABORTS, "ring");
}

static void a_worker_that_sends_nothing_is_named_at_the_deadline(void **state)
{
    (void)state;
    a_worker_falls_out(NCCL_STAYS_AWAY, "complete");
}

static void values_are_mixed_as_on_the_host_and_no_host_waits(void **state)
{
    int killed;

    (void)state;
    if (why_not)
        skip_because(why_not);
    assert_int_equal(nccl_ranks_run_hosts(WORKERS, mix_all, NULL, &killed), 0);
}

static void what_is_not_mixed_on_a_device_is_named(void **state)
{
    (void)state;
    if (why_not)
        skip_because(why_not);
    assert_int_equal(comm_on_threads(1, LONG_NS, refuse_all, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_mixed_as_on_the_host_and_no_host_waits),
        cmocka_unit_test(a_death_ends_a_queued_exchange_on_all_and_is_named),
        cmocka_unit_test(a_death_ends_workers_that_exchange_nothing_with_the_culprit),
        cmocka_unit_test(an_abort_ends_a_queued_exchange_on_all_and_is_named),
        cmocka_unit_test(a_worker_that_sends_nothing_is_named_at_the_deadline),
        cmocka_unit_test(what_is_not_mixed_on_a_device_is_named),
    };

    why_not = nccl_ranks_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
