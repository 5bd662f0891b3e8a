/* SPDX-License-Identifier: Apache-2.0
 *
 * shm_large.c - a large message over shared memory: where it lies is said in a line of the ring, and so
 * it keeps its place among the others. The receiver frees that line when all is copied, and then the
 * sender is done too.
 *
 *      sender                          receiver
 *      offers              line  ->    accepts: says where it is wanted
 *      pushes chunks                   pulls chunks
 *                                <-    frees the line
 *
 * Each side copies what it can: what it has mapped of the other's shared memory (shm_maps.h) with plain
 * loads and stores, all else through the kernel (direct.h). So one of them may have to do all of it.
 *
 * Where neither can, or where the kernel will not copy from or to some memory (some devices', secret
 * memory), the deal is ended: the line is freed all the same, and the message comes once more, through
 * the ring. A sender that has met that several times in succession asks no more.
 */
#include "wire/shm.h"

#include "base/clock.h"
#include "base/copy.h"
#include "base/fail.h"

#include <sched.h>
#include <string.h>

enum { REFUSALS = 4 };
static const int64_t LET_GO_NS = 10 * DP_NS_PER_S;

/* What the other side has named. It has shown it before, so the letter is there, but may be unread. */
static char *find(struct dp_shm_wire *w, const struct dp_shm_place *place, size_t len)
{
    char *at = dp_shm_maps_find(&w->maps, place, len);

    if (at || !place->letter)
        return at;
    dp_shm_look(w);
    return dp_shm_maps_find(&w->maps, place, len);
}

void dp_shm_meet(struct dp_shm_wire *w)
{
    const bool first = w->out == &w->segment->sides[0];

    if (w->may_copy_straight)
        dp_direct_introduce(&w->direct, w->fd, &w->segment->cards[!first],
                            &w->segment->cards[first]);
    else
        w->direct.tried = true;
}

void dp_shm_try(struct dp_shm_wire *w)
{
    dp_direct_try(&w->direct);
    if (w->direct.reaches)
        w->base.buffer_bytes = DP_SHM_LARGE;
}

/* ---- the sender ------------------------------------------------------------------------------ */

void dp_shm_has_shared(struct dp_shm_wire *w)
{
    w->refusals[false] = w->refusals[true] = 0;
    w->base.buffer_bytes = DP_SHM_LARGE;
}

/* Where the peer finds buf, if that is in shared memory. */
static struct dp_shm_place name(struct dp_shm_wire *w, const void *buf, size_t len)
{
    const uint32_t before = w->maps.letters;
    struct dp_shm_place place = {.letter = 0};

    if (dp_direct_is_known(&w->direct))
        dp_shm_maps_name(&w->maps, w->fd, buf, len, &place);
    if (w->maps.letters != before) {
        atomic_store_explicit(&w->in->letters, w->maps.letters, memory_order_release);
        dp_shm_has_shared(w);
    }
    return place;
}

/* The receiver has measured what is quicker for a message of this length. */
static bool is_wanted_straight(const struct dp_shm_wire *w, size_t len)
{
    return !(atomic_load_explicit(&w->out->by_ring, memory_order_relaxed) >> dp_shm_class(len) & 1);
}

/* Whether it is to go straight, and there is a chance that it does. Where only the receiver's memory is
 * shared, there is once it has shown some. */
static bool may_offer(struct dp_shm_wire *w, bool is_shared, size_t len)
{
    if (atomic_load_explicit(&w->out->letters, memory_order_acquire) != w->maps.heard)
        dp_shm_look(w);
    return w->refusals[is_shared] < REFUSALS && dp_direct_is_known(&w->direct) &&
           (is_shared || w->maps.heard ||
            (dp_direct_works(&w->direct) && is_wanted_straight(w, len)));
}

bool dp_shm_offer(struct dp_shm_wire *w, struct dp_shm_line *line)
{
    const struct dp_wire_request *req = w->base.sends.head;

    if (req->moved || w->is_refused)
        return false;
    const struct dp_shm_source source = {(uint64_t)(uintptr_t)req->buf,
                                         name(w, req->buf, req->len)};
    w->is_shared = source.place.letter;
    if (!may_offer(w, w->is_shared, req->len))
        return false;
    line->len = DP_SHM_OFFER;
    memcpy(line->bytes, &source, sizeof(source));
    dp_direct_offer(&w->offered, &w->out->deal, req->buf, req->len, w->is_shared);
    w->is_offered = true;
    w->is_met = false;
    return true;
}

