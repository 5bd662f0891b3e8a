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
 * Memory that the kernel will not copy from or to for another process (some devices', secret memory)
 * ends the deal half-way: the line is freed all the same, and the message comes once more, through the
 * ring. A sender that has met that several times in succession asks no more.
 */
#include "wire/shm.h"

#include "base/clock.h"
#include "base/fail.h"

#include <sched.h>
#include <string.h>

enum { REFUSALS = 4 };
static const int64_t LET_GO_NS = 10 * DP_NS_PER_S;

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

bool dp_shm_may_offer(const struct dp_shm_wire *w)
{
    return !w->base.sends.head->moved && !w->is_refused && w->refusals < REFUSALS &&
           dp_direct_works(&w->direct);
}

void dp_shm_offer(struct dp_shm_wire *w, struct dp_shm_line *line)
{
    const struct dp_wire_request *req = w->base.sends.head;
    const uint64_t address = (uint64_t)(uintptr_t)req->buf;

    line->len = DP_SHM_OFFER;
    memcpy(line->bytes, &address, sizeof(address));
    dp_direct_offer(&w->offered, &w->out->deal, req->buf, req->len);
    w->is_offered = true;
}

/* The receiver has freed the line. */
static void settle(struct dp_shm_wire *w)
{
    w->is_offered = false;
    w->is_refused = dp_direct_is_ended(&w->offered);
    if (w->is_refused) {
        w->refusals++;
        return;
    }
    w->refusals = 0;
    w->straight++;
    w->base.sends.head->moved = w->base.sends.head->len;
    dp_wire_finish_head(&w->base.sends, 0);
}

void dp_shm_push(struct dp_shm_wire *w)
{
    const uint32_t before = w->offered.done;

    if (dp_shm_is_all_taken(w)) {
        settle(w);
        return;
    }
    if (!dp_direct_is_accepted(&w->offered, w->sent))
        return;
    if (dp_direct_push(&w->direct, &w->offered))
        w->peer_gone = true;
    if (w->offered.done != before || dp_direct_is_ended(&w->offered))
        dp_shm_ring(w, &w->out->receiver_asleep);
}

bool dp_shm_can_push(struct dp_shm_wire *w)
{
    return dp_shm_is_all_taken(w) ||
           (w->direct.reaches && dp_direct_is_accepted(&w->offered, w->sent) &&
            dp_direct_has_chunk(&w->offered));
}

/* ---- the receiver ---------------------------------------------------------------------------- */

/* As with a piece, nothing is believed that would lead out of the buffer. true: the line is freed. */
static bool take_offer(struct dp_shm_wire *w, const struct dp_shm_line *line)
{
    struct dp_wire_request *req = w->base.receives.head;
    const size_t len = line->message_len;
    uint64_t source;

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
    dp_direct_accept(&w->direct, &w->taken, &w->in->deal, source, req->buf, len, w->received + 1);
    w->is_taken = true;
    dp_shm_ring(w, &w->in->sender_asleep);
    return false;
}

static bool finish(struct dp_shm_wire *w)
{
    const bool complete = dp_direct_is_complete(&w->taken);

    if (!complete && !dp_direct_is_ended(&w->taken))
        return false;
    w->is_taken = false;
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
    if (dp_direct_pull(&w->direct, &w->taken))
        w->peer_gone = true;
    return finish(w);
}

bool dp_shm_can_pull(const struct dp_shm_wire *w)
{
    return (w->direct.reaches && dp_direct_has_chunk(&w->taken)) ||
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
    if (w->is_offered)
        wait_for_chunk(w, &w->offered);
    if (w->is_taken)
        wait_for_chunk(w, &w->taken);
    w->is_offered = w->is_taken = false;
}
