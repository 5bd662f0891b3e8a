/* SPDX-License-Identifier: Apache-2.0
 *
 * The copy engine: what is copied arrives, whatever is late, in both directions and at every
 * priority; an urgent copy does not wait for a long one; a paced one waits until it may pass; a
 * wrong one is an error.
 */
#include "cmocka_all.h"

#include "base/clock.h"
#include "base/fail.h"
#include "device/device_ops.h"
#include "fake_device.h"
#ifdef WITH_CUDA
#include "fakes/use_fake_cuda.h"
#endif
#include <dualpipe/offload.h>

#include <stdlib.h>
#include <string.h>

enum { CHUNK = 1024, SLOT = 20 * CHUNK };
static const int64_t timeout_ns = 60 * DP_NS_PER_S;

static struct dp_device *dev;

/* ---- an engine, memory on both sides --------------------------------------------------------- */

struct rig {
    struct dp_copy_engine *engine;
    char *device, *source, *target; /* [2 * SLOT] each */
    bool open;                      /* the pace lets chunks pass */
    int asked;
};

static bool pace(void *user, enum dp_copy_direction direction, size_t bytes)
{
    struct rig *rig = user;

    (void)direction;
    assert_in_range(bytes, 1, CHUNK);
    rig->asked++;
    return rig->open;
}

static char *memory(enum dp_memory where)
{
    void *p;

    assert_int_equal(dp_device_alloc(dev, where, 2 * SLOT, &p), 0);
    return p;
}

static void begin(struct rig *rig, bool check, bool paced)
{
    const struct dp_copy_engine_config config = {.device = dev,
                                                 .chunk_bytes = CHUNK,
                                                 .check = check,
                                                 .measure = true,
                                                 .pace = paced ? pace : NULL,
                                                 .pace_user = rig};

    *rig = (struct rig){.open = true};
    rig->device = memory(DP_MEMORY_DEVICE);
    rig->source = memory(DP_MEMORY_PINNED);
    rig->target = memory(DP_MEMORY_PINNED);
    for (int i = 0; i < 2 * SLOT; i++)
        rig->source[i] = (char)(i * 7 + i / 251);
    memset(rig->target, 0, 2 * SLOT);
    assert_int_equal(dp_copy_engine_new(&config, &rig->engine), 0);
}

static void end(struct rig *rig)
{
    dp_copy_engine_free(rig->engine);
    dp_device_free(dev, DP_MEMORY_DEVICE, rig->device);
    dp_device_free(dev, DP_MEMORY_PINNED, rig->source);
    dp_device_free(dev, DP_MEMORY_PINNED, rig->target);
}

static struct dp_copy_spec up(const struct rig *rig, size_t at, size_t bytes)
{
    return (struct dp_copy_spec){
        .direction = DP_COPY_UP, .dst = rig->device + at, .src = rig->source + at, .bytes = bytes};
}

static struct dp_copy_spec down(const struct rig *rig, size_t at, size_t bytes)
{
    return (struct dp_copy_spec){.direction = DP_COPY_DOWN,
                                 .dst = rig->target + at,
                                 .src = rig->device + at,
                                 .bytes = bytes};
}

static struct dp_offload_copy *start(struct rig *rig, struct dp_copy_spec spec,
                                     enum dp_device_priority priority)
{
    struct dp_offload_copy *copy;

    spec.priority = priority;
    assert_int_equal(dp_copy_begin(rig->engine, &spec, &copy), 0);
    return copy;
}

/* ---- what every device does ------------------------------------------------------------------ */

