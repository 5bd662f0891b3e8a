/* SPDX-License-Identifier: Apache-2.0
 *
 * shm.c - a wire over shared memory, between two processes of one host. One segment per wire, of
 * two sides, one for each direction; the connecting process makes it, and passes it as a file over a
 * unix socket after its proof. The segment has no name anywhere, so it cannot be left behind.
 *
 * A side is a ring of slots. A message is cut into pieces, one per slot; every slot has an entry of
 * 64 bytes that describes its piece. The sender writes the piece, then the entry's turn; the
 * receiver polls only the turn of the next entry. A piece of up to 40 bytes is stored in the entry
 * itself, so that a short message moves one cache line between the cores, once.
 *
 *      entries | turn 5 | turn 6 | turn 3 | turn 4 |        4 slots; the sender's next is the third
 *      slots   | bytes  | bytes  |        | bytes  |        entry, once `taken` has reached 3
 *
 * A large message is not cut into pieces: its entry holds its address, and both processes copy it
 * to its destination by cross-memory attach (cma.h) where the system allows it, or in memory that
 * they share.
 *
 * The socket stays open: a byte on it wakes the other side, shared memory is announced over it, and
 * its end tells that the other process has ended.
 */
#include "wire/shm.h"

#include "base/copy.h"
#include "wire/sockets.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    TURNS = 2 * DP_SHM_SLOTS, /* pieces of one progress, so that one wire leaves time for others */
    LOOKS = 4096              /* progresses in vain before the socket is looked at */
};

static void look_sometimes(struct dp_shm_wire *w)
{
    if (++w->looks < LOOKS || w->peer_gone)
        return;
    w->looks = 0;
    dp_shm_look(w);
}

/* ---- sending ------------------------------------------------------------------------------- */

static bool has_room(struct dp_shm_wire *w)
{
    if (w->sent - w->known_taken < DP_SHM_SLOTS)
        return true;
    w->known_taken = atomic_load_explicit(&w->out->taken, memory_order_acquire);
    return w->sent - w->known_taken < DP_SHM_SLOTS;
}

/* Write the next piece of the first message. */
static void fill_piece(struct dp_shm_wire *w, struct dp_shm_entry *entry, char *slot)
{
    struct dp_wire_request *req = w->base.sends.head;
    const size_t left = req->len - req->moved;
    const size_t len = left < DP_SHM_SLOT_BYTES ? left : DP_SHM_SLOT_BYTES;

    entry->len = (uint32_t)len;
    if (len)
        memcpy(len <= DP_SHM_INLINE_BYTES ? entry->bytes : slot, req->buf + req->moved, len);
    req->moved += len;
}

static void send_entry(struct dp_shm_wire *w)
{
    struct dp_wire_request *req = w->base.sends.head;
    const unsigned slot = w->sent % DP_SHM_SLOTS;
    struct dp_shm_entry *entry = &w->out->entries[slot];

    entry->message_len = req->len;
    entry->tag = req->tag;
    if (req->len < DP_SHM_LARGE || !dp_shm_offer(w, entry))
        fill_piece(w, entry, w->out->slots[slot]);
    atomic_store_explicit(&entry->turn, ++w->sent, memory_order_release);
    if (w->is_offered || req->moved < req->len)
        return;
    w->is_refused = false;
    dp_wire_finish_head(&w->base.sends, 0);
}

/* Nothing is sent after an offer until its transfer has ended. */
static bool can_send_entry(struct dp_shm_wire *w)
{
    if (w->is_offered)
        dp_shm_push(w);
    return !w->is_offered && w->base.sends.head && has_room(w);
}

static void send_entries(struct dp_shm_wire *w)
{
    const unsigned before = w->sent;

    for (int i = 0; i < TURNS && can_send_entry(w); i++)
        send_entry(w);
    if (w->sent == before)
        return;
    w->base.moves++;
    dp_shm_ring(w, &w->out->receiver_asleep);
}

/* ---- receiving ----------------------------------------------------------------------------- */

static const struct dp_shm_entry *next_entry(const struct dp_shm_wire *w)
{
    return &w->in->entries[w->received % DP_SHM_SLOTS];
}

static bool has_entry(const struct dp_shm_wire *w)
{
    const struct dp_shm_entry *entry = next_entry(w);

    return atomic_load_explicit(&entry->turn, memory_order_acquire) == w->received + 1;
}

/* Drop the rest of a message that was too long for its receive. */
static void skip_piece(struct dp_shm_wire *w)
{
    const size_t len = next_entry(w)->len;

    w->base.skip = len < w->base.skip ? w->base.skip - len : 0;
    dp_shm_free_slot(w);
}

/* The entries are written by another process: no value in them may lead out of the slot or the
 * buffer. */
