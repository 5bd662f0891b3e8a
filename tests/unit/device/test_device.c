/* SPDX-License-Identifier: Apache-2.0
 *
 * One suite over all devices: the host without and with copy workers, CUDA on the stand-in driver
 * (tests/fakes: it proves the code path, not a GPU), and CUDA on a real GPU where there is one; with
 * DP_TEST_GPU set only on that GPU.
 */
#include "cmocka_all.h"
#include "device/internal.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/shared.h"
#include <dualpipe/device.h>
#ifdef WITH_CUDA
#include "fakes/use_fake_cuda.h"
#endif

#include <pthread.h>

/* Asking for more memory than there is must fail, not end the program. */
DP_PUBLIC const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}
DP_PUBLIC const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "allocator_may_return_null=1";
}

static const int64_t long_enough_ns = 20 * DP_NS_PER_S;

static struct dp_device *dev; /* the one under test */

/* ---- helpers --------------------------------------------------------------------------------- */

static char *new_buffer(enum dp_memory where, size_t bytes)
{
    void *ptr = NULL;

    assert_int_equal(dp_device_alloc(dev, where, bytes, &ptr), 0);
    assert_non_null(ptr);
    return ptr;
}

static struct dp_device_stream *new_stream(void)
{
    struct dp_device_stream *stream = NULL;

    assert_int_equal(dp_device_stream_new(dev, DP_PRIORITY_NORMAL, &stream), 0);
    return stream;
}

static struct dp_device_event *new_event(void)
{
    struct dp_device_event *event = NULL;

    assert_int_equal(dp_device_event_new(dev, &event), 0);
    return event;
}

static void finish(struct dp_device_stream *stream)
{
    struct dp_device_event *event = new_event();

    assert_int_equal(dp_device_event_record(event, stream), 0);
    assert_int_equal(dp_device_event_wait(event, long_enough_ns), 0);
    assert_int_equal(dp_device_event_test(event), 0);
    dp_device_event_free(event);
}

static uint32_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 33);
}

static void fill(char *bytes, size_t count, uint64_t seed)
{
    for (size_t i = 0; i < count; i++)
        bytes[i] = (char)next_random(&seed);
}

/* ---- memory ---------------------------------------------------------------------------------- */

CASE(memory_is_aligned_whatever_its_size)
{
    static const size_t sizes[] = {0, 1, 255, 256, 4097, (2 << 20) - 1, 2 << 20, (5 << 20) + 3};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        for (enum dp_memory where = DP_MEMORY_DEVICE; where <= DP_MEMORY_SHARED; where++) {
            char *p = new_buffer(where, sizes[i]);
            assert_int_equal((uintptr_t)p % 256, 0);
            if (where != DP_MEMORY_DEVICE || dp_device_host_accessible(dev))
                memset(p, 1, sizes[i]);
            dp_device_free(dev, where, p);
        }
    dp_device_free(dev, DP_MEMORY_DEVICE, NULL);
    dp_device_free(dev, DP_MEMORY_PINNED, NULL);
    dp_device_free(dev, DP_MEMORY_SHARED, NULL);
}

CASE(shared_memory_of_the_host_is_found_as_such)
{
    char *p = new_buffer(DP_MEMORY_SHARED, 100000);
    struct dp_shared_place place;

    assert_int_equal(dp_shared_find(p, 100000, &place), dp_device_host_accessible(dev));
    dp_device_free(dev, DP_MEMORY_SHARED, p);
    assert_false(dp_shared_find(p, 1, &place));
}

CASE(too_much_memory_is_refused_with_its_size)
{
    void *p = &p;

    for (enum dp_memory where = DP_MEMORY_DEVICE; where <= DP_MEMORY_SHARED; where++) {
        assert_int_equal(dp_device_alloc(dev, where, SIZE_MAX / 4, &p), DP_ENOMEM);
        assert_ptr_equal(p, &p);
        assert_non_null(strstr(dp_last_error(), "4611686018427387903 bytes"));
        assert_int_equal(dp_device_alloc(dev, where, SIZE_MAX - 5, &p), DP_ENOMEM);
    }
}

/* ---- copies ---------------------------------------------------------------------------------- */

