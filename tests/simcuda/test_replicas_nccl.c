/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients in device memory summed over replicas by messages of NCCL, whole or in shards: the promised
 * order to the last bit, behind the work of a stream, and no wait of the host. The real libnccl on the simulated CUDA.
 */
#include "cmocka_all.h"
#include "simcuda/nccl_ranks.h"

#include "base/clock.h"
#include "base/fp16.h"
#include <dualpipe/replicas.h>

#include <stdlib.h>

static const int64_t LONG_NS = 60 * DP_NS_PER_S;
static const char *why_not;

/* The second tensor follows the first one in memory, but for one of three ranks, the others do not. */
enum { TENSORS = 8, MOST = 5000, ROOM = MOST * 8 + 64, MOST_RANKS = 4 };
static const int64_t sizes[TENSORS] = {MOST, 4000, 1, 333, 0, 77, 3001, 2050};
static const DLDataType types[TENSORS] = {
    {kDLFloat, 32, 1}, {kDLFloat, 32, 1}, {kDLFloat, 32, 1}, {kDLFloat, 64, 1},
    {kDLFloat, 32, 1}, {kDLFloat, 32, 1}, {kDLBfloat, 16, 1}, {kDLFloat, 16, 1},
};
enum { FROZEN = 5 };

struct model {
    struct dp_device *dev;
    struct dp_device_stream *stream;
    struct dp_device_event *event;
    struct dp_parameter parameters[TENSORS];
    DLTensor values[TENSORS], grads[TENSORS];
    int64_t shape[TENSORS][1];
    char names[TENSORS][8], *memory, *host;
};

static size_t apart; /* ranks are processes */

static size_t place_of(int t)
{
    return t == 1 ? (size_t)MOST * sizeof(float) + apart : (size_t)t * ROOM;
}

/* As the type of a tensor has it, rounded to nearest. */
static double rounded(int t, double x)
{
    if (types[t].bits == 64)
        return x;
    if (types[t].bits == 32)
        return (double)(float)x;
    return types[t].code == kDLBfloat ? dp_bfloat16_load(dp_bfloat16_store((float)x))
                                      : dp_float16_load(dp_float16_store((float)x));
}

/* What is added has other last bits in another order. */
static double gradient(int rank, int t, int64_t i)
{
    return rounded(t, (double)((i * 2654435761 + t * 40503 + rank * 97) % 10007) / 3.0);
}

static double get(const char *at, int t, int64_t i)
{
    if (types[t].bits == 64)
        return ((const double *)(const void *)at)[i];
    if (types[t].bits == 32)
        return (double)((const float *)(const void *)at)[i];
    const uint16_t narrow = ((const uint16_t *)(const void *)at)[i];
    return types[t].code == kDLBfloat ? dp_bfloat16_load(narrow) : dp_float16_load(narrow);
}

static void put(char *at, int t, int64_t i, double x)
{
    if (types[t].bits == 64)
        ((double *)(void *)at)[i] = x;
    else if (types[t].bits == 32)
        ((float *)(void *)at)[i] = (float)x;
    else
        ((uint16_t *)(void *)at)[i] = types[t].code == kDLBfloat ? dp_bfloat16_store((float)x)
                                                                : dp_float16_store((float)x);
}

/* 16 bits are added in float32 and rounded at each step. */
static double plus(int t, double a, double b)
{
    return types[t].bits == 64 ? a + b : rounded(t, (double)((float)a + (float)b));
}

/* Of 2^k replicas in pairs; of others as the replica that sums it has it. */
static bool is_sum(int t, int64_t i, int size, double x)
{
    double g[MOST_RANKS];

    for (int r = 0; r < size; r++)
        g[r] = gradient(r, t, i);
    if (size == 2 || size == 4)
        return x == (size == 2 ? plus(t, g[0], g[1]) : plus(t, plus(t, g[0], g[1]), plus(t, g[2], g[3])));
    for (int b = 0; b < size; b++) {
        double sum = g[(b + 1) % size];
        for (int k = 2; k <= size; k++)
            sum = plus(t, sum, g[(b + k) % size]);
        if (sum == x)
            return true;
    }
    return false;
}

static void put_gradients(struct model *m, int rank)
{
    for (int t = 0; t < TENSORS; t++)
        for (int64_t i = 0; i < sizes[t]; i++)
            put(m->host + place_of(t), t, i, gradient(rank, t, i));
}

