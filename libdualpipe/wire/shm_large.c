/* SPDX-License-Identifier: Apache-2.0
 *
 * shm_large.c - rendezvous transfer of a large message over shared memory, and loans of memory. An
 * entry of the ring holds the message's address, so it keeps its place among the other messages. The
 * receiver frees that entry when all is copied, and then the sender's request is done too.
 *
 *      sender                          receiver
 *      offers             entry  ->    accepts: publishes the destination
 *      pushes chunks                   pulls chunks
 *                                <-    frees the entry
 *
 * Each side copies what it can: memory of the other side that it has mapped (shm_mappings.c) with
 * plain loads and stores, all other memory through the kernel (cma.h). So one side may have to copy
 * all of it.
 *
 * Where neither can, or where the kernel refuses some memory (of some devices, secret memory), the
 * transfer is ended: the entry is freed all the same, and the message is sent again through the
 * ring. A sender stops offering after REFUSALS refusals in succession.
 */
#include "wire/shm.h"

#include "base/clock.h"
#include "base/copy.h"
#include "base/fail.h"

#include <sched.h>
#include <string.h>

enum { REFUSALS = 4 };
static const int64_t QUIESCE_NS = 10 * DP_NS_PER_S;

/* The announcement was sent before, but may be unread. */
char *dp_shm_find(struct dp_shm_wire *w, const struct dp_shm_location *place, size_t len)
{
    char *at = dp_shm_mappings_find(&w->mappings, place, len);

    if (at || !place->announcement)
        return at;
    dp_shm_look(w);
    return dp_shm_mappings_find(&w->mappings, place, len);
}

void dp_shm_meet(struct dp_shm_wire *w)
{
    const bool first = w->out == &w->segment->sides[0];

    if (w->may_use_cma)
        dp_cma_introduce(&w->cma, w->fd, first, &w->segment->identities[!first],
                         &w->segment->identities[first]);
    else
        w->cma.tried = true;
}

void dp_shm_try(struct dp_shm_wire *w)
{
    dp_cma_try(&w->cma);
    if (w->cma.reaches)
        w->base.buffer_bytes = DP_SHM_LARGE;
}

/* ---- the sender ------------------------------------------------------------------------------ */

struct dp_shm_location dp_shm_name(struct dp_shm_wire *w, const void *buf, size_t len)
{
    const uint32_t before = w->mappings.announcements;
    struct dp_shm_location place = {.announcement = 0};

    if (dp_cma_is_known(&w->cma))
        dp_shm_mappings_name(&w->mappings, w->fd, buf, len, &place);
    if (w->mappings.announcements != before) {
        atomic_store_explicit(&w->in->announcements, w->mappings.announcements,
                              memory_order_release);
        dp_shm_has_shared(w);
    }
    return place;
}

/* The receiver has measured which path is faster for a message of this length. */
static bool is_cma_wanted(const struct dp_shm_wire *w, size_t len)
{
    return !(atomic_load_explicit(&w->out->by_ring, memory_order_relaxed) >> dp_shm_class(len) & 1);
}

/* Whether to offer: CMA is wanted and may work. Where only the receiver's memory is shared, it may
 * work once the receiver has announced some. */
static bool may_offer(struct dp_shm_wire *w, bool is_shared, size_t len)
{
    if (atomic_load_explicit(&w->out->announcements, memory_order_acquire) != w->mappings.received)
        dp_shm_look(w);
    return w->refusals[is_shared] < REFUSALS && dp_cma_is_known(&w->cma) &&
           (is_shared || w->mappings.received || (dp_cma_works(&w->cma) && is_cma_wanted(w, len)));
}

bool dp_shm_offer(struct dp_shm_wire *w, struct dp_shm_entry *entry)
{
    const struct dp_wire_request *req = w->base.sends.head;

    if (req->moved || w->is_refused)
        return false;
    const struct dp_shm_source source = {(uint64_t)(uintptr_t)req->buf,
                                         dp_shm_name(w, req->buf, req->len)};
    w->is_shared = source.place.announcement;
    if (!may_offer(w, w->is_shared, req->len))
        return false;
    entry->len = DP_SHM_OFFER;
    memcpy(entry->bytes, &source, sizeof(source));
    dp_cma_offer(&w->offered, &w->out->transfer, req->buf, req->len, w->is_shared);
    w->is_offered = true;
    w->is_accepted = false;
    return true;
}

/* The receiver has freed the entry. */
static void finish_send(struct dp_shm_wire *w)
{
    w->is_offered = false;
    w->is_refused = dp_cma_is_ended(&w->offered);
    if (w->is_refused) {
        w->refusals[w->is_shared]++;
        return;
    }
    w->refusals[w->is_shared] = 0;
    w->by_cma++;
    w->base.sends.head->moved = w->base.sends.head->len;
    dp_wire_finish_head(&w->base.sends, 0);
}

