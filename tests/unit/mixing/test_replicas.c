/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients summed over replicas: the promised order to the last bit, on every communicator and for
 * any number of replicas; shards that together are the model.
 */
#include "base/internal.h"
#include "cmocka_all.h"

#include "unit/comm/comm_cases.h"

#include "base/fp16.h"
#include <dualpipe/replicas.h>

#define SECONDS(n) ((n)*INT64_C(1000000000))

/* The first is more than two pieces. */
enum { PARAMETERS = 6, MOST = 600000, MAX_RANKS = 8 };
static const int64_t sizes[PARAMETERS] = {MOST, 7, 0, 1000, 33, 500};
/* Of gradients; the value of a 16-bit one is of another type. */
static const int bits[PARAMETERS] = {32, 64, 32, 16, 32, 64};
enum { FROZEN = 4 };

struct model {
    struct dp_parameter parameters[PARAMETERS];
    DLTensor values[PARAMETERS], grads[PARAMETERS];
    int64_t shape[PARAMETERS][1];
    char names[PARAMETERS][8];
};

static DLTensor tensor_new(int64_t *shape, int wide)
{
    const uint8_t code = wide == 16 ? kDLBfloat : kDLFloat;

    return (DLTensor){.data = calloc((size_t)*shape + 1, 8), .device = {kDLCPU, 0}, .ndim = 1,
                      .dtype = {code, (uint8_t)wide, 1}, .shape = shape};
}

static void set(const DLTensor *t, int64_t i, double x)
{
    if (t->dtype.bits == 64)
        ((double *)t->data)[i] = x;
    else if (t->dtype.bits == 32)
        ((float *)t->data)[i] = (float)x;
    else
        ((uint16_t *)t->data)[i] = dp_bfloat16_store((float)x);
}

static double get(const DLTensor *t, int64_t i)
{
    if (t->dtype.bits == 64)
        return ((const double *)t->data)[i];
    return t->dtype.bits == 32 ? (double)((const float *)t->data)[i]
                               : (double)dp_bfloat16_load(((const uint16_t *)t->data)[i]);
}

/* What is added has other last bits in another order. */
static double gradient(int rank, int p, int64_t i)
{
    return (double)((i * 2654435761 + p * 40503 + rank * 97) % 10007) / 3.0;
}

static double value(int p, int64_t i)
{
    return (double)((i + p) % 31);
}

static void model_init(struct model *m, int rank)
{
    memset(m, 0, sizeof(*m));
    for (int p = 0; p < PARAMETERS; p++) {
        m->shape[p][0] = sizes[p];
        m->values[p] = tensor_new(m->shape[p], bits[p] == 16 ? 32 : bits[p]);
        m->grads[p] = tensor_new(m->shape[p], bits[p]);
        snprintf(m->names[p], sizeof(m->names[p]), "p%d", p % 1000);
        m->parameters[p] = (struct dp_parameter){.name = m->names[p], .value = &m->values[p],
                                                 .grad = p == FROZEN ? NULL : &m->grads[p],
                                                 .flags = p == FROZEN ? DP_PARAMETER_FROZEN
                                                          : p == 1    ? DP_PARAMETER_NO_DECAY
                                                                      : 0};
        for (int64_t i = 0; i < sizes[p]; i++) {
            set(&m->grads[p], i, gradient(rank, p, i));
            set(&m->values[p], i, value(p, i));
        }
    }
}

static void model_fini(struct model *m)
{
    for (int p = 0; p < PARAMETERS; p++) {
        free(m->values[p].data);
        free(m->grads[p].data);
    }
}

/* Rounded to the type of the parameter's gradient. */
static double rounded(int p, double x)
{
    return bits[p] == 64   ? x
           : bits[p] == 32 ? (double)(float)x
                           : (double)dp_bfloat16_load(dp_bfloat16_store((float)x));
}