/* The receiver has freed the line. */
static void settle(struct dp_shm_wire *w)
{
    w->is_offered = false;
    w->is_refused = dp_direct_is_ended(&w->offered);
    if (w->is_refused) {
        w->refusals[w->is_shared]++;
        return;
    }
    w->refusals[w->is_shared] = 0;
    w->straight++;
    w->base.sends.head->moved = w->base.sends.head->len;
    dp_wire_finish_head(&w->base.sends, 0);
}

/* Whether the receiver has accepted; then also see where its memory is mapped here. */
static bool is_met(struct dp_shm_wire *w)
{
    if (!w->is_met) {
        w->is_met = dp_direct_is_accepted(&w->offered, w->sent);
        if (!w->is_met)
            return false;
        w->goes_to = w->out->target;
        w->offered.mapped = find(w, &w->goes_to.place, w->offered.len);
    }
    return true;
}

/* It was met, but neither side can copy. */
static bool is_hopeless(const struct dp_shm_wire *w)
{
    return !w->goes_to.copies && !dp_direct_can_copy(&w->direct, &w->offered);
}

void dp_shm_push(struct dp_shm_wire *w)
{
    const uint32_t before = w->offered.done;

    if (dp_shm_is_all_taken(w)) {
        settle(w);
        return;
    }
    if (!is_met(w))
        return;
    w->offered.mapped = dp_shm_maps_find(&w->maps, &w->goes_to.place, w->offered.len);
    if (is_hopeless(w) && dp_direct_has_chunk(&w->offered))
        dp_direct_end(&w->offered);
    if (dp_direct_push(&w->direct, &w->offered))
        w->peer_gone = true;
    if (w->offered.done == before && !dp_direct_is_ended(&w->offered))
        return;
    w->base.moves++;
    dp_shm_ring(w, &w->out->receiver_asleep);
}

bool dp_shm_can_push(struct dp_shm_wire *w)
{
    return dp_shm_is_all_taken(w) ||
           (is_met(w) && dp_direct_has_chunk(&w->offered) &&
            (is_hopeless(w) || dp_direct_can_copy(&w->direct, &w->offered)));
}

/* ---- the receiver ---------------------------------------------------------------------------- */

static enum dp_shm_way wanted(const struct dp_shm_wire *w, size_t len)
{
    return (enum dp_shm_way)w->ways.classes[dp_shm_class(len)].wanted;
}

/* A message has come that way within ns: say which way the next one of its size is wanted. */
static void learn(struct dp_shm_wire *w, size_t len, enum dp_shm_way way, int64_t ns)
{
    const unsigned bit = 1u << dp_shm_class(len);
    const bool was_straight = wanted(w, len) == DP_SHM_STRAIGHT;
    const bool is_straight = dp_shm_ways_learn(&w->ways, len, way, ns) == DP_SHM_STRAIGHT;

    if (is_straight && !was_straight)
        atomic_fetch_and_explicit(&w->in->by_ring, ~bit, memory_order_relaxed);
    else if (was_straight && !is_straight)
        atomic_fetch_or_explicit(&w->in->by_ring, bit, memory_order_relaxed);
}

void dp_shm_begin(struct dp_shm_wire *w, const struct dp_wire_request *receive)
{
    name(w, receive->buf, receive->len);
    if (w->measures)
        w->began_ns = dp_now_ns();
}

void dp_shm_copy_out(struct dp_shm_wire *w, char *to, const char *slot, size_t len,
                     size_t message_len)
{
    if (wanted(w, message_len) == DP_SHM_RING_PAST)
        dp_copy_past(to, slot, len);
    else
        memcpy(to, slot, len);
}

/* The first piece was filled before it was seen, in about the time that each of the others took. */
void dp_shm_measure(struct dp_shm_wire *w, size_t len)
{
    if (!w->measures)
        return;
    const int64_t others = (int64_t)((len - 1) / DP_SHM_SLOT_BYTES), ns = dp_now_ns() - w->began_ns;
    const bool past = wanted(w, len) == DP_SHM_RING_PAST;
    learn(w, len, past ? DP_SHM_RING_PAST : DP_SHM_RING, ns + ns / others);
}

