/* SPDX-License-Identifier: Apache-2.0
 *
 * test_profiler_network.c - the profiler plugin: what travels over the network, over which rail, what it
 * waits for and when, from the events of every version of NCCL's interface.
 */
#include "config.h"

#include "cmocka_all.h"

#include "base/clock.h"
#include "nccl-plugin/profiler/counters.h"
#include "nccl-plugin/nccl_abi.h"
#include "nccl-plugin/profiler/profiler.h"
#include "scratch.h"

#include <jansson.h>

static char traffic_path[SCRATCH_LEN], trace_path[SCRATCH_LEN];

enum { COLL = 2, PROXY_OP = 8, PROXY_STEP = 16, NET_PLUGIN = 128 };
enum { GPU_WAIT = 8, SEND_WAIT, RECV_WAIT, FLUSH_WAIT, RECV_GPU_WAIT, IN_PROGRESS = 19, PEER_WAIT };

/* ---- what NCCL says -------------------------------------------------------------------------- */

/* Members at byte offsets, as nccl-profiler's headers lay them out; the rest is not cleared. */
struct descriptor {
    char bytes[136];
};

static void put(struct descriptor *d, int offset, uint64_t value, size_t size)
{
    memcpy(d->bytes + offset, &value, size);
}

static struct descriptor descriptor_of(int version, int type, const void *parent)
{
    struct descriptor d;

    memset(&d, 0xaa, sizeof(d));
    put(&d, 0, (uint64_t)type, version >= 5 ? 8 : 1);
    put(&d, 8, (uintptr_t)parent, 8);
    put(&d, 16, 0, 4);
    return d;
}

static void *start(int version, void *context, const struct descriptor *d)
{
    void *handle = &handle; /* what NCCL left there */

    dpn_profiler_event(version, context, &handle, d);
    return handle;
}

/* An all-reduce of 256 bytes. */
static void *start_coll(int version, void *context)
{
    struct descriptor d = descriptor_of(version, COLL, NULL);

    put(&d, 24, (uintptr_t) "", 8);
    if (version <= 3)
        put(&d, 32, 0xfeed, 8);
    if (version == 1) {
        put(&d, 48, 4, 1);
        put(&d, 84, 1, 1);
    } else {
        put(&d, version <= 3 ? 48 : 32, (uintptr_t) "AllReduce", 8);
        put(&d, version <= 3 ? 88 : 72, (uintptr_t) "ncclInt8", 8);
    }
    put(&d, version <= 3 ? 72 : 56, 256, 8);
    return start(version, context, &d);
}

static void *start_part_of(int version, void *context, void *coll, int peer, bool is_send, pid_t pid)
{
    struct descriptor d = descriptor_of(version, PROXY_OP, coll);

    put(&d, 24, (uint64_t)pid, 4);
    put(&d, 28, 3, 1);
    put(&d, 32, (uint64_t)peer, 4);
    put(&d, 36, 2, 4);
    put(&d, 40, 512, 4);
    put(&d, 44, is_send, 4);
    return start(version, context, &d);
}

static void *start_part(int version, void *context, void *coll, int peer, bool is_send)
{
    return start_part_of(version, context, coll, peer, is_send, getpid());
}

static void *start_step(int version, void *context, void *part, int number)
{
    struct descriptor d = descriptor_of(version, PROXY_STEP, part);

    put(&d, 24, (uint64_t)number, 4);
    return start(version, context, &d);
}

static void tell_rail(int version, void *context, void *step, uint64_t id, const void *data)
{
    struct descriptor d = descriptor_of(version, NET_PLUGIN, step);

    put(&d, 24, id, 8);
    put(&d, 32, (uintptr_t)data, 8);
    assert_null(start(version, context, &d));
}

/* Time passes, which a clock may show. */
static void wait_a_moment(void)
{
    const int64_t until_ns = dp_now_ns() + 2000;

    while (dp_now_ns() < until_ns)
        ;
}

static void say(void *handle, int state, uint64_t bytes)
{
    dpn_profiler_state(handle, state, &bytes);
    wait_a_moment();
}

/* ---- what is counted ------------------------------------------------------------------------- */

