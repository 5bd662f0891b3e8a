/* SPDX-License-Identifier: Apache-2.0
 *
 * slice.h - shorter slices for a thread that waits among others that compute.
 *
 * NCCL's threads poll, and give up their turn whenever nothing has moved (sched_yield). Beside
 * others that compute on the same core that costs a slice of the scheduler, and what arrives
 * meanwhile waits. Since Linux 6.12 a thread may ask for shorter ones: it has the same share of the
 * core then, in smaller turns, and waits less for the next one. On a core of its own, or beside
 * threads that only poll as well, nothing is changed.
 */
#ifndef DPN_NET_SLICE_H
#define DPN_NET_SLICE_H

#include <stdbool.h>
#include <stdint.h>

/* What a thread has used up so far. */
struct dpn_slice_sample {
    int64_t now_ns, cpu_ns;
    long slept, switched; /* how often it gave up its core: to wait for something; otherwise */
};

/* Zeroed memory is one of a thread with slices as they were. */
struct dpn_slice_watch {
    struct dpn_slice_sample last;
    int64_t polled_ns, away_ns; /* time between samples without sleep; in it off its core */
    long switched;
    bool is_short;
};

/* Whether the thread should have short slices from now on. */
bool dpn_slice_judge(struct dpn_slice_watch *watch, const struct dpn_slice_sample *sample);

/* This thread's. The first is 0 where the system knows none, or the thread is of another kind than
 * most are (real time, batch, idle). */
int64_t dpn_slice_get_ns(void);
bool dpn_slice_set_ns(int64_t ns);

/* Go by a sample of this thread. Main threads are left alone: they are the job's own, and threads
 * inherit slices. */
void dpn_slice_apply(const struct dpn_slice_sample *sample);

/* This thread has tested a request that is not done. A few ns, and two system calls a tick. */
void dpn_slice_waited(void);

#endif
