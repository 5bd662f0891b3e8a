/* SPDX-License-Identifier: Apache-2.0
 *
 * test_stage.c - copies of pageable memory through the preload library's ring, against the
 * simulated CUDA: by every function that is interposed, in the order of streams, with every step
 * failing, and by many threads. The library's code is part of this program, so its functions are
 * found before those of the simulated CUDA, as with LD_PRELOAD.
 */
#include "config.h"

#include "cmocka_all.h"

#include "offload/preload/driver.h"
#include "offload/preload/ring.h"
#include "offload/preload/state.h"
#include "simcuda/cuda_api.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TO_DEVICE = 1, TO_HOST = 2, BY_ADDRESS = 4 };
static const size_t chunk = DPO_RING_CHUNK_BYTES;

/* ---- all functions in one shape -------------------------------------------------------------- */

static int memcpy_up(char *to, const char *from, size_t bytes, struct sim_stream *stream)
{
    (void)stream;
    return cudaMemcpy(to, from, bytes, TO_DEVICE);
}

static int memcpy_down(char *to, const char *from, size_t bytes, struct sim_stream *stream)
{
    (void)stream;
    return cudaMemcpy(to, from, bytes, TO_HOST);
}

static int memcpy_any(char *to, const char *from, size_t bytes, struct sim_stream *stream)
{
    (void)stream;
    return cudaMemcpy(to, from, bytes, BY_ADDRESS);
}

static int memcpy_ptds_any(char *to, const char *from, size_t bytes, struct sim_stream *stream)
{
    (void)stream;
    return cudaMemcpy_ptds(to, from, bytes, BY_ADDRESS);
}

static int async_any(char *to, const char *from, size_t bytes, struct sim_stream *stream)
{
    return cudaMemcpyAsync(to, from, bytes, BY_ADDRESS, stream);
}

static int async_up(char *to, const char *from, size_t bytes, struct sim_stream *stream)
{
    return cudaMemcpyAsync(to, from, bytes, TO_DEVICE, stream);
}

static int async_down(char *to, const char *from, size_t bytes, struct sim_stream *stream)
{
    return cudaMemcpyAsync(to, from, bytes, TO_HOST, stream);
}

static int async_ptsz_any(char *to, const char *from, size_t bytes, struct sim_stream *stream)
{
    return cudaMemcpyAsync_ptsz(to, from, bytes, BY_ADDRESS, stream);
}

#define DRIVER(name, to_type, from_type)                                                           \
    static int call_##name(char *to, const char *from, size_t bytes, struct sim_stream *stream)    \
    {                                                                                              \
        (void)stream;                                                                              \
        return name((to_type)(uintptr_t)to, (from_type)(uintptr_t)from, bytes);                    \
    }
#define DRIVER_ASYNC(name, to_type, from_type)                                                     \
    static int call_##name(char *to, const char *from, size_t bytes, struct sim_stream *stream)    \
    {                                                                                              \
        return name((to_type)(uintptr_t)to, (from_type)(uintptr_t)from, bytes, stream);            \
    }
DRIVER(cuMemcpyHtoD_v2, uintptr_t, const void *)
DRIVER(cuMemcpyHtoD_v2_ptds, uintptr_t, const void *)
DRIVER_ASYNC(cuMemcpyHtoDAsync_v2, uintptr_t, const void *)
DRIVER_ASYNC(cuMemcpyHtoDAsync_v2_ptsz, uintptr_t, const void *)
DRIVER(cuMemcpyDtoH_v2, void *, uintptr_t)
DRIVER(cuMemcpyDtoH_v2_ptds, void *, uintptr_t)
DRIVER_ASYNC(cuMemcpyDtoHAsync_v2, void *, uintptr_t)
DRIVER_ASYNC(cuMemcpyDtoHAsync_v2_ptsz, void *, uintptr_t)
DRIVER(cuMemcpy, uintptr_t, uintptr_t)
DRIVER(cuMemcpy_ptds, uintptr_t, uintptr_t)
DRIVER_ASYNC(cuMemcpyAsync, uintptr_t, uintptr_t)
DRIVER_ASYNC(cuMemcpyAsync_ptsz, uintptr_t, uintptr_t)

