/* SPDX-License-Identifier: Apache-2.0
 *
 * saved_busy.h - while a rank writes or reads files the others wait, as long as a slow disk may take.
 * What is announced to them (dp_comm_busy) is short, and a thread renews it until the files are done: a
 * rank that is stopped meanwhile renews nothing, and is not waited for any longer than elsewhere.
 */
#ifndef TRAIN_SAVED_BUSY_H
#define TRAIN_SAVED_BUSY_H

#include <dualpipe/comm.h>

#include <pthread.h>

struct saved_busy {
    struct dp_comm *comm; /* NULL: there are no others */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t over;
    bool runs, is_over;
};

/* Between the two the caller makes no call of comm, which may be NULL. */
void saved_busy_begin(struct saved_busy *b, struct dp_comm *comm);
void saved_busy_end(struct saved_busy *b);

#endif