CASE(bytes_survive_copies_through_every_kind_of_memory)
{
    static const size_t sizes[] = {0, 1, 63, 4097, 300000, (1 << 20) + 7, (9 << 20) + 3};
    enum { SHIFT = 5, GUARD = 64 };
    struct dp_device_stream *s = new_stream();

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        size_t n = sizes[i], room = n + SHIFT + GUARD;
        char *plain = malloc(room), *up = new_buffer(DP_MEMORY_PINNED, room);
        char *a = new_buffer(DP_MEMORY_DEVICE, room), *b = new_buffer(DP_MEMORY_DEVICE, room);
        char *down = new_buffer(DP_MEMORY_PINNED, room);
        fill(plain, room, i);
        memset(down, 0x55, room);
        assert_int_equal(dp_device_copy(s, up, plain, n), 0);
        assert_int_equal(dp_device_copy(s, a + 1, up, n), 0);
        assert_int_equal(dp_device_copy(s, b + 3, a + 1, n), 0);
        assert_int_equal(dp_device_copy(s, down + SHIFT, b + 3, n), 0);
        finish(s);
        assert_memory_equal(down + SHIFT, plain, n);
        assert_int_equal(down[SHIFT - 1], 0x55);
        assert_int_equal(down[SHIFT + n], 0x55);
        free(plain);
        dp_device_free(dev, DP_MEMORY_PINNED, up);
        dp_device_free(dev, DP_MEMORY_PINNED, down);
        dp_device_free(dev, DP_MEMORY_DEVICE, a);
        dp_device_free(dev, DP_MEMORY_DEVICE, b);
    }
    dp_device_stream_free(s);
}

CASE(zero_clears_its_bytes_and_no_others)
{
    static const size_t sizes[] = {0, 1, 100, 70000, 3 << 20};
    struct dp_device_stream *s = new_stream();

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        size_t n = sizes[i];
        char *host = new_buffer(DP_MEMORY_PINNED, n + 2);
        char *there = new_buffer(DP_MEMORY_DEVICE, n + 2);
        memset(host, 9, n + 2);
        assert_int_equal(dp_device_copy(s, there, host, n + 2), 0);
        assert_int_equal(dp_device_zero(s, there + 1, n), 0);
        assert_int_equal(dp_device_copy(s, host, there, n + 2), 0);
        finish(s);
        assert_int_equal(host[0], 9);
        assert_int_equal(host[n + 1], 9);
        for (size_t k = 1; k <= n; k++)
            if (host[k])
                fail_msg("byte %zu of %zu is not zero", k, n);
        dp_device_free(dev, DP_MEMORY_PINNED, host);
        dp_device_free(dev, DP_MEMORY_DEVICE, there);
    }
    dp_device_stream_free(s);
}

CASE(a_stream_keeps_its_order_over_more_copies_than_fit_its_queue)
{
    enum { COPIES = 2000, BYTES = 20000 };
    char *ping = new_buffer(DP_MEMORY_DEVICE, 2 * BYTES);
    char *host = new_buffer(DP_MEMORY_PINNED, BYTES);
    struct dp_device_stream *s = new_stream();

    /* Each copy moves the bytes to the other half, one place on: any swap would show. */
    fill(host, BYTES, 7);
    char first = host[0];
    assert_int_equal(dp_device_copy(s, ping, host, BYTES), 0);
    for (size_t i = 0; i < COPIES; i++) {
        char *from = ping + (i % 2 ? BYTES : 0), *to = ping + (i % 2 ? 0 : BYTES);
        assert_int_equal(dp_device_copy(s, to + 1, from, BYTES - 1), 0);
    }
    assert_int_equal(dp_device_copy(s, host, ping, BYTES), 0);
    finish(s);
    assert_int_equal(host[COPIES], first);
    dp_device_stream_free(s);
    dp_device_free(dev, DP_MEMORY_DEVICE, ping);
    dp_device_free(dev, DP_MEMORY_PINNED, host);
}

/* ---- events ---------------------------------------------------------------------------------- */

static void sleep_for(void *ns)
{
    nanosleep(&(struct timespec){.tv_nsec = (long)*(int64_t *)ns}, NULL);
}

