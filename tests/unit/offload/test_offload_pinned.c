/* SPDX-License-Identifier: Apache-2.0
 *
 * The pool of pinned memory, on the host and on the stand-in for CUDA.
 */
#include "config.h" /* GNU extensions: CPU sets */

#include "cmocka_all.h"

#include "base/bind.h"
#include "base/fail.h"
#include <dualpipe/offload.h>
#ifdef WITH_CUDA
#include "fakes/use_fake_cuda.h"
#endif

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct dp_device *dev;

static struct dp_pinned *new_pool(size_t slab_bytes)
{
    struct dp_pinned *p = NULL;

    assert_int_equal(
        dp_pinned_new(dev, &(struct dp_pinned_config){.numa_node = -1, .slab_bytes = slab_bytes},
                      &p),
        0);
    return p;
}

static char *take(struct dp_pinned *p, size_t bytes)
{
    void *ptr = NULL;

    assert_int_equal(dp_pinned_take(p, bytes, &ptr), 0);
    assert_int_equal((uintptr_t)ptr % 256, 0);
    memset(ptr, 1, bytes);
    return ptr;
}

static void blocks_do_not_overlap_and_keep_what_is_written(void **state)
{
    (void)state;
    enum { BLOCKS = 64 };
    struct dp_pinned *p = new_pool(4 << 20);
    struct dp_pinned_report report;
    char *blocks[BLOCKS];

    for (size_t i = 0; i < BLOCKS; i++) {
        blocks[i] = take(p, 1000 * i);
        memset(blocks[i], (int)i, 1000 * i);
    }
    for (size_t i = 0; i < BLOCKS; i++)
        for (size_t k = 0; k < 1000 * i; k += 333)
            assert_int_equal(blocks[i][k], i);
    for (size_t i = 0; i < BLOCKS; i += 2)
        assert_int_equal(dp_pinned_give(p, blocks[i]), 0);
    for (size_t i = 1; i < BLOCKS; i += 2)
        assert_int_equal(dp_pinned_give(p, blocks[i]), 0);
    dp_pinned_report(p, &report);
    assert_int_equal(report.used_bytes, 0);
    assert_int_equal(report.slab_bytes, 4 << 20);
    /* All of the slab is one block again. */
    assert_ptr_equal(take(p, 4 << 20), blocks[0]);
    dp_pinned_report(p, &report);
    assert_int_equal(report.slab_bytes, 4 << 20);
    dp_pinned_free(p);
}

static void a_block_larger_than_a_slab_has_a_slab_of_its_own(void **state)
{
    (void)state;
    struct dp_pinned *p = new_pool(0);
    struct dp_pinned_report report;

    take(p, (65 << 20) + 1);
    dp_pinned_report(p, &report);
    assert_int_equal(report.slab_bytes, 66 << 20);
    assert_int_equal(report.used_bytes, (65 << 20) + 256);
    dp_pinned_free(p);
}

static void pages_are_counted_and_on_the_node(void **state)
{
    (void)state;
    struct dp_pinned *p = NULL;
    struct dp_pinned_report report;

    assert_int_equal(dp_pinned_new(dev, &(struct dp_pinned_config){.slab_bytes = 1}, &p), 0);
    take(p, 100);
    dp_pinned_report(p, &report);
    assert_int_equal(report.numa_node, 0);
    if (!report.pages)
        skip_because("the system does not tell where pages are");
    assert_int_equal(report.pages, (2 << 20) / 4096);
    assert_int_equal(report.pages_elsewhere, 0);
    dp_pinned_free(p);
}

/* tests/rdma-vm/one_guest.sh runs this on a machine with two nodes, and looks for the line. */
static void every_node_of_the_machine_can_be_asked_for(void **state)
{
    (void)state;
    enum { SLABS = 3 };
    struct dp_pinned_report report;
    char path[64];
    int nodes = 0;

    for (; nodes < 64; nodes++) {
        struct dp_pinned *p = NULL;
        snprintf(path, sizeof(path), "/sys/devices/system/node/node%d", nodes);
        if (access(path, F_OK))
            break;
        assert_int_equal(
            dp_pinned_new(dev, &(struct dp_pinned_config){.numa_node = nodes, .slab_bytes = 1}, &p),
            0);
        for (int i = 0; i < SLABS; i++)
            take(p, 2 << 20);
        dp_pinned_report(p, &report);
        assert_int_equal(report.numa_node, nodes);
        if (!report.pages)
            skip_because("the system does not tell where pages are");
        assert_int_equal(report.pages, SLABS * (2 << 20) / 4096);
        assert_int_equal(report.pages_elsewhere, 0);
        dp_pinned_free(p);
    }
    if (!nodes)
        skip_because("the system has no NUMA nodes in /sys");
    print_message("pinned memory was on each of %d nodes\n", nodes);
}

