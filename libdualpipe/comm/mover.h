/* SPDX-License-Identifier: Apache-2.0
 *
 * mover.h - a thread that moves transfers along while the rank computes. A message that is larger than
 * what a wire holds needs both of its ends, again and again; without the mover it would stand still
 * whenever one of them computes.
 *
 *      rank    isend | start, computes ...            | stop, test ...
 *      mover         | move, sleep, move, move, sleep |
 *
 * At any time only one of the two works on the transfers, so nothing of theirs needs a lock. What the
 * mover is busy with when it is stopped, it first brings to an end: one `move`.
 */
#ifndef DP_COMM_MOVER_H
#define DP_COMM_MOVER_H

#include <dualpipe/dualpipe.h>
#include <poll.h>

struct dp_mover;

/* What there is to move. */
struct dp_mover_ops {
    /* Move what can be moved at once. */
    void (*move)(void *user);
    /* About to sleep: write what to poll for to fds[*count]. false: there is more to move; disarm
     * comes next all the same. */
    bool (*arm)(void *user, struct pollfd *fds, int *count);
    void (*disarm)(void *user, const struct pollfd *fds, int count);
};

/* At most max_fds to poll for. DP_ENOMEM, DP_EIO. */
int dp_mover_new(const struct dp_mover_ops *ops, void *user, int max_fds, struct dp_mover **out);
void dp_mover_free(struct dp_mover *mover); /* which has been stopped; may be NULL */

void dp_mover_start(struct dp_mover *mover);
void dp_mover_stop(struct dp_mover *mover);

#endif
