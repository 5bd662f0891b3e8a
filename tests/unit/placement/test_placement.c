/* SPDX-License-Identifier: Apache-2.0
 *
 * test_placement.c - what is placed where, on descriptions of machines of a few words.
 */
#include "cmocka_all.h"
#include "placement/search.h"

#include <dualpipe/placement.h>
#include <dualpipe/random.h>

/* ---- what is placed ------------------------------------------------------------------------- */

struct fixture {
    struct dp_topology *t;
    struct dp_schedule *s;
    struct dp_placement_spec spec;
};

static struct fixture make(const char *description, enum dp_schedule_kind kind, int ranks,
                           int replicas)
{
    struct fixture f = {0};
    const struct dp_schedule_spec schedule = {
        .kind = kind, .ranks = ranks, .microbatches = 2 * ranks + 2, .mirror_reduce = true};

    if (dp_topology_new_synthetic(description, &f.t) || dp_schedule_new(&schedule, &f.s))
        fail_msg("%s", dp_last_error());
    f.spec = (struct dp_placement_spec){.topology = f.t, .schedule = f.s, .replicas = replicas,
                                        .activation_bytes = 64e6, .parameter_bytes = 500e6};
    return f;
}

static void unmake(struct fixture *f)
{
    dp_schedule_free(f->s);
    dp_topology_free(f->t);
}

static struct dp_placement *place(const struct dp_placement_spec *spec)
{
    struct dp_placement *p;

    if (dp_placement_new(spec, &p))
        fail_msg("%s", dp_last_error());
    return p;
}

/* The GPUs of a topology in an order that only the seed knows. */
static int32_t *shuffle_gpus(const struct dp_topology *t, int32_t count, uint64_t seed)
{
    int32_t *gpus = malloc((size_t)count * sizeof(*gpus)), n = 0;

    for (int32_t g = -1; n < count && (g = dp_topology_next(t, DP_TOPO_GPU, -1, g + 1)) >= 0;)
        gpus[n++] = g;
    assert_int_equal(n, count);
    for (int32_t i = count - 1; i > 0; i--) {
        uint32_t block[4];
        dp_random_block(dp_random_key(seed, 1, 2, 3), (uint64_t)i, block);
        const int32_t k = (int32_t)(block[0] % (uint32_t)(i + 1)), gpu = gpus[i];
        gpus[i] = gpus[k];
        gpus[k] = gpu;
    }
    return gpus;
}

/* ---- traffic -------------------------------------------------------------------------------- */

static double sum_flows(const struct dp_placement *p, enum dp_flow_kind kind)
{
    double bytes = 0;

    for (int32_t i = 0; i < p->flow_count; i++)
        if (p->flows[i].kind == kind)
            bytes += p->flows[i].bytes;
    return bytes;
}

CASE(a_flow_carries_every_message_of_the_schedule)
{
    struct fixture f = make("dgx-h100", DP_SCHEDULE_DUALPIPE, 4, 2);
    double forwards = 0, backwards = 0, reduces = 0;

    f.spec.gradient_bytes = 32e6;
    f.spec.offload_bytes = 7e6;
    struct dp_placement *p = place(&f.spec);
    for (size_t i = 0; i < f.s->first[4]; i++) {
        forwards += f.s->ops[i].kind == DP_OP_SEND_F;
        backwards += f.s->ops[i].kind == DP_OP_SEND_B;
        reduces += f.s->ops[i].kind == DP_OP_REDUCE;
    }
    assert_true(forwards > 0 && backwards > 0 && reduces > 0);
    assert_true(sum_flows(p, DP_FLOW_ACTIVATION) == 2 * forwards * 64e6);
    assert_true(sum_flows(p, DP_FLOW_GRADIENT) == 2 * backwards * 32e6);
    assert_true(sum_flows(p, DP_FLOW_MIRROR) == 2 * reduces * 500e6);
    assert_true(sum_flows(p, DP_FLOW_MIXING) == 4 * 2 * 2 * 500e6); /* ranks, ways, stages */
    assert_true(sum_flows(p, DP_FLOW_OFFLOAD) == 8 * 7e6);
    dp_placement_free(p);
    unmake(&f);
}

static bool flows_are_equal(const struct dp_placement *a, const struct dp_placement *b)
{
    bool equal = a->flow_count == b->flow_count;

    for (int32_t i = 0; equal && i < a->flow_count; i++) {
        const struct dp_flow *x = &a->flows[i], *y = &b->flows[i];
        equal = x->kind == y->kind && x->from == y->from && x->to == y->to && x->bytes == y->bytes;
    }
    return equal;
}