static const struct entry {
    const char *name;
    int (*copy)(char *to, const char *from, size_t bytes, struct sim_stream *stream);
    int directions; /* TO_DEVICE | TO_HOST */
    bool takes_stream;
    struct sim_stream *stream; /* that stands for 0 */
} entries[] = {
    {"cudaMemcpy up", memcpy_up, 1, false, SIM_STREAM_LEGACY},
    {"cudaMemcpy down", memcpy_down, 2, false, SIM_STREAM_LEGACY},
    {"cudaMemcpy", memcpy_any, 3, false, SIM_STREAM_LEGACY},
    {"cudaMemcpy_ptds", memcpy_ptds_any, 3, false, SIM_STREAM_PER_THREAD},
    {"cudaMemcpyAsync up", async_up, 1, true, SIM_STREAM_LEGACY},
    {"cudaMemcpyAsync down", async_down, 2, true, SIM_STREAM_LEGACY},
    {"cudaMemcpyAsync", async_any, 3, true, SIM_STREAM_LEGACY},
    {"cudaMemcpyAsync_ptsz", async_ptsz_any, 3, true, SIM_STREAM_PER_THREAD},
#define ENTRY(name, directions, takes_stream, stream)                                              \
    {                                                                                              \
#name, call_##name, directions, takes_stream, stream                                       \
    }
    ENTRY(cuMemcpyHtoD_v2, 1, false, SIM_STREAM_LEGACY),
    ENTRY(cuMemcpyHtoD_v2_ptds, 1, false, SIM_STREAM_PER_THREAD),
    ENTRY(cuMemcpyHtoDAsync_v2, 1, true, SIM_STREAM_LEGACY),
    ENTRY(cuMemcpyHtoDAsync_v2_ptsz, 1, true, SIM_STREAM_PER_THREAD),
    ENTRY(cuMemcpyDtoH_v2, 2, false, SIM_STREAM_LEGACY),
    ENTRY(cuMemcpyDtoH_v2_ptds, 2, false, SIM_STREAM_PER_THREAD),
    ENTRY(cuMemcpyDtoHAsync_v2, 2, true, SIM_STREAM_LEGACY),
    ENTRY(cuMemcpyDtoHAsync_v2_ptsz, 2, true, SIM_STREAM_PER_THREAD),
    ENTRY(cuMemcpy, 3, false, SIM_STREAM_LEGACY),
    ENTRY(cuMemcpy_ptds, 3, false, SIM_STREAM_PER_THREAD),
    ENTRY(cuMemcpyAsync, 3, true, SIM_STREAM_LEGACY),
    ENTRY(cuMemcpyAsync_ptsz, 3, true, SIM_STREAM_PER_THREAD),
};
enum { ENTRIES = sizeof(entries) / sizeof(entries[0]) };

/* ---- memory and streams ---------------------------------------------------------------------- */

struct buffers {
    size_t bytes;
    char *host, *device;
};

static struct buffers buffers_new(size_t bytes)
{
    struct buffers b = {bytes, malloc(bytes + 64), NULL};
    void *device = NULL;

    assert_non_null(b.host);
    b.host += 13; /* on no border */
    assert_int_equal(cudaMalloc(&device, bytes), 0);
    b.device = device;
    return b;
}

static void buffers_free(struct buffers *b)
{
    assert_int_equal(cudaFree(b->device), 0);
    free(b->host - 13);
}

static void fill(char *at, size_t bytes, unsigned seed)
{
    for (size_t i = 0; i < bytes; i += 61) {
        seed = seed * 1103515245 + 12345;
        at[i] = (char)(seed >> 16);
    }
    at[bytes - 1] = (char)seed;
}

static bool is_filled(const char *at, size_t bytes, unsigned seed)
{
    for (size_t i = 0; i < bytes; i += 61) {
        seed = seed * 1103515245 + 12345;
        if (at[i] != (char)(seed >> 16) && i != bytes - 1)
            return false;
    }
    return at[bytes - 1] == (char)seed;
}

static uint64_t staged(int direction)
{
    return dpo_counted(direction == TO_DEVICE ? DPO_STAGED_TO_DEVICE : DPO_STAGED_TO_HOST);
}

static uint64_t staged_both(void)
{
    return staged(TO_DEVICE) + staged(TO_HOST);
}

/* Work that holds a stream up until it is opened. */
struct gate {
    pthread_mutex_t lock;
    pthread_cond_t change;
    bool is_open;
};

static void pass_gate(void *user)
{
    struct gate *gate = user;

    pthread_mutex_lock(&gate->lock);
    while (!gate->is_open)
        pthread_cond_wait(&gate->change, &gate->lock);
    pthread_mutex_unlock(&gate->lock);
}

static void close_stream(struct gate *gate, struct sim_stream *stream)
{
    *gate = (struct gate){PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false};
    assert_int_equal(cudaLaunchHostFunc(stream, pass_gate, gate), 0);
}

