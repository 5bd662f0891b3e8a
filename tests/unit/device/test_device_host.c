/* SPDX-License-Identifier: Apache-2.0
 *
 * What only the host device has: workers that can be watched, and several ways of copying.
 */
#include "cmocka_all.h"

#include "base/clock.h"
#include "base/copy.h"
#include "device/host.h"

#include <sched.h>
#include <stdatomic.h>

/* ---- copying --------------------------------------------------------------------------------- */

CASE(every_way_of_copying_copies_every_byte_and_no_other)
{
    enum { ROOM = 100000, GUARD = 64 };
    static const size_t sizes[] = {0, 1, 63, 64, 65, 4095, 4096, 16384, 16385, 50001};
    static const size_t shifts[] = {0, 1, 31, 63};
    char *src = malloc(ROOM), *dst = malloc(ROOM);

    for (size_t i = 0; i < ROOM; i++)
        src[i] = (char)(i * 7 + i / 251);
    for (int way = 0; dp_copy_way(way); way++)
        for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++)
            for (size_t s = 0; s < 4; s++)
                for (size_t d = 0; d < 4; d++) {
                    char *to = dst + GUARD + shifts[d];
                    memset(dst, 0x77, ROOM);
                    dp_copy_way(way)(to, src + shifts[s], sizes[k]);
                    assert_memory_equal(to, src + shifts[s], sizes[k]);
                    assert_int_equal(to[-1], 0x77);
                    assert_int_equal(to[sizes[k]], 0x77);
                }
    free(src);
    free(dst);
}

CASE(large_copies_are_whole_while_the_ways_take_turns)
{
    size_t bytes = (17 << 20) + 13;
    char *src = malloc(bytes), *dst = malloc(bytes);

    for (size_t i = 0; i < bytes; i++)
        src[i] = (char)(i % 251);
    for (int turn = 0; turn < 14; turn++) {
        memset(dst, 0, bytes);
        dp_copy(dst, src, bytes);
        assert_memory_equal(dst, src, bytes);
    }
    free(src);
    free(dst);
}

/* ---- workers --------------------------------------------------------------------------------- */

/* An event that is recorded behind its stream: a waiting stream is held until the recording one
 * gets there. */
struct gate {
    struct dp_device_stream *stream;
    struct host_event event;
    char to[32768], from[32768]; /* more than is copied at once */
};

static void gate_close(struct gate *gate, struct dp_device *dev)
{
    assert_int_equal(dp_device_stream_new(dev, DP_PRIORITY_NORMAL, &gate->stream), 0);
    gate->event.base.dev = dev;
    gate->event.stream = (struct host_stream *)gate->stream;
    gate->event.count = gate->event.stream->given + 1;
}

static void gate_open(struct gate *gate)
{
    assert_int_equal(dp_device_copy(gate->stream, gate->to, gate->from, sizeof(gate->to)), 0);
    dp_device_stream_free(gate->stream);
}

CASE(a_wait_holds_its_stream_and_no_other)
{
    struct gate *gate = calloc(1, sizeof(*gate));
    struct dp_device *dev;
    struct dp_device_stream *held, *flowing;
    struct dp_device_event *held_end, *flowing_end;
    char a = 1, b = 2, c = 3;

    assert_int_equal(dp_device_open("host:2", &dev), 0);
    gate_close(gate, dev);
    assert_int_equal(dp_device_stream_new(dev, DP_PRIORITY_NORMAL, &held), 0);
    assert_int_equal(dp_device_stream_new(dev, DP_PRIORITY_NORMAL, &flowing), 0);
    assert_int_equal(dp_device_event_new(dev, &held_end), 0);
    assert_int_equal(dp_device_event_new(dev, &flowing_end), 0);
    assert_int_equal(dp_device_stream_wait(held, &gate->event.base), 0);
    assert_int_equal(dp_device_copy(held, &b, &a, 1), 0);
    assert_int_equal(dp_device_event_record(held_end, held), 0);
    assert_int_equal(dp_device_copy(flowing, &c, &a, 1), 0);
    assert_int_equal(dp_device_event_record(flowing_end, flowing), 0);

    assert_int_equal(dp_device_event_wait(flowing_end, 20 * DP_NS_PER_S), 0);
    assert_int_equal(c, 1);
    assert_int_equal(dp_device_event_test(held_end), DP_EAGAIN);
    assert_int_equal(dp_device_event_wait(held_end, DP_NS_PER_MS), DP_ETIMEDOUT);
    assert_string_equal(dp_last_error(), "host: an event was not reached within 1 ms");
    assert_int_equal(b, 2);

    gate_open(gate);
    assert_int_equal(dp_device_event_wait(held_end, 20 * DP_NS_PER_S), 0);
    assert_int_equal(b, 1);
    dp_device_event_free(held_end);
    dp_device_event_free(flowing_end);
    dp_device_stream_free(held);
    dp_device_stream_free(flowing);
    dp_device_close(dev);
    free(gate);
}

