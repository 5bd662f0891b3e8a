/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/signals.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int users;
static struct sigaction before; /* of the program */
static atomic_bool raised;      /* in the handler, read by any thread */

static void note(int number, siginfo_t *info, void *context)
{
    atomic_store(&raised, true);
    if (before.sa_flags & SA_SIGINFO)
        before.sa_sigaction(number, info, context);
    else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
        before.sa_handler(number);
}

void signals_begin(void)
{
    struct sigaction action = {.sa_sigaction = note, .sa_flags = SA_SIGINFO | SA_RESTART};

    pthread_mutex_lock(&lock);
    if (!users++) {
        atomic_store(&raised, false);
        sigemptyset(&action.sa_mask);
        sigaction(SIGTERM, NULL, &before);
        sigaction(SIGTERM, &action, NULL);
    }
    pthread_mutex_unlock(&lock);
}

void signals_end(void)
{
    pthread_mutex_lock(&lock);
    if (!--users)
        sigaction(SIGTERM, &before, NULL);
    pthread_mutex_unlock(&lock);
}

bool signals_raised(void)
{
    return atomic_load(&raised);
}
