/* SPDX-License-Identifier: Apache-2.0 */
#include "cmocka_all.h"

#include <dualpipe/device.h>

#include <string.h>

static void the_host_copies_zeroes_and_reaches_its_events(void **state)
{
    (void)state;
    struct dp_device *dev;
    struct dp_device_stream *stream;
    struct dp_device_event *event;
    char *a, *b;

    assert_int_equal(dp_device_open("host", &dev), 0);
    assert_int_equal(dev->dl.device_type, kDLCPU);
    assert_true(dev->host_accessible);
    assert_int_equal(dev->ops->alloc(dev, DP_MEMORY_DEVICE, 5 << 20, (void **)&a), 0);
    assert_int_equal(dev->ops->alloc(dev, DP_MEMORY_PINNED, 5 << 20, (void **)&b), 0);
    assert_int_equal((uintptr_t)a % 256, 0);
    assert_int_equal(dev->ops->stream_new(dev, &stream), 0);
    assert_int_equal(dev->ops->event_new(dev, &event), 0);
    assert_int_equal(dev->ops->event_test(event), 0);
    memset(a, 7, 5 << 20);
    assert_int_equal(dev->ops->copy(stream, b, a, 5 << 20), 0);
    assert_int_equal(dev->ops->zero(stream, a, 5 << 20), 0);
    assert_int_equal(dev->ops->event_record(event, stream), 0);
    assert_int_equal(dev->ops->stream_wait(stream, event), 0);
    assert_int_equal(dev->ops->event_wait(event, INT64_C(5000000000)), 0);
    assert_int_equal(b[(5 << 20) - 1], 7);
    assert_int_equal(a[(5 << 20) - 1], 0);
    dev->ops->event_free(event);
    dev->ops->stream_free(stream);
    dev->ops->free(dev, DP_MEMORY_DEVICE, a);
    dev->ops->free(dev, DP_MEMORY_PINNED, b);
    dp_device_close(dev);
}

static void bad_names_say_what_was_expected(void **state)
{
    (void)state;
    static const char *const names[] = {"", "hots", "host:", "host:x", "host:-1", "cuda:1x", "cudax"};
    struct dp_device *dev;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        assert_int_equal(dp_device_open(names[i], &dev), DP_EINVAL);
        assert_non_null(strstr(dp_last_error(), "expected host[:workers] or cuda[:ordinal]"));
    }
    assert_int_equal(dp_device_open(NULL, &dev), DP_EINVAL);
    assert_int_equal(dp_device_host_open(65, &dev), DP_EINVAL);
    assert_int_equal(dp_device_host_open(-1, &dev), DP_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_host_copies_zeroes_and_reaches_its_events),
        cmocka_unit_test(bad_names_say_what_was_expected),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