static int model_init(struct model *m)
{
    void *memory[2] = {NULL, NULL};

    memset(m, 0, sizeof(*m));
    int err = dp_device_cuda_open(0, &m->dev);
    if (!err)
        err = dp_device_stream_new(m->dev, DP_PRIORITY_NORMAL, &m->stream);
    if (!err)
        err = dp_device_event_new(m->dev, &m->event);
    if (!err)
        err = dp_device_alloc(m->dev, DP_MEMORY_DEVICE, TENSORS * ROOM, &memory[0]);
    if (!err)
        err = dp_device_alloc(m->dev, DP_MEMORY_PINNED, TENSORS * ROOM, &memory[1]);
    m->memory = memory[0];
    m->host = memory[1];
    for (int t = 0; t < TENSORS; t++) {
        m->shape[t][0] = sizes[t];
        m->grads[t] = (DLTensor){.data = m->memory + place_of(t),
                                 .device = {kDLCUDA, 0},
                                 .ndim = 1,
                                 .dtype = types[t],
                                 .shape = m->shape[t]};
        m->values[t] = m->grads[t];
        snprintf(m->names[t], sizeof(m->names[t]), "p%d", t % 1000);
        m->parameters[t] = (struct dp_parameter){.name = m->names[t],
                                                 .value = &m->values[t],
                                                 .grad = t == FROZEN ? NULL : &m->grads[t],
                                                 .flags = t == FROZEN ? DP_PARAMETER_FROZEN : 0};
    }
    return err;
}

static void model_fini(struct model *m)
{
    dp_device_free(m->dev, DP_MEMORY_PINNED, m->host);
    dp_device_free(m->dev, DP_MEMORY_DEVICE, m->memory);
    dp_device_event_free(m->event);
    dp_device_stream_free(m->stream);
    dp_device_close(m->dev);
}

static int finish(struct model *m)
{
    int err = dp_device_event_record(m->event, m->stream);

    return err ? err : dp_device_event_wait(m->event, LONG_NS);
}

/* What dp_replicas_sum makes of the same gradients in the host's memory. */
static int sum_on_host(struct dp_comm *comm, struct model *m, char *expected)
{
    struct dp_parameter list[TENSORS];
    DLTensor grads[TENSORS];
    struct dp_replicas *sums;

    put_gradients(m, dp_comm_rank(comm));
    memcpy(expected, m->host, TENSORS * ROOM);
    for (int t = 0; t < TENSORS; t++) {
        grads[t] = m->grads[t];
        grads[t].device = (DLDevice){kDLCPU, 0};
        grads[t].data = expected + place_of(t);
        list[t] = m->parameters[t];
        list[t].value = &grads[t];
        list[t].grad = t == FROZEN ? NULL : &grads[t];
    }
    CHECK(!dp_replicas_new(list, TENSORS, comm, NULL, &sums));
    CHECK(!dp_replicas_sum(sums, NULL) && !dp_replicas_wait(sums));
    dp_replicas_free(sums);
    return 0;
}

static int check_sums(struct dp_comm *comm, const struct model *m, const char *expected)
{
    const int rank = dp_comm_rank(comm), size = dp_comm_size(comm);
    const bool pairs = size == 2 || size == 4;

    for (int t = 0; t < TENSORS; t++)
        for (int64_t i = 0; i < sizes[t]; i++) {
            const double x = get(m->host + place_of(t), t, i);
            CHECK(t == FROZEN ? x == gradient(rank, t, i) : is_sum(t, i, size, x));
            CHECK(!pairs || x == get(expected + place_of(t), t, i));
        }
    return 0;
}

/* The gradients are copied up in the stream that the sum is behind, and the sums down behind it. Values
 * are the gradients' memory here, so that what is scattered and then gathered is the sum. */
static int sum_once(struct dp_comm *comm, struct model *m, struct dp_replicas *sums, bool in_shards,
                    const char *expected)
{
    put_gradients(m, dp_comm_rank(comm));
    nccl_ranks_count_waits();
    CHECK(!dp_device_copy(m->stream, m->memory, m->host, TENSORS * ROOM));
    if (in_shards)
        CHECK(!dp_replicas_scatter(sums, m->stream) && !dp_replicas_gather(sums, m->stream));
    else
        CHECK(!dp_replicas_sum(sums, m->stream));
    CHECK(!dp_device_copy(m->stream, m->host, m->memory, TENSORS * ROOM));
    CHECK(nccl_ranks_waits() == 0);
    CHECK(dp_replicas_sum(sums, m->stream) == DP_ESTATE);
    CHECK(dp_replicas_scatter(sums, m->stream) == DP_ESTATE);
    CHECK(dp_replicas_gather(sums, m->stream) == DP_ESTATE);
    CHECK(!dp_replicas_wait(sums) && !dp_replicas_wait(sums));
    CHECK(!finish(m));
    return check_sums(comm, m, expected);
}

