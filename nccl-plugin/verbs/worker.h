/* SPDX-License-Identifier: Apache-2.0
 *
 * worker.h - calls that may block for long, made by threads of the plugin's own: over RoCE the
 * kernel looks up an address for up to a second, and creating or destroying a queue pair waits for
 * the device. NCCL's progress thread, which carries all connections, starts such a call, and asks
 * later whether it has returned.
 *
 *      begin            under the lock of the connection, from one thread at a time
 *      is_running       until the call has returned
 *
 * While it is running only the worker touches what the job works on.
 */
#ifndef DPN_VERBS_WORKER_H
#define DPN_VERBS_WORKER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Part of what it works on; it must live until the job has ended. Zeroed memory is a job that is
 * not running. */
struct dpn_job {
    void (*run)(struct dpn_job *job);
    struct dpn_job *next;
    atomic_bool is_running;
};

/* The lock of the jobs is held over forks. A module that begins jobs under a lock that it holds over
 * forks, too, calls this before it adds its own handlers: those added first lock last. */
void dpn_jobs_handle_forks(void);

/* Without a thread for it the call is made at once. */
void dpn_job_begin(struct dpn_job *job, void (*run)(struct dpn_job *job));

static inline bool dpn_job_is_running(const struct dpn_job *job)
{
    return atomic_load_explicit(&job->is_running, memory_order_acquire);
}

/* Wait until it has ended; one that has not begun is taken back and never runs. false: it is still
 * running at until_ns. */
bool dpn_job_end(struct dpn_job *job, int64_t until_ns);

#endif