CASE(an_outline_has_the_flows_of_the_whole_schedule)
{
    for (int k = 0; k < 2 * (DP_SCHEDULE_ASYNC + 1); k++) {
        const enum dp_schedule_kind kind = (enum dp_schedule_kind)(k / 2);
        struct dp_schedule_spec spec = {.kind = kind, .ranks = 4, .microbatches = 12,
                                        .mirror_reduce = !(k % 2), .forward_only = k % 2};
        struct dp_schedule *whole, *outline;
        struct fixture f;
        if (kind == DP_SCHEDULE_USER)
            continue;
        assert_int_equal(dp_schedule_new(&spec, &whole), 0);
        assert_int_equal(dp_schedule_new_outline(&spec, &outline), 0);
        assert_null(outline->ops);
        f = make("dgx-h100", DP_SCHEDULE_1F1B, 4, 2);
        dp_schedule_free(f.s);
        f.s = whole;
        f.spec.schedule = whole;
        struct dp_placement *a = place(&f.spec);
        f.spec.schedule = outline;
        struct dp_placement *b = place(&f.spec);
        if (!flows_are_equal(a, b))
            fail_msg("%s, forward only: %d", dp_name(DP_NAMES_SCHEDULE, kind), k % 2);
        dp_placement_free(b);
        dp_placement_free(a);
        dp_schedule_free(outline);
        unmake(&f);
    }
}

CASE(only_the_pairs_that_are_named_mix)
{
    const struct dp_replica_pair pairs[] = {{.a = 0, .b = 2}, {.a = 1, .b = 3}};
    struct fixture f = make("dgx-h100", DP_SCHEDULE_1F1B, 2, 4);

    f.spec.mixing = pairs;
    f.spec.mixing_count = 2;
    struct dp_placement *p = place(&f.spec);
    for (int32_t i = 0; i < p->flow_count; i++)
        if (p->flows[i].kind == DP_FLOW_MIXING)
            assert_int_equal(abs(p->flows[i].from - p->flows[i].to), 2 * 2);
    assert_true(sum_flows(p, DP_FLOW_MIXING) == 2 * 2 * 2 * 500e6);
    dp_placement_free(p);
    unmake(&f);
}

CASE(a_share_of_the_parameters_may_take_one_route_only)
{
    const struct dp_replica_pair pairs[] = {{.a = 0, .b = 2, .share = 0.25, .one_way = true},
                                            {.a = 1, .b = 3, .share = 0.5}};
    struct fixture f = make("dgx-h100", DP_SCHEDULE_1F1B, 2, 4);

    f.spec.mixing = pairs;
    f.spec.mixing_count = 2;
    struct dp_placement *p = place(&f.spec);
    for (int32_t i = 0; i < p->flow_count; i++)
        if (p->flows[i].kind == DP_FLOW_MIXING && p->flows[i].from < 2)
            assert_true(p->flows[i].bytes == 0.25 * 500e6);
    assert_true(sum_flows(p, DP_FLOW_MIXING) == 2 * (0.25 + 2 * 0.5) * 500e6);
    dp_placement_free(p);
    unmake(&f);
}

static void count_progress(void *user, double done)
{
    double *last = user;

    assert_true(done >= *last && done <= 1);
    *last = done;
}

CASE(a_long_search_reports_its_progress)
{
    struct fixture f = make("dgx-h100 host:4", DP_SCHEDULE_1F1B, 8, 4);
    double last = -1;

    f.spec.progress = count_progress;
    f.spec.progress_user = &last;
    f.spec.effort = 3000;
    dp_placement_free(place(&f.spec));
    assert_true(last > 0);
    unmake(&f);
}

/* ---- small groups: the best of all orders --------------------------------------------------- */

static double weigh(const struct dp_placement_spec *spec, const int32_t *gpus)
{
    struct dp_traffic traffic;
    struct dp_routes routes;
    struct dp_loads loads;
    struct dp_weight weight;

    if (dp_traffic_init(&traffic, spec) || dp_routes_init(&routes, spec->topology) ||
        dp_loads_init(&loads, spec->topology) ||
        dp_search_weigh(&(struct dp_search){spec, &traffic, &routes, &loads, gpus}, gpus, 1, &weight))
        fail_msg("%s", dp_last_error());
    dp_loads_fini(&loads);
    dp_routes_fini(&routes);
    dp_traffic_fini(&traffic);
    return weight.slowest_ns;
}

/* Every order of gpus[at] and on. */
static double try_orders(const struct dp_placement_spec *spec, int32_t *gpus, int at, int count)
{
    double best = INFINITY;

    if (at == count)
        return weigh(spec, gpus);
    for (int i = at; i < count; i++) {
        int32_t gpu = gpus[at];
        gpus[at] = gpus[i];
        gpus[i] = gpu;
        best = fmin(best, try_orders(spec, gpus, at + 1, count));
        gpus[i] = gpus[at];
        gpus[at] = gpu;
    }
    return best;
}

