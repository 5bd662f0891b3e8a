/* SPDX-License-Identifier: Apache-2.0
 *
 * backoff.h - between two looks at something that other processes do, while a group is being set
 * up: a short sleep, and longer ones the longer it takes. Not a yield: where cores are short it
 * would hand a whole time slice to an unrelated process.
 */
#ifndef DP_COMM_BACKOFF_H
#define DP_COMM_BACKOFF_H

#include <time.h>

/* us: 0 at first, and again whenever something has gone forward. */
static inline void dp_backoff(unsigned *us)
{
    enum { FIRST_US = 30, LAST_US = 1000 };

    *us = *us ? 2 * *us : FIRST_US;
    if (*us > LAST_US)
        *us = LAST_US;
    nanosleep(&(struct timespec){.tv_nsec = *us * 1000L}, NULL);
}

/* ---- cpu pause ------------------------------------------------------------------------------- */

/* Tell the core that this is a loop that waits for another core's store. */

static inline void dp_cpu_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("isb" ::: "memory");
#endif
}

#endif
