/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads that copy, update, read and write run on the NUMA node of the memory that they work on, also
 * where none was asked for. tests/rdma-vm/one_guest.sh runs this on a machine with two nodes, and looks
 * for the lines that it prints.
 */
#include "config.h" /* GNU extensions: CPU sets */

#include "cmocka_all.h"

#include "base/bind.h"
#include "base/fail.h"
#include "base/internal.h"
#include "offload/disk_optimizer.h"
#include "offload/pinned.h"
#include "scratch.h"
#include <dualpipe/memory.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

enum { NODES = 64, COUNT = 4096, ROWS = 2 };
static const int64_t timeout_ns = INT64_C(60000000000);
static const DLDataType f32 = {kDLFloat, 32, 1};

static cpu_set_t mine; /* where the test may run */

/* The CPUs of a node that the test may use; false: none. */
static bool cpus_of(int node, cpu_set_t *out)
{
    if (!dp_node_cpus("", node, out))
        return false;
    CPU_AND(out, out, &mine);
    return CPU_COUNT(out) > 0;
}

static bool is_within(const cpu_set_t *some, const cpu_set_t *all)
{
    cpu_set_t both;

    CPU_AND(&both, some, all);
    return CPU_COUNT(some) > 0 && CPU_EQUAL(&both, some);
}

/* For each node what `one` returns as true; how many. */
static int each_node(bool (*one)(int node, const cpu_set_t *cpus))
{
    int nodes = 0;
    cpu_set_t cpus;

    for (int node = 0; node < NODES; node++)
        if (cpus_of(node, &cpus))
            nodes += one(node, &cpus);
    return nodes;
}

static void report(int nodes, const char *what)
{
    if (!nodes)
        skip_because("the system does not tell of NUMA nodes");
    print_message("%s on each of %d nodes\n", what, nodes);
}

/* ---- a model of one layer --------------------------------------------------------------------- */

struct seen {
    cpu_set_t allowed;
    int node; /* of the values */
    _Atomic int times;
};

static int copy_through(void *user, const struct dp_offload_call *call, const DLTensor *in,
                        DLTensor *out)
{
    memcpy(out[0].data, in[0].data, (size_t)call->rows * sizeof(float));
    return 0;
}

static int note(void *user, int32_t shard, const struct dp_parameter *parameters, int32_t count)
{
    struct seen *seen = user;

    seen->node = dp_memory_numa_node(parameters->value->data, COUNT * sizeof(float));
    atomic_fetch_add(&seen->times, 1);
    return sched_getaffinity(0, sizeof(seen->allowed), &seen->allowed) ? DP_EIO : 0;
}

static void train(struct dp_device *dev, struct seen *seen)
{
    static const struct dp_offload_layer_ops ops = {copy_through, copy_through};
    static float value[COUNT], grad[COUNT], rows[ROWS];
    const struct dp_border border = {1, {{.dtype = f32, .ndim = 1, .shape = {ROWS}}}};
    int64_t shape[1] = {COUNT}, rows_shape[1] = {ROWS};
    DLTensor v = {value, {kDLCPU, 0}, 1, f32, shape, NULL, 0}, g = v, x = v;
    const struct dp_parameter p = {.name = "p", .value = &v, .grad = &g};
    const struct dp_offload_layer layer = {
        .ops = &ops, .parameters = &p, .parameter_count = 1, .out = &border};
    const struct dp_offload_config config = {.device = dev, .layers = &layer, .layer_count = 1,
                                             .input = &border, .slices = 1, .update = note,
                                             .update_user = seen};
    const DLTensor *in[1] = {&x};
    struct dp_offload *o;

    g.data = grad;
    x.data = rows;
    x.shape = rows_shape;
    assert_int_equal(dp_offload_open(&config, &o), 0);
    assert_int_equal(
        dp_offload_forward(o, &(struct dp_offload_step){.inputs = in, .training = true}), 0);
    assert_int_equal(dp_offload_backward(o, &(struct dp_offload_gradients){.gouts = in}), 0);
    assert_int_equal(dp_offload_finish(o), 0);
    assert_int_equal(atomic_load(&seen->times), 1);
    dp_offload_close(o);
}

/* The device's threads begin on all CPUs; the thread that opens the model, and so touches its memory, is
 * on the node. */
struct model_run {
    struct dp_device *dev;
    const cpu_set_t *cpus;
    int node;
    struct seen seen;
};