static const struct small {
    const char *description;
    enum dp_schedule_kind kind;
    int ranks, replicas;
} small[] = {
    {"hgx-a100", DP_SCHEDULE_DUALPIPE, 4, 1},
    {"host:2 numa:2 root:1 switch:1 gpu:1 nic:1 pcie=4x16 net=100Gb/s", DP_SCHEDULE_1F1B, 4, 1},
    {"host:3 numa:2 gpu:1 nic:1 pcie=4x16 net=100Gb/s", DP_SCHEDULE_1F1B, 3, 2},
    {"host:2 numa:1 gpu:3 nic:1 pcie=5x16 nvlink=mesh:4x25 net=200Gb/s", DP_SCHEDULE_DUALPIPE, 2, 3},
    {"numa:2 root:1 switch:1 gpu:3 pcie=3x16", DP_SCHEDULE_DUALPIPE, 6, 1},
};

CASE(up_to_eight_workers_are_placed_as_trying_all_orders_would)
{
    for (size_t i = 0; i < sizeof(small) / sizeof(*small); i++) {
        struct fixture f = make(small[i].description, small[i].kind, small[i].ranks,
                                small[i].replicas);
        const int workers = small[i].ranks * small[i].replicas;
        int32_t *gpus = shuffle_gpus(f.t, workers, i), placed[8];
        double least = try_orders(&f.spec, gpus, 0, workers);
        f.spec.gpus = gpus;
        struct dp_placement *p = place(&f.spec);
        assert_true(p->exact);
        for (int w = 0; w < workers; w++)
            placed[w] = p->workers[w].gpu;
        if (fabs(weigh(&f.spec, placed) - least) > 1e-6 * least)
            fail_msg("%s: %g, expected %g", small[i].description, weigh(&f.spec, placed), least);
        assert_true(p->after_ns <= least * (1 + 1e-9));
        dp_placement_free(p);
        free(gpus);
        unmake(&f);
    }
}

/* ---- large groups --------------------------------------------------------------------------- */

static void check_assignment(const struct dp_placement *p, const int32_t *came, int32_t workers)
{
    char *seen = calloc((size_t)workers, 1);

    for (int32_t w = 0; w < workers; w++) {
        const struct dp_placed_worker *x = &p->workers[w];
        assert_in_range(x->came_as, 0, workers - 1);
        assert_int_equal(came[x->came_as], x->gpu);
        assert_false(seen[x->came_as]++);
    }
    free(seen);
}

CASE(no_order_of_arrival_is_better_than_what_is_found)
{
    static const char *const machines[] = {
        "dgx-h100 host:4", "host:8 numa:2 root:1 switch:1 gpu:2 nic:1 pcie=4x16 net=100Gb/s",
        "host:4 numa:1 gpu:8 nic:2 pcie=4x16 nvlink=switch:12x25 net=200Gb/s spine=50"};
    static const enum dp_schedule_kind kinds[] = {DP_SCHEDULE_DUALPIPE, DP_SCHEDULE_1F1B,
                                                  DP_SCHEDULE_DUALPIPEV};
    for (int i = 0; i < 9; i++) {
        struct fixture f = make(machines[i % 3], kinds[i / 3], i % 2 ? 8 : 4, i % 2 ? 4 : 8);
        int32_t *gpus = shuffle_gpus(f.t, 32, (uint64_t)i);
        f.spec.gpus = gpus;
        f.spec.effort = 2000;
        f.spec.offload_bytes = i % 2 ? 1e9 : 0;
        struct dp_placement *p = place(&f.spec);
        assert_false(p->exact);
        check_assignment(p, gpus, 32);
        assert_true(fabs(p->before_ns - weigh(&f.spec, gpus)) <= 1e-9 * p->before_ns);
        assert_true(p->after_ns <= p->before_ns * (1 + 1e-9));
        dp_placement_free(p);
        free(gpus);
        unmake(&f);
    }
}

CASE(adjacent_stages_of_a_pipeline_share_a_host)
{
    struct fixture f = make("dgx-h100 host:4", DP_SCHEDULE_1F1B, 8, 4);
    int32_t *gpus = shuffle_gpus(f.t, 32, 7);

    f.spec.gpus = gpus;
    f.spec.parameter_bytes = 0;
    struct dp_placement *p = place(&f.spec);
    for (int32_t i = 0; i < p->flow_count; i++)
        assert_int_equal(p->flows[i].class_, DP_TOPO_NV);
    assert_true(p->after_ns < p->before_ns / 2);
    dp_placement_free(p);
    free(gpus);
    unmake(&f);
}