static void receive_piece(struct dp_shm_wire *w)
{
    struct dp_wire_request *req = w->base.receives.head;
    const unsigned slot = w->received % DP_SHM_SLOTS;
    const struct dp_shm_entry *entry = &w->in->entries[slot];
    const size_t len = entry->len, message_len = entry->message_len;

    if (len > DP_SHM_SLOT_BYTES || message_len > DP_WIRE_MAX_BYTES || req->moved > message_len ||
        len > message_len - req->moved) {
        dp_wire_fail(&w->base.wire, DP_EMISMATCH, "what arrived is no message");
        return;
    }
    req->tag = entry->tag;
    if (w->base.wire.set_target && !req->moved)
        w->base.wire.set_target(req, req->tag, message_len);
    if (message_len >= DP_SHM_LARGE && !req->moved)
        dp_shm_begin(w, req);
    if (message_len > req->len) {
        req->moved = message_len;
        w->base.skip = message_len - len;
        dp_shm_free_slot(w);
        dp_wire_finish_head(&w->base.receives, DP_EMISMATCH);
        return;
    }
    const char *from = len <= DP_SHM_INLINE_BYTES ? entry->bytes : w->in->slots[slot];
    if (message_len >= DP_COPY_LARGE)
        dp_shm_copy_out(w, req->buf + req->moved, from, len, message_len);
    else if (len)
        memcpy(req->buf + req->moved, from, len);
    req->moved += len;
    dp_shm_free_slot(w);
    if (req->moved < message_len)
        return;
    if (message_len >= DP_SHM_LARGE)
        dp_shm_measure(w, message_len);
    dp_wire_finish_head(&w->base.receives, 0);
}

/* false: the next entry is an offer on which nothing can be done now. */
static bool receive_entry(struct dp_shm_wire *w)
{
    if (w->base.skip)
        skip_piece(w);
    else if (next_entry(w)->len == DP_SHM_OFFER)
        return dp_shm_pull(w, next_entry(w));
    else
        receive_piece(w);
    return true;
}

static void receive_entries(struct dp_shm_wire *w)
{
    const unsigned before = w->received;

    for (int i = 0; i < TURNS && dp_wire_wants_input(&w->base) && has_entry(w); i++)
        if (!receive_entry(w))
            break;
    if (w->received != before) {
        w->base.moves++;
        dp_shm_ring(w, &w->in->sender_asleep);
    } else if (w->peer_gone)
        dp_wire_fail(&w->base.wire, DP_ECOMM, "the connection was closed");
}

/* ---- what the table has --------------------------------------------------------------------- */

static bool is_connected(struct dp_shm_wire *w)
{
    if (w->base.wire.connected)
        return true;
    w->base.wire.is_reached = true;
    w->base.wire.is_refused = false;
    w->base.wire.connected = dp_connector_connect(&w->connector, &w->base.wire, &w->fd);
    if (!w->base.wire.connected)
        return false;
    dp_shm_meet(w);
    return true;
}

void dp_shm_progress(struct dp_wire *wire)
{
    struct dp_shm_wire *w = dp_shm_of(wire);

    if (!dp_wire_may_progress(&w->base) || !is_connected(w))
        return;
    if (!w->cma.tried)
        dp_shm_try(w);
    if (w->base.sends.head)
        send_entries(w);
    if (w->base.sends.head && w->peer_gone) {
        w->is_offered = false;
        dp_wire_fail_sends(&w->base, "the connection was closed");
    }
    if (dp_wire_wants_input(&w->base))
        receive_entries(w);
    if (w->base.sends.head || dp_wire_listens(&w->base))
        look_sometimes(w);
}

static bool can_receive(const struct dp_shm_wire *w)
{
    return has_entry(w) && (!w->is_taken || dp_shm_can_pull(w));
}

static bool can_send(struct dp_shm_wire *w)
{
    return w->is_offered ? dp_shm_can_push(w) : has_room(w);
}

bool dp_shm_has_message(struct dp_wire *wire)
{
    struct dp_shm_wire *w = dp_shm_of(wire);

    return wire->connected && !w->base.receives.head && !w->base.skip && has_entry(w);
}

bool dp_shm_arm(struct dp_wire *wire, struct pollfd *fd)
{
    struct dp_shm_wire *w = dp_shm_of(wire);

    if (wire->error || w->peer_gone)
        return false;
    if (!wire->connected) {
        *fd = dp_connector_poll(&w->connector);
        return true;
    }
    *fd = (struct pollfd){.fd = w->fd, .events = POLLIN};
    if (dp_wire_listens(&w->base))
        dp_shm_set_asleep(&w->in->receiver_asleep, 1);
    if (w->base.sends.head)
        dp_shm_set_asleep(&w->out->sender_asleep, 1);
    return !(dp_wire_listens(&w->base) && can_receive(w)) && !(w->base.sends.head && can_send(w));
}

void dp_shm_disarm(struct dp_wire *wire, short revents)
{
    struct dp_shm_wire *w = dp_shm_of(wire);

    if (!wire->connected)
        return;
    dp_shm_set_asleep(&w->in->receiver_asleep, 0);
    dp_shm_set_asleep(&w->out->sender_asleep, 0);
    if (revents)
        dp_shm_look(w);
}

void dp_shm_drop_requests(struct dp_wire *wire)
{
    dp_shm_loans.end(wire);
    dp_shm_quiesce(dp_shm_of(wire));
}

void dp_shm_close(struct dp_wire *wire)
{
    struct dp_shm_wire *w = dp_shm_of(wire);

    dp_shm_drop_requests(wire);
    dp_cma_fini(&w->cma);
    dp_shm_mappings_fini(&w->mappings);
    dp_connector_fini(&w->connector);
    dp_fd_close(w->fd);
    if (w->segment)
        munmap(w->segment, sizeof(*w->segment));
    free(w);
}