/* Whether the receiver has accepted; then also see where its memory is mapped here. */
static bool is_accepted(struct dp_shm_wire *w)
{
    if (!w->is_accepted) {
        w->is_accepted = dp_cma_is_accepted(&w->offered, w->sent);
        if (!w->is_accepted)
            return false;
        w->goes_to = w->out->target;
        w->offered.mapped = dp_shm_find(w, &w->goes_to.place, w->offered.len);
    }
    return true;
}

/* It was accepted, but neither side can copy. */
static bool is_hopeless(const struct dp_shm_wire *w)
{
    return !w->goes_to.copies && !dp_cma_can_copy(&w->cma, &w->offered);
}

void dp_shm_push(struct dp_shm_wire *w)
{
    const uint32_t before = w->offered.done;

    if (dp_shm_is_all_taken(w)) {
        finish_send(w);
        return;
    }
    if (!is_accepted(w))
        return;
    w->offered.mapped = dp_shm_mappings_find(&w->mappings, &w->goes_to.place, w->offered.len);
    if (is_hopeless(w) && dp_cma_has_chunk(&w->offered))
        dp_cma_end(&w->offered);
    if (dp_cma_push(&w->cma, &w->offered))
        w->peer_gone = true;
    if (w->offered.done == before && !dp_cma_is_ended(&w->offered))
        return;
    w->base.moves++;
    dp_shm_ring(w, &w->out->receiver_asleep);
}

bool dp_shm_can_push(struct dp_shm_wire *w)
{
    return dp_shm_is_all_taken(w) || (is_accepted(w) && dp_cma_has_chunk(&w->offered) &&
                                      (is_hopeless(w) || dp_cma_can_copy(&w->cma, &w->offered)));
}

/* ---- the receiver ---------------------------------------------------------------------------- */

static enum dp_shm_path wanted(const struct dp_shm_wire *w, size_t len)
{
    return (enum dp_shm_path)w->paths.classes[dp_shm_class(len)].wanted;
}

/* A message has come by this path within ns: publish which path the next one of its size shall
 * take. */
static void learn(struct dp_shm_wire *w, size_t len, enum dp_shm_path path, int64_t ns)
{
    const unsigned bit = 1u << dp_shm_class(len);
    const bool was_cma = wanted(w, len) == DP_SHM_CMA;
    const bool is_cma = dp_shm_paths_learn(&w->paths, len, path, ns) == DP_SHM_CMA;

    if (is_cma && !was_cma)
        atomic_fetch_and_explicit(&w->in->by_ring, ~bit, memory_order_relaxed);
    else if (was_cma && !is_cma)
        atomic_fetch_or_explicit(&w->in->by_ring, bit, memory_order_relaxed);
}

void dp_shm_begin(struct dp_shm_wire *w, const struct dp_wire_request *receive)
{
    dp_shm_name(w, receive->buf, receive->len);
    if (w->measures)
        w->began_ns = dp_now_ns();
}

void dp_shm_copy_out(struct dp_shm_wire *w, char *to, const char *slot, size_t len,
                     size_t message_len)
{
    if (wanted(w, message_len) == DP_SHM_RING_NT)
        dp_copy_nt(to, slot, len);
    else
        memcpy(to, slot, len);
}

/* The first piece was filled before the clock started, in about the time of each of the others. */
void dp_shm_measure(struct dp_shm_wire *w, size_t len)
{
    if (!w->measures)
        return;
    const int64_t others = (int64_t)((len - 1) / DP_SHM_SLOT_BYTES), ns = dp_now_ns() - w->began_ns;
    const bool past = wanted(w, len) == DP_SHM_RING_NT;
    learn(w, len, past ? DP_SHM_RING_NT : DP_SHM_RING, ns + ns / others);
}

/* Publish the destination and begin; or end the transfer, if neither side can copy. */
static void accept_offer(struct dp_shm_wire *w, const struct dp_shm_source *source, size_t len)
{
    struct dp_wire_request *req = w->base.receives.head;
    const struct dp_shm_location place = dp_shm_name(w, req->buf, len);

    dp_cma_take(&w->taken, &w->in->transfer, source->address, req->buf, len,
                source->place.announcement);
    w->is_taken = true;
    w->comes_from = source->place;
    w->taken.mapped = dp_shm_find(w, &w->comes_from, len);
    const bool copies = dp_cma_can_copy(&w->cma, &w->taken);
    w->in->target = (struct dp_shm_target){place, copies};
    w->began_ns =
        w->measures && !place.announcement && !w->comes_from.announcement ? dp_now_ns() : 0;
    if (dp_cma_is_known(&w->cma) && (copies || place.announcement || dp_cma_works(&w->cma)))
        dp_cma_accept(&w->taken, w->received + 1);
    else
        dp_cma_end(&w->taken);
    dp_shm_ring(w, &w->in->sender_asleep);
}

