/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"
#include "device/internal.h"

#include "offload/file_io.h"

#include "base/clock.h"
#include "base/fail.h"

#include <dualpipe/device.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef HAVE_LIBURING
#include <liburing.h>
#endif

struct slot {
    struct dpo_io *io;
    struct op {
        struct slot *slot;
        struct dpo_io_piece left;
    } ops[DPO_IO_PIECES];
    int count, in_flight; /* the latter of io_uring */
    bool write;
    struct dpo_io_result result;
    struct dp_device_event *ready; /* of threads */
};

struct dpo_io {
    int file;
    struct slot slots[DPO_IO_SLOTS];
#ifdef HAVE_LIBURING
    struct io_uring ring;
#endif
    bool uring;
    struct dp_device *dev; /* whose threads they are, */
    struct dp_device_stream *up, *down;
};

/* ---- progress of an op ----------------------------------------------------------------------- */

/* What a read or write returned, or the errno as a negative number. false: there is more to do. */
static bool take(struct op *op, int64_t n)
{
    struct dpo_io_result *result = &op->slot->result;

    if (n == -EINTR || n == -EAGAIN)
        return false;
    if (n < 0)
        result->error = (int)-n;
    else if (n == 0)
        result->ended = true;
    else {
        op->left.at += n;
        op->left.offset += (size_t)n;
        op->left.bytes -= (size_t)n;
    }
    return n <= 0 || !op->left.bytes;
}

static bool failed(const struct slot *slot)
{
    return slot->result.error || slot->result.ended;
}

/* ---- threads --------------------------------------------------------------------------------- */

/* In a thread of the device's. */
static void carry_out(void *user)
{
    struct slot *slot = user;

    for (int i = 0; i < slot->count && !failed(slot); i++) {
        struct op *op = &slot->ops[i];
        ssize_t n;
        do
            n = slot->write
                    ? pwrite(slot->io->file, op->left.at, op->left.bytes, (off_t)op->left.offset)
                    : pread(slot->io->file, op->left.at, op->left.bytes, (off_t)op->left.offset);
        while (!take(op, n < 0 ? -errno : n));
    }
}

static int begin_in_thread(struct slot *slot)
{
    struct dp_device_stream *stream = slot->write ? slot->io->down : slot->io->up;
    int err = dp_device_call(stream, carry_out, slot);

    return err ? err : dp_device_event_record(slot->ready, stream);
}

/* Threads that may not be bound to the node are as good as any. */
static int start_threads(struct dpo_io *io, int node)
{
    int err = dp_device_host_open(2, &io->dev);

    if (!err && node >= 0)
        (void)dp_device_bind(io->dev, node);
    if (!err)
        err = dp_device_stream_new(io->dev, DP_PRIORITY_NORMAL, &io->up);
    if (!err)
        err = dp_device_stream_new(io->dev, DP_PRIORITY_NORMAL, &io->down);
    for (int i = 0; i < DPO_IO_SLOTS && !err; i++)
        err = dp_device_event_new(io->dev, &io->slots[i].ready);
    return err;
}

/* ---- io_uring -------------------------------------------------------------------------------- */

#ifdef HAVE_LIBURING
/* There is always an entry: no more ops are in flight than the ring has. */
static int submit(struct op *op)
{
    struct dpo_io *io = op->slot->io;
    struct io_uring_sqe *sqe = io_uring_get_sqe(&io->ring);
    unsigned bytes = op->left.bytes < (1u << 30) ? (unsigned)op->left.bytes : 1u << 30;

    if (!sqe)
        return dp_fail(DP_EIO, "io_uring: no entry for a read or write");
    if (op->slot->write)
        io_uring_prep_write(sqe, io->file, op->left.at, bytes, op->left.offset);
    else
        io_uring_prep_read(sqe, io->file, op->left.at, bytes, op->left.offset);
    io_uring_sqe_set_data(sqe, op);
    op->slot->in_flight++;
    return 0;
}

static int push(struct dpo_io *io)
{
    int n;

    do
        n = io_uring_submit(&io->ring);
    while (n == -EINTR || n == -EAGAIN);
    return n < 0 ? dp_fail(DP_EIO, "io_uring: cannot submit reads and writes: %s", strerror(-n)) : 0;
}

static int begin_in_ring(struct slot *slot)
{
    int err = 0;

    slot->in_flight = 0;
    for (int i = 0; i < slot->count && !err; i++)
        err = submit(&slot->ops[i]);
    return err ? err : push(slot->io);
}