CASE(an_event_never_recorded_holds_nothing_back)
{
    struct dp_device_event *event = new_event();
    struct dp_device_stream *s = new_stream();

    assert_int_equal(dp_device_event_test(event), 0);
    assert_int_equal(dp_device_event_wait(event, 0), 0);
    assert_int_equal(dp_device_stream_wait(s, event), 0);
    finish(s);
    dp_device_event_free(event);
    dp_device_event_free(NULL);
    dp_device_stream_free(s);
    dp_device_stream_free(NULL);
}

CASE(an_event_outlives_its_stream_and_work_given_is_done)
{
    enum { BYTES = 6 << 20 };
    char *from = new_buffer(DP_MEMORY_PINNED, BYTES), *to = new_buffer(DP_MEMORY_PINNED, BYTES);
    struct dp_device_event *event = new_event();

    fill(from, BYTES, 3);
    for (int round = 0; round < 10; round++) {
        struct dp_device_stream *s = new_stream();
        memset(to, 0, BYTES);
        assert_int_equal(dp_device_copy(s, to, from, BYTES), 0);
        assert_int_equal(dp_device_event_record(event, s), 0);
        dp_device_stream_free(s);
        assert_int_equal(dp_device_event_wait(event, long_enough_ns), 0);
        assert_memory_equal(to, from, BYTES);
    }
    dp_device_event_free(event);
    dp_device_free(dev, DP_MEMORY_PINNED, from);
    dp_device_free(dev, DP_MEMORY_PINNED, to);
}

CASE(timed_events_tell_how_long_the_work_between_them_took)
{
    enum { SLEEP_NS = 3000000 };
    struct dp_device_stream *s = new_stream();
    struct dp_device_event *from, *to, *plain = new_event();
    double ns = -1;

    assert_int_equal(dp_device_event_make(dev, true, &from), 0);
    assert_int_equal(dp_device_event_make(dev, true, &to), 0);
    assert_int_equal(dp_device_event_record(from, s), 0);
    assert_int_equal(dp_device_event_elapsed(from, to, &ns), DP_EINVAL); /* never recorded */
    assert_int_equal(dp_device_call(s, sleep_for, &(int64_t){SLEEP_NS}), 0);
    assert_int_equal(dp_device_event_record(to, s), 0);
    assert_int_equal(dp_device_event_record(plain, s), 0);
    expect_error(dp_device_event_elapsed(from, plain, &ns), DP_EINVAL, "expected timed ones");
    assert_int_equal(dp_device_event_wait(to, long_enough_ns), 0);
    const int err = dp_device_event_elapsed(from, to, &ns);
    if (err != DP_EUNSUPPORTED) { /* what the stand-in for a driver says */
        assert_int_equal(err, 0);
        assert_true(ns >= SLEEP_NS && ns < (double)long_enough_ns);
        assert_int_equal(dp_device_event_elapsed(to, from, &ns), 0);
        assert_true(ns <= -SLEEP_NS);
    }
    dp_device_event_free(plain);
    dp_device_event_free(to);
    dp_device_event_free(from);
    dp_device_stream_free(s);
}

CASE(a_wait_holds_to_the_record_it_was_given_for)
{
    enum { BYTES = 4 << 20 };
    char *a = new_buffer(DP_MEMORY_PINNED, BYTES), *b = new_buffer(DP_MEMORY_DEVICE, BYTES);
    char *c = new_buffer(DP_MEMORY_PINNED, BYTES);
    struct dp_device_stream *s = new_stream(), *t = new_stream();
    struct dp_device_event *event = new_event();

    for (int round = 0; round < 20; round++) {
        memset(a, round + 1, BYTES);
        assert_int_equal(dp_device_copy(s, b, a, BYTES), 0);
        assert_int_equal(dp_device_event_record(event, s), 0);
        assert_int_equal(dp_device_stream_wait(t, event), 0);
        /* The event is recorded again, then freed: t still waits for the first recording. */
        assert_int_equal(dp_device_event_record(event, t), 0);
        dp_device_event_free(event);
        event = new_event();
        assert_int_equal(dp_device_copy(t, c, b, BYTES), 0);
        assert_int_equal(dp_device_event_record(event, t), 0);
        assert_int_equal(dp_device_stream_wait(s, event), 0);
        finish(t);
        assert_int_equal(c[0], round + 1);
        assert_int_equal(c[BYTES - 1], round + 1);
    }
    finish(s);
    dp_device_event_free(event);
    dp_device_stream_free(s);
    dp_device_stream_free(t);
    dp_device_free(dev, DP_MEMORY_PINNED, a);
    dp_device_free(dev, DP_MEMORY_DEVICE, b);
    dp_device_free(dev, DP_MEMORY_PINNED, c);
}