static void *open_comm(uint64_t hash)
{
    void *context;

    assert_int_equal(dpn_profiler_open(
                         &(struct dpn_profiled){.hash = hash, .rank = 1, .ranks = 4, .nodes = 2},
                         &context),
                     0);
    return context;
}

static struct dpn_profile_row *flow_to(void *context, int peer, bool is_send)
{
    struct dpn_network_comm comm;

    assert_true(dpn_profiler_comm(context, &comm));
    assert_in_range(comm.counters, 0, DPN_PROFILE_COMMS - 1);
    struct dpn_profile_row *f =
        dpn_counters_flow(dpn_profile_key(comm.counters, peer, is_send, 3));
    assert_non_null(f);
    return f;
}

static uint64_t waited(struct dpn_profile_row *f, enum dpn_profile_wait wait)
{
    return atomic_load(&f->values[DPN_PROFILE_WAIT_NS + wait]);
}

static void expect_waiting(struct dpn_profile_row *f, enum dpn_profile_wait wait, int steps)
{
    for (int i = 0; i < DPN_WAITS; i++)
        assert_int_equal(atomic_load(&f->values[DPN_PROFILE_WAITING + i]), i == (int)wait ? steps : 0);
}

/* One all-reduce of rank 1, in a process of its own, which ends. */
static void run_process(void)
{
    const pid_t pid = fork();

    if (!pid) {
        void *context = open_comm(11), *coll = start_coll(5, context);
        void *part = start_part(5, context, coll, 2, true);
        void *step = start_step(5, context, part, 0);
        tell_rail(5, context, step, DPN_PROFILE_NET_ID, "mlx5_0");
        say(step, GPU_WAIT, 0);
        say(step, SEND_WAIT, 512);
        dpn_network_stop(step);
        dpn_network_stop(part);
        dpn_profiler_close(context);
        dpn_trace_write();
        dpn_trace_write(); /* once */
        _exit(0);
    }
    int how;
    assert_int_equal(waitpid(pid, &how, 0), pid);
    assert_int_equal(how, 0);
}

static json_t *find_event(json_t *trace, const char *phase, size_t skip)
{
    json_t *event;
    size_t i;

    json_array_foreach(json_object_get(trace, "traceEvents"), i, event) if (
        !strcmp(json_string_value(json_object_get(event, "ph")), phase) && !skip--) return event;
    fail_msg("no event %s", phase);
    return NULL;
}

/* The first case: nothing is inherited. */
CASE(processes_add_to_one_trace_that_is_whole)
{
    json_error_t error;

    run_process();
    run_process();
    json_t *trace = json_load_file(trace_path, JSON_REJECT_DUPLICATES, &error);
    if (!trace)
        fail_msg("line %d: %s", error.line, error.text);
    /* Two names of processes, two of rows each, a call and a slice. */
    assert_int_equal(json_array_size(json_object_get(trace, "traceEvents")), 2 * 5);
    json_t *slice = find_event(trace, "X", 1), *call = find_event(trace, "i", 1);
    json_t *arguments = json_object_get(slice, "args");
    assert_string_equal(json_string_value(json_object_get(slice, "name")), "AllReduce");
    assert_string_equal(json_string_value(json_object_get(call, "name")), "AllReduce");
    assert_int_equal(json_integer_value(json_object_get(arguments, "bytes")), 512);
    assert_int_equal(json_integer_value(json_object_get(arguments, "peer")), 2);
    assert_string_equal(json_string_value(json_object_get(arguments, "rail")), "mlx5_0");
    assert_true(json_integer_value(json_object_get(arguments, "wait_gpu_us")) >= 2);
    assert_true(json_number_value(json_object_get(slice, "dur")) >= 4);
    assert_true(json_number_value(json_object_get(slice, "ts")) >=
                json_number_value(json_object_get(call, "ts")));
    assert_int_not_equal(json_integer_value(json_object_get(find_event(trace, "X", 0), "pid")),
                         json_integer_value(json_object_get(slice, "pid")));
    json_decref(trace);
}

CASE(a_file_that_is_no_trace_stays_as_it_is)
{
    char text[64];
    FILE *file = fopen(trace_path, "w");

    fputs("a letter", file);
    fclose(file);
    run_process();
    file = fopen(trace_path, "r");
    assert_non_null(fgets(text, sizeof(text), file));
    assert_string_equal(text, "a letter");
    assert_null(fgets(text, sizeof(text), file));
    fclose(file);
    assert_int_equal(truncate(trace_path, 0), 0);
}