static void copies_of_every_size_come_and_go(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 255, CHUNK - 1, CHUNK, CHUNK + 1, 7 * CHUNK, SLOT};
    struct dp_copy_stats stats;
    struct rig rig;
    size_t sum = 0;

    for (int check = 0; check < 2; check++) {
        begin(&rig, check, false);
        sum = 0;
        for (int i = 0; i < 8; i++) {
            enum dp_device_priority priority = i % 3 + DP_PRIORITY_LOW;
            assert_int_equal(
                dp_copy_wait(start(&rig, up(&rig, 3, sizes[i]), priority), timeout_ns), 0);
            struct dp_offload_copy *copy = start(&rig, down(&rig, 3, sizes[i]), priority);
            int err;
            while ((err = dp_copy_test(copy)) == DP_EAGAIN)
                ;
            assert_int_equal(err, 0);
            assert_memory_equal(rig.target + 3, rig.source + 3, sizes[i]);
            memset(rig.target, 0, SLOT);
            sum += sizes[i];
        }
        dp_copy_engine_stats(rig.engine, &stats);
        assert_int_equal(stats.copies[DP_COPY_UP], 8);
        assert_int_equal(stats.bytes[DP_COPY_DOWN], sum);
        assert_true(stats.busy_ns[DP_COPY_UP] > 0 && stats.busy_ns[DP_COPY_DOWN] > 0);
        end(&rig);
    }
}

static void an_urgent_copy_is_done_before_a_long_one_that_waits(void **state)
{
    (void)state;
    struct rig rig;

    begin(&rig, false, true);
    rig.open = false;
    struct dp_offload_copy *long_one = start(&rig, up(&rig, 0, SLOT), DP_PRIORITY_NORMAL);
    struct dp_offload_copy *urgent = start(&rig, up(&rig, SLOT, SLOT), DP_PRIORITY_HIGH);
    assert_int_equal(dp_copy_wait(urgent, timeout_ns), 0);
    assert_int_equal(dp_copy_test(long_one), DP_EAGAIN);
    assert_int_equal(dp_copy_wait(long_one, DP_NS_PER_MS), DP_ETIMEDOUT);
    rig.open = true;
    assert_int_equal(dp_copy_wait(long_one, timeout_ns), 0);
    end(&rig);
}

static void what_is_behind_a_paced_copy_waits_and_other_directions_do_not(void **state)
{
    (void)state;
    struct rig rig;

    begin(&rig, false, true);
    assert_int_equal(dp_copy_wait(start(&rig, up(&rig, 0, SLOT), DP_PRIORITY_LOW), timeout_ns), 0);
    assert_int_equal(rig.asked, SLOT / CHUNK);
    rig.open = false;
    struct dp_offload_copy *first = start(&rig, up(&rig, 0, SLOT), DP_PRIORITY_LOW);
    struct dp_offload_copy *second = start(&rig, up(&rig, SLOT, 1), DP_PRIORITY_LOW);
    assert_int_equal(dp_copy_wait(start(&rig, down(&rig, 0, SLOT), DP_PRIORITY_HIGH), timeout_ns),
                     0);
    assert_int_equal(dp_copy_test(first), DP_EAGAIN);
    assert_int_equal(dp_copy_test(second), DP_EAGAIN);
    rig.open = true;
    assert_int_equal(dp_copy_wait(second, timeout_ns), 0);
    assert_int_equal(dp_copy_wait(first, timeout_ns), 0);
    end(&rig);
}

/* One slot, through which shard after shard goes up and down again, in whatever order streams are
 * at work; between two of them it is poisoned. Only events keep them apart. */
