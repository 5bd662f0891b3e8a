/* SPDX-License-Identifier: Apache-2.0
 *
 * controller.h - one process tells all others what to do: rank 0 calls a function on every worker
 * and collects the answers, as a program that drives a pipeline, its optimizers and its checkpoints
 * from one place does.
 *
 *      rank 0                                       ranks 1 .. size - 1
 *      dp_controller_open                           dp_controller_open
 *      dp_controller_foreach("step", ...) --------> dp_controller_serve: calls step(user, ...)
 *      answers[1 .. size - 1]             <-------- what it has put, or its error and sentence
 *      dp_controller_close                -------->   returns 0
 *                                                   dp_controller_close
 *
 * Functions are known by name, as processes do not have them at the same addresses: every rank
 * passes a table of the functions that it offers. Arguments and answers are bytes.
 *
 * A function may use the communicator that the controller was made of, and what is built on it (take
 * its rank's part of a step of a pipeline, for instance): the controller's own messages never meet
 * those. As those it belongs to one family with it, so an abort of one ends both.
 *
 * Threads: as for a communicator, one at a time.
 *
 * Source: PipeRPCWrapper of fairscale (foreach_worker).
 */
#ifndef DUALPIPE_CONTROLLER_H
#define DUALPIPE_CONTROLLER_H

#include <dualpipe/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DP_FUNCTION_NAME 64 /* length of a name, with its end */

/* What a function answers; put grows it. */
struct dp_reply;
/* Append bytes[len] to the answer. DP_ENOMEM; DP_EINVAL for more than max_bytes in all. */
DP_PUBLIC int dp_reply_put(struct dp_reply *reply, const void *bytes, size_t len);

/* arg[len] is what the controller has passed, valid during the call. 0, or a negative errno, which
 * the controller is told with dp_last_error() of this thread; the answer is then what has been put
 * so far. */
struct dp_worker_function {
    const char *name;
    int (*call)(void *user, const void *arg, size_t len, struct dp_reply *reply);
    void *user;
};

struct dp_controller_config {
    struct dp_comm *comm; /* must outlive the controller */
    const struct dp_worker_function *functions; /* [function_count], must stay */
    int32_t function_count;                     /* on rank 0 of use with include_self only */
    int64_t idle_ns;  /* longest time that a worker waits for the next call; 0: the deadline of comm.
                       * What rank 0 announces by dp_comm_busy is not counted */
    size_t max_bytes; /* of an argument or an answer; 0: 1 GiB. The same on all ranks */
};

struct dp_controller;

/* Collective over comm. DP_EINVAL: a function without name or call, a name that is too long or there
 * twice; DP_EMISMATCH: another max_bytes elsewhere; DP_ENOMEM, and errors of dp_comm_split. */
DP_PUBLIC int dp_controller_open(const struct dp_controller_config *config,
                                 struct dp_controller **out);

/* On ranks 1 .. size - 1: carry out calls until rank 0 closes its controller: 0. DP_ETIMEDOUT: none
 * came for idle_ns, DP_EABORTED, DP_ECOMM: the group has failed. DP_ESTATE on rank 0. A function
 * that fails does not end it, unless it has aborted the group. After dp_comm_reset of comm on all
 * ranks it may be called again. */
DP_PUBLIC int dp_controller_serve(struct dp_controller *c);

/* What a rank has answered. */
struct dp_answer {
    int error;        /* 0, or a negative errno; DP_EAGAIN: this rank was not called */
    const void *data; /* [len], until the controller's next call */
    size_t len;
    char text[DP_ABORT_TEXT]; /* of an error: its sentence; "" otherwise */
};

/* On rank 0: call the function of that name, with arg[len], on ranks 1 .. size - 1 at once, and with
 * include_self on rank 0 meanwhile; wait for all of them. answers[size], in order of ranks, is
 * written whatever comes out, as far as ranks have answered; NULL: not wanted.
 *
 * 0: all have returned 0. DP_ECALLBACK: some have not; the sentence names the first one, its error
 * and how many there are. All have answered, and the next call may follow. DP_ETIMEDOUT: a rank,
 * which is named, has not answered for deadline_ns (0: the deadline of comm), counted from the
 * call on for all ranks together; the group is aborted. DP_EABORTED, DP_ECOMM: it has failed
 * meanwhile, or a worker has left. DP_EINVAL: a bad name, too many bytes; DP_ESTATE on other ranks
 * than 0; DP_ENOMEM. */
DP_PUBLIC int dp_controller_foreach(struct dp_controller *c, const char *name, const void *arg,
                                    size_t len, bool include_self, int64_t deadline_ns,
                                    struct dp_answer *answers);
/* The same of one rank, which may be 0; *answer may be NULL. */
DP_PUBLIC int dp_controller_call(struct dp_controller *c, int rank, const char *name,
                                 const void *arg, size_t len, int64_t deadline_ns,
                                 struct dp_answer *answer);

/* On rank 0: let all workers' dp_controller_serve return; then, on any rank, free. c may be NULL. */
DP_PUBLIC void dp_controller_close(struct dp_controller *c);

#ifdef __cplusplus
}
#endif
#endif
