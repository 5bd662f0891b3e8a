/* SPDX-License-Identifier: Apache-2.0
 *
 * The threads that copy for a rank of a pipeline run on the NUMA node of its parameters. On a machine with
 * one node it shows only that they are asked to, once, and for that node; tests/rdma-vm/one_guest.sh runs it
 * on one with two, and looks for the line that it prints.
 */
#include "config.h" /* GNU extensions: CPU sets */

#include "cmocka_all.h"

#include "base/bind.h"
#include "unit/comm/comm_group.h"
#include "train/gpt_layers.h"
#include <dualpipe/device.h>
#include <dualpipe/trainer.h>

#include <sched.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NODES = 64, RANKS = 2 };
static const int64_t timeout_ns = INT64_C(60000000000);
static const struct gpt_config config = {
    .layers = 4, .width = 8, .heads = 2, .context = 4, .batch = 1, .seed = 1};

static cpu_set_t mine; /* where the test may run */

/* What the engine of this rank asks for. */
static _Thread_local struct dp_device *bound;
static _Thread_local int bound_to, binds;

int __real_dp_device_bind(struct dp_device *dev, int node);
int __wrap_dp_device_bind(struct dp_device *dev, int node);
int __wrap_dp_device_bind(struct dp_device *dev, int node)
{
    bound = dev;
    bound_to = node;
    binds++;
    return __real_dp_device_bind(dev, node);
}

/* The CPUs of a node that the test may use; false: none. */
static bool cpus_of(int node, cpu_set_t *out)
{
    if (!dp_node_cpus("", node, out))
        return false;
    CPU_AND(out, out, &mine);
    return CPU_COUNT(out) > 0;
}

struct seen {
    cpu_set_t allowed;
    atomic_int times;
};

static void look(void *user)
{
    struct seen *seen = user;

    if (!sched_getaffinity(0, sizeof(seen->allowed), &seen->allowed))
        atomic_fetch_add(&seen->times, 1);
}

/* Where a thread of the device's may run. */
static int ask_thread(struct dp_device *dev, struct seen *seen)
{
    struct dp_device_stream *stream = NULL;
    struct dp_device_event *done = NULL;
    int err = dp_device_stream_new(dev, DP_PRIORITY_NORMAL, &stream);

    if (!err)
        err = dp_device_event_new(dev, &done);
    if (!err)
        err = dp_device_call(stream, look, seen);
    if (!err)
        err = dp_device_event_record(done, stream);
    if (!err)
        err = dp_device_event_wait(done, timeout_ns);
    dp_device_event_free(done);
    dp_device_stream_free(stream);
    return err;
}

static int check(struct dp_comm *comm, int node)
{
    struct seen seen = {.times = 0};
    cpu_set_t cpus, both;

    if (!binds)
        return 0; /* the system does not tell */
    CHECK(binds == 1 && bound_to == node && cpus_of(node, &cpus));
    CHECK(!ask_thread(bound, &seen) && atomic_load(&seen.times) == 1);
    CPU_AND(&both, &seen.allowed, &cpus);
    CHECK(CPU_COUNT(&both) > 0 && CPU_EQUAL(&both, &seen.allowed));
    return 0;
}

/* One rank: it touches its parameters first, on the node. */
static int open_on(struct dp_comm *comm, void *arg)
{
    const int *node = arg;
    const struct dp_trainer_config c = {
        .microbatches = RANKS,
        .rows = RANKS,
        .optimizer = dp_optimizer_defaults(DP_OPTIMIZER_ADAMW),
        .rate.peak = 0.1,
        .offload = {.parameters = true, .device_bytes = 1 << 20},
    };
    struct gpt_layers *layers;
    struct dp_trainer *t;
    cpu_set_t cpus;

    CHECK(cpus_of(*node, &cpus) && !dp_bind(&cpus, *node));
    CHECK(!gpt_layers_new(&config, NULL, false, &layers));
    CHECK(!dp_trainer_new(&c, gpt_layers_model(layers), comm, &t));
    const int failed = check(comm, *node);
    dp_trainer_free(t);
    gpt_layers_free(layers);
    return failed;
}

/* In a process of its own, whose ranks are given no memory that others have touched on another node. */
static void open_in_child(int node)
{
    int status;
    const pid_t child = fork();

    if (!child)
        _exit(comm_on_threads(RANKS, timeout_ns, open_on, &node) != 0);
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

CASE(ranks_of_a_pipeline_copy_beside_their_parameters)
{
    int nodes = 0;
    cpu_set_t cpus;

    for (int node = 0; node < NODES; node++)
        if (cpus_of(node, &cpus)) {
            open_in_child(node);
            nodes++;
        }
    if (!nodes)
        skip_because("the system does not tell of NUMA nodes");
    print_message("pipelines were opened on each of %d nodes\n", nodes);
}

int main(void)
{
    if (sched_getaffinity(0, sizeof(mine), &mine))
        return 1;
    return run_cases(NULL, NULL);
}