static void a_slot_that_is_used_again_and_again_holds_what_it_should(void **state)
{
    (void)state;
    enum { ROUNDS = 60 };
    struct dp_device_event *loaded, *emptied;
    uint64_t random = 3;
    struct rig rig;

    begin(&rig, true, false);
    assert_int_equal(dp_device_event_new(dev, &loaded), 0);
    assert_int_equal(dp_device_event_new(dev, &emptied), 0);
    for (int i = 0; i < ROUNDS; i++) {
        size_t bytes = 1 + random % SLOT, at = (random >> 20) % SLOT;
        enum dp_device_priority priority = (int)(random >> 40) % 3 + DP_PRIORITY_LOW;
        struct dp_copy_spec poison = {.direction = DP_COPY_UP,
                                      .priority = priority,
                                      .dst = rig.device,
                                      .bytes = SLOT,
                                      .after = {emptied},
                                      .after_count = 1};
        struct dp_copy_spec load = {.direction = DP_COPY_UP,
                                    .priority = priority,
                                    .dst = rig.device,
                                    .src = rig.source + at,
                                    .bytes = bytes,
                                    .record = loaded};
        struct dp_copy_spec leave = {.direction = DP_COPY_DOWN,
                                     .priority = priority,
                                     .dst = rig.target + at,
                                     .src = rig.device,
                                     .bytes = bytes,
                                     .after = {loaded},
                                     .after_count = 1,
                                     .record = emptied};
        memset(rig.target, 0, 2 * SLOT);
        assert_int_equal(dp_copy_begin(rig.engine, &poison, NULL), 0);
        assert_int_equal(dp_copy_begin(rig.engine, &load, NULL), 0);
        assert_int_equal(dp_copy_begin(rig.engine, &leave, NULL), 0);
        if (i % 2)
            assert_int_equal(dp_copy_engine_drain(rig.engine, timeout_ns), 0);
        else
            assert_int_equal(dp_device_event_wait(emptied, timeout_ns), 0);
        assert_memory_equal(rig.target + at, rig.source + at, bytes);
        random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    }
    assert_int_equal(dp_copy_engine_drain(rig.engine, timeout_ns), 0);
    dp_device_event_free(loaded);
    dp_device_event_free(emptied);
    end(&rig);
}

static void a_poisoned_slot_is_full_of_NaNs(void **state)
{
    (void)state;
    struct dp_copy_spec poison = {.direction = DP_COPY_UP, .bytes = SLOT};
    struct rig rig;

    begin(&rig, true, false);
    poison.dst = rig.device;
    assert_int_equal(dp_copy_wait(start(&rig, poison, DP_PRIORITY_NORMAL), timeout_ns), 0);
    assert_int_equal(dp_copy_wait(start(&rig, down(&rig, 0, SLOT), DP_PRIORITY_LOW), timeout_ns),
                     0);
    for (int i = 0; i < SLOT; i++)
        assert_int_equal((unsigned char)rig.target[i], 0xFF);
    end(&rig);
}

static void what_cannot_be_copied_is_refused(void **state)
{
    (void)state;
    struct dp_offload_copy *copy;
    struct dp_copy_spec spec;
    struct rig rig;

    begin(&rig, false, true);
    spec = up(&rig, 0, 1);
    spec.src = NULL;
    assert_int_equal(dp_copy_begin(rig.engine, &spec, &copy), DP_EINVAL);
    spec = up(&rig, 0, 1);
    spec.priority = DP_PRIORITY_HIGH + 1;
    assert_int_equal(dp_copy_begin(rig.engine, &spec, &copy), DP_EINVAL);
    spec = up(&rig, 0, 1);
    spec.direction = DP_COPY_DIRECTIONS;
    assert_int_equal(dp_copy_begin(rig.engine, &spec, &copy), DP_EINVAL);
    spec = up(&rig, 0, 1);
    spec.after_count = DP_COPY_MAX_AFTER + 1;
    assert_int_equal(dp_copy_begin(rig.engine, &spec, &copy), DP_EINVAL);
    rig.open = false;
    spec = up(&rig, 0, 1);
    for (int i = 0; i < 64; i++)
        assert_int_equal(dp_copy_begin(rig.engine, &spec, NULL), 0);
    assert_int_equal(dp_copy_begin(rig.engine, &spec, &copy), DP_EAGAIN);
    assert_int_equal(dp_copy_engine_drain(rig.engine, 0), DP_ETIMEDOUT);
    rig.open = true;
    assert_int_equal(dp_copy_engine_drain(rig.engine, timeout_ns), 0);
    end(&rig);
}

static int run_suite(const char *title, struct dp_device *device)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_of_every_size_come_and_go),
        cmocka_unit_test(an_urgent_copy_is_done_before_a_long_one_that_waits),
        cmocka_unit_test(what_is_behind_a_paced_copy_waits_and_other_directions_do_not),
        cmocka_unit_test(a_slot_that_is_used_again_and_again_holds_what_it_should),
        cmocka_unit_test(a_poisoned_slot_is_full_of_NaNs),
        cmocka_unit_test(what_cannot_be_copied_is_refused),
    };

    dev = device;
    int failed = cmocka_run_group_tests_name(title, tests, NULL, NULL);
    dp_device_close(device);
    return failed;
}

