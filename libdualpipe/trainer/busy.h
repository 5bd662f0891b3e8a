/* SPDX-License-Identifier: Apache-2.0
 *
 * busy.h - while a rank writes or reads files the others wait, as long as a slow disk may take.
 * What is announced to them (dp_comm_busy) is short, and a thread renews it until the files are done: a
 * rank that is stopped meanwhile renews nothing, and is not waited for any longer than elsewhere.
 */
#ifndef DP_TRAINER_BUSY_H
#define DP_TRAINER_BUSY_H

#include <dualpipe/comm.h>

#include <pthread.h>

struct busy {
    struct dp_comm *comm; /* NULL: there are no others */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t over;
    bool runs, is_over;
};

/* Between the two the caller makes no call of comm, which may be NULL. */
void busy_begin(struct busy *b, struct dp_comm *comm);
void busy_end(struct busy *b);

#endif