/* A random program of copies between blocks, over several streams. Where two touch the same block
 * and one writes it, an event orders them; nothing else does. The blocks must end up as after doing
 * all in one row. */
enum { BLOCKS = 8, STREAMS = 4, STEPS = 300 };

struct program {
    size_t block_bytes;
    char *blocks, *oracle; /* BLOCKS of each */
    struct dp_device_stream *streams[STREAMS];
    struct dp_device_event *written[BLOCKS];      /* behind its last write */
    struct dp_device_event *read[BLOCKS][STREAMS]; /* behind the last read in each stream */
};

static void give_step(struct program *p, uint64_t *seed)
{
    size_t dst = next_random(seed) % BLOCKS, src = next_random(seed) % BLOCKS;
    size_t which = next_random(seed) % STREAMS, bytes = next_random(seed) % p->block_bytes + 1;
    struct dp_device_stream *s = p->streams[which];

    if (dst == src)
        return;
    assert_int_equal(dp_device_stream_wait(s, p->written[src]), 0);
    assert_int_equal(dp_device_stream_wait(s, p->written[dst]), 0);
    for (int i = 0; i < STREAMS; i++)
        assert_int_equal(dp_device_stream_wait(s, p->read[dst][i]), 0);
    assert_int_equal(
        dp_device_copy(s, p->blocks + dst * p->block_bytes, p->blocks + src * p->block_bytes, bytes), 0);
    assert_int_equal(dp_device_event_record(p->written[dst], s), 0);
    assert_int_equal(dp_device_event_record(p->read[src][which], s), 0);
    memcpy(p->oracle + dst * p->block_bytes, p->oracle + src * p->block_bytes, bytes);
}

static void run_program(uint64_t seed, size_t block_bytes)
{
    struct program p = {.block_bytes = block_bytes};
    size_t total = BLOCKS * block_bytes;
    char *host = new_buffer(DP_MEMORY_PINNED, total);

    p.blocks = new_buffer(DP_MEMORY_DEVICE, total);
    p.oracle = malloc(total);
    for (int i = 0; i < STREAMS; i++)
        p.streams[i] = new_stream();
    for (int b = 0; b < BLOCKS; b++) {
        p.written[b] = new_event();
        for (int i = 0; i < STREAMS; i++)
            p.read[b][i] = new_event();
    }
    fill(host, total, seed);
    memcpy(p.oracle, host, total);
    assert_int_equal(dp_device_copy(p.streams[0], p.blocks, host, total), 0);
    finish(p.streams[0]);

    for (int i = 0; i < STEPS; i++)
        give_step(&p, &seed);
    for (int i = 0; i < STREAMS; i++)
        finish(p.streams[i]);
    assert_int_equal(dp_device_copy(p.streams[0], host, p.blocks, total), 0);
    finish(p.streams[0]);
    assert_memory_equal(host, p.oracle, total);

    for (int i = 0; i < STREAMS; i++)
        dp_device_stream_free(p.streams[i]);
    for (int b = 0; b < BLOCKS; b++) {
        dp_device_event_free(p.written[b]);
        for (int i = 0; i < STREAMS; i++)
            dp_device_event_free(p.read[b][i]);
    }
    dp_device_free(dev, DP_MEMORY_DEVICE, p.blocks);
    dp_device_free(dev, DP_MEMORY_PINNED, host);
    free(p.oracle);
}

CASE(any_program_ordered_by_events_is_as_if_done_in_one_row)
{
    for (uint64_t seed = 1; seed <= 6; seed++)
        run_program(seed, 40000);
    run_program(7, 100);
    run_program(8, (3 << 20) + 11);
}

/* ---- threads --------------------------------------------------------------------------------- */

