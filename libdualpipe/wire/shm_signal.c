/* SPDX-License-Identifier: Apache-2.0
 *
 * shm_signal.c - what the two sides of a shared memory wire tell each other beside messages: which
 * memory is shared, that one has ended. Its wake-ups are in shm.h.
 */
#include "wire/shm.h"

#include "wire/fds.h"

#include <errno.h>

enum { READS = 4096 /* of the socket in one look: more than it holds at a time */ };

void dp_shm_has_shared(struct dp_shm_wire *w)
{
    w->refusals[false] = w->refusals[true] = 0;
    w->base.buffer_bytes = DP_SHM_LARGE;
}

/* Read away what rang, hear what announcements there are, and notice if the peer has closed its
 * end. */
void dp_shm_look(struct dp_shm_wire *w)
{
    const unsigned before = w->mappings.received;
    char bytes[sizeof(struct dp_shm_announcement)];
    ssize_t n = 1;

    for (int i = 0; i < READS && n > 0; i++) {
        /* Never read beyond the end of an announcement: the next one's file would replace its own. */
        const size_t most = sizeof(bytes) - w->mappings.got;
        n = dp_fds_receive(w->fd, bytes, most, &w->mappings.passed_fd);
        if (n > 0)
            dp_shm_mappings_receive(&w->mappings, bytes, (size_t)n);
    }
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        w->peer_gone = true;
    if (w->mappings.received != before)
        dp_shm_has_shared(w);
}

bool dp_shm_is_all_taken(struct dp_shm_wire *w)
{
    w->known_taken = atomic_load_explicit(&w->out->taken, memory_order_acquire);
    return w->known_taken == w->sent;
}
