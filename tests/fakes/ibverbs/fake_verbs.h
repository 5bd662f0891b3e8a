/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_verbs.h - a stand-in for libibverbs.so.1: RDMA devices that exist in the memory of one machine,
 * and fail on demand. Any number of processes that name the same directory are joined by a fabric.
 *
 * It runs code written for libibverbs unchanged, and is as strict as hardware may be: keys, ranges,
 * states, attribute masks, queue sizes, GIDs and packet sequence numbers are checked, a send queue
 * has no room until a completion was polled, and what an erroneous completion does not define is
 * garbage. It proves nothing about speed. Only RC queue pairs, no shared receive queues, no atomics.
 *
 *      FAKE_VERBS_FABRIC   a directory for what the processes share; without it there are no devices
 *      FAKE_VERBS_DEVICES  a file that says which devices this process has; fabric_config.h
 *      FAKE_VERBS_HOST     processes of the same host share its devices (default: one host)
 *      FAKE_VERBS_SYSFS    what stands before /sys in the paths of devices (default: nothing)
 *      FAKE_VERBS_RETRY_MS how long a packet is repeated that nobody answers (default 50)
 *      FAKE_VERBS_RANK     which of the processes with the same seed this is (default 0)
 *      FAKE_VERBS_FAULTS   "seed=7 delay=100 error=5 ...": what goes wrong by chance; each with its
 *                          rate in 1000
 *
 *          reorder  a work request waits, so that other queue pairs overtake it
 *          ack      it is carried out, but completes later
 *          twice    it is carried out twice
 *          short    a poll finds fewer completions than there are
 *          error    it fails: retries exceeded (nothing arrived, all arrived, or it arrives later as
 *                   long as the other side listens), remote access, or the queue pair is flushed
 *          reg      a registration fails: ENOMEM, EINVAL
 *          modify   ibv_modify_qp to RTR fails: ETIMEDOUT
 *          port     at a work request its port goes down, and comes back after port_ms (default 5)
 *          gid      at a work request an entry of the GID table moves to another index
 *          qp       at a work request its queue pair dies (QP_FATAL)
 *          device   at a work request its device dies (DEVICE_FATAL); all in it is flushed
 *          most     at most so many of error, port, qp and device together in this process
 *
 * Whether the n-th work request of the k-th queue pair, the n-th poll or the n-th registration of a
 * process is struck depends on seed, rank and n only.
 *
 * Data moves by process_vm_writev, which asks for the right to trace the other process; within one
 * process it always works.
 */
#ifndef DP_TESTS_FAKE_VERBS_H
#define DP_TESTS_FAKE_VERBS_H

#include <infiniband/verbs.h>
#include <stdbool.h>

/* What of a message with a fault comes to the other side. */
enum fake_verbs_arrival {
    FAKE_ARRIVES_NEVER,
    FAKE_ARRIVES_BEFORE,
    FAKE_ARRIVES_AFTER,
    FAKE_ARRIVES_TWICE,     /* and succeeds */
    FAKE_ARRIVES_WITH_READ, /* succeeds; is in memory only once the same queue pair reads */
};

/* What a test may ask of it: dlsym(library, "fake_verbs"). All return whether it was possible. */
struct fake_verbs {
    /* The cable of a port, for all processes. */
    bool (*set_port)(const char *device, int port, bool up);
    bool (*move_gid)(const char *device, int port, int from, int to);
    /* As a subnet manager does. */
    bool (*set_lid)(const char *device, int port, int lid);
    /* In this process only. */
    bool (*kill_device)(const char *device);
    /* The n-th work request from now (1: the next) of this queue pair. */
    bool (*fail_send)(struct ibv_qp *qp, int n, enum ibv_wc_status status,
                      enum fake_verbs_arrival arrival);
    /* The n-th call from now of ibv_reg_mr, ibv_modify_qp, ibv_post_send, ibv_destroy_qp or any
     * function that makes something. */
    bool (*fail_call)(const char *function, int n, int error);
    /* From now on every call of ibv_reg_mr, ibv_dereg_mr, ibv_create_qp, ibv_modify_qp or
     * ibv_destroy_qp waits until it is passed, as with a busy device or an address that nobody answers
     * for; NULL: none any more, and those that wait are passed. False: since the last time one has
     * waited for 30 s, and all went on. */
    bool (*hold_call)(const char *function);
    /* How many wait; pass those. */
    int (*held_calls)(void);
    void (*pass_calls)(void);
    /* While held nothing leaves this process. */
    bool (*hold)(bool held);
    /* The same of one queue pair: its way is slow, and the others overtake it. */
    bool (*hold_qp)(struct ibv_qp *qp, bool held);
    /* What was made in this process and not given back; and what still waits to be carried out. */
    int (*alive)(void);
    int (*waiting)(void);
};

#endif