/* As with a piece, no value of the entry may lead out of the buffer. true: the entry is freed. */
static bool take_offer(struct dp_shm_wire *w, const struct dp_shm_entry *entry)
{
    struct dp_wire_request *req = w->base.receives.head;
    const size_t len = entry->message_len;
    struct dp_shm_source source;

    memcpy(&source, entry->bytes, sizeof(source));
    if (len < DP_SHM_LARGE || len > DP_WIRE_MAX_BYTES || req->moved) {
        dp_wire_fail(&w->base.wire, DP_EMISMATCH, "what arrived is no message");
        return false;
    }
    req->tag = entry->tag;
    if (w->base.wire.set_target)
        w->base.wire.set_target(req, req->tag, len);
    if (len > req->len) {
        req->moved = len;
        dp_shm_free_slot(w);
        dp_wire_finish_head(&w->base.receives, DP_EMISMATCH);
        return true;
    }
    accept_offer(w, &source, len);
    return false;
}

static bool finish(struct dp_shm_wire *w)
{
    const bool complete = dp_cma_is_complete(&w->taken);

    if (!complete && !dp_cma_is_ended(&w->taken))
        return false;
    w->is_taken = false;
    if (complete && w->began_ns)
        learn(w, w->taken.len, DP_SHM_CMA, dp_now_ns() - w->began_ns);
    dp_shm_free_slot(w);
    if (complete) {
        w->base.receives.head->moved = w->taken.len;
        dp_wire_finish_head(&w->base.receives, 0);
    }
    return true;
}

bool dp_shm_pull(struct dp_shm_wire *w, const struct dp_shm_entry *entry)
{
    if (!w->is_taken && take_offer(w, entry))
        return true;
    if (!w->is_taken)
        return false;
    const uint32_t before = w->taken.done;
    const bool was_mapped = w->taken.mapped;
    w->taken.mapped = dp_shm_mappings_find(&w->mappings, &w->comes_from, w->taken.len);
    /* Later announcements have replaced the mapping, and the sender was told that this side copies.
     */
    if (was_mapped && !dp_cma_can_copy(&w->cma, &w->taken) && dp_cma_has_chunk(&w->taken))
        dp_cma_end(&w->taken);
    if (dp_cma_pull(&w->cma, &w->taken))
        w->peer_gone = true;
    w->base.moves += w->taken.done != before;
    return finish(w);
}

bool dp_shm_can_pull(const struct dp_shm_wire *w)
{
    return (dp_cma_can_copy(&w->cma, &w->taken) && dp_cma_has_chunk(&w->taken)) ||
           dp_cma_is_ended(&w->taken) || dp_cma_is_complete(&w->taken);
}

/* ---- the end --------------------------------------------------------------------------------- */

/* The other side finishes the chunk that it has begun, within microseconds unless it is not
 * scheduled. */
static void wait_for_chunk(struct dp_shm_wire *w, struct dp_cma_part *p)
{
    const int64_t until_ns = dp_now_ns() + QUIESCE_NS;

    dp_cma_end(p);
    while (dp_cma_is_busy(p) && !w->peer_gone) {
        if (dp_now_ns() > until_ns) {
            dp_log(DP_LOG_ERROR, "another process has not finished copying a message for %d s",
                   (int)(QUIESCE_NS / DP_NS_PER_S));
            return;
        }
        dp_shm_look(w);
        sched_yield();
    }
}

void dp_shm_quiesce(struct dp_shm_wire *w)
{
    const bool is_ours = dp_cma_is_known(&w->cma); /* a child's parent goes on */

    if (w->is_offered && is_ours)
        wait_for_chunk(w, &w->offered);
    if (w->is_taken && is_ours)
        wait_for_chunk(w, &w->taken);
    w->is_offered = w->is_taken = false;
}

/* ---- loans -----------------------------------------------------------------------------------
 * Memory of one side that the other side works on in place, in its own mapping of it. What both may do
 * at the same time is theirs to agree on; the owner can take its memory back at any moment:
 *
 *      owner    FREE        ... end: FREE -> NOT, waits while IN_USE
 *      peer     FREE -> IN_USE, reads and writes, -> FREE, and again
 */

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
    const int64_t until_ns = dp_now_ns() + QUIESCE_NS;

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
                   (int)(QUIESCE_NS / DP_NS_PER_S));
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