CASE(a_wait_goes_through_a_stream_that_only_waits)
{
    struct gate *gate = calloc(1, sizeof(*gate));
    struct dp_device_stream *streams[3];
    struct dp_device_event *events[3];
    struct dp_device *dev;
    char a = 1, b = 2;

    assert_int_equal(dp_device_open("host:1", &dev), 0);
    gate_close(gate, dev);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(dp_device_stream_new(dev, DP_PRIORITY_NORMAL, &streams[i]), 0);
        assert_int_equal(dp_device_event_new(dev, &events[i]), 0);
        assert_int_equal(dp_device_stream_wait(streams[i], i ? events[i - 1] : &gate->event.base), 0);
        if (i == 2)
            assert_int_equal(dp_device_copy(streams[i], &b, &a, 1), 0);
        assert_int_equal(dp_device_event_record(events[i], streams[i]), 0);
    }
    gate_open(gate);
    assert_int_equal(dp_device_event_wait(events[2], 20 * DP_NS_PER_S), 0);
    assert_int_equal(b, 1);
    for (int i = 0; i < 3; i++) {
        dp_device_event_free(events[i]);
        dp_device_stream_free(streams[i]);
    }
    dp_device_close(dev);
    free(gate);
}

struct log {
    char name, *names;
    int *count;
};

static void note(void *user)
{
    struct log *log = user;

    log->names[(*log->count)++] = log->name;
}

CASE(the_most_urgent_stream_comes_first)
{
    struct gate *gate = calloc(1, sizeof(*gate));
    struct dp_device_stream *s[3];
    struct dp_device_event *end[3];
    struct dp_device *dev;
    char names[4] = "";
    int count = 0;
    struct log logs[3] = {{'l', names, &count}, {'n', names, &count},
                          {'h', names, &count}};

    /* One worker; all three are held until the gate opens, and then are there at the same time. */
    assert_int_equal(dp_device_open("host:1", &dev), 0);
    gate_close(gate, dev);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(dp_device_stream_new(dev, DP_PRIORITY_LOW + i, &s[i]), 0);
        assert_int_equal(dp_device_event_new(dev, &end[i]), 0);
        assert_int_equal(dp_device_stream_wait(s[i], &gate->event.base), 0);
        assert_int_equal(dp_device_call(s[i], note, &logs[i]), 0);
        assert_int_equal(dp_device_event_record(end[i], s[i]), 0);
    }
    gate_open(gate);
    for (int i = 0; i < 3; i++)
        assert_int_equal(dp_device_event_wait(end[i], 20 * DP_NS_PER_S), 0);
    assert_string_equal(names, "hnl");
    for (int i = 0; i < 3; i++) {
        dp_device_event_free(end[i]);
        dp_device_stream_free(s[i]);
    }
    dp_device_close(dev);
    free(gate);
}

CASE(a_link_takes_its_time_in_each_direction_alone)
{
    enum { BYTES = 2 << 20 };
    struct dp_host_link link = {100e6, 0, 0, 0}; /* 21 ms up, at once down */
    struct dp_device_stream *up, *down;
    struct dp_device_event *end;
    struct dp_device *dev;
    char *host = malloc(BYTES), *back = malloc(BYTES);
    void *there;

    assert_int_equal(dp_device_host_open_link(1, &link, &dev), 0);
    assert_int_equal(dp_device_alloc(dev, DP_MEMORY_DEVICE, 2 * BYTES, &there), 0);
    assert_int_equal(dp_device_stream_new(dev, DP_PRIORITY_NORMAL, &up), 0);
    assert_int_equal(dp_device_stream_new(dev, DP_PRIORITY_NORMAL, &down), 0);
    assert_int_equal(dp_device_event_new(dev, &end), 0);
    memset(host, 3, BYTES);
    int64_t began = dp_now_ns();
    assert_int_equal(dp_device_copy(up, there, host, BYTES), 0);
    assert_int_equal(dp_device_copy(up, there, host, BYTES), 0);
    assert_int_equal(dp_device_event_record(end, up), 0);
    assert_int_equal(dp_device_copy(down, back, (char *)there + BYTES, BYTES), 0);
    assert_int_equal(dp_device_event_wait(end, 20 * DP_NS_PER_S), 0);
    assert_true(dp_now_ns() - began >= 41 * DP_NS_PER_MS); /* the copies follow each other */
    assert_int_equal(((char *)there)[BYTES - 1], 3);
    dp_device_event_free(end);
    dp_device_stream_free(up);
    dp_device_stream_free(down);
    dp_device_free(dev, DP_MEMORY_DEVICE, there);
    dp_device_close(dev);
    free(host);
    free(back);
}

