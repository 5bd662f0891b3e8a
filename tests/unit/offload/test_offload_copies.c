/* SPDX-License-Identifier: Apache-2.0
 *
 * The copies of a streamed model: what is copied arrives, whatever is late, in both directions; an
 * urgent copy does not wait for a long one; a wrong one is an error; nothing is waited for beyond the
 * deadline.
 */
#include "cmocka_all.h"

#include "base/clock.h"
#include "base/fail.h"
#include "device/device_ops.h"
#include "fake_device.h"
#ifdef WITH_CUDA
#include "fakes/use_fake_cuda.h"
#endif
#include "offload/streams.h"

enum { CHECKED_CHUNK = 64 << 10, CHUNK = 4 << 20, SLOT = 5 * CHUNK + 3, SMALL = 3 * CHECKED_CHUNK };

static struct dp_device *dev;

/* ---- streams, memory on both sides ----------------------------------------------------------- */

struct rig {
    struct dpo_streams s;
    char *device, *source, *target; /* [2 * SLOT] each */
};

static char *memory(enum dp_memory where)
{
    void *p;

    assert_int_equal(dp_device_alloc(dev, where, 2 * SLOT, &p), 0);
    return p;
}

static void begin(struct rig *rig, bool check)
{
    *rig = (struct rig){.s = {.dev = dev, .timeout_ns = 60 * DP_NS_PER_S, .check = check}};
    rig->device = memory(DP_MEMORY_DEVICE);
    rig->source = memory(DP_MEMORY_PINNED);
    rig->target = memory(DP_MEMORY_PINNED);
    for (int i = 0; i < 2 * SLOT; i++)
        rig->source[i] = (char)(i * 7 + i / 251);
    memset(rig->target, 0, 2 * SLOT);
    assert_int_equal(dpo_streams_open(&rig->s), 0);
}

static void end(struct rig *rig)
{
    dpo_streams_close(&rig->s);
    dp_device_free(dev, DP_MEMORY_DEVICE, rig->device);
    dp_device_free(dev, DP_MEMORY_PINNED, rig->source);
    dp_device_free(dev, DP_MEMORY_PINNED, rig->target);
}

static void up(struct rig *rig, int stream, size_t at, size_t bytes, struct dp_device_event *record)
{
    const struct dpo_copy copy = {stream, rig->device + at, rig->source + at, bytes, {NULL}, record};

    assert_int_equal(dpo_copy(&rig->s, &copy), 0);
}

static void down(struct rig *rig, size_t at, size_t bytes, struct dp_device_event *after)
{
    const struct dpo_copy copy = {DPO_DOWN, rig->target + at, rig->device + at, bytes, {after}, NULL};

    assert_int_equal(dpo_copy(&rig->s, &copy), 0);
}

/* ---- what every device does ------------------------------------------------------------------ */

static void copies_of_every_size_come_and_go(void **state)
{
    static const size_t sizes[] = {0,         1,         255,       CHECKED_CHUNK - 1, CHECKED_CHUNK,
                                   CHUNK - 1, CHUNK + 1, 3 * CHUNK, SLOT};
    struct dp_device_event *there;
    struct rig rig;

    for (int check = 0; check < 2; check++) {
        begin(&rig, check);
        assert_int_equal(dp_device_event_new(dev, &there), 0);
        for (int i = 0; i < 9; i++) {
            up(&rig, i % 2 ? DPO_UP : DPO_UP_URGENT, 3, sizes[i], there);
            down(&rig, 3, sizes[i], there);
            assert_int_equal(dpo_copies_wait(&rig.s), 0);
            assert_memory_equal(rig.target + 3, rig.source + 3, sizes[i]);
            memset(rig.target, 0, SLOT);
        }
        dp_device_event_free(there);
        end(&rig);
    }
}

/* One slot, through which shard after shard goes up and down again, in whatever order streams are
 * at work; between two of them it is poisoned. Only events keep them apart. */