/* Say where it is wanted, and begin; or end it, if neither side can copy. */
static void accept_offer(struct dp_shm_wire *w, const struct dp_shm_source *source, size_t len)
{
    struct dp_wire_request *req = w->base.receives.head;
    const struct dp_shm_place place = name(w, req->buf, len);

    dp_direct_take(&w->taken, &w->in->deal, source->address, req->buf, len, source->place.letter);
    w->is_taken = true;
    w->comes_from = source->place;
    w->taken.mapped = find(w, &w->comes_from, len);
    const bool copies = dp_direct_can_copy(&w->direct, &w->taken);
    w->in->target = (struct dp_shm_target){place, copies};
    w->began_ns = w->measures && !place.letter && !w->comes_from.letter ? dp_now_ns() : 0;
    if (dp_direct_is_known(&w->direct) &&
        (copies || place.letter || dp_direct_works(&w->direct)))
        dp_direct_accept(&w->taken, w->received + 1);
    else
        dp_direct_end(&w->taken);
    dp_shm_ring(w, &w->in->sender_asleep);
}

/* As with a piece, nothing is believed that would lead out of the buffer. true: the line is freed. */
static bool take_offer(struct dp_shm_wire *w, const struct dp_shm_line *line)
{
    struct dp_wire_request *req = w->base.receives.head;
    const size_t len = line->message_len;
    struct dp_shm_source source;

    memcpy(&source, line->bytes, sizeof(source));
    if (len < DP_SHM_LARGE || len > DP_WIRE_MAX_BYTES || req->moved) {
        dp_wire_fail(&w->base, DP_EMISMATCH, "what arrived is no message");
        return false;
    }
    req->tag = line->tag;
    if (w->base.aim)
        w->base.aim(req, req->tag, len);
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
    const bool complete = dp_direct_is_complete(&w->taken);

    if (!complete && !dp_direct_is_ended(&w->taken))
        return false;
    w->is_taken = false;
    if (complete && w->began_ns)
        learn(w, w->taken.len, DP_SHM_STRAIGHT, dp_now_ns() - w->began_ns);
    dp_shm_free_slot(w);
    if (complete) {
        w->base.receives.head->moved = w->taken.len;
        dp_wire_finish_head(&w->base.receives, 0);
    }
    return true;
}

bool dp_shm_pull(struct dp_shm_wire *w, const struct dp_shm_line *line)
{
    if (!w->is_taken && take_offer(w, line))
        return true;
    if (!w->is_taken)
        return false;
    const uint32_t before = w->taken.done;
    const bool was_mapped = w->taken.mapped;
    w->taken.mapped = dp_shm_maps_find(&w->maps, &w->comes_from, w->taken.len);
    /* Later letters have taken its place, and the sender was told that we copy. */
    if (was_mapped && !dp_direct_can_copy(&w->direct, &w->taken) && dp_direct_has_chunk(&w->taken))
        dp_direct_end(&w->taken);
    if (dp_direct_pull(&w->direct, &w->taken))
        w->peer_gone = true;
    w->base.moves += w->taken.done != before;
    return finish(w);
}

bool dp_shm_can_pull(const struct dp_shm_wire *w)
{
    return (dp_direct_can_copy(&w->direct, &w->taken) && dp_direct_has_chunk(&w->taken)) ||
           dp_direct_is_ended(&w->taken) || dp_direct_is_complete(&w->taken);
}

/* ---- the end --------------------------------------------------------------------------------- */

/* What the other side has begun to copy it brings to its end, which takes it some microseconds, unless
 * it does not get to run. */
static void wait_for_chunk(struct dp_shm_wire *w, struct dp_direct_part *p)
{
    const int64_t until_ns = dp_now_ns() + LET_GO_NS;

    dp_direct_end(p);
    while (dp_direct_is_busy(p) && !w->peer_gone) {
        if (dp_now_ns() > until_ns) {
            dp_log(DP_LOG_ERROR, "another process has not finished copying a message for %d s",
                   (int)(LET_GO_NS / DP_NS_PER_S));
            return;
        }
        dp_shm_look(w);
        sched_yield();
    }
}

void dp_shm_let_go(struct dp_shm_wire *w)
{
    const bool is_ours = dp_direct_is_known(&w->direct); /* a child's parent goes on */

    if (w->is_offered && is_ours)
        wait_for_chunk(w, &w->offered);
    if (w->is_taken && is_ours)
        wait_for_chunk(w, &w->taken);
    w->is_offered = w->is_taken = false;
}