CASE(chunks_of_a_send_are_counted_with_what_they_wait_for)
{
    for (int version = 4; version <= DPN_PROFILER_VERSIONS; version++) {
        void *context = open_comm(0xfeed), *coll = start_coll(version, context);
        void *part = start_part(version, context, coll, 2, true);
        struct dpn_profile_row *f = flow_to(context, 2, true);

        say(part, IN_PROGRESS, 0);
        void *first = start_step(version, context, part, 0);
        void *second = start_step(version, context, part, 1);
        assert_ptr_not_equal(first, second);
        say(first, GPU_WAIT, 77); /* sizes of other states are those of an earlier step */
        expect_waiting(f, DPN_WAIT_GPU, 1);
        say(second, GPU_WAIT, 77);
        expect_waiting(f, DPN_WAIT_GPU, 2);
        say(first, PEER_WAIT, 77);
        say(first, PEER_WAIT, 77);
        say(second, PEER_WAIT, 77);
        expect_waiting(f, DPN_WAIT_PEER, 2);
        tell_rail(version, context, first, DPN_PROFILE_NET_ID, "mlx5_3");
        say(first, SEND_WAIT, 512);
        say(second, SEND_WAIT, 100);
        expect_waiting(f, DPN_WAIT_NETWORK, 2);
        dpn_network_stop(first);
        expect_waiting(f, DPN_WAIT_NETWORK, 1);
        assert_int_equal(atomic_load(&f->values[DPN_PROFILE_BYTES]), 512);
        dpn_network_stop(second);
        dpn_network_stop(part);
        dpn_network_stop(coll);
        expect_waiting(f, DPN_WAIT_NONE, 0);
        assert_int_equal(atomic_load(&f->values[DPN_PROFILE_BYTES]), 612);
        assert_int_equal(atomic_load(&f->values[DPN_PROFILE_CHUNKS]), 2);
        assert_int_equal(atomic_load(&f->values[DPN_PROFILE_OPERATIONS]), 1);
        assert_true(waited(f, DPN_WAIT_GPU) > 0 && waited(f, DPN_WAIT_PEER) > 0);
        assert_true(waited(f, DPN_WAIT_NETWORK) > 0 && waited(f, DPN_WAIT_FLUSH) == 0);
        assert_string_equal(dpn_counters_rail(atomic_load(&f->values[DPN_PROFILE_RAIL])), "mlx5_3");
        dpn_profiler_close(context);
    }
}

CASE(a_receive_waits_for_data_and_for_the_flush)
{
    void *context = open_comm(1), *part = start_part(6, context, NULL, 0, false);
    struct dpn_profile_row *f = flow_to(context, 0, false);
    void *step = start_step(6, context, part, 0);

    say(step, RECV_WAIT, 0);
    expect_waiting(f, DPN_WAIT_PEER, 1);
    say(step, FLUSH_WAIT, 64);
    expect_waiting(f, DPN_WAIT_FLUSH, 1);
    say(step, RECV_GPU_WAIT, 0);
    expect_waiting(f, DPN_WAIT_GPU, 1);
    dpn_network_stop(step);
    dpn_network_stop(part);
    assert_int_equal(atomic_load(&f->values[DPN_PROFILE_BYTES]), 64);
    assert_true(waited(f, DPN_WAIT_FLUSH) > 0);
    dpn_profiler_close(context);
}

/* Up to 2.26 an operation says what it has sent in all, and a step's state has no arguments. */
CASE(old_versions_count_bytes_by_the_operation)
{
    for (int version = 1; version <= 3; version++) {
        void *context = open_comm(2), *coll = start_coll(version, context);
        void *part = start_part(version, context, coll, 2, true);
        struct dpn_profile_row *f = flow_to(context, 2, true);
        void *step = start_step(version, context, part, 0);

        dpn_profiler_state(step, GPU_WAIT, NULL);
        expect_waiting(f, DPN_WAIT_GPU, 1);
        dpn_profiler_state(step, SEND_WAIT, NULL);
        dpn_network_stop(step);
        say(part, 2, 512);
        say(part, 3, 700);
        dpn_network_stop(part);
        assert_int_equal(atomic_load(&f->values[DPN_PROFILE_BYTES]), 700);
        assert_int_equal(atomic_load(&f->values[DPN_PROFILE_CHUNKS]), 1);
        dpn_profiler_close(context);
    }
}

