/* SPDX-License-Identifier: Apache-2.0
 *
 * sim_faults.c - calls that fail when a test wants them to, and how often a function was called.
 */
#include "simcuda/sim.h"

#include <pthread.h>
#include <string.h>

enum { NAMES = 32 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    const char *name;
    int calls, fails_at, status; /* fails_at: the number of the call, from 1; 0: none */
} functions[NAMES];

/* The place of a name; with the lock. */
static int find(const char *name)
{
    int i = 0;

    while (i < NAMES && functions[i].name && strcmp(functions[i].name, name))
        i++;
    if (i == NAMES)
        sim_die("more than %d functions that can fail", NAMES);
    functions[i].name = name;
    return i;
}

int sim_begin(const char *name)
{
    pthread_mutex_lock(&lock);
    const int i = find(name);
    const int status = ++functions[i].calls == functions[i].fails_at ? functions[i].status : 0;
    pthread_mutex_unlock(&lock);
    return status;
}

/* ---- waits between work --------------------------------------------------------------------- */

static int pending_waits, waits_inside;

void sim_waited(void)
{
    __atomic_add_fetch(&pending_waits, 1, __ATOMIC_RELAXED);
}

void sim_queued(void)
{
    __atomic_add_fetch(&waits_inside, __atomic_exchange_n(&pending_waits, 0, __ATOMIC_RELAXED),
                       __ATOMIC_RELAXED);
}

SIM_EXPORT void sim_count_waits(void)
{
    __atomic_store_n(&pending_waits, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&waits_inside, 0, __ATOMIC_RELAXED);
}

SIM_EXPORT int sim_waits_inside(void)
{
    return __atomic_load_n(&waits_inside, __ATOMIC_RELAXED);
}

/* ---- calls that fail ------------------------------------------------------------------------- */

SIM_EXPORT void sim_fail(const char *name, int call, int status)
{
    pthread_mutex_lock(&lock);
    const int i = find(name);
    functions[i].calls = 0;
    functions[i].fails_at = call;
    functions[i].status = status;
    pthread_mutex_unlock(&lock);
}

SIM_EXPORT int sim_calls(const char *name)
{
    pthread_mutex_lock(&lock);
    const int calls = functions[find(name)].calls;
    pthread_mutex_unlock(&lock);
    return calls;
}
