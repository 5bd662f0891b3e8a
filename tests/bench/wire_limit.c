/* SPDX-License-Identifier: Apache-2.0
 *
 * wire_limit.c - what a message from one process's memory to another's could cost at best: for a
 * large one each side copies half of it (process_vm_readv and writev), and neither waits for the
 * other; for a short one a line of memory changes cores once.
 */
#include "config.h"

#include "tests/bench/wire_limit.h"

#include "command.h"

#include <errno.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

enum { CHUNK = 256 << 10 };

/* Two cache lines, as some processors fetch pairs of them. */
struct wire_line {
    alignas(128) atomic_uint turn;
};

static struct wire_line *lines; /* [2] shared by the ranks: there, and back */
/* In each rank's process: */
static struct place {
    int64_t pid;
    char *buffer, *other; /* in that process */
} peer;
static bool may_copy;

int wire_limit_open(void)
{
    void *at = mmap(NULL, 2 * sizeof(*lines), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                    0);

    if (at == MAP_FAILED)
        return command_broke("no memory for two processes: %s", strerror(errno));
    lines = at;
    return 0;
}

void wire_limit_close(void)
{
    munmap(lines, 2 * sizeof(*lines));
}

/* ---- a short message --------------------------------------------------------------------------- */

/* With no end but the other rank's: a clock in the loop would be measured, too. A rank that is left
 * alone in it is killed by the process that has started it. */
int wire_limit_line(struct wire_job *j, size_t size, int times)
{
    struct wire_line *mine = &lines[j->rank], *theirs = &lines[1 - j->rank];

    (void)size;
    for (int i = 0; i < times; i++) {
        const unsigned turn = atomic_load_explicit(&mine->turn, memory_order_relaxed) + 1;
        if (j->rank == 0)
            atomic_store_explicit(&mine->turn, turn, memory_order_release);
        while (atomic_load_explicit(&theirs->turn, memory_order_acquire) != turn)
            ;
        if (j->rank == 1)
            atomic_store_explicit(&mine->turn, turn, memory_order_release);
    }
    return 0;
}

/* ---- a large one ------------------------------------------------------------------------------- */

/* The other rank's buffer of what comes, if this one sends; of what goes, if it receives. */
static bool copy_part(const struct wire_job *j, size_t at, size_t len)
{
    const bool pushes = j->rank == 0;
    const struct iovec here = {(pushes ? j->buffer : j->other) + at, len};
    const struct iovec there = {(pushes ? peer.other : peer.buffer) + at, len};
    const ssize_t n = pushes ? process_vm_writev((pid_t)peer.pid, &here, 1, &there, 1, 0)
                             : process_vm_readv((pid_t)peer.pid, &here, 1, &there, 1, 0);

    return n == (ssize_t)len;
}

int wire_limit_meet(struct wire_job *j)
{
    struct place places[2];
    const struct place mine = {(int64_t)getpid(), j->buffer, j->other};
    int32_t works[2], mine_works;
    int err = dp_comm_allgather(j->comm, &mine, places, sizeof(mine));

    if (err)
        return err;
    peer = places[1 - j->rank];
    mine_works = copy_part(j, 0, 1);
    err = dp_comm_allgather(j->comm, &mine_works, works, sizeof(mine_works));
    if (!err)
        may_copy = works[0] && works[1];
    return err;
}

bool wire_limit_may_copy(void)
{
    return may_copy;
}

int wire_limit_copy(struct wire_job *j, size_t size, int times)
{
    const size_t half = size / 2, begin = j->rank ? 0 : half, end = begin + half;

    for (int i = 0; i < times; i++)
        for (size_t at = begin; at < end; at += CHUNK)
            if (!copy_part(j, at, end - at < CHUNK ? end - at : CHUNK))
                return command_broke("cannot copy between two processes: %s", strerror(errno)),
                       DP_EIO;
    return dp_comm_barrier(j->comm);
}