static void *open_gate(void *user)
{
    struct gate *gate = user;

    pthread_mutex_lock(&gate->lock);
    gate->is_open = true;
    pthread_cond_broadcast(&gate->change);
    pthread_mutex_unlock(&gate->lock);
    return NULL;
}

static struct sim_stream *stream_new(void)
{
    struct sim_stream *stream;

    assert_int_equal(cudaStreamCreateWithFlags(&stream, 1), 0);
    return stream;
}

/* ---- data ------------------------------------------------------------------------------------ */

static void check_up(const struct entry *e, size_t bytes, struct sim_stream *stream)
{
    struct buffers b = buffers_new(bytes);
    const uint64_t before = staged(TO_DEVICE);
    const unsigned seed = (unsigned)bytes;

    memset(b.device, 1, bytes);
    fill(b.host, bytes, seed);
    if (e->copy(b.device, b.host, bytes, stream))
        fail_msg("%s fails", e->name);
    memset(b.host, 2, bytes); /* the source has been read */
    cudaStreamSynchronize(stream ? stream : e->stream);
    if (!is_filled(b.device, bytes, seed) || staged(TO_DEVICE) != before + 1)
        fail_msg("%s: %zu bytes to the device are wrong, or not staged", e->name, bytes);
    buffers_free(&b);
}

static void check_down(const struct entry *e, size_t bytes, struct sim_stream *stream)
{
    struct buffers b = buffers_new(bytes);
    const uint64_t before = staged(TO_HOST);
    const unsigned seed = (unsigned)bytes;

    memset(b.host, 1, bytes);
    fill(b.device, bytes, seed);
    if (e->copy(b.host, b.device, bytes, stream))
        fail_msg("%s fails", e->name);
    if (!is_filled(b.host, bytes, seed) || staged(TO_HOST) != before + 1)
        fail_msg("%s: %zu bytes to the host are wrong, or not staged", e->name, bytes);
    buffers_free(&b);
}

static void every_function_copies_what_it_is_given(void **state)
{
    const size_t sizes[] = {(size_t)2 << 20, chunk + 1,
                            4 * chunk + 12345}; /* the ring in one copy */

    (void)state;
    for (int i = 0; i < ENTRIES; i++) {
        const struct entry *e = &entries[i];
        struct sim_stream *stream = e->takes_stream ? stream_new() : NULL;
        for (int s = 0; s < (i % 4 == 2 ? 3 : 2); s++) {
            if (e->directions & TO_DEVICE)
                check_up(e, sizes[s], s ? stream : NULL);
            if (e->directions & TO_HOST)
                check_down(e, sizes[s], s ? stream : NULL);
        }
        if (stream)
            cudaStreamDestroy(stream);
    }
}

static void small_copies_are_not_staged(void **state)
{
    struct buffers b = buffers_new(((size_t)2 << 20) - 1);
    const uint64_t before = staged_both(), copies = dpo_counted(DPO_COPIES_TO_DEVICE);

    (void)state;
    fill(b.host, b.bytes, 5);
    assert_int_equal(cudaMemcpy(b.device, b.host, b.bytes, TO_DEVICE), 0);
    assert_true(is_filled(b.device, b.bytes, 5));
    assert_int_equal(staged_both(), before);
    assert_int_equal(dpo_counted(DPO_COPIES_TO_DEVICE), copies + 1);
    buffers_free(&b);
}

/* ---- order ----------------------------------------------------------------------------------- */

static void to_the_device_it_returns_once_the_source_is_read(void **state)
{
    struct buffers b = buffers_new(3 * chunk);
    struct sim_stream *stream = stream_new();
    struct gate gate;

    (void)state;
    close_stream(&gate, stream);
    fill(b.host, b.bytes, 1);
    assert_int_equal(cudaMemcpyAsync(b.device, b.host, b.bytes, TO_DEVICE, stream), 0);
    fill(b.host, b.bytes, 2);
    assert_int_equal(cudaStreamQuery(stream), SIM_NOT_READY);
    open_gate(&gate);
    cudaStreamSynchronize(stream);
    assert_true(is_filled(b.device, b.bytes, 1));
    cudaStreamDestroy(stream);
    buffers_free(&b);
}