static void *run_own_stream(void *arg)
{
    enum { BYTES = 300000, ROUNDS = 40 };
    uint64_t seed = (uint64_t)(uintptr_t)arg;
    struct dp_device_stream *s = new_stream();
    char *host = new_buffer(DP_MEMORY_PINNED, BYTES), *back = new_buffer(DP_MEMORY_PINNED, BYTES);
    char *there = new_buffer(DP_MEMORY_DEVICE, BYTES);

    for (int i = 0; i < ROUNDS; i++) {
        fill(host, 1000, seed + (uint64_t)i);
        assert_int_equal(dp_device_copy(s, there, host, BYTES), 0);
        assert_int_equal(dp_device_copy(s, back, there, BYTES), 0);
        finish(s);
        assert_memory_equal(back, host, 1000);
    }
    dp_device_free(dev, DP_MEMORY_DEVICE, there);
    dp_device_free(dev, DP_MEMORY_PINNED, host);
    dp_device_free(dev, DP_MEMORY_PINNED, back);
    dp_device_stream_free(s);
    return NULL;
}

CASE(threads_use_one_device_each_with_its_own_stream)
{
    enum { THREADS = 4 };
    pthread_t threads[THREADS];

    for (uintptr_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_own_stream, (void *)(i + 1)), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

/* ---- calls, priorities, limits --------------------------------------------------------------- */

struct sum {
    const int *from;
    int *to;
    int count;
};

static void add_up(void *user)
{
    struct sum *sum = user;

    *sum->to = 0;
    for (int i = 0; i < sum->count; i++)
        *sum->to += sum->from[i];
}

CASE(a_call_comes_between_what_was_queued_before_and_behind_it)
{
    enum { COUNT = 1 << 20, ROUNDS = 8 };
    int *from = (int *)new_buffer(DP_MEMORY_PINNED, COUNT * sizeof(int));
    int *to = (int *)new_buffer(DP_MEMORY_PINNED, COUNT * sizeof(int)), total = 0, before = -1;
    struct dp_device_stream *load = new_stream(), *compute = new_stream();
    struct dp_device_event *loaded = new_event(), *used = new_event();
    struct sum sum = {to, &total, COUNT};

    for (int round = 1; round <= ROUNDS; round++) {
        for (int i = 0; i < COUNT; i++)
            from[i] = round;
        assert_int_equal(dp_device_stream_wait(load, used), 0);
        assert_int_equal(dp_device_copy(load, to, from, COUNT * sizeof(int)), 0);
        assert_int_equal(dp_device_event_record(loaded, load), 0);
        assert_int_equal(dp_device_stream_wait(compute, loaded), 0);
        assert_int_equal(dp_device_call(compute, add_up, &sum), 0);
        assert_int_equal(dp_device_copy(compute, &before, &total, sizeof(total)), 0);
        assert_int_equal(dp_device_event_record(used, compute), 0);
        finish(compute);
        assert_int_equal(before, round * COUNT);
    }
    dp_device_event_free(loaded);
    dp_device_event_free(used);
    dp_device_stream_free(load);
    dp_device_stream_free(compute);
    dp_device_free(dev, DP_MEMORY_PINNED, from);
    dp_device_free(dev, DP_MEMORY_PINNED, to);
}

struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_open, was_open; /* was_open: before the one who waited gave up */
};

static void open_gate(void *user)
{
    struct gate *gate = user;

    pthread_mutex_lock(&gate->lock);
    gate->is_open = true;
    pthread_cond_signal(&gate->changed);
    pthread_mutex_unlock(&gate->lock);
}

static void pass_gate(void *user)
{
    struct gate *gate = user;
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += long_enough_ns / DP_NS_PER_S;
    pthread_mutex_lock(&gate->lock);
    while (!gate->is_open && !pthread_cond_timedwait(&gate->changed, &gate->lock, &until))
        ;
    gate->was_open = gate->is_open;
    pthread_mutex_unlock(&gate->lock);
}

