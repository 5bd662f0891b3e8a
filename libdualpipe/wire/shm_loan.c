/* SPDX-License-Identifier: Apache-2.0
 *
 * shm_loan.c - memory of one side that the other side works on in place, in its own mapping of it.
 * What both may do at the same time is theirs to agree on; this file sees to it that the owner can
 * take its memory back at any moment:
 *
 *      owner    FREE        ... end: FREE -> NOT, waits while IN_USE
 *      peer     FREE -> IN_USE, reads and writes, -> FREE, and again
 */
#include "wire/shm.h"

#include "base/clock.h"
#include "base/fail.h"

#include <sched.h>
#include <string.h>

static const int64_t END_NS = 10 * DP_NS_PER_S;

_Static_assert(sizeof(struct dp_shm_location) == sizeof(struct dp_wire_loan), "a loan is a place");

static bool lend(struct dp_wire *wire, void *buf, size_t len, struct dp_wire_loan *out)
{
    struct dp_shm_wire *w = dp_shm_of(wire);

    if (wire->error || !wire->connected || w->is_lending)
        return false;
    const struct dp_shm_location place = dp_shm_name(w, buf, len);
    if (!place.announcement)
        return false;
    w->is_lending = true;
    w->lent_slot = place.slot;
    w->mappings.mine[place.slot].is_lent = true;
    atomic_store_explicit(&w->in->lent, DP_SHM_LENT_FREE, memory_order_release);
    memcpy(out, &place, sizeof(place));
    return true;
}

/* Both sides change the flag by compare-and-exchange only, so that it says either that the peer is
 * at work, or that the memory is the owner's. Acquire: what the peer has written is seen. */
static bool take_back(struct dp_shm_wire *w)
{
    unsigned expected = DP_SHM_LENT_FREE;

    return atomic_compare_exchange_strong_explicit(&w->in->lent, &expected, DP_SHM_LENT_NOT,
                                                   memory_order_acquire, memory_order_acquire);
}

/* The peer leaves within a fraction of a millisecond unless it is not scheduled, or was killed. */
static void end(struct dp_wire *wire)
{
    struct dp_shm_wire *w = dp_shm_of(wire);
    const int64_t until_ns = dp_now_ns() + END_NS;

    if (!w->is_lending)
        return;
    w->is_lending = false;
    w->mappings.mine[w->lent_slot].is_lent = false;
    if (!dp_cma_is_known(&w->cma))
        return; /* a child; its parent goes on */
    while (!take_back(w) && !w->peer_gone) {
        if (dp_now_ns() > until_ns) {
            dp_log(DP_LOG_ERROR,
                   "another process has used memory that it was lent for more than %d s",
                   (int)(END_NS / DP_NS_PER_S));
            return;
        }
        dp_shm_look(w);
        sched_yield();
    }
}

static char *use(struct dp_wire *wire, const struct dp_wire_loan *loan, size_t len)
{
    struct dp_shm_wire *w = dp_shm_of(wire);
    unsigned expected = DP_SHM_LENT_FREE;
    struct dp_shm_location place;

    memcpy(&place, loan, sizeof(place));
    if (wire->error || !wire->connected ||
        !atomic_compare_exchange_strong_explicit(&w->out->lent, &expected, DP_SHM_LENT_IN_USE,
                                                 memory_order_acquire, memory_order_relaxed))
        return NULL;
    char *at = dp_shm_find(w, &place, len);
    if (!at)
        atomic_store_explicit(&w->out->lent, DP_SHM_LENT_FREE, memory_order_relaxed);
    return at;
}

/* Release: pairs with take_back. */
static void leave(struct dp_wire *wire)
{
    atomic_store_explicit(&dp_shm_of(wire)->out->lent, DP_SHM_LENT_FREE, memory_order_release);
}

const struct dp_wire_loan_ops dp_shm_loans = {lend, end, use, leave};