/* Through more chunks than it has: it waits for the stream, as CUDA says it may. */
static void copies_of_a_stream_are_done_in_its_order(void **state)
{
    struct buffers b = buffers_new(6 * chunk);
    struct sim_stream *stream = stream_new();
    struct gate gate;
    pthread_t opener;

    (void)state;
    fill(b.device, b.bytes, 1);
    close_stream(&gate, stream);
    cudaMemsetAsync(b.device, 7, b.bytes, stream);
    assert_int_equal(pthread_create(&opener, NULL, open_gate, &gate), 0);
    assert_int_equal(cudaMemcpyAsync(b.host, b.device, b.bytes, TO_HOST, stream), 0);
    assert_true(b.host[0] == 7 && !memcmp(b.host, b.host + 1, b.bytes - 1));
    fill(b.host, b.bytes, 2);
    assert_int_equal(cudaMemcpyAsync(b.device, b.host, b.bytes, TO_DEVICE, stream), 0);
    fill(b.host, b.bytes, 3);
    assert_int_equal(cudaMemcpyAsync(b.device, b.host, b.bytes, TO_DEVICE, stream), 0);
    memset(b.host, 0, b.bytes);
    assert_int_equal(cudaMemcpyAsync(b.host, b.device, b.bytes, TO_HOST, stream), 0);
    assert_true(is_filled(b.host, b.bytes, 3));
    pthread_join(opener, NULL);
    cudaStreamDestroy(stream);
    buffers_free(&b);
}

static void set_flag(void *user)
{
    atomic_store((atomic_bool *)user, true);
}

static void without_a_stream_work_of_before_is_done_first(void **state)
{
    struct buffers b = buffers_new(chunk);
    static atomic_bool is_set;
    struct gate gate;
    pthread_t opener;

    (void)state;
    close_stream(&gate, SIM_STREAM_LEGACY);
    cudaLaunchHostFunc(SIM_STREAM_LEGACY, set_flag, &is_set);
    assert_int_equal(pthread_create(&opener, NULL, open_gate, &gate), 0);
    fill(b.host, b.bytes, 1);
    assert_int_equal(cudaMemcpy(b.device, b.host, b.bytes, TO_DEVICE), 0);
    assert_true(atomic_load(&is_set));
    pthread_join(opener, NULL);
    buffers_free(&b);
}

/* Streams that cannot go on hold all chunks: a copy waits for none of them. */
static void where_no_chunk_is_free_cuda_copies(void **state)
{
    struct buffers b = buffers_new(DPO_RING_TAKE * chunk);
    struct sim_stream *held[DPO_RING_CHUNKS / DPO_RING_TAKE], *stream = stream_new();
    enum { HELD = sizeof(held) / sizeof(held[0]) };
    struct gate gates[HELD];

    (void)state;
    cudaDeviceSynchronize();
    for (int i = 0; i < HELD; i++) {
        held[i] = stream_new();
        close_stream(&gates[i], held[i]);
        assert_int_equal(cudaMemcpyAsync(b.device, b.host, b.bytes, TO_DEVICE, held[i]), 0);
    }
    const uint64_t before = staged_both(), passed = dpo_counted(DPO_NOT_STAGED);
    struct buffers other = buffers_new(chunk);
    fill(other.host, other.bytes, 9);
    assert_int_equal(cudaMemcpyAsync(other.device, other.host, other.bytes, TO_DEVICE, stream), 0);
    cudaStreamSynchronize(stream);
    assert_true(is_filled(other.device, other.bytes, 9));
    assert_int_equal(staged_both(), before);
    assert_int_equal(dpo_counted(DPO_NOT_STAGED), passed + 1);
    for (int i = 0; i < HELD; i++) {
        open_gate(&gates[i]);
        cudaStreamSynchronize(held[i]);
        cudaStreamDestroy(held[i]);
    }
    check_up(&entries[0], chunk, NULL);
    cudaStreamDestroy(stream);
    buffers_free(&other);
    buffers_free(&b);
}

/* ---- what is CUDA's -------------------------------------------------------------------------- */

static void a_stream_that_is_captured_is_left_alone(void **state)
{
    struct buffers b = buffers_new(chunk);
    struct sim_stream *stream = stream_new();
    const uint64_t before = staged_both();
    void *graph;

    (void)state;
    fill(b.host, b.bytes, 1);
    memset(b.device, 3, b.bytes);
    cudaStreamBeginCapture(stream, 0);
    sim_fail("cudaMemcpyAsync", 0, 0);
    sim_fail("cuEventRecord", 0, 0);
    assert_int_equal(cudaMemcpyAsync(b.device, b.host, b.bytes, TO_DEVICE, stream), 0);
    assert_int_equal(sim_calls("cudaMemcpyAsync"), 1);
    assert_int_equal(sim_calls("cuEventRecord"), 0);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), 0);
    assert_int_equal(staged_both(), before);
    assert_true(b.device[0] == 3);
    sim_fail("cuStreamIsCapturing", 1, SIM_CAPTURE_UNSUPPORTED);
    assert_int_equal(cudaMemcpy(b.device, b.host, b.bytes, TO_DEVICE), 0);
    assert_int_equal(staged_both(), before);
    cudaStreamDestroy(stream);
    buffers_free(&b);
}