static bool is_in(const struct model *m, int t, const struct dp_parameter *piece, int64_t *first)
{
    const char *begin = (const char *)m->grads[t].data, *at = (const char *)piece->grad->data;

    *first = (at - begin) / (types[t].bits / 8);
    return !strncmp(piece->name, m->names[t], 2) && piece->name[2] == '[' && at >= begin &&
           *first + piece->grad->shape[0] <= sizes[t];
}

/* Asked again and again instead of waited for. */
static int test_until_over(struct dp_replicas *sums)
{
    const int64_t until_ns = dp_now_ns() + 60 * DP_NS_PER_S;
    int err;

    while ((err = dp_replicas_test(sums)) == DP_EAGAIN && dp_now_ns() < until_ns)
        ;
    return err;
}

/* A gather may still be in flight when the next sum is scattered; of a shard's elements all are sums,
 * and each element is in one shard. */
static int scatter_once(struct dp_comm *comm, struct model *m, struct dp_replicas *sums,
                        const char *expected)
{
    int32_t count;
    const struct dp_parameter *shard = dp_replicas_shard(sums, &count);
    int64_t first, all[MOST_RANKS], mine = 0, whole = 0;

    CHECK(!dp_replicas_gather(sums, m->stream));
    put_gradients(m, dp_comm_rank(comm));
    CHECK(!dp_device_copy(m->stream, m->memory, m->host, TENSORS * ROOM));
    CHECK(!dp_replicas_scatter(sums, m->stream));
    CHECK(!dp_device_copy(m->stream, m->host, m->memory, TENSORS * ROOM));
    CHECK(!test_until_over(sums) && !finish(m));
    for (int32_t k = 0; k < count; k++) {
        int t = 0;
        while (t < TENSORS && !is_in(m, t, &shard[k], &first))
            t++;
        CHECK(t < TENSORS && t != FROZEN);
        for (int64_t i = first; i < first + shard[k].grad->shape[0]; i++) {
            const double x = get(m->host + place_of(t), t, i);
            CHECK(is_sum(t, i, dp_comm_size(comm), x));
            CHECK(dp_comm_size(comm) == 3 || x == get(expected + place_of(t), t, i));
        }
        mine += shard[k].grad->shape[0];
    }
    CHECK(!dp_comm_allgather(comm, &mine, all, sizeof(mine)));
    for (int r = 0; r < dp_comm_size(comm); r++)
        whole += all[r];
    for (int t = 0; t < TENSORS; t++)
        whole -= t == FROZEN ? 0 : sizes[t];
    CHECK(whole == 0);
    return 0;
}

static int refuse(struct dp_comm *comm, struct dp_replicas *sums, struct model *m)
{
    struct dp_nccl_peer peers[MOST_RANKS];
    struct dp_replicas *none = NULL;

    CHECK(dp_replicas_new(m->parameters, TENSORS, NULL, m->dev, &none) == DP_ESTATE);
    CHECK(dp_replicas_sum(sums, NULL) == DP_EINVAL);
    CHECK_SAYS("of a device without a stream, expected one");
    CHECK(dp_replicas_nccl_peers(2, 2, peers) == DP_EINVAL);
    CHECK(dp_replicas_nccl_peers(1, 4, peers) == 2 && peers[0].rank == 0 && peers[1].rank == 3);
    CHECK(dp_replicas_nccl_peers(1, 3, peers) == 2 && peers[0].rank == 0 && peers[1].rank == 2);
    return !none ? 0 : -1;
}

/* What a rank has of sums on its device, over the communicator of the host that it was given. */
struct sums_rig {
    struct model m;
    struct dp_comm *comm;
    struct dp_replicas *sums;
};