struct hold {
    atomic_bool begun, open;
};

static void hold_worker(void *user)
{
    struct hold *hold = user;

    atomic_store(&hold->begun, true);
    while (!atomic_load(&hold->open))
        sched_yield();
}

static int64_t link_free_ns(struct dp_device *dev)
{
    struct host *host = (struct host *)dev;

    pthread_mutex_lock(&host->lock);
    const int64_t ns = host->free_ns[UP];
    pthread_mutex_unlock(&host->lock);
    return ns;
}

/* The only worker is at work elsewhere when the first copy ends. */
CASE(a_copy_that_is_queued_begins_when_the_link_is_free)
{
    enum { BYTES = 1 << 16 };
    struct dp_host_link link = {4e6, 0, 0, 0}; /* 16 ms up */
    struct dp_device_stream *up, *calls;
    struct dp_device_event *end;
    struct dp_device *dev;
    struct hold hold = {false, false};
    char *host = malloc(BYTES);
    void *there;

    memset(host, 3, BYTES);
    assert_int_equal(dp_device_host_open_link(1, &link, &dev), 0);
    assert_int_equal(dp_device_alloc(dev, DP_MEMORY_DEVICE, BYTES, &there), 0);
    assert_int_equal(dp_device_stream_new(dev, DP_PRIORITY_NORMAL, &up), 0);
    assert_int_equal(dp_device_stream_new(dev, DP_PRIORITY_NORMAL, &calls), 0);
    assert_int_equal(dp_device_event_new(dev, &end), 0);
    assert_int_equal(dp_device_copy(up, there, host, BYTES), 0);
    int64_t first_ns;
    while (!(first_ns = link_free_ns(dev)))
        sched_yield();
    assert_int_equal(dp_device_call(calls, hold_worker, &hold), 0);
    assert_int_equal(dp_device_copy(up, there, host, BYTES), 0);
    const int64_t given_ns = dp_now_ns();
    while (!atomic_load(&hold.begun) || dp_now_ns() < first_ns + DP_NS_PER_MS)
        sched_yield();
    atomic_store(&hold.open, true);
    assert_int_equal(dp_device_event_record(end, up), 0);
    assert_int_equal(dp_device_event_wait(end, 20 * DP_NS_PER_S), 0);
    if (given_ns < first_ns) /* else this thread has not run for too long */
        assert_in_range(link_free_ns(dev) - first_ns, BYTES * INT64_C(250) - 1,
                        BYTES * INT64_C(250) + 1);
    dp_device_event_free(end);
    dp_device_stream_free(up);
    dp_device_stream_free(calls);
    dp_device_free(dev, DP_MEMORY_DEVICE, there);
    dp_device_close(dev);
    free(host);
}

CASE(a_link_that_cannot_be_is_refused)
{
    struct dp_device *dev = NULL;

    assert_int_equal(dp_device_host_open_link(0, &(struct dp_host_link){0}, &dev), DP_EINVAL);
    assert_non_null(strstr(dp_last_error(), "expected 1 to 64"));
    expect_error(dp_device_host_open_link(1, &(struct dp_host_link){-1, 0, 0, 0}, &dev), DP_EINVAL,
                 "-1 bytes/s up");
    assert_int_equal(dp_device_host_open_link(1, &(struct dp_host_link){0, 0, -5, 0}, &dev),
                     DP_EINVAL);
    assert_null(dev);
}

static int64_t process_cpu_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec * DP_NS_PER_S + t.tv_nsec;
}