static void memory_that_cuda_knows_is_left_to_it(void **state)
{
    struct buffers b = buffers_new(chunk);
    void *managed, *pinned, *other;

    (void)state;
    assert_int_equal(cudaMallocManaged(&managed, chunk, 1), 0);
    assert_int_equal(cudaHostAlloc(&pinned, chunk, 0), 0);
    assert_int_equal(cudaMalloc(&other, chunk), 0);
    const uint64_t before = staged_both();
    fill(b.host, chunk, 1);
    assert_int_equal(cudaMemcpy(managed, b.host, chunk, BY_ADDRESS), 0);
    cudaDeviceSynchronize();
    assert_true(is_filled(managed, chunk, 1));
    memcpy(pinned, managed, chunk);
    assert_int_equal(cudaMemcpy(b.device, pinned, chunk, TO_DEVICE), 0);
    assert_int_equal(cudaMemcpy(other, b.device, chunk, 3), 0);
    assert_int_equal(cudaMemcpy(b.host, managed, chunk, BY_ADDRESS), 0);
    assert_true(is_filled(other, chunk, 1));
    assert_int_equal(cudaHostRegister(b.host + chunk / 2, chunk / 2, 0), 0); /* a part */
    assert_int_equal(cudaMemcpy(b.device, b.host, chunk, TO_DEVICE), 0);
    assert_int_equal(cudaHostUnregister(b.host + chunk / 2), 0);
    assert_int_equal(staged_both(), before);
    cudaFree(managed);
    cudaFree(other);
    cudaFreeHost(pinned);
    buffers_free(&b);
}

/* What a driver says of memory of the host, in the words of cuPointerGetAttributes. */
static const struct said {
    const char *memory;
    int type, is_managed, device;
    int error;
    bool is_staged, is_pinned;
} all_said[] = {
    {"pageable", 0, 0, -2, 0, true, false},
    {"pageable, which GPUs can read (HMM, ATS)", 0, 0, 0, 0, true, false},
    {"pageable, of a driver that knows no such address", 0, 0, 0, SIM_INVALID_VALUE, false, false},
    {"pageable, said to be managed", 0, 1, 0, 0, false, false},
    {"pinned", 1, 0, 0, 0, false, true},
    {"managed, on the host", 1, 1, 0, 0, false, false},
    {"managed, on the device", 2, 1, 0, 0, false, false},
    {"of another device", 2, 0, 1, 0, false, false},
};
static const struct said *said_of_host;
enum { HOST_AT = 1 << 20, DEVICE_AT = 2 << 20 };

static int say_attributes(unsigned count, const int *attributes, void **out, uintptr_t at)
{
    static const struct said device = {"of the device", 2, 0, 0, 0, false, false};
    const struct said *s = at < DEVICE_AT ? said_of_host : &device;

    assert_int_equal(count, 3);
    for (unsigned i = 0; i < count && !s->error; i++)
        *(int *)out[i] = attributes[i] == DPO_CUDA_MEMORY_TYPE  ? s->type
                         : attributes[i] == DPO_CUDA_IS_MANAGED ? s->is_managed
                                                                : s->device;
    return s->error;
}

static void memory_is_told_by_what_the_driver_says_of_it(void **state)
{
    struct dpo_driver driver = *dpo_driver((const void *)(uintptr_t)say_attributes);
    const struct dpo_copy up = {.to = DEVICE_AT, .from = HOST_AT, .bytes = 4096, .kind = TO_DEVICE,
                                .stream = SIM_STREAM_LEGACY};
    const struct dpo_copy down = {.to = HOST_AT, .from = DEVICE_AT, .bytes = 4096, .kind = TO_HOST,
                                  .stream = SIM_STREAM_LEGACY};

    (void)state;
    driver.pointer_attributes = say_attributes;
    for (size_t i = 0; i < sizeof(all_said) / sizeof(all_said[0]); i++)
        for (int k = 0; k < 2; k++) {
            struct dpo_copy_kind kind;
            said_of_host = &all_said[i];
            const bool is_known = dpo_copy_classify(&driver, k ? &down : &up, &kind);
            if (is_known != (said_of_host->is_staged || said_of_host->is_pinned) ||
                (is_known && kind.is_pageable != said_of_host->is_staged))
                fail_msg("memory that is %s: taken for another kind", said_of_host->memory);
        }
}