CASE(the_same_spec_gives_the_same_placement)
{
    struct fixture f = make("hgx-a100 host:3", DP_SCHEDULE_DUALPIPE, 6, 4);
    int32_t *gpus = shuffle_gpus(f.t, 24, 3);
    char *a, *b;

    f.spec.gpus = gpus;
    f.spec.effort = 3000;
    struct dp_placement *p = place(&f.spec), *q = place(&f.spec);
    assert_int_equal(dp_placement_write(p, f.t, &a, NULL), 0);
    assert_int_equal(dp_placement_write(q, f.t, &b, NULL), 0);
    assert_string_equal(a, b);
    free(a);
    free(b);
    dp_placement_free(p);
    dp_placement_free(q);
    free(gpus);
    unmake(&f);
}

/* ---- routes --------------------------------------------------------------------------------- */

/* One GPU and two NICs a host: without a choice both flows of a GPU would take the same NIC. */
CASE(flows_share_the_nics_of_a_host)
{
    struct fixture f = make("host:4 numa:1 root:1 switch:1 gpu:1 nic:4 pcie=5x16 net=100Gb/s rails=one",
                            DP_SCHEDULE_DUALPIPE, 4, 1);
    struct dp_placement *p = place(&f.spec);
    int used = 0;

    assert_true(p->after_ns < 0.75 * p->before_ns);
    for (int32_t i = 0; i < p->flow_count; i++) {
        assert_true(p->flows[i].nic_from >= 0 && p->flows[i].nic_to >= 0 && p->flows[i].rail >= 0);
        used += p->flows[i].from == 1 && p->flows[i].nic_from != p->workers[1].nics[0];
    }
    assert_true(used > 0);
    assert_int_equal(p->workers[0].nic_count, 4);
    assert_int_equal(p->workers[0].qps[0], 1);
    dp_placement_free(p);
    unmake(&f);
}

CASE(an_offload_uses_the_memory_next_to_the_gpu)
{
    struct fixture f = make("numa:2 root:1 switch:1 gpu:2 nic:1 pcie=4x16 memory=256G",
                            DP_SCHEDULE_1F1B, 4, 1);

    f.spec.offload_bytes = 1e9;
    struct dp_placement *p = place(&f.spec);
    for (int w = 0; w < 4; w++) {
        int32_t at = p->workers[w].gpu;
        while (f.t->nodes[at].kind != DP_TOPO_NUMA)
            at = f.t->nodes[at].parent;
        assert_int_equal(p->workers[w].memory, at);
    }
    dp_placement_free(p);
    unmake(&f);
}

/* ---- errors --------------------------------------------------------------------------------- */

static void expect_refusal(const struct dp_placement_spec *spec, const char *sentence)
{
    struct dp_placement *p;

    assert_int_equal(dp_placement_new(spec, &p), DP_EINVAL);
    if (!strstr(dp_last_error(), sentence))
        fail_msg("'%s' does not say '%s'", dp_last_error(), sentence);
}

CASE(a_spec_that_is_wrong_is_refused_by_name)
{
    struct fixture f = make("numa:2 gpu:2", DP_SCHEDULE_1F1B, 4, 1);
    const struct dp_replica_pair pair = {.a = 0, .b = 1};
    int32_t gpus[4], n = 0;
    struct dp_placement_spec spec = f.spec;

    for (int32_t g = -1; n < 4 && (g = dp_topology_next(f.t, DP_TOPO_GPU, -1, g + 1)) >= 0;)
        gpus[n++] = g;
    spec.replicas = 2;
    expect_refusal(&spec, "topology: 4 GPUs, expected one for each of 8 workers");
    spec.replicas = -1;
    expect_refusal(&spec, "replicas: -1");
    spec = f.spec;
    spec.activation_bytes = -1;
    expect_refusal(&spec, "activation_bytes: -1");
    spec.activation_bytes = NAN;
    expect_refusal(&spec, "activation_bytes");
    spec = f.spec;
    spec.mixing = &pair;
    spec.mixing_count = 1;
    expect_refusal(&spec, "mixing: pair 0 is of replicas 0 and 1");
    spec = f.spec;
    spec.schedule = NULL;
    expect_refusal(&spec, "schedule: NULL");
    spec = f.spec;
    spec.gpus = gpus;
    gpus[3] = gpus[0];
    expect_refusal(&spec, "gpus[3]: gpu0, which stands there already");
    gpus[3] = 0;
    expect_refusal(&spec, "expected a GPU");
    gpus[3] = 99999;
    expect_refusal(&spec, "gpus[3]: node 99999");
    unmake(&f);
}

CASE(gpus_without_a_route_between_them_are_named)
{
    struct fixture f = make("host:2 numa:1 gpu:1", DP_SCHEDULE_1F1B, 2, 1);

    expect_refusal(&f.spec, "there is no route from");
    unmake(&f);
}

RUN_QUIET_CASES(NULL, NULL)