CASE(idle_workers_and_waiting_threads_cost_no_time)
{
    struct gate *gate = calloc(1, sizeof(*gate));
    struct dp_device *dev;

    assert_int_equal(dp_device_open("host:4", &dev), 0);
    gate_close(gate, dev);
    assert_int_equal(dp_device_event_wait(&gate->event.base, 200 * DP_NS_PER_MS), DP_ETIMEDOUT); /* all begin */
    int64_t start = process_cpu_ns();
    assert_int_equal(dp_device_event_wait(&gate->event.base, 200 * DP_NS_PER_MS), DP_ETIMEDOUT);
    assert_in_range(process_cpu_ns() - start, 0, 20 * DP_NS_PER_MS);
    gate_open(gate);
    dp_device_close(dev);
    free(gate);
}

CASE(a_device_closes_with_work_in_flight_done)
{
    enum { STREAMS = 6, BYTES = 3 << 20 };
    char *src = malloc(BYTES), *dst = malloc(STREAMS * BYTES);
    struct dp_device *dev;

    for (int round = 0; round < 5; round++) {
        memset(src, round + 1, BYTES);
        assert_int_equal(dp_device_open("host:2", &dev), 0);
        for (size_t i = 0; i < STREAMS; i++) {
            struct dp_device_stream *s;
            assert_int_equal(dp_device_stream_new(dev, DP_PRIORITY_NORMAL, &s), 0);
            assert_int_equal(dp_device_copy(s, dst + i * BYTES, src, BYTES), 0);
        }
        dp_device_close(dev);
        for (size_t i = 0; i < STREAMS * BYTES; i += 4095)
            assert_int_equal(dst[i], round + 1);
    }
    free(src);
    free(dst);
}

CASE(a_stream_that_was_freed_is_used_again)
{
    struct dp_device *dev;
    struct dp_device_stream *s, *t;

    assert_int_equal(dp_device_open("host:1", &dev), 0);
    assert_int_equal(dp_device_stream_new(dev, DP_PRIORITY_NORMAL, &s), 0);
    dp_device_stream_free(s);
    assert_int_equal(dp_device_stream_new(dev, DP_PRIORITY_NORMAL, &t), 0);
    assert_ptr_equal(s, t);
    dp_device_stream_free(t);
    dp_device_close(dev);
}

static volatile sig_atomic_t signalled;

static void note_signal(int sig)
{
    signalled = 1;
}

CASE(signals_never_land_in_a_worker)
{
    struct dp_device *dev;
    sigset_t usr1;

    signal(SIGUSR1, note_signal);
    assert_int_equal(dp_device_open("host:3", &dev), 0);
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &usr1, NULL);
    kill(getpid(), SIGUSR1);
    dp_device_close(dev); /* the workers would have had it by now */
    assert_int_equal(signalled, 0);
    pthread_sigmask(SIG_UNBLOCK, &usr1, NULL);
    assert_int_equal(signalled, 1);
}

/* ---- names ----------------------------------------------------------------------------------- */

CASE(errors_of_bad_names_say_what_was_expected)
{
    static const char *const names[] = {"",        "hots",    "host:", "host:x",
                                        "host:-1", "cuda:1x", "cudax"};
    struct dp_device *dev;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        assert_int_equal(dp_device_open(names[i], &dev), DP_EINVAL);
        assert_non_null(strstr(dp_last_error(), "expected host[:workers] or cuda[:ordinal]"));
    }
    assert_int_equal(dp_device_open(NULL, &dev), DP_EINVAL);
    assert_int_equal(dp_device_host_open(-1, &dev), DP_EINVAL);
    assert_int_equal(dp_device_host_open(65, &dev), DP_EINVAL);
    assert_string_equal(dp_last_error(), "host device with 65 copy workers: expected 0 to 64");
}

CASE(the_environment_sets_the_number_of_workers)
{
    struct dp_device *dev;

    setenv("DUALPIPE_DEVICE_WORKERS", "2", 1);
    assert_int_equal(dp_device_open("host", &dev), 0);
    assert_int_equal(((struct host *)dev)->workers, 2);
    dp_device_close(dev);
    setenv("DUALPIPE_DEVICE_WORKERS", "-2", 1);
    assert_int_equal(dp_device_open("host", &dev), DP_EINVAL);
    unsetenv("DUALPIPE_DEVICE_WORKERS");
}
