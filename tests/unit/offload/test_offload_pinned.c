/* SPDX-License-Identifier: Apache-2.0
 *
 * Pinned memory, on the host and on the stand-in for CUDA.
 */
#include "config.h" /* GNU extensions: CPU sets */
#include "device/internal.h"

#include "cmocka_all.h"

#include "base/bind.h"
#include "base/fail.h"
#include "offload/pinned.h"
#ifdef WITH_CUDA
#include "fakes/use_fake_cuda.h"
#endif

#include <sched.h>
#include <stdatomic.h>

static struct dp_device *dev;

CASE(pages_are_there_counted_and_on_the_node)
{
    struct dpo_pinned p;

    assert_int_equal(dpo_pinned_map(dev, 0, (4 << 20) + 1, &p), 0);
    assert_int_equal((uintptr_t)p.start % (2 << 20), 0);
    assert_int_equal(p.bytes, 6 << 20);
    for (size_t i = 0; i < p.bytes; i += 333) {
        assert_int_equal(p.start[i], 0);
        p.start[i] = 1;
    }
    assert_int_equal(p.node, 0);
    if (p.pages)
        assert_int_equal(p.pages, (6 << 20) / 4096);
    assert_int_equal(p.pages_elsewhere, 0);
    dpo_pinned_unmap(&p);
    dpo_pinned_unmap(&p);
}

/* tests/rdma-vm/one_guest.sh runs this on a machine with two nodes, and looks for the line. */
CASE(every_node_of_the_machine_can_be_asked_for)
{
    enum { SLABS = 3 };
    struct dpo_pinned p[SLABS];
    char path[64];
    int nodes = 0;

    for (; nodes < 64; nodes++) {
        snprintf(path, sizeof(path), "/sys/devices/system/node/node%d", nodes);
        if (access(path, F_OK))
            break;
        for (int i = 0; i < SLABS; i++) {
            assert_int_equal(dpo_pinned_map(dev, nodes, 2 << 20, &p[i]), 0);
            assert_int_equal(p[i].node, nodes);
        }
        const size_t pages = p[SLABS - 1].pages;
        for (int i = 0; i < SLABS; i++) {
            assert_int_equal(p[i].pages_elsewhere, 0);
            dpo_pinned_unmap(&p[i]);
        }
        if (!pages)
            skip_because("the system does not tell where pages are");
        assert_int_equal(pages, (2 << 20) / 4096);
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
CASE(threads_of_the_device_run_on_the_node)
{
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
    expect_error(dp_device_bind(dev, 1023), DP_ENODEV, "has no NUMA node 1023");
    if (!nodes)
        skip_because("the system has no NUMA nodes in /sys");
    print_message("threads ran on each of %d nodes\n", nodes);
}

CASE(more_than_there_is_is_refused)
{
    struct dpo_pinned p = {.start = NULL};

    assert_int_equal(dpo_pinned_map(dev, -1, SIZE_MAX - 1, &p), DP_ENOMEM);
    assert_int_equal(dpo_pinned_map(dev, -1, SIZE_MAX / 4, &p), DP_ENOMEM);
    assert_null(p.start);
    dpo_pinned_unmap(&p);
}

static int run_on(const char *name)
{
    if (dp_device_open(name, &dev))
        return 1;
    int failed = run_titled_cases(name);
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