static int rig_open(struct sums_rig *g, struct dp_comm *comm)
{
    struct dp_nccl_peer peers[MOST_RANKS];
    struct dp_nccl_config config = {.peers = peers};

    CHECK(!model_init(&g->m));
    config.device = g->m.dev;
    config.peer_count = dp_replicas_nccl_peers(dp_comm_rank(comm), dp_comm_size(comm), peers);
    CHECK(!dp_comm_nccl_open(comm, &config, &g->comm));
    CHECK(!dp_replicas_new(g->m.parameters, TENSORS, g->comm, g->m.dev, &g->sums));
    return 0;
}

static void rig_close(struct sums_rig *g)
{
    dp_replicas_free(g->sums);
    dp_comm_close(g->comm);
    model_fini(&g->m);
}

/* An error of rank 0 ends the run on all: so it waits until all others have nothing else to do. */
static int refuse_moved(struct dp_comm *comm, struct sums_rig *g)
{
    enum { TAG = 77 };
    struct dp_request request;
    char byte = 0;

    for (int r = 1; r < dp_comm_size(comm) && !dp_comm_rank(comm); r++)
        CHECK(!dp_comm_irecv(comm, r, DP_CHANNEL_ACTIVATION, TAG, &byte, 1, &request) &&
              !dp_comm_wait(comm, &request, r));
    if (dp_comm_rank(comm)) {
        int err = dp_comm_isend(comm, 0, DP_CHANNEL_ACTIVATION, TAG, &byte, 1, &request);
        err = err ? err : dp_comm_wait(comm, &request, 0);
        err = err ? err : dp_comm_irecv(comm, 0, DP_CHANNEL_ACTIVATION, TAG, &byte, 1, &request);
        err = err ? err : dp_comm_wait(comm, &request, 0);
        CHECK(err == DP_EABORTED);
        return 0;
    }
    g->m.grads[1].data = g->m.memory + place_of(2);
    CHECK(dp_replicas_wait(g->sums) == 0 && dp_replicas_sum(g->sums, g->m.stream) == DP_EUNSUPPORTED);
    CHECK_SAYS("gradient of parameter 'p1' has moved away from that of 'p0'");
    return 0;
}

static int sum(struct dp_comm *comm, void *arg)
{
    static _Alignas(16) char expected[TENSORS * ROOM];
    const bool differ = dp_comm_size(comm) == 3;
    struct sums_rig g;

    apart = differ && dp_comm_rank(comm) == 1 ? 64 : 0;
    if (rig_open(&g, comm) || sum_on_host(comm, &g.m, expected) || refuse(g.comm, g.sums, &g.m))
        return -1;
    for (int k = 0; k < 4; k++)
        if (sum_once(g.comm, &g.m, g.sums, k % 2, expected))
            return -1;
    if (scatter_once(g.comm, &g.m, g.sums, expected))
        return -1;
    const int err = differ ? 0 : refuse_moved(comm, &g);
    rig_close(&g);
    return err;
}

/* ---- ends ------------------------------------------------------------------------------------ */

enum what { OF_A_SUM, OF_A_GATHER };

struct fall {
    enum nccl_fall how;
    enum what of;
};

/* Whole, or the second half of it; all do the first half of that. */
static int queue(struct sums_rig *g, enum what of)
{
    return of == OF_A_SUM ? dp_replicas_sum(g->sums, g->m.stream)
                          : dp_replicas_gather(g->sums, g->m.stream);
}

static int prepare(struct sums_rig *g, enum what of)
{
    int err = of == OF_A_GATHER ? dp_replicas_scatter(g->sums, g->m.stream) : 0;

    return err ? err : dp_replicas_wait(g->sums);
}

/* The stream ends, too: nothing of what was queued is in it any more. */
static int survive(struct dp_comm *comm, struct sums_rig *g, const struct fall *fall)
{
    CHECK(!queue(g, fall->of));
    CHECK(!nccl_ranks_have_queued(comm, fall->how));
    const int err = dp_replicas_wait(g->sums);
    CHECK(!nccl_ranks_check_end(comm, fall->how, err));
    CHECK(!finish(&g->m));
    CHECK(queue(g, fall->of) == DP_EABORTED);
    CHECK(dp_replicas_scatter(g->sums, g->m.stream) == DP_EABORTED);
    CHECK(!dp_replicas_wait(g->sums) && !finish(&g->m));
    nccl_ranks_have_ended();
    return 0;
}