struct thread {
    cpu_set_t allowed;
    _Atomic int ran;
};

static void look(void *user)
{
    struct thread *t = user;

    assert_int_equal(sched_getaffinity(0, sizeof(t->allowed), &t->allowed), 0);
    atomic_fetch_add(&t->ran, 1);
}

/* What a thread of the device may run on is of that node. */
static void expect_bound(struct dp_device *device, const cpu_set_t *cpus)
{
    struct dp_device_stream *stream;
    struct dp_device_event *done;
    struct thread t = {.ran = 0};
    cpu_set_t both;

    assert_int_equal(dp_device_stream_new(device, DP_PRIORITY_NORMAL, &stream), 0);
    assert_int_equal(dp_device_event_new(device, &done), 0);
    assert_int_equal(dp_device_call(stream, look, &t), 0);
    assert_int_equal(dp_device_event_record(done, stream), 0);
    assert_int_equal(dp_device_event_wait(done, INT64_C(60000000000)), 0);
    assert_int_equal(atomic_load(&t.ran), 1);
    CPU_AND(&both, &t.allowed, cpus);
    assert_true(CPU_COUNT(&t.allowed) > 0 && CPU_EQUAL(&both, &t.allowed));
    dp_device_event_free(done);
    dp_device_stream_free(stream);
}

/* tests/rdma-vm/one_guest.sh looks for the line, too. */
static void threads_of_the_device_run_on_the_node(void **state)
{
    (void)state;
    int nodes = 0;
    cpu_set_t cpus, mine;

    assert_int_equal(sched_getaffinity(0, sizeof(mine), &mine), 0);
    for (int node = 0; node < 64; node++) {
        struct dp_device *device;
        if (!dp_node_cpus("", node, &cpus))
            continue;
        CPU_AND(&cpus, &cpus, &mine);
        assert_int_equal(dp_device_open("host:2", &device), 0);
        const int err = dp_device_bind(device, node);
        assert_int_equal(err, CPU_COUNT(&cpus) ? 0 : DP_ENODEV);
        if (!err)
            expect_bound(device, &cpus);
        nodes += !err;
        dp_device_close(device);
    }
    assert_int_equal(dp_device_bind(dev, -1), DP_ENODEV);
    assert_int_equal(dp_device_bind(dev, 1023), DP_ENODEV);
    assert_non_null(strstr(dp_last_error(), "has no NUMA node 1023"));
    if (!nodes)
        skip_because("the system has no NUMA nodes in /sys");
    print_message("threads ran on each of %d nodes\n", nodes);
}

static void what_is_no_block_is_refused(void **state)
{
    (void)state;
    struct dp_pinned *p = new_pool(0), *none = NULL;
    char *block = take(p, 1000);
    void *ptr = NULL;

    assert_int_equal(dp_pinned_give(p, block + 256), DP_EINVAL);
    assert_int_equal(dp_pinned_give(p, NULL), 0);
    assert_int_equal(dp_pinned_give(p, block), 0);
    assert_int_equal(dp_pinned_give(p, block), DP_EINVAL);
    assert_non_null(strstr(dp_last_error(), "was not taken from this pool"));
    assert_int_equal(dp_pinned_take(p, SIZE_MAX - 1, &ptr), DP_ENOMEM);
    assert_int_equal(dp_pinned_take(p, SIZE_MAX / 4, &ptr), DP_ENOMEM);
    assert_null(ptr);
    assert_int_equal(dp_pinned_new(NULL, NULL, &none), DP_EINVAL);
    assert_int_equal(dp_pinned_new(dev, &(struct dp_pinned_config){.numa_node = -2}, &none),
                     DP_EINVAL);
    assert_null(none);
    dp_pinned_free(p);
    dp_pinned_free(NULL);
}

static int run_on(const char *name)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_do_not_overlap_and_keep_what_is_written),
        cmocka_unit_test(a_block_larger_than_a_slab_has_a_slab_of_its_own),
        cmocka_unit_test(pages_are_counted_and_on_the_node),
        cmocka_unit_test(every_node_of_the_machine_can_be_asked_for),
        cmocka_unit_test(threads_of_the_device_run_on_the_node),
        cmocka_unit_test(what_is_no_block_is_refused),
    };

    if (dp_device_open(name, &dev))
        return 1;
    int failed = cmocka_run_group_tests_name(name, tests, NULL, NULL);
    dp_device_close(dev);
    return failed;
}

int main(void)
{
    int failed = run_on("host:0");
#ifdef WITH_CUDA
    const struct fake_cuda *fake = use_fake_cuda();
    failed += !fake || run_on("cuda:0") || fake->alive();
#endif
    return failed;
}