static double pairwise(int p, int64_t i, int size)
{
    double x[MAX_RANKS];

    for (int r = 0; r < size; r++)
        x[r] = rounded(p, gradient(r, p, i));
    for (int step = 1; step < size; step *= 2)
        for (int r = 0; r + step < size; r += 2 * step)
            x[r] = rounded(p, bits[p] == 64 ? x[r] + x[r + step]
                                            : (double)((float)x[r] + (float)x[r + step]));
    return x[0];
}

static bool is_power_of_two(int size)
{
    return !(size & (size - 1));
}

static bool is_sum(int p, int64_t i, int size, double x)
{
    const double sum = pairwise(p, i, size);
    const double error = x > sum ? x - sum : sum - x;

    return is_power_of_two(size) ? error == 0 : error <= (bits[p] == 16 ? 0.02 : 1e-6) * sum;
}

static int sum(struct dp_comm *comm, void *arg)
{
    struct dp_replicas *r;
    struct model m;

    model_init(&m, dp_comm_rank(comm));
    CHECK(!dp_replicas_new(m.parameters, PARAMETERS, comm, NULL, &r));
    CHECK(!dp_replicas_sum(r, NULL));
    if (dp_comm_size(comm) > 1)
        CHECK(dp_replicas_sum(r, NULL) == DP_ESTATE);
    CHECK(!dp_replicas_wait(r));
    CHECK(!dp_replicas_test(r));
    for (int p = 0; p < PARAMETERS; p++)
        for (int64_t i = 0; i < sizes[p]; i++)
            CHECK(p == FROZEN || is_sum(p, i, dp_comm_size(comm), get(&m.grads[p], i)));
    dp_replicas_free(r);
    model_fini(&m);
    return 0;
}

CASE(gradients_are_summed_in_pairs)
{
    on_all_kinds(4, SECONDS(30), sum, NULL);
    for (int size = 1; size <= MAX_RANKS; size++)
        assert_int_equal(comm_on_threads(size, SECONDS(30), sum, NULL), 0);
}

/* Values become the gradients, each in the shard of one replica. */
static int shard(struct dp_comm *comm, void *arg)
{
    struct dp_replicas *r;
    struct model m;
    int32_t count;
    int64_t elements = 0, all[MAX_RANKS], total = 0;

    model_init(&m, dp_comm_rank(comm));
    CHECK(!dp_replicas_new(m.parameters, PARAMETERS, comm, NULL, &r));
    const struct dp_parameter *parts = dp_replicas_shard(r, &count);
    CHECK(!dp_parameters_check(parts, count));
    CHECK(!dp_replicas_scatter(r, NULL));
    CHECK(!dp_replicas_wait(r));
    for (int32_t k = 0; k < count; k++) {
        CHECK((parts[k].flags == DP_PARAMETER_NO_DECAY) == !strncmp(parts[k].name, "p1[", 3));
        for (int64_t i = 0; i < parts[k].value->shape[0]; i++)
            set(parts[k].value, i, get(parts[k].grad, i));
        elements += parts[k].value->shape[0];
    }
    CHECK(!dp_replicas_gather(r, NULL));
    CHECK(!dp_replicas_wait(r));
    for (int p = 0; p < PARAMETERS; p++)
        for (int64_t i = 0; i < sizes[p]; i++)
            CHECK(p == FROZEN ? get(&m.values[p], i) == value(p, i)
                              : is_sum(p, i, dp_comm_size(comm), get(&m.values[p], i)));
    CHECK(!dp_comm_allgather(comm, &elements, all, sizeof(elements)));
    for (int k = 0; k < dp_comm_size(comm); k++)
        total += all[k];
    for (int p = 0; p < PARAMETERS; p++)
        total -= p == FROZEN ? 0 : sizes[p];
    CHECK(!total);
    dp_replicas_free(r);
    model_fini(&m);
    return 0;
}