static int go_on_without_one(struct dp_comm *comm, void *arg)
{
    const struct fall *fall = arg;
    struct sums_rig g;

    if (rig_open(&g, comm))
        return -1;
    CHECK(!prepare(&g, fall->of));
    const int err = dp_comm_rank(comm) == NCCL_CULPRIT ? nccl_ranks_fall_out(g.comm, fall->how)
                                                       : survive(g.comm, &g, fall);
    if (!err)
        rig_close(&g);
    return err;
}

static int refuse_host(struct dp_comm *comm, void *arg)
{
    struct dp_replicas *none;
    struct dp_device *none_adds;
    struct model m;

    (void)arg;
    CHECK(!model_init(&m));
    CHECK(dp_replicas_new(m.parameters, TENSORS, comm, NULL, &none) == DP_EUNSUPPORTED);
    CHECK_SAYS("expected the host's, or sums on that device");
    CHECK(dp_replicas_new(m.parameters, TENSORS, comm, m.dev, &none) == DP_EUNSUPPORTED);
    CHECK_SAYS("expected one of NCCL");
    CHECK(!dp_device_open("host:0", &none_adds));
    for (int t = 0; t < TENSORS; t++)
        m.grads[t].device = m.values[t].device = dp_device_dl(none_adds);
    CHECK(dp_replicas_new(m.parameters, TENSORS, comm, none_adds, &none) == DP_EUNSUPPORTED);
    CHECK_SAYS("'p0': the device has no sum of gradients of 32 bits");
    dp_device_close(none_adds);
    CHECK(dp_replicas_new(m.parameters, TENSORS, comm, m.dev, &none) == DP_EUNSUPPORTED);
    CHECK_SAYS("'p0' is not in the memory of the device");
    model_fini(&m);
    return 0;
}

static void on_replicas(int size, rank_fn fn)
{
    int killed;

    if (why_not)
        skip_because(why_not);
    assert_int_equal(nccl_ranks_run_hosts(size, fn, NULL, &killed), 0);
}

static void four_replicas_sum_in_pairs_and_no_host_waits(void **state)
{
    (void)state;
    on_replicas(4, sum);
}

static void three_replicas_sum_a_part_each(void **state)
{
    (void)state;
    on_replicas(3, sum);
}

static void other_communicators_devices_and_memory_are_refused(void **state)
{
    (void)state;
    if (why_not)
        skip_because(why_not);
    assert_int_equal(comm_on_threads(1, LONG_NS, refuse_host, NULL), 0);
}

static void a_rank_falls_out(enum nccl_fall how, enum what of)
{
    struct fall fall = {how, of};

    if (why_not)
        skip_because(why_not);
    assert_true(nccl_ranks_run_fall(go_on_without_one, &fall.how));
}

static void a_death_ends_a_queued_sum_on_all_and_is_named(void **state)
{
    (void)state;
    a_rank_falls_out(NCCL_DIES, OF_A_SUM);
}

static void a_death_ends_a_queued_gather_on_all_and_is_named(void **state)
{
    (void)state;
    a_rank_falls_out(NCCL_DIES, OF_A_GATHER);
}

static void an_abort_ends_a_queued_sum_on_all_and_is_named(void **state)
{
    (void)state;
    a_rank_falls_out(NCCL_ABORTS, OF_A_SUM);
}

static void a_rank_that_queues_no_sum_is_named_at_the_deadline(void **state)
{
    (void)state;
    a_rank_falls_out(NCCL_STAYS_AWAY, OF_A_SUM);
}

static void a_rank_that_queues_no_gather_is_named_at_the_deadline(void **state)
{
    (void)state;
    a_rank_falls_out(NCCL_STAYS_AWAY, OF_A_GATHER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(four_replicas_sum_in_pairs_and_no_host_waits),
        cmocka_unit_test(three_replicas_sum_a_part_each),
        cmocka_unit_test(a_death_ends_a_queued_sum_on_all_and_is_named),
        cmocka_unit_test(a_death_ends_a_queued_gather_on_all_and_is_named),
        cmocka_unit_test(an_abort_ends_a_queued_sum_on_all_and_is_named),
        cmocka_unit_test(a_rank_that_queues_no_sum_is_named_at_the_deadline),
        cmocka_unit_test(a_rank_that_queues_no_gather_is_named_at_the_deadline),
        cmocka_unit_test(other_communicators_devices_and_memory_are_refused),
    };

    why_not = nccl_ranks_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
