/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h" /* GNU extension: pthread_setname_np */

#include "base/thread.h"

#include <signal.h>

int dp_thread_start(const char *name, void *(*run)(void *arg), void *arg, pthread_t *out)
{
    sigset_t all, before;
    pthread_t thread;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error)
        return error;
    pthread_setname_np(thread, name);
    if (out)
        *out = thread;
    else
        pthread_detach(thread);
    return 0;
}