/* The stand-ins make host functions of the driver one at a time. */
CASE(a_call_holds_back_no_call_of_another_stream)
{
    struct gate gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

    if (dp_device_host_accessible(dev)) {
        print_message("a call takes one of the host's workers, of which there may be one only\n");
        skip();
    }
    struct dp_device_stream *waits = new_stream(), *opens = new_stream();
    assert_int_equal(dp_device_call(waits, pass_gate, &gate), 0);
    assert_int_equal(dp_device_call(opens, open_gate, &gate), 0);
    finish(opens);
    finish(waits);
    assert_true(gate.was_open);
    dp_device_stream_free(waits);
    dp_device_stream_free(opens);
}

CASE(streams_of_every_priority_do_their_work)
{
    enum { COUNT = 3, BYTES = 3 << 20 };
    struct dp_device_stream *s[COUNT];
    char *from = new_buffer(DP_MEMORY_PINNED, BYTES);
    char *to = new_buffer(DP_MEMORY_PINNED, COUNT * BYTES);

    fill(from, BYTES, 9);
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(dp_device_stream_new(dev, DP_PRIORITY_LOW + i, &s[i]), 0);
        assert_int_equal(dp_device_copy(s[i], to + i * BYTES, from, BYTES), 0);
    }
    for (int i = 0; i < COUNT; i++) {
        finish(s[i]);
        assert_memory_equal(to + i * BYTES, from, BYTES);
        dp_device_stream_free(s[i]);
    }
    assert_int_equal(dp_device_stream_new(dev, DP_PRIORITY_HIGH + 1, &s[0]), DP_EINVAL);
    assert_non_null(strstr(dp_last_error(), "priority 2, expected -1 to 1"));
    dp_device_free(dev, DP_MEMORY_PINNED, from);
    dp_device_free(dev, DP_MEMORY_PINNED, to);
}

CASE(memory_that_exists_is_registered_and_copied)
{
    enum { BYTES = 1 << 20 };
    char *mine = aligned_alloc(4096, BYTES), *there = new_buffer(DP_MEMORY_DEVICE, BYTES);
    char *back = malloc(BYTES);
    struct dp_device_stream *s = new_stream();

    assert_int_equal(dp_device_register(dev, mine, BYTES), 0);
    fill(mine, BYTES, 4);
    assert_int_equal(dp_device_copy(s, there, mine, BYTES), 0);
    assert_int_equal(dp_device_copy(s, back, there, BYTES), 0);
    finish(s);
    assert_memory_equal(back, mine, BYTES);
    dp_device_unregister(dev, mine);
    dp_device_unregister(dev, NULL);
    assert_int_equal(dp_device_register(dev, mine + 1, 4096), DP_EINVAL);
    assert_int_equal(dp_device_register(dev, mine, 4095), DP_EINVAL);
    assert_int_equal(dp_device_register(dev, mine, 0), DP_EINVAL);
    dp_device_stream_free(s);
    dp_device_free(dev, DP_MEMORY_DEVICE, there);
    free(mine);
    free(back);
}

CASE(device_memory_is_counted_and_limited)
{
    struct dp_device_usage before, now;
    void *a, *b;

    dp_device_usage(dev, &before);
    dp_device_limit(dev, before.bytes + 3000);
    assert_int_equal(dp_device_alloc(dev, DP_MEMORY_DEVICE, 2000, &a), 0);
    assert_int_equal(dp_device_alloc(dev, DP_MEMORY_DEVICE, 1001, &b), DP_ENOMEM);
    assert_non_null(strstr(dp_last_error(), "for a buffer of 1001 bytes: "));
    assert_int_equal(dp_device_alloc(dev, DP_MEMORY_DEVICE, 1000, &b), 0);
    dp_device_free(dev, DP_MEMORY_DEVICE, a);
    dp_device_usage(dev, &now);
    assert_int_equal(now.bytes, before.bytes + 1000);
    assert_int_equal(now.peak_bytes, before.bytes + 3000);
    assert_int_equal(now.allocations, before.allocations + 2);
    dp_device_free(dev, DP_MEMORY_DEVICE, b);
    dp_device_limit(dev, SIZE_MAX);
    dp_device_usage(dev, &now);
    assert_int_equal(now.bytes, before.bytes);
    assert_int_equal(now.peak_bytes, before.bytes);
}

/* An allocator of the program's: one buffer, which it has or not. */
struct lender {
    void *ptr;
    bool is_lent;
};

