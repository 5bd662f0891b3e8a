/* SPDX-License-Identifier: Apache-2.0
 *
 * Save areas that wait on the host change no bit, whatever copies are late; they take the memory off
 * the device that the simulator says.
 */
#include "cmocka_all.h"

#include "base/clock.h"
#include "unit/comm/comm_group.h"
#include "fake_device.h"
#include "pipeline_job.h"

static const int64_t deadline_ns = 60 * DP_NS_PER_S;
static _Thread_local struct dp_device *device;

struct trial {
    struct job job;
    /* a device that does no work before it is waited for; otherwise copies at random times */
    bool fake;
    int expected;
};

static void set_device(void *user, int rank, struct dp_pipeline_config *config)
{
    config->device = device;
}

static int open_device(const struct trial *t, int rank)
{
    struct dp_host_link late = {0, 0, 50 * DP_NS_PER_US, (uint64_t)rank + 1};

    return t->fake ? fake_device_open(&device) : dp_device_host_open_link(1, &late, &device);
}

static int run_steps(struct dp_comm *comm, void *arg)
{
    const struct trial *t = arg;
    struct job_rank r;

    CHECK(!open_device(t, dp_comm_rank(comm)));
    int err = job_rank_open(&r, &t->job, comm);
    CHECK(err == t->expected);
    for (int i = 0; i < 2 && !err; i++)
        CHECK(!job_rank_step(&r));
    job_rank_close(&r);
    dp_device_close(device);
    return 0;
}

static bool all(void *user, int rank, const struct dp_slot *slot, int32_t mb)
{
    return true;
}

static bool every_second(void *user, int rank, const struct dp_slot *slot, int32_t mb)
{
    return (mb + rank + slot->stage) % 2 == 0;
}

static bool every_third_again(void *user, const struct dp_slot *slot, int32_t mb)
{
    return mb % 3 == 0;
}

static struct dp_schedule *build(enum dp_schedule_kind kind, int ranks)
{
    struct dp_schedule_spec spec = {
        .kind = kind, .ranks = ranks, .microbatches = 10, .mirror_reduce = true};
    struct dp_schedule *s;

    assert_int_equal(dp_schedule_new(&spec, &s), 0);
    return s;
}

static void expect_sequential(const struct dp_schedule *s, bool fake, bool fixed_order,
                              struct dp_pipeline_memory *memory)
{
    struct trial t = {.job = job_make(s), .fake = fake};

    t.job.edit = set_device;
    t.job.fixed_order = fixed_order;
    job_begin(&t.job);
    assert_int_equal(comm_on_threads(s->ranks, deadline_ns, run_steps, &t), 0);
    assert_true(job_result_is_sequential(&t.job, 1));
    memcpy(memory, t.job.result->memory, (size_t)s->ranks * sizeof(*memory));
    job_end(&t.job);
}

static size_t count(const struct dp_schedule *s, enum dp_op_kind kind)
{
    size_t n = 0;

    for (size_t i = 0; i < s->first[s->ranks]; i++)
        n += s->ops[i].kind == kind;
    return n;
}

CASE(evicted_sets_change_no_bit)
{
    struct dp_pipeline_memory memory[4];

    for (int kind = DP_SCHEDULE_GPIPE; kind <= DP_SCHEDULE_DUALPIPEV; kind++)
        for (int variant = 0; variant < 6; variant++) {
            struct dp_schedule *s = build((enum dp_schedule_kind)kind, 4);
            if (variant == 5)
                assert_int_equal(dp_schedule_add_recomputes(s, every_third_again, NULL), 0);
            assert_int_equal(
                dp_schedule_add_evictions(s, variant % 3, variant < 3 ? all : every_second, NULL), 0);
            assert_int_equal(dp_schedule_check(s, NULL, NULL), 0);
            assert_true(count(s, DP_OP_EVICT) > 0);
            assert_int_equal(count(s, DP_OP_EVICT), count(s, DP_OP_FETCH));
            model_sync = variant % 2 ? fake_device_sync : NULL;
            expect_sequential(s, variant % 2, variant != 4, memory);
            dp_schedule_free(s);
        }
    model_sync = NULL;
}

/* The simulator counts sets, the allocator bytes; sets of one stage are of one size. */
CASE(the_peak_is_what_the_simulator_computes)
{
    struct dp_pipeline_memory kept[4], memory[4];
    struct dp_schedule *s = build(DP_SCHEDULE_GPIPE, 4);

    expect_sequential(s, false, true, kept);
    assert_int_equal(dp_schedule_add_evictions(s, 1, all, NULL), 0);
    expect_sequential(s, false, true, memory);
    ENDED_BY(dp_simulation_fini) struct dp_simulation sim = {0};
    struct dp_cost cost = {.f_ns = 1, .i_ns = 1, .w_ns = 1};
    assert_int_equal(dp_schedule_simulate(s, &cost, 0, &sim), 0);
    for (int rank = 0; rank < 4; rank++) {
        assert_int_equal(memory[rank].peak_activations, sim.ranks[rank].peak_activations);
        assert_true(memory[rank].peak_activations < 5 && kept[rank].peak_activations == 10);
        assert_int_equal(memory[rank].save_bytes * 10,
                         kept[rank].save_bytes * (size_t)memory[rank].peak_activations);
        assert_true(memory[rank].evicted_bytes > 0 && !kept[rank].evicted_bytes);
    }
    dp_schedule_free(s);
}

CASE(what_a_pipeline_does_not_evict_is_refused)
{
    static const char twice[] = "user P=2 M=1\nrank 0: F0.0 ev0.0 fe0.0 ev0.0 fe0.0 B0.0\n"
                                "rank 1: F0.0 ev0.0 fe0.0 ev0.0 fe0.0 B0.0\n";
    struct dp_schedule *s = build(DP_SCHEDULE_GPIPE, 2);
    struct trial t = {.expected = DP_EUNSUPPORTED};

    assert_int_equal(dp_schedule_add_evictions(s, -1, all, NULL), DP_EINVAL);
    assert_int_equal(dp_schedule_add_evictions(s, 1, all, NULL), 0);
    assert_int_equal(dp_schedule_add_evictions(s, 1, all, NULL), DP_ESTATE);
    dp_schedule_free(s);
    assert_int_equal(dp_schedule_read(twice, sizeof(twice) - 1, DP_FORMAT_TEXT, &s), 0);
    t.job = job_make(s);
    t.job.edit = set_device;
    job_begin(&t.job);
    assert_int_equal(comm_on_threads(2, deadline_ns, run_steps, &t), 0);
    job_end(&t.job);
    dp_schedule_free(s);
}
