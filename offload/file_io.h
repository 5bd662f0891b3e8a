/* SPDX-License-Identifier: Apache-2.0
 *
 * file_io.h - reads and writes of a file that go on while the caller computes: through io_uring, or,
 * where the system refuses it or the library was built without liburing, by a thread for each direction.
 */
#ifndef DPO_FILE_IO_H
#define DPO_FILE_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dp_device;

enum { DPO_IO_SLOTS = 3, DPO_IO_PIECES = 8 };

struct dpo_io;

struct dpo_io_piece {
    char *at;
    size_t bytes, offset; /* in the file */
};

/* How a slot ended: error is an errno; 0, and ended where the file ended early. */
struct dpo_io_result {
    int error;
    bool ended;
};

/* The file must stay open. threads: not through io_uring. node: the NUMA node of what is read and
 * written, on whose CPUs threads run; -1: any. `what` begins messages. DP_ENOMEM. */
int dpo_io_new(int file, bool threads, int node, const char *what, struct dpo_io **out);
/* Nothing may be in flight. io may be NULL. */
void dpo_io_free(struct dpo_io *io);
bool dpo_io_is_uring(const struct dpo_io *io);
/* Whose threads read and write; NULL with io_uring. */
struct dp_device *dpo_io_device(const struct dpo_io *io);

/* Begin to read or write all pieces; the slot is idle, and what they point to stays until it is again.
 * DP_EIO, DP_EINVAL for too many pieces. */
int dpo_io_begin(struct dpo_io *io, int slot, bool write, const struct dpo_io_piece *pieces, int count);
/* Wait for a slot, which is idle then; pieces that were done in part are gone on with. DP_ETIMEDOUT, and
 * the slot is not idle. */
int dpo_io_wait(struct dpo_io *io, int slot, int64_t timeout_ns, struct dpo_io_result *out);

#endif
