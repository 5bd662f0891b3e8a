/* SPDX-License-Identifier: Apache-2.0
 *
 * nap.h - between two looks at something that other processes do, while a group is being set up: let
 * them run, and after a while be out of their way.
 */
#ifndef DP_COMM_NAP_H
#define DP_COMM_NAP_H

#include <poll.h>
#include <sched.h>

/* rounds: 0 at first, and again whenever something has gone forward. */
static inline void dp_nap(unsigned *rounds)
{
    if (++*rounds < 100)
        sched_yield();
    else
        poll(NULL, 0, 1);
}

#endif