CASE(devices_of_nccls_own_net_have_numbers)
{
    void *context = open_comm(3), *part = start_part(5, context, NULL, 2, true);
    struct dpn_profile_row *f = flow_to(context, 2, true);
    void *step = start_step(5, context, part, 0);
    const struct {
        uint8_t type;
        int device;
        int64_t rest[4];
    } ib = {1, 0, {5}};

    tell_rail(5, context, step, 0x20001, "of sockets");
    tell_rail(5, context, step, 0x10001, NULL);
    assert_string_equal(dpn_counters_rail(atomic_load(&f->values[DPN_PROFILE_RAIL])), "");
    tell_rail(5, context, step, 0x10001, &ib);
    assert_string_equal(dpn_counters_rail(atomic_load(&f->values[DPN_PROFILE_RAIL])),
                        "InfiniBand device 5");
    tell_rail(5, context, part, DPN_PROFILE_NET_ID, "not a step");
    assert_string_equal(dpn_counters_rail(atomic_load(&f->values[DPN_PROFILE_RAIL])),
                        "InfiniBand device 5");
    dpn_profiler_close(context);
}

/* ---- what NCCL does wrong -------------------------------------------------------------------- */

CASE(a_receive_that_is_started_again_is_one_chunk)
{
    void *context = open_comm(4), *part = start_part(5, context, NULL, 2, false);
    struct dpn_profile_row *f = flow_to(context, 2, false);
    void *step = start_step(5, context, part, 7);

    assert_ptr_equal(start_step(5, context, part, 7), step);
    say(step, RECV_WAIT, 0);
    assert_ptr_equal(start_step(5, context, part, 7), step);
    expect_waiting(f, DPN_WAIT_PEER, 1);
    dpn_network_stop(step);
    assert_ptr_not_equal(start_step(5, context, part, 7), step);
    dpn_network_stop(part);
    assert_int_equal(atomic_load(&f->values[DPN_PROFILE_CHUNKS]), 1);
    dpn_profiler_close(context);
}

CASE(late_events_of_what_has_ended_count_nothing)
{
    void *context = open_comm(5), *part = start_part(5, context, NULL, 2, true);
    struct dpn_profile_row *f = flow_to(context, 2, true);
    void *step = start_step(5, context, part, 0), *open = start_step(5, context, part, 1);

    say(step, SEND_WAIT, 10);
    say(open, SEND_WAIT, 10);
    dpn_network_stop(step);
    dpn_network_stop(step);
    dpn_network_stop(part);
    expect_waiting(f, DPN_WAIT_NONE, 0); /* neither does the step that NCCL forgot */
    say(step, SEND_WAIT, 10);
    say(open, GPU_WAIT, 10);
    dpn_network_stop(open);
    dpn_network_stop(part);
    assert_null(start_step(5, context, part, 2));
    assert_null(start_step(5, context, NULL, 2));
    say(NULL, SEND_WAIT, 10);
    dpn_network_stop(NULL);
    expect_waiting(f, DPN_WAIT_NONE, 0);
    assert_int_equal(atomic_load(&f->values[DPN_PROFILE_CHUNKS]), 1);
    assert_int_equal(atomic_load(&f->values[DPN_PROFILE_OPERATIONS]), 1);
    dpn_profiler_close(context);
}

/* Context and parent are pointers of another process: one of ours may look like them. */
CASE(another_processs_messages_are_counted_apart)
{
    void *context = open_comm(6), *coll = start_coll(5, context);
    void *part = start_part_of(5, context, coll, 2, true, getpid() + 1);
    struct dpn_profile_row *own = flow_to(context, 2, true);
    struct dpn_profile_row *other =
        dpn_counters_flow(dpn_profile_key(DPN_PROFILE_COMMS, 2, true, 3));
    void *step = start_step(5, context, part, 0);

    say(step, SEND_WAIT, 40);
    dpn_network_stop(step);
    dpn_network_stop(part);
    assert_int_equal(atomic_load(&own->values[DPN_PROFILE_BYTES]), 0);
    assert_int_equal(atomic_load(&other->values[DPN_PROFILE_BYTES]), 40);
    dpn_profiler_close(context);
}

