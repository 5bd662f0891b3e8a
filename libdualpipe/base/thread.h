/* SPDX-License-Identifier: Apache-2.0
 *
 * thread.h - threads of the library's own in a process of the user.
 */
#ifndef DP_BASE_THREAD_H
#define DP_BASE_THREAD_H

#include <pthread.h>

/* Start one that handles no signals: those are for the program's own threads. The name is what ps and
 * debuggers show, of at most 15 bytes. out NULL: the thread is detached. The errno of pthread_create. */
int dp_thread_start(const char *name, void *(*run)(void *arg), void *arg, pthread_t *out);

#endif