/* ---- what only some show --------------------------------------------------------------------- */

/* On a device that does no work before it is waited for: a wait includes the copy's own chunks, and
 * none of the copies queued before. */
static void an_urgent_copy_depends_on_no_other(void **state)
{
    (void)state;
    struct rig rig;

    assert_int_equal(fake_device_open(&dev), 0);
    begin(&rig, false, false);
    struct dp_offload_copy *long_one = start(&rig, up(&rig, 0, SLOT), DP_PRIORITY_LOW);
    struct dp_offload_copy *urgent = start(&rig, up(&rig, SLOT, CHUNK), DP_PRIORITY_HIGH);
    assert_int_equal(dp_copy_wait(urgent, timeout_ns), 0);
    assert_int_equal(fake_device_copies(dev), 3); /* a chunk between two stamps */
    assert_int_equal(dp_copy_wait(long_one, timeout_ns), 0);
    assert_int_equal(fake_device_copies(dev), 3 + SLOT / CHUNK + 2);
    end(&rig);
    dp_device_close(dev);
}

static int spoil_in; /* copies */
static const struct dp_device_ops *sound;

static int spoiling_copy(struct dp_device_stream *stream, void *dst, const void *src, size_t bytes)
{
    int err = sound->copy(stream, dst, src, bytes);

    if (!err && spoil_in && !--spoil_in)
        ((char *)dst)[bytes / 2] ^= 1;
    return err;
}

/* Every copy of a checked engine is followed by the one that brings it back. */
static void a_flipped_bit_is_an_error(void **state)
{
    (void)state;
    struct dp_device_ops spoiling;
    struct dp_copy_spec spec;
    struct rig rig;

    assert_int_equal(dp_device_host_open(0, &dev), 0);
    begin(&rig, true, false);
    sound = dev->ops;
    spoiling = *sound;
    spoiling.copy = spoiling_copy;
    dev->ops = &spoiling;
    spoil_in = 3;
    assert_int_equal(dp_copy_wait(start(&rig, up(&rig, 0, SLOT), DP_PRIORITY_LOW), timeout_ns),
                     DP_EIO);
    assert_int_equal(dp_copy_wait(start(&rig, up(&rig, 0, SLOT), DP_PRIORITY_LOW), timeout_ns), 0);
    spoil_in = 1;
    spec = down(&rig, 0, CHUNK);
    assert_int_equal(dp_copy_begin(rig.engine, &spec, NULL), 0);
    assert_int_equal(dp_copy_engine_drain(rig.engine, timeout_ns), DP_EIO);
    assert_int_equal(dp_copy_engine_drain(rig.engine, timeout_ns), 0);
    dev->ops = sound;
    end(&rig);
    dp_device_close(dev);
}

static int run_special(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_urgent_copy_depends_on_no_other),
        cmocka_unit_test(a_flipped_bit_is_an_error),
    };

    return cmocka_run_group_tests_name("special devices", tests, NULL, NULL);
}

#ifdef WITH_CUDA
static int run_on_cuda(void)
{
    const struct fake_cuda *fake = use_fake_cuda();
    struct dp_device *device;

    if (!fake || dp_device_open("cuda:0", &device))
        return 1;
    fake->shake(11, 30);
    return run_suite("cuda on the stand-in, at random times", device) + fake->alive();
}
#endif

int main(void)
{
    struct dp_host_link late = {0, 0, 100 * DP_NS_PER_US, 9};
    struct dp_device *device;
    int failed = run_special();

    dp_log_set(NULL, NULL, DP_LOG_ERROR);
    failed += dp_device_host_open(0, &device) || run_suite("host", device);
    failed += dp_device_host_open(2, &device) || run_suite("host, 2 workers", device);
    failed += dp_device_host_open_link(2, &late, &device) ||
              run_suite("host, 2 workers, copies at random times", device);
    failed += fake_device_open(&device) ||
              run_suite("a device that does nothing before it is asked", device);
#ifdef WITH_CUDA
    failed += run_on_cuda();
#endif
    return failed;
}
