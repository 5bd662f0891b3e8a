/* SPDX-License-Identifier: Apache-2.0
 *
 * wire_methods.c - the ways to move messages that are measured: through a communicator, alone and
 * in company, and for comparison what memcpy and a pipe do.
 */
#include "bench/wire.h"

#include "command.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { WINDOW = 4, PIPE_CHUNK = 64 << 10 };

/* ---- messages -------------------------------------------------------------------------------- */

static int wait_all(struct wire_job *j, struct dp_request *requests, int count)
{
    int err = 0;

    for (int i = 0; i < count && !err; i++)
        err = dp_comm_wait(j->comm, &requests[i], 1 - j->rank);
    return err;
}

static int send_one(struct wire_job *j, size_t size, struct dp_request *req)
{
    return dp_comm_isend(j->comm, 1 - j->rank, DP_CHANNEL_ACTIVATION, 0, j->buffer,
                         size, req);
}

static int receive_one(struct wire_job *j, size_t size, struct dp_request *req)
{
    return dp_comm_irecv(j->comm, 1 - j->rank, DP_CHANNEL_ACTIVATION, 0, j->other,
                         size, req);
}

/* One message there, one back. */
int wire_ping_pong(struct wire_job *j, size_t size, int times)
{
    struct dp_request in, out;
    int err = 0;

    for (int i = 0; i < times && !err; i++) {
        err = receive_one(j, size, &in);
        if (!err && j->rank == 0)
            err = send_one(j, size, &out);
        if (!err)
            err = wait_all(j, &in, 1);
        if (!err && j->rank == 1)
            err = send_one(j, size, &out);
        if (!err)
            err = wait_all(j, &out, 1);
    }
    return err;
}

/* Messages one way, WINDOW of them under way; at the end a word back says that all have come. */
int wire_stream(struct wire_job *j, size_t size, int times)
{
    int (*start)(struct wire_job *, size_t, struct dp_request *) =
        j->rank ? receive_one : send_one;
    struct dp_request window[WINDOW], last;
    int err = 0, begun = 0;

    for (int done = 0; done < times && !err; done++) {
        while (!err && begun < times && begun < done + WINDOW) {
            err = start(j, size, &window[begun % WINDOW]);
            begun++;
        }
        if (!err)
            err = wait_all(j, &window[done % WINDOW], 1);
    }
    if (!err)
        err = j->rank ? send_one(j, 1, &last) : receive_one(j, 1, &last);
    return err ? err : wait_all(j, &last, 1);
}

/* The same with buffers of dp_shared_alloc. */
int wire_stream_shared(struct wire_job *j, size_t size, int times)
{
    struct wire_job shared = *j;

    shared.buffer = j->shared_buffer;
    shared.other = j->shared_other;
    return wire_stream(&shared, size, times);
}

/* ---- waiting, and company -------------------------------------------------------------------- */

/* Rank 0 waits for a message that is 10 ms away, times over. */
static int idle(struct wire_job *j, size_t size, int times)
{
    static const struct timespec pause = {.tv_nsec = 10 * 1000 * 1000};
    struct dp_request req;
    int err = 0;

    for (int i = 0; i < times && !err; i++) {
        if (j->rank)
            nanosleep(&pause, NULL);
        err = j->rank ? send_one(j, size, &req) : receive_one(j, size, &req);
        if (!err)
            err = wait_all(j, &req, 1);
    }
    return err;
}

static void *burn(void *stop)
{
    while (!atomic_load_explicit((atomic_bool *)stop, memory_order_relaxed))
        ;
    return NULL;
}

/* With a thread beside each rank, on the rank's own core, that computes all the time. spin_ns < 0:
 * as the communicator would have it. */
static int in_company(struct wire_job *j, int64_t spin_ns, size_t size, int times)
{
    int (*run)(struct wire_job *, size_t, int) = size < 1 << 18 ? wire_ping_pong : wire_stream;
    const int64_t default_ns = dp_comm_get(j->comm, DP_COMM_SPIN);
    atomic_bool stop = false;
    pthread_t hog;

    int error = pthread_create(&hog, NULL, burn, &stop);
    if (error)
        return command_broke("cannot start a thread: %s", strerror(error)), DP_EIO;
    if (spin_ns >= 0)
        dp_comm_set(j->comm, DP_COMM_SPIN, spin_ns);
    int err = run(j, size, times);
    dp_comm_set(j->comm, DP_COMM_SPIN, default_ns);
    atomic_store(&stop, true);
    pthread_join(hog, NULL);
    return err;
}

static int beside_hogs(struct wire_job *j, size_t size, int times)
{
    return in_company(j, -1, size, times);
}

