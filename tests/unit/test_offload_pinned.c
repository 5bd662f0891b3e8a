/* SPDX-License-Identifier: Apache-2.0
 *
 * The pool of pinned memory, on the host and on the stand-in for CUDA.
 */
#include "cmocka_all.h"

#include "base/fail.h"
#include <dualpipe/offload.h>
#ifdef WITH_CUDA
#include "fakes/use_fake_cuda.h"
#endif

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