static void *train_on_node(void *user)
{
    struct model_run *run = user;

    dp_bind(run->cpus, run->node);
    train(run->dev, &run->seen);
    return NULL;
}

static bool one_model(int node, const cpu_set_t *cpus)
{
    struct model_run run = {.cpus = cpus, .node = node, .seen = {.node = -1}};
    pthread_t thread;

    assert_int_equal(dp_device_host_open(2, &run.dev), 0);
    assert_int_equal(pthread_create(&thread, NULL, train_on_node, &run), 0);
    pthread_join(thread, NULL);
    dp_device_close(run.dev);
    if (run.seen.node < 0)
        return false;
    assert_int_equal(run.seen.node, node);
    assert_true(is_within(&run.seen.allowed, cpus));
    return true;
}

CASE(a_model_is_updated_where_its_memory_came_to_be)
{
    report(each_node(one_model), "models were updated");
}

/* ---- state in a file -------------------------------------------------------------------------- */

static void look(void *user)
{
    struct seen *seen = user;

    assert_int_equal(sched_getaffinity(0, sizeof(seen->allowed), &seen->allowed), 0);
    atomic_fetch_add(&seen->times, 1);
}

static void ask_thread(struct dp_device *dev, struct seen *seen)
{
    struct dp_device_stream *stream;
    struct dp_device_event *done;

    assert_int_equal(dp_device_stream_new(dev, DP_PRIORITY_NORMAL, &stream), 0);
    assert_int_equal(dp_device_event_new(dev, &done), 0);
    assert_int_equal(dp_device_call(stream, look, seen), 0);
    assert_int_equal(dp_device_event_record(done, stream), 0);
    assert_int_equal(dp_device_event_wait(done, timeout_ns), 0);
    assert_int_equal(atomic_load(&seen->times), 1);
    dp_device_event_free(done);
    dp_device_stream_free(stream);
}

static bool optimize(float *values, float *grads, int node, const cpu_set_t *cpus)
{
    char folder[SCRATCH_LEN];
    int64_t shape[1] = {COUNT};
    DLTensor v = {values, {kDLCPU, 0}, 1, f32, shape, NULL, 0}, g = v;
    const struct dp_parameter p = {.name = "p", .value = &v, .grad = &g};
    struct dp_offload_optimizer *o;
    struct seen seen = {.times = 0};

    g.data = grads;
    memset(grads, 0, COUNT * sizeof(float));
    memset(values, 0, COUNT * sizeof(float));
    assert_true(scratch_directory(folder, "nodes"));
    const struct dp_offload_optimizer_config config = {
        .optimizer = dp_optimizer_defaults(DP_OPTIMIZER_ADAMW), .folder = folder, .threads = true};
    assert_int_equal(dp_offload_optimizer_new(&config, &p, 1, &o), 0);
    const int buffers = dpo_disk_node(o);
    ask_thread(dpo_disk_device(o), &seen);
    assert_int_equal(
        dp_offload_optimizer_step(o, &(struct dp_optimizer_step){.rate = 0.1, .scale = 1}), 0);
    dp_offload_optimizer_free(o);
    rmdir(folder);
    if (buffers < 0)
        return false;
    assert_int_equal(buffers, node);
    assert_true(is_within(&seen.allowed, cpus));
    return true;
}

static bool one_file(int node, const cpu_set_t *cpus)
{
    struct dp_device *dev;
    struct dpo_pinned memory;

    assert_int_equal(dp_device_host_open(0, &dev), 0);
    assert_int_equal(dpo_pinned_map(dev, node, 2 * COUNT * sizeof(float), &memory), 0);
    float *values = (float *)(void *)memory.start;
    bool told = optimize(values, values + COUNT, node, cpus);
    dpo_pinned_unmap(&memory);
    dp_device_close(dev);
    return told;
}

CASE(files_are_read_and_written_beside_the_parameters)
{
    report(each_node(one_file), "files were read and written");
}

CASE(memory_that_is_not_there_is_on_no_node)
{
    assert_int_equal(dp_memory_numa_node(&mine, 0), -1);
    assert_int_equal(dp_memory_numa_node(NULL, 100), -1);
}

int main(void)
{
    if (sched_getaffinity(0, sizeof(mine), &mine))
        return 1;
    return run_cases(NULL, NULL);
}