/* Operations of some transports are never stopped. */
CASE(what_is_never_stopped_does_not_fill_the_pool)
{
    void *context = open_comm(7);

    for (int i = 0; i < 40000; i++)
        assert_non_null(start_part(5, context, NULL, 1, false));
    void *part = start_part(5, context, NULL, 2, true);
    struct dpn_profile_row *f = flow_to(context, 2, true);
    void *step = start_step(5, context, part, 0);
    say(step, SEND_WAIT, 11);
    dpn_network_stop(step);
    dpn_network_stop(part);
    assert_int_equal(atomic_load(&f->values[DPN_PROFILE_BYTES]), 11);
    dpn_profiler_close(context);
}

CASE(a_communicator_that_ends_takes_its_flows_along)
{
    void *context = open_comm(8), *part = start_part(5, context, NULL, 2, true);
    struct dpn_profile_row *f = flow_to(context, 2, true);
    void *step = start_step(5, context, part, 0);

    say(step, SEND_WAIT, 11);
    dpn_profiler_close(context);
    assert_in_range(atomic_load(&f->use), 0, 1);
    say(step, PEER_WAIT, 11);
    dpn_network_stop(step);
    dpn_network_stop(part);
    assert_null(start_part(5, context, NULL, 2, true));
    context = open_comm(9);
    f = flow_to(context, 2, true);
    expect_waiting(f, DPN_WAIT_NONE, 0);
    assert_int_equal(atomic_load(&f->values[DPN_PROFILE_BYTES]), 0);
    dpn_profiler_close(context);
}

/* ---- the files ------------------------------------------------------------------------------- */

/* Of a file that has lines of JSON the last one. */
static json_t *last_line(const char *path)
{
    char line[8192];
    FILE *file = fopen(path, "r");
    json_t *last = NULL;

    assert_non_null(file);
    while (fgets(line, sizeof(line), file)) {
        json_decref(last);
        last = json_loads(line, 0, NULL);
        assert_non_null(last);
    }
    fclose(file);
    return last;
}

CASE(the_line_of_traffic_has_the_network)
{
    void *context = open_comm(10), *part = start_part(5, context, NULL, 2, true);
    void *step = start_step(5, context, part, 0);
    const char *rail, *way;
    int peer, bytes;

    tell_rail(5, context, step, DPN_PROFILE_NET_ID, "a \"rail\"");
    say(step, SEND_WAIT, 512);
    dpn_network_stop(step);
    dpn_network_stop(part);
    dpn_profiler_close(context);
    json_t *line = last_line(traffic_path);
    assert_int_equal(json_unpack(line, "{s:[{s:i, s:s, s:s, s:i}]}", "network", "peer", &peer, "way",
                                 &way, "rail", &rail, "bytes", &bytes),
                     0);
    assert_int_equal(peer, 2);
    assert_int_equal(bytes, 512);
    assert_string_equal(way, "send");
    assert_string_equal(rail, "a rail");
    json_decref(line);
}

/* What it inherits is the parent's to write. */
CASE(a_forked_child_writes_nothing_of_its_parents)
{
    void *context = open_comm(12);
    const pid_t pid = fork();

    assert_int_equal(truncate(traffic_path, 0), 0);
    if (!pid)
        exit(0);
    int how;
    assert_int_equal(waitpid(pid, &how, 0), pid);
    FILE *file = fopen(traffic_path, "r");
    assert_int_equal(fgetc(file), EOF);
    fclose(file);
    dpn_profiler_close(context);
    json_t *line = last_line(traffic_path);
    assert_non_null(line);
    json_decref(line);
}

static int set_up(void **state)
{
    assert_true(scratch_file(traffic_path, "traffic") && scratch_file(trace_path, "trace"));
    setenv("DUALPIPE_PROFILER_TRAFFIC", traffic_path, 1);
    setenv("DUALPIPE_PROFILER_TRACE", trace_path, 1);
    setenv("DUALPIPE_PROFILER_TRACE_EVENTS", "1000", 1);
    return 0;
}

static int tear_down(void **state)
{
    return unlink(traffic_path) || unlink(trace_path);
}

RUN_CASES(set_up, tear_down)