static int lend(void *user, size_t bytes, void **out)
{
    struct lender *lender = user;

    if (lender->is_lent)
        return DP_ENOMEM;
    lender->is_lent = true;
    *out = lender->ptr;
    return 0;
}

static void take_back(void *user, void *ptr)
{
    struct lender *lender = user;

    assert_ptr_equal(ptr, lender->ptr);
    assert_true(lender->is_lent);
    lender->is_lent = false;
}

CASE(device_memory_comes_from_the_given_allocator_and_goes_back_there)
{
    enum { BYTES = 100 };
    struct lender lender = {0};
    struct dp_device_usage before, now;
    void *lent, *own, *later;

    dp_device_usage(dev, &before);
    assert_int_equal(dp_device_alloc(dev, DP_MEMORY_DEVICE, BYTES, &lender.ptr), 0);
    dp_device_set_allocator(dev, &(struct dp_device_allocator){lend, take_back, &lender});
    assert_int_equal(dp_device_alloc(dev, DP_MEMORY_DEVICE, BYTES, &lent), 0);
    assert_ptr_equal(lent, lender.ptr);
    assert_int_equal(dp_device_alloc(dev, DP_MEMORY_DEVICE, BYTES, &own), 0); /* it has no more */
    assert_ptr_not_equal(own, lender.ptr);
    dp_device_free(dev, DP_MEMORY_DEVICE, own);
    dp_device_set_allocator(dev, NULL);
    assert_int_equal(dp_device_alloc(dev, DP_MEMORY_DEVICE, BYTES, &later), 0);
    dp_device_free(dev, DP_MEMORY_DEVICE, later);
    assert_true(lender.is_lent);
    dp_device_free(dev, DP_MEMORY_DEVICE, lent);
    assert_false(lender.is_lent);
    dp_device_free(dev, DP_MEMORY_DEVICE, lender.ptr);
    dp_device_usage(dev, &now);
    assert_int_equal(now.bytes, before.bytes);
}

CASE(another_devices_event_is_refused)
{
    struct dp_device *other;
    struct dp_device_stream *s = new_stream(), *t;
    struct dp_device_event *event;

    assert_int_equal(dp_device_open(dp_device_name(dev), &other), 0);
    assert_int_equal(dp_device_event_new(other, &event), 0);
    assert_int_equal(dp_device_stream_new(other, DP_PRIORITY_NORMAL, &t), 0);
    assert_int_equal(dp_device_event_record(event, t), 0);
    expect_error(dp_device_stream_wait(s, event), DP_EINVAL, "another device's event");
    dp_device_event_free(event);
    dp_device_stream_free(t);
    dp_device_close(other);
    dp_device_stream_free(s);
}

/* ---- the devices ----------------------------------------------------------------------------- */

static int run_on(const char *title, const char *name)
{
    if (dp_device_open(name, &dev)) {
        printf("[  SKIPPED ] %s: %s\n", title, dp_last_error());
        return 0;
    }
    int failed = run_titled_cases(title);
    dp_device_close(dev);
    return failed;
}

/* A link so fast that only the delays count. */
static int run_on_late_link(void)
{
    struct dp_host_link link = {100e9, 100e9, 200 * DP_NS_PER_US, 3};

    if (dp_device_host_open_link(2, &link, &dev))
        return 1;
    int failed = run_titled_cases("host, 2 workers and a link with delays");
    dp_device_close(dev);
    return failed;
}

int main(void)
{
    const char *gpu = getenv("DP_TEST_GPU");

    dp_log_set(NULL, NULL, DP_LOG_ERROR);
    if (gpu)
        return run_on("cuda on a GPU", gpu) || !dev;
    int failed = run_on_late_link();
    failed += run_on("host without workers", "host:0") + run_on("host, 1 worker", "host:1") +
                 run_on("host, 3 workers", "host:3") + run_on("cuda on a GPU", "cuda:0");
#ifdef WITH_CUDA
    const struct fake_cuda *fake = use_fake_cuda();
    if (!fake)
        return failed + 1;
    failed += run_on("cuda on the stand-in", "cuda:0");
    fake->shake(1, 200);
    failed += run_on("cuda on the stand-in, at random times", "cuda:1");
    failed += fake->alive();
#endif
    return failed;
}