/* ---- errors ---------------------------------------------------------------------------------- */

static void errors_of_cuda_are_passed_on(void **state)
{
    struct buffers b = buffers_new(1024);

    (void)state;
    sim_fail("cudaMemcpy", 1, 719);
    assert_int_equal(cudaMemcpy(b.device, b.host, b.bytes, TO_DEVICE), 719);
    sim_fail("cudaMemcpyAsync", 1, 700);
    assert_int_equal(cudaMemcpyAsync(b.device, b.host, b.bytes, TO_DEVICE, NULL), 700);
    buffers_free(&b);
}

/* In a process of its own, as a ring that has failed is not used again. */
static void copy_with_a_fault(const char *name, int call)
{
    struct buffers b = buffers_new(4 * chunk + 5);

    sim_fail(name, call, 999);
    fill(b.host, b.bytes, 4);
    assert_int_equal(cudaMemcpy(b.device, b.host, b.bytes, TO_DEVICE), 0);
    cudaDeviceSynchronize();
    assert_true(is_filled(b.device, b.bytes, 4));
    memset(b.host, 0, b.bytes);
    sim_fail(name, call, 999);
    assert_int_equal(cudaMemcpyAsync(b.host, b.device, b.bytes, TO_HOST, NULL), 0);
    assert_true(is_filled(b.host, b.bytes, 4));
    buffers_free(&b);
}

static const char *self;