/* One op of any slot has ended; what it leaves is begun again. */
static int reap(struct dpo_io *io, struct io_uring_cqe *cqe)
{
    struct op *op = io_uring_cqe_get_data(cqe);
    bool done = take(op, cqe->res);
    int err = 0;

    io_uring_cqe_seen(&io->ring, cqe);
    op->slot->in_flight--;
    if (!done && !failed(op->slot))
        err = submit(op);
    return err || done ? err : push(io);
}

static int wait_in_ring(struct slot *slot, int64_t timeout_ns)
{
    int64_t deadline_ns = dp_now_ns() + timeout_ns;
    int err = 0;

    while (slot->in_flight && !err) {
        int64_t left = deadline_ns - dp_now_ns();
        struct __kernel_timespec t = {left / DP_NS_PER_S, left % DP_NS_PER_S};
        struct io_uring_cqe *cqe;
        int n = left > 0 ? io_uring_wait_cqe_timeout(&slot->io->ring, &cqe, &t) : -ETIME;
        if (n == -ETIME)
            return dp_fail(DP_ETIMEDOUT, "io_uring: a read or write does not end");
        if (n < 0 && n != -EINTR && n != -EAGAIN)
            err = dp_fail(DP_EIO, "io_uring: cannot wait: %s", strerror(-n));
        else if (!n)
            err = reap(slot->io, cqe);
    }
    return err;
}

static void start_ring(struct dpo_io *io, const char *what)
{
    int n = io_uring_queue_init(DPO_IO_SLOTS * DPO_IO_PIECES + 8, &io->ring, 0);

    io->uring = n == 0;
    if (n < 0)
        dp_log(DP_LOG_WARN, "%s: io_uring is refused (%s); threads read and write", what,
               strerror(-n));
}

static void stop_ring(struct dpo_io *io)
{
    io_uring_queue_exit(&io->ring);
}
#else
static int begin_in_ring(struct slot *slot)
{
    (void)slot;
    return DP_EIO;
}

static int wait_in_ring(struct slot *slot, int64_t timeout_ns)
{
    (void)slot, (void)timeout_ns;
    return DP_EIO;
}

static void start_ring(struct dpo_io *io, const char *what)
{
    (void)io, (void)what;
}

static void stop_ring(struct dpo_io *io)
{
    (void)io;
}
#endif

/* ---- both ------------------------------------------------------------------------------------ */

int dpo_io_begin(struct dpo_io *io, int index, bool write, const struct dpo_io_piece *pieces, int count)
{
    struct slot *slot = &io->slots[index];

    if (count > DPO_IO_PIECES)
        return dp_fail(DP_EINVAL, "%d reads or writes at once, expected at most %d", count,
                       DPO_IO_PIECES);
    slot->write = write;
    slot->result = (struct dpo_io_result){0, false};
    slot->count = 0;
    for (int i = 0; i < count; i++)
        if (pieces[i].bytes)
            slot->ops[slot->count++] = (struct op){slot, pieces[i]};
    return io->uring ? begin_in_ring(slot) : begin_in_thread(slot);
}

int dpo_io_wait(struct dpo_io *io, int index, int64_t timeout_ns, struct dpo_io_result *out)
{
    struct slot *slot = &io->slots[index];
    int err = io->uring ? wait_in_ring(slot, timeout_ns)
                        : dp_device_event_wait(slot->ready, timeout_ns);

    if (!err)
        *out = slot->result;
    return err;
}

bool dpo_io_is_uring(const struct dpo_io *io)
{
    return io->uring;
}

struct dp_device *dpo_io_device(const struct dpo_io *io)
{
    return io->dev;
}

int dpo_io_new(int file, bool threads, int node, const char *what, struct dpo_io **out)
{
    struct dpo_io *io = calloc(1, sizeof(*io));
    int err = 0;

    if (!io)
        return dp_fail(DP_ENOMEM, "no memory for reads and writes of a file");
    io->file = file;
    for (int i = 0; i < DPO_IO_SLOTS; i++)
        io->slots[i].io = io;
    if (!threads)
        start_ring(io, what);
    if (!io->uring)
        err = start_threads(io, node);
    if (err)
        dpo_io_free(io);
    else
        *out = io;
    return err;
}

void dpo_io_free(struct dpo_io *io)
{
    if (!io)
        return;
    if (io->uring)
        stop_ring(io);
    dp_device_stream_free(io->up);
    dp_device_stream_free(io->down);
    for (int i = 0; i < DPO_IO_SLOTS; i++)
        dp_device_event_free(io->slots[i].ready);
    dp_device_close(io->dev);
    free(io);
}
