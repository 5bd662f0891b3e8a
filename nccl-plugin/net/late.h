/* SPDX-License-Identifier: Apache-2.0
 *
 * late.h - a peer that is waited for. Ranks compile, load and save for minutes, and NCCL waits for
 * them, so a peer is late and not gone while its system answers: what ends a wait is the wire's
 * error, and here it is only said, once a minute.
 */
#ifndef DPN_NET_LATE_H
#define DPN_NET_LATE_H

#include <stdint.h>

/* Zeroed: nothing is waited for. */
struct dpn_late {
    int64_t since_ns, said_ns;
    unsigned polls;
};

/* A poll was in vain; `what` the peer has not done, as "has not connected". */
void dpn_late_wait(struct dpn_late *late, const char *peer, const char *what);
/* The same, where polls are so many that the clock is read for few of them. */
static inline void dpn_late_test(struct dpn_late *late, const char *peer, const char *what)
{
    if (++late->polls % 1024 == 0)
        dpn_late_wait(late, peer, what);
}

#endif