static int asleep_beside_hogs(struct wire_job *j, size_t size, int times)
{
    return in_company(j, 0, size, times);
}

/* ---- for comparison ------------------------------------------------------------------------------ */

static int copy(struct wire_job *j, size_t size, int times)
{
    for (int i = 0; i < times && !j->rank; i++)
        memcpy(j->other, j->buffer, size);
    return 0;
}

static int pipe_read(int fd, char *buffer, size_t size)
{
    while (size) {
        ssize_t len = read(fd, buffer, size);
        if (len <= 0)
            return command_broke("a pipe has ended: %s", strerror(errno)), DP_EIO;
        size -= (size_t)len;
    }
    return 0;
}

static int pipe_write(int fd, const char *buffer, size_t size)
{
    while (size) {
        ssize_t len = write(fd, buffer, size);
        if (len <= 0)
            return command_broke("a pipe has ended: %s", strerror(errno)), DP_EIO;
        size -= (size_t)len;
    }
    return 0;
}

static int pipe_ping_pong(struct wire_job *j, size_t size, int times)
{
    int err = 0;

    for (int i = 0; i < times && !err; i++) {
        if (!j->rank)
            err = pipe_write(j->there[1], j->buffer, size);
        if (!err)
            err = pipe_read(j->rank ? j->there[0] : j->back[0], j->other, size);
        if (!err && j->rank)
            err = pipe_write(j->back[1], j->buffer, size);
    }
    return err;
}

static int pipe_stream(struct wire_job *j, size_t size, int times)
{
    int err = 0;

    for (int i = 0; i < times && !err; i++)
        err = j->rank ? pipe_read(j->there[0], j->other, size)
                                    : pipe_write(j->there[1], j->buffer, size);
    if (err)
        return err;
    return j->rank ? pipe_write(j->back[1], j->buffer, 1)
                                 : pipe_read(j->back[0], j->other, 1);
}

/* Targets: nine tenths of the best other library's latency, 1.12 to 1.7 times its bandwidth, as
 * measured on two virtual CPUs. */
const struct wire_method wire_methods[] = {
    {"8 B", 8, wire_ping_pong, WIRE_LATENCY, 0.225, 3.26},
    {"4 KiB", 4 << 10, wire_ping_pong, WIRE_LATENCY, 0, 0},
    {"64 KiB", 64 << 10, wire_ping_pong, WIRE_LATENCY, 0, 0},
    {"512 KiB", 512 << 10, wire_stream, WIRE_STREAM, 45, 7.95},
    {"4 MiB", 4 << 20, wire_stream, WIRE_STREAM, 26.5, 0},
    {"64 MiB", WIRE_BIGGEST, wire_stream, WIRE_STREAM, 18.2, 5.95},
    {"512 KiB, shared memory", 512 << 10, wire_stream_shared, WIRE_STREAM, 0, 0},
    {"4 MiB, shared memory", 4 << 20, wire_stream_shared, WIRE_STREAM, 26.5, 0},
    {"64 MiB, shared memory", WIRE_BIGGEST, wire_stream_shared, WIRE_STREAM, 24.3, 0},
    {"waiting, of a core", 8, idle, WIRE_SHARE, 2, 2},
    {"8 B, a hog on each core", 8, beside_hogs, WIRE_LATENCY, 0, 0},
    {"8 B, the same without spinning", 8, asleep_beside_hogs, WIRE_LATENCY, 0, 0},
    {"512 KiB, a hog on each core", 512 << 10, beside_hogs, WIRE_STREAM, 0, 0},
    {"512 KiB, the same without spinning", 512 << 10, asleep_beside_hogs, WIRE_STREAM, 0, 0},
    {"  for comparison: a pipe, 8 B", 8, pipe_ping_pong, WIRE_LATENCY, 0, 0},
    {"  for comparison: a pipe, 64 KiB", PIPE_CHUNK, pipe_stream, WIRE_STREAM, 0, 0},
    {"  for comparison: memcpy, 512 KiB", 512 << 10, copy, WIRE_STREAM, 0, 0},
    {"  for comparison: memcpy, 4 MiB", 4 << 20, copy, WIRE_STREAM, 0, 0},
    {"  for comparison: memcpy, 64 MiB", WIRE_BIGGEST, copy, WIRE_STREAM, 0, 0},
};
const int wire_method_count = sizeof(wire_methods) / sizeof(wire_methods[0]);
_Static_assert(sizeof(wire_methods) / sizeof(wire_methods[0]) <= (size_t)WIRE_METHODS_MAX, "room");