static void a_slot_that_is_used_again_and_again_holds_what_it_should(void **state)
{
    enum { ROUNDS = 60 };
    struct dp_device_event *poisoned, *loaded, *emptied;
    uint64_t random = 3;
    struct rig rig;

    begin(&rig, true);
    assert_int_equal(dp_device_event_new(dev, &poisoned), 0);
    assert_int_equal(dp_device_event_new(dev, &loaded), 0);
    assert_int_equal(dp_device_event_new(dev, &emptied), 0);
    for (int i = 0; i < ROUNDS; i++) {
        size_t bytes = 1 + random % SMALL, at = (random >> 20) % SMALL;
        const int stream = random >> 40 & 1 ? DPO_UP : DPO_UP_URGENT;
        const struct dpo_copy copies[] = {
            {DPO_UP, rig.device, NULL, SMALL, {emptied}, poisoned},
            {stream, rig.device, rig.source + at, bytes, {NULL, poisoned}, loaded},
            {DPO_DOWN, rig.target + at, rig.device, bytes, {loaded}, emptied},
        };
        memset(rig.target, 0, 2 * SMALL);
        for (int k = 0; k < 3; k++)
            assert_int_equal(dpo_copy(&rig.s, &copies[k]), 0);
        if (i % 2)
            assert_int_equal(dpo_copies_wait(&rig.s), 0);
        else
            assert_int_equal(dp_device_event_wait(emptied, rig.s.timeout_ns), 0);
        assert_memory_equal(rig.target + at, rig.source + at, bytes);
        random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    }
    assert_int_equal(dpo_copies_wait(&rig.s), 0);
    dp_device_event_free(poisoned);
    dp_device_event_free(loaded);
    dp_device_event_free(emptied);
    end(&rig);
}

static void a_poisoned_slot_is_full_of_NaNs(void **state)
{
    struct rig rig;

    begin(&rig, true);
    assert_int_equal(
        dpo_copy(&rig.s, &(struct dpo_copy){.stream = DPO_UP, .dst = rig.device, .bytes = SMALL}), 0);
    assert_int_equal(dpo_copies_wait(&rig.s), 0);
    down(&rig, 0, SMALL, NULL);
    assert_int_equal(dpo_copies_wait(&rig.s), 0);
    for (int i = 0; i < SMALL; i++)
        assert_int_equal((unsigned char)rig.target[i], 0xFF);
    end(&rig);
}

static int run_suite(const char *title, struct dp_device *device)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_of_every_size_come_and_go),
        cmocka_unit_test(a_slot_that_is_used_again_and_again_holds_what_it_should),
        cmocka_unit_test(a_poisoned_slot_is_full_of_NaNs),
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
    struct dp_device_event *there;
    struct rig rig;

    assert_int_equal(fake_device_open(&dev), 0);
    begin(&rig, false);
    assert_int_equal(dp_device_event_new(dev, &there), 0);
    up(&rig, DPO_UP, 0, SLOT, NULL);
    up(&rig, DPO_UP_URGENT, SLOT, CHUNK, there);
    assert_int_equal(dp_device_event_wait(there, rig.s.timeout_ns), 0);
    assert_int_equal(fake_device_copies(dev), 1);
    assert_int_equal(dpo_copies_wait(&rig.s), 0);
    assert_int_equal(fake_device_copies(dev), 1 + 6); /* SLOT is a little more than 5 chunks */
    dp_device_event_free(there);
    end(&rig);
    dp_device_close(dev);
}

static void a_copy_that_does_not_end_is_given_up_at_the_deadline(void **state)
{
    struct rig rig;

    assert_int_equal(fake_device_open(&dev), 0);
    begin(&rig, false);
    fake_device_hold(dev, true);
    up(&rig, DPO_UP, 0, 1, NULL);
    rig.s.timeout_ns = DP_NS_PER_MS;
    assert_int_equal(dpo_copies_wait(&rig.s), DP_ETIMEDOUT);
    fake_device_hold(dev, false);
    assert_int_equal(dpo_copies_wait(&rig.s), 0);
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

/* Every chunk that is checked is followed by the copy that brings it back. */
static void a_flipped_bit_is_an_error(void **state)
{
    struct dp_device_ops spoiling;
    struct rig rig;

    assert_int_equal(dp_device_host_open(0, &dev), 0);
    begin(&rig, true);
    sound = dev->ops;
    spoiling = *sound;
    spoiling.copy = spoiling_copy;
    dev->ops = &spoiling;
    spoil_in = 3;
    up(&rig, DPO_UP, 0, SMALL, NULL);
    assert_int_equal(dpo_copies_wait(&rig.s), DP_EIO);
    assert_non_null(strstr(dp_last_error(), "1 chunks of copies have not arrived as they were sent"));
    up(&rig, DPO_UP, 0, SMALL, NULL);
    assert_int_equal(dpo_copies_wait(&rig.s), 0);
    spoil_in = 1;
    down(&rig, 0, CHECKED_CHUNK, NULL);
    assert_int_equal(dpo_copies_wait(&rig.s), DP_EIO);
    assert_int_equal(dpo_copies_wait(&rig.s), 0);
    dev->ops = sound;
    end(&rig);
    dp_device_close(dev);
}

static int run_special(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_urgent_copy_depends_on_no_other),
        cmocka_unit_test(a_copy_that_does_not_end_is_given_up_at_the_deadline),
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