static int run_self(const char *a, const char *b, const char *name, const char *value)
{
    const pid_t child = fork();
    int status = -1;

    if (!child) {
        if (name)
            setenv(name, value, 1);
        execl(self, self, a, b, (char *)NULL);
        _exit(127);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void where_a_step_fails_cuda_copies(void **state)
{
    static const char *const steps[] = {
        "cuCtxGetDevice",      "cuPointerGetAttributes", "cuStreamGetCtx",
        "cuStreamIsCapturing", "cuMemcpyAsync",          "cuThreadExchangeStreamCaptureMode",
        "cuEventCreate",       "cuStreamSynchronize",    "cuEventRecord",
        "cuEventSynchronize",  "cudaHostRegister",       "cuEventQuery",
    };

#ifdef __SANITIZE_THREAD__
    enum { CALLS = 1 }; /* the others show it nothing new */
#else
    enum { CALLS = 2 };
#endif

    (void)state;
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++)
        for (int call = 1; call <= CALLS; call++) {
            const char number[] = {(char)('0' + call), '\0'};
            if (run_self(steps[i], number, NULL, NULL))
                fail_msg("with call %d of %s failing the copy is not right", call, steps[i]);
        }
}

/* ---- processes ------------------------------------------------------------------------------- */

static void it_can_be_switched_off(void **state)
{
    (void)state;
    assert_int_equal(run_self("off", "", "DUALPIPE_PRELOAD_STAGE", "0"), 0);
    assert_int_equal(run_self("default", "", NULL, NULL), 0);
    assert_int_equal(run_self("on", "", "DUALPIPE_PRELOAD_STAGE_THREADS", "1"), 0);
    assert_int_equal(run_self("off", "", "DUALPIPE_PRELOAD_STAGE_MIN", "8388609"), 0);
}

static int copy_and_count(uint64_t expected)
{
    struct buffers b = buffers_new((size_t)8 << 20);

    fill(b.host, b.bytes, 1);
    const int failed = cudaMemcpy(b.device, b.host, b.bytes, TO_DEVICE) ||
                       cudaDeviceSynchronize() || !is_filled(b.device, b.bytes, 1) ||
                       staged_both() != expected;
    buffers_free(&b);
    return failed;
}

/* Up and down, with and without waiting; each chunk waits in its stream. */
static int pace_pinned_copies(void)
{
    const size_t bytes = 5 * chunk + 77;
    struct buffers b = buffers_new(bytes);
    struct sim_stream *stream = stream_new();
    void *pinned;

    if (cudaHostAlloc(&pinned, bytes, 0))
        return 1;
    fill(pinned, bytes, 8);
    sim_fail("cuStreamWaitValue32_v2", 0, 0);
    if (cudaMemcpyAsync(b.device, pinned, bytes, TO_DEVICE, stream) ||
        sim_calls("cuStreamWaitValue32_v2") != 6)
        return 2;
    cudaStreamSynchronize(stream);
    memset(pinned, 0, bytes);
    if (cudaMemcpyAsync(pinned, b.device, bytes, TO_HOST, stream) || cudaStreamSynchronize(stream))
        return 3;
    if (!is_filled(pinned, bytes, 8) || cudaMemcpy(b.device, pinned, bytes, TO_DEVICE))
        return 4;
    sim_fail("cuStreamWaitValue32_v2", 2, 999);
    if (cudaMemcpy(pinned, b.device, bytes, TO_HOST) || !is_filled(pinned, bytes, 8))
        return 5;
    buffers_free(&b);
    cudaFreeHost(pinned);
    cudaStreamDestroy(stream);
    return dpo_counted(DPO_PACED) != 3 || dpo_counted(DPO_PACED_BYTES) != 3 * bytes;
}

static void copies_of_pinned_memory_are_paced_if_asked(void **state)
{
    (void)state;
    assert_int_equal(dpo_counted(DPO_PACED), 0);
    assert_int_equal(run_self("pace", "", "DUALPIPE_PRELOAD_PACE", "1"), 0);
}

static void await_turn(void *user)
{
    sem_wait(user);
}

static int paced_chunks(char *to, const char *pinned, size_t bytes, struct sim_stream *stream)
{
    sim_fail("cuStreamWaitValue32_v2", 0, 0);
    return cudaMemcpyAsync(to, pinned, bytes, TO_DEVICE, stream) ? -1
                                                                 : sim_calls("cuStreamWaitValue32_v2");
}

/* All turns are taken by a stream that does not come to them; then its context is destroyed. */
static int end_a_context_with_turns(void)
{
    enum { CHUNKS = 8, COPIES = 80 };
    const size_t bytes = CHUNKS * chunk;
    struct buffers b = buffers_new(bytes), other = buffers_new(bytes);
    struct sim_stream *stuck = stream_new(), *stream = stream_new();
    void *pinned, *context;
    int waits = 0;
    sem_t end;

    if (cudaHostAlloc(&pinned, bytes, 0) || cuCtxGetCurrent(&context) || sem_init(&end, 0, 0) ||
        cudaLaunchHostFunc(stuck, await_turn, &end))
        return 1;
    fill(pinned, bytes, 3);
    for (int i = 0; i < COPIES; i++)
        waits += paced_chunks(b.device, pinned, bytes, stuck);
    if (waits >= CHUNKS * COPIES || paced_chunks(other.device, pinned, bytes, stream) != 0)
        return 2;
    if (cuCtxDestroy_v2(context) || paced_chunks(other.device, pinned, bytes, stream) != CHUNKS ||
        cudaStreamSynchronize(stream) || !is_filled(other.device, bytes, 3))
        return 3;
    sem_post(&end);
    if (cudaStreamSynchronize(stuck) || cudaDeviceReset() ||
        paced_chunks(other.device, pinned, bytes, stream) != CHUNKS || cudaStreamSynchronize(stream))
        return 4;
    buffers_free(&b);
    buffers_free(&other);
    cudaFreeHost(pinned);
    cudaStreamDestroy(stuck);
    cudaStreamDestroy(stream);
    return dpo_counted(DPO_PACED) != COPIES + 3;
}

static void the_turns_of_a_context_end_with_it(void **state)
{
    (void)state;
    assert_int_equal(run_self("ends", "", "DUALPIPE_PRELOAD_PACE", "1"), 0);
}

/* Of a driver before CUDA 11.7: what it has not got. */
static const char *lacking;
void *__real_dlsym(void *handle, const char *name);
void *__wrap_dlsym(void *handle, const char *name);

void *__wrap_dlsym(void *handle, const char *name)
{
    return lacking && strstr(name, lacking) ? NULL : __real_dlsym(handle, name);
}

static int copy_with_an_old_driver(void)
{
    struct buffers b = buffers_new((size_t)8 << 20);
    void *pinned;
    int failed;

    lacking = "Value32";
    failed = cudaHostAlloc(&pinned, b.bytes, 0);
    if (!failed) {
        fill(pinned, b.bytes, 1);
        failed = cudaMemcpy(b.device, pinned, b.bytes, TO_DEVICE) ||
                 !is_filled(b.device, b.bytes, 1) || dpo_counted(DPO_PACED);
        cudaFreeHost(pinned);
    }
    buffers_free(&b);
    return failed || copy_and_count(1);
}

static void a_driver_whose_streams_await_no_values_stages_and_does_not_pace(void **state)
{
    (void)state;
    assert_int_equal(run_self("old", "", "DUALPIPE_PRELOAD_PACE", "1"), 0);
}

static void a_forked_child_copies_without_it(void **state)
{
    int status = -1;

    (void)state;
    check_up(&entries[0], chunk, NULL);
    cudaDeviceSynchronize();
    const uint64_t before = staged_both();
    const pid_t child = fork();
    if (!child) {
        char from[64], *large = malloc(chunk), *to = malloc(chunk);
        memset(from, 1, sizeof(from));
        memset(large, 1, chunk);
        _exit(cudaMemcpy(to, large, chunk, 0) || staged_both() != before || to[chunk - 1] != 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    check_up(&entries[0], chunk, NULL);
}

static void the_ring_is_made_anew_after_a_reset(void **state)
{
    (void)state;
    check_up(&entries[0], chunk, NULL);
    cudaDeviceSynchronize();
    sim_fail("cuEventCreate", 0, 0);
    assert_int_equal(cudaDeviceReset(), 0);
    check_up(&entries[0], chunk, NULL);
    assert_int_equal(sim_calls("cuEventCreate"), DPO_RING_CHUNKS);
}

/* ---- threads --------------------------------------------------------------------------------- */

enum { THREADS = 4, ROUNDS = 4 };

static void *copy_often(void *user)
{
    const unsigned seed = *(const unsigned *)user;
    struct sim_stream *stream;
    struct buffers b = buffers_new(chunk + seed * 4097);
    uintptr_t wrong = cudaStreamCreateWithFlags(&stream, 1) != 0;

    for (unsigned i = 0; i < ROUNDS; i++) {
        struct sim_stream *in = i % 2 ? stream : SIM_STREAM_PER_THREAD;
        fill(b.host, b.bytes, seed + i);
        wrong += cudaMemcpyAsync(b.device, b.host, b.bytes, TO_DEVICE, in) != 0;
        memset(b.host, 0, b.bytes);
        wrong += cudaMemcpyAsync(b.host, b.device, b.bytes, TO_HOST, in) != 0;
        wrong += !is_filled(b.host, b.bytes, seed + i);
    }
    cudaStreamDestroy(stream);
    buffers_free(&b);
    return (void *)wrong;
}

static void threads_copy_at_once(void **state)
{
    pthread_t threads[THREADS];
    unsigned seeds[THREADS];
    void *wrong;

    (void)state;
    for (unsigned i = 0; i < THREADS; i++) {
        seeds[i] = 100 * i;
        assert_int_equal(pthread_create(&threads[i], NULL, copy_often, &seeds[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], &wrong);
        assert_null(wrong);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_function_copies_what_it_is_given),
        cmocka_unit_test(small_copies_are_not_staged),
        cmocka_unit_test(to_the_device_it_returns_once_the_source_is_read),
        cmocka_unit_test(copies_of_a_stream_are_done_in_its_order),
        cmocka_unit_test(without_a_stream_work_of_before_is_done_first),
        cmocka_unit_test(where_no_chunk_is_free_cuda_copies),
        cmocka_unit_test(a_stream_that_is_captured_is_left_alone),
        cmocka_unit_test(memory_that_cuda_knows_is_left_to_it),
        cmocka_unit_test(memory_is_told_by_what_the_driver_says_of_it),
        cmocka_unit_test(errors_of_cuda_are_passed_on),
        cmocka_unit_test(where_a_step_fails_cuda_copies),
        cmocka_unit_test(it_can_be_switched_off),
        cmocka_unit_test(copies_of_pinned_memory_are_paced_if_asked),
        cmocka_unit_test(the_turns_of_a_context_end_with_it),
        cmocka_unit_test(a_driver_whose_streams_await_no_values_stages_and_does_not_pace),
        cmocka_unit_test(a_forked_child_copies_without_it),
        cmocka_unit_test(the_ring_is_made_anew_after_a_reset),
        cmocka_unit_test(threads_copy_at_once),
    };

    self = argv[0];
    setenv("DUALPIPE_PRELOAD_STAGE", "1", 0);
    setenv("DUALPIPE_PRELOAD_STAGE_MIN", "2097152", 0);
    if (argc == 3 && !strcmp(argv[1], "default"))
        return unsetenv("DUALPIPE_PRELOAD_STAGE") || copy_and_count(0);
    if (argc == 3 && !strcmp(argv[1], "off"))
        return copy_and_count(0);
    if (argc == 3 && !strcmp(argv[1], "on"))
        return copy_and_count(1);
    if (argc == 3 && !strcmp(argv[1], "pace"))
        return pace_pinned_copies();
    if (argc == 3 && !strcmp(argv[1], "ends"))
        return end_a_context_with_turns();
    if (argc == 3 && !strcmp(argv[1], "old"))
        return copy_with_an_old_driver();
    if (argc == 3) {
        copy_with_a_fault(argv[1], argv[2][0] - '0');
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
