/* SPDX-License-Identifier: Apache-2.0
 *
 * progress_thread.h - a thread that moves transfers along while the rank computes. A message that
 * is larger than what a wire holds needs both of its ends, again and again; without this thread it
 * would stand still whenever one of them computes.
 *
 *      rank    isend | start, computes ...            | stop, test ...
 *      thread        | move, sleep, move, move, sleep |
 *
 * At any time only one of the two works on the transfers, so their state needs no lock. A stop
 * waits for the `move` that is running.
 */
#ifndef DP_COMM_PROGRESS_THREAD_H
#define DP_COMM_PROGRESS_THREAD_H

#include <dualpipe/dualpipe.h>
#include <poll.h>

struct dp_progress_thread;

/* What there is to move. */
struct dp_progress_thread_ops {
    /* Move what can be moved at once. */
    void (*move)(void *user);
    /* About to sleep: write what to poll for to fds[*count]. false: there is more to move; disarm
     * comes next all the same. */
    bool (*arm)(void *user, struct pollfd *fds, int *count);
    void (*disarm)(void *user, const struct pollfd *fds, int count);
};

/* At most max_fds to poll for. DP_ENOMEM, DP_EIO. */
int dp_progress_thread_new(const struct dp_progress_thread_ops *ops, void *user, int max_fds,
                           struct dp_progress_thread **out);
void dp_progress_thread_free(
    struct dp_progress_thread *progress_thread); /* which has been stopped; may be NULL */

void dp_progress_thread_start(struct dp_progress_thread *progress_thread);
void dp_progress_thread_stop(struct dp_progress_thread *progress_thread);

#endif