/* Gradients are elsewhere in each step, and what they leave behind is not touched. */
static int move(struct dp_comm *comm, void *arg)
{
    struct dp_replicas *r;
    struct model m;
    int32_t count;
    void *old[PARAMETERS];

    model_init(&m, dp_comm_rank(comm));
    CHECK(!dp_replicas_new(m.parameters, PARAMETERS, comm, NULL, &r));
    const struct dp_parameter *parts = dp_replicas_shard(r, &count);
    for (int p = 0; p < PARAMETERS; p++) {
        old[p] = m.grads[p].data;
        m.grads[p].data = calloc((size_t)sizes[p] + 2, 8);
        m.grads[p].byte_offset = 8;
        memcpy((char *)m.grads[p].data + 8, old[p], (size_t)sizes[p] * (size_t)bits[p] / 8);
    }
    CHECK(!dp_replicas_scatter(r, NULL) && !dp_replicas_wait(r));
    for (int32_t k = 0; k < count; k++) {
        const int p = parts[k].name[1] - '0';
        int64_t first = strtoll(parts[k].name + 3, NULL, 10);
        for (int64_t i = 0; i < parts[k].grad->shape[0]; i++)
            CHECK(is_sum(p, first + i, dp_comm_size(comm), get(parts[k].grad, i)));
    }
    for (int p = 0; p < PARAMETERS; p++) {
        m.grads[p].byte_offset = 0;
        for (int64_t i = 0; i < sizes[p]; i++)
            CHECK(get(&(DLTensor){.data = old[p], .dtype = m.grads[p].dtype}, i) ==
                  rounded(p, gradient(dp_comm_rank(comm), p, i)));
        free(old[p]);
    }
    dp_replicas_free(r);
    model_fini(&m);
    return 0;
}

CASE(gradients_may_move_between_steps)
{
    on_all_kinds(2, SECONDS(30), move, NULL);
    for (int size = 1; size <= 3; size++)
        assert_int_equal(comm_on_threads(size, SECONDS(30), move, NULL), 0);
}

CASE(shards_are_the_whole_model)
{
    on_all_kinds(2, SECONDS(30), shard, NULL);
    for (int size = 1; size <= 5; size++)
        assert_int_equal(comm_on_threads(size, SECONDS(30), shard, NULL), 0);
}

RANKS_CASE(lists_that_differ_are_an_error_on_all_replicas, on_all_kinds(2, SECONDS(30), part, NULL))
{
    char name[600] = "";
    struct dp_replicas *r;
    struct model m;

    model_init(&m, 0);
    CHECK(dp_replicas_new(m.parameters, PARAMETERS - (dp_comm_rank(comm) == 1), comm, NULL, &r) ==
          DP_EMISMATCH);
    CHECK_SAYS("number of parameters: rank 1 has 5, rank 0 has 6");
    /* Long names are told from shortly before where they differ. */
    memset(name, 'n', sizeof(name) - 1);
    name[sizeof(name) - 2] = dp_comm_rank(comm) == 1 ? '1' : '0';
    m.parameters[1].name = name;
    CHECK(dp_replicas_new(m.parameters, PARAMETERS, comm, NULL, &r) == DP_EMISMATCH);
    CHECK_SAYS("parameter 1: rank 1 has ...nnn");
    CHECK_SAYS("nnn1', float64[");
    CHECK_SAYS(", rank 0 has ...nnn");
    CHECK_SAYS("nnn0', float64[");
    m.parameters[1].name = dp_comm_rank(comm) == 1 ? "another" : "a\tname\nof lines";
    CHECK(dp_replicas_new(m.parameters, PARAMETERS, comm, NULL, &r) == DP_EMISMATCH);
    CHECK_SAYS("parameter 1: rank 1 has 'another', float64[");
    CHECK_SAYS(", rank 0 has 'a\tname");
    model_fini(&m);
    return 0;
}

CASE(without_a_communicator_there_are_no_replicas)
{
    struct dp_replicas *r;

    assert_int_equal(dp_replicas_new(NULL, 0, NULL, NULL, &r), DP_ESTATE);
    dp_replicas_free(NULL);
}
