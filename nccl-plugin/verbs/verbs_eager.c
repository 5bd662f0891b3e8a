/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_eager.c - short messages that do not wait for a receive: they go to a ring of the receiver's,
 * who copies them to where they belong.
 *
 *      sender                                      receiver
 *      message n, for the first line     -- RDMA write + immediate n -->   slot n % 16 of the ring
 *      of its tag from line L on
 *      (its line comes, and is taken)   <-- line --                       irecv; copies what is there
 *                                       <-- a later line: so many slots are free again
 *
 * Which receive such a message is for, both sides find out for themselves, and the same: the first
 * line from L on that has its tag, and that no such message before it has taken. L is the first line
 * that the sender had not read when it sent; of those before it none of that tag was left. So lines in
 * flight or held back, and messages that overtake each other, change nothing.
 *
 * A slot is free again only when a line has said so, which proves that the message had come: what is
 * sent again, over another lane, comes into a slot that is still its own.
 */
#include "base/fail.h"
#include "nccl-plugin/net_lines.h"
#include "nccl-plugin/verbs/verbs_comm.h"

#include <string.h>

static size_t stride(uint32_t eager_bytes)
{
    return (sizeof(struct dpn_eager_head) + eager_bytes + 63) / 64 * 64;
}

size_t dpn_eager_ring_bytes(uint32_t eager_bytes)
{
    return eager_bytes ? DPN_EAGER_SLOTS * stride(eager_bytes) : 0;
}

uint64_t dpn_eager_slot(uint64_t block, uint32_t eager_bytes, uint32_t number)
{
    return block + sizeof(struct dpn_block) + number % DPN_EAGER_SLOTS * stride(eager_bytes);
}

/* ---- sender ------------------------------------------------------------------------------------ */

bool dpn_eager_may(const struct dpn_verbs *v, const struct dpn_piece *piece)
{
    return v->eager_bytes && piece->size <= v->eager_bytes &&
           v->eager_sent - v->eager_taken < DPN_EAGER_SLOTS;
}

/* Lines of a group that is not whole yet are not granted, so not passed either. */
void dpn_eager_begin(struct dpn_verbs *v, struct dpn_send *send)
{
    const uint32_t number = v->eager_sent++;

    send->is_eager = true;
    dpn_stat_count(&v->comm->stat, DPN_STAT_EAGER, 1);
    send->number = number;
    v->eager_sends[number % DPN_EAGER_SLOTS] = (struct dpn_eager_send){
        .number = number, .waits = true, .tag = send->tag, .size = (uint32_t)send->size};
    v->block->heads[number % DPN_EAGER_SLOTS] = (struct dpn_eager_head){
        .number = number, .size = (uint32_t)send->size, .tag = send->tag,
        .line = v->lines_read - v->lines_of_group};
}

/* The eldest of the tag that waits for its line. */
static struct dpn_eager_send *find_waiting(struct dpn_verbs *v, int tag)
{
    for (uint32_t n = v->eager_taken; n != v->eager_sent; n++) {
        struct dpn_eager_send *e = &v->eager_sends[n % DPN_EAGER_SLOTS];
        if (e->waits && e->tag == tag)
            return e;
    }
    return NULL;
}

static void take_room(struct dpn_verbs *v, struct dpn_eager_send *e, struct dpn_place place)
{
    const size_t room = dpn_grants_room(&v->grants, place);

    e->waits = false;
    if (e->size > room) {
        dpn_verbs_refuse(v, e->size, place);
        dpn_verbs_fail(v, DP_EMISMATCH, "send of %u bytes (tag %d): the peer's receive has %zu",
                       e->size, e->tag, room);
        return;
    }
    dpn_grants_take(&v->grants, place);
}

void dpn_eager_match_lines(struct dpn_verbs *v, unsigned slot, unsigned count)
{
    for (unsigned sub = 0; sub < count && !v->error && v->eager_taken != v->eager_sent; sub++) {
        struct dpn_eager_send *e = find_waiting(v, v->arriving.rooms[sub].tag);
        if (e)
            take_room(v, e, (struct dpn_place){slot, sub});
    }
}

/* What a line says: so many were copied, as far as 16 bits tell. */
void dpn_eager_credit(struct dpn_verbs *v, uint16_t taken)
{
    const uint32_t more = (uint16_t)(taken - (uint16_t)v->eager_taken);

    if (more > v->eager_sent - v->eager_taken)
        dpn_verbs_fail(v, DP_EMISMATCH, "the peer has copied more short messages than were sent");
    else
        v->eager_taken += more;
}

/* The slot may be a later message's already. */
void dpn_eager_done(struct dpn_verbs *v, const struct dpn_send *send)
{
    struct dpn_eager_send *e = &v->eager_sends[send->number % DPN_EAGER_SLOTS];

    if (e->number == send->number)
        e->is_done = true;
}

bool dpn_eager_has_arrived(const struct dpn_fenced_receiver *report, uint32_t number)
{
    if ((int32_t)(number - report->eager_seen) < 0)
        return true;
    return number - report->eager_taken < DPN_EAGER_SLOTS &&
           report->eager_here >> number % DPN_EAGER_SLOTS & 1;
}

bool dpn_eager_is_lost(const struct dpn_verbs *v, unsigned lane,
                       const struct dpn_fenced_receiver *report)
{
    for (uint32_t n = v->eager_taken; n != v->eager_sent; n++) {
        const struct dpn_eager_send *e = &v->eager_sends[n % DPN_EAGER_SLOTS];
        if (e->is_done && e->lane == lane && !dpn_eager_has_arrived(report, n))
            return true;
    }
    return false;
}

/* ---- receiver ---------------------------------------------------------------------------------- */

static const struct dpn_eager_head *head_of(const struct dpn_verbs *v, uint32_t number)
{
    return (const struct dpn_eager_head *)(uintptr_t)dpn_eager_slot((uintptr_t)v->block,
                                                                    v->eager_bytes, number);
}

static uint16_t bit_of(uint32_t number)
{
    return (uint16_t)(1u << number % DPN_EAGER_SLOTS);
}

void dpn_eager_copied(struct dpn_verbs *v, struct dpn_recv *recv, unsigned sub, uint32_t number)
{
    recv->rooms[sub].done = true;
    recv->base.left--;
    v->failures = 0;
    v->eager_busy &= (uint16_t)~bit_of(number);
    while (v->eager_taken != v->eager_seen && !(v->eager_busy & bit_of(v->eager_taken)))
        v->eager_taken++;
}

static void copy(struct dpn_verbs *v, struct dpn_recv *recv, unsigned sub, uint32_t number)
{
    const struct dpn_eager_head *head = head_of(v, number);
    const uint32_t size = head->size; /* read once: the peer can write there */
    struct dpn_room *room = &recv->rooms[sub];
    const struct dpn_verbs_memory *memory = (const struct dpn_verbs_memory *)room->memory;

    v->eager_waits &= (uint16_t)~bit_of(number);
    if (size > room->size) {
        dpn_verbs_release_lines(v); /* so that the peer sees it, too */
        dpn_verbs_push_lines(v);
        dpn_verbs_fail(v, DP_EMISMATCH, "the peer has %u bytes for a receive of %zu (tag %d)",
                       size, room->size, room->tag);
        return;
    }
    dpn_verbs_note_size(v, room->size, size);
    room->size = size;
    room->is_copied = true;
    dpn_stat_count(&v->comm->stat, DPN_STAT_EAGER, 1);
    if (size && memory->type != NCCL_PTR_HOST) {
        dpn_verbs_copy_to_gpu(v, recv, sub, head + 1, number % DPN_EAGER_SLOTS);
        return;
    }
    if (size) /* somebody may watch the memory: see net_lines.h */
        dpn_lines_copy(room->data, head + 1, size);
    dpn_eager_copied(v, recv, sub, number);
}

static bool is_open(const struct dpn_room *room)
{
    return !room->done && !room->is_copied;
}

/* A message that has come: the first of the lines from its own on that has its tag. */
static void match_message(struct dpn_verbs *v, uint32_t number)
{
    const struct dpn_eager_head *head = head_of(v, number);
    uint32_t best = UINT32_MAX;
    struct dpn_recv *found = NULL;

    for (uint32_t used = ~v->free; used; used &= used - 1) {
        struct dpn_recv *recv = &v->recvs[__builtin_ctz(used)];
        for (unsigned sub = 0; sub < recv->count; sub++) {
            const uint32_t ahead = recv->line + sub - head->line;
            if (ahead < UINT32_MAX / 2 && ahead < best && recv->rooms[sub].tag == head->tag &&
                is_open(&recv->rooms[sub])) {
                best = ahead;
                found = recv;
            }
        }
    }
    if (found)
        copy(v, found, best + head->line - found->line, number);
}

void dpn_eager_match_recv(struct dpn_verbs *v, struct dpn_recv *recv)
{
    for (unsigned sub = 0; sub < recv->count && v->eager_waits; sub++)
        for (uint32_t n = v->eager_taken; n != v->eager_seen && !v->error; n++)
            if (v->eager_waits & bit_of(n) && head_of(v, n)->tag == recv->rooms[sub].tag) {
                copy(v, recv, sub, n);
                break;
            }
}

static bool makes_sense(const struct dpn_verbs *v, uint32_t number, uint32_t bytes)
{
    const struct dpn_eager_head *head = head_of(v, number);

    return bytes >= sizeof(*head) && head->number == number &&
           head->size == bytes - sizeof(*head) && head->size <= v->eager_bytes &&
           (int32_t)(v->lines_made - head->line) >= 0;
}

/* As in verbs_recv.c: once more what has come. In its slot it has done no harm, unless that is the next
 * message's already, and that has come. */
static bool is_doubled(const struct dpn_verbs *v, uint16_t low)
{
    const uint16_t behind = (uint16_t)((uint16_t)v->eager_seen - low);
    const uint32_t number = v->eager_seen - behind, ahead = v->eager_seen + (uint16_t)-behind;

    if (behind && behind <= DPN_EAGER_SLOTS)
        return number - v->eager_taken < DPN_EAGER_SLOTS || !(v->eager_busy & bit_of(number));
    return ahead - v->eager_taken < DPN_EAGER_SLOTS && v->eager_here & bit_of(ahead);
}

/* In the order in which they were sent, whatever the order in which they come. */
void dpn_eager_take(struct dpn_verbs *v, uint16_t low, uint32_t bytes)
{
    const uint32_t number = v->eager_taken + (uint16_t)(low - (uint16_t)v->eager_taken);

    if (v->eager_bytes && is_doubled(v, low))
        return;
    if (v->is_sender || !v->eager_bytes || number - v->eager_taken >= DPN_EAGER_SLOTS ||
        v->eager_busy & bit_of(number) || (int32_t)(number - v->eager_seen) < 0 ||
        !makes_sense(v, number, bytes)) {
        dpn_verbs_fail(v, DP_EMISMATCH, "what arrived is no short message (%u, %u bytes)", low,
                       bytes);
        return;
    }
    v->eager_busy |= bit_of(number);
    v->eager_here |= bit_of(number);
    while (!v->error && v->eager_here & bit_of(v->eager_seen)) {
        const uint32_t next = v->eager_seen++;
        v->eager_here &= (uint16_t)~bit_of(next);
        v->eager_waits |= bit_of(next);
        match_message(v, next);
    }
}

bool dpn_eager_goes_on(const struct dpn_verbs *v)
{
    for (uint32_t used = ~v->free; used; used &= used - 1) {
        const struct dpn_recv *recv = &v->recvs[__builtin_ctz(used)];
        for (unsigned sub = 0; sub < recv->count; sub++)
            if (is_open(&recv->rooms[sub]))
                return false;
    }
    return v->eager_busy;
}

void dpn_eager_report(const struct dpn_verbs *v, struct dpn_fenced_receiver *report)
{
    report->eager_taken = v->eager_taken;
    report->eager_seen = v->eager_seen;
    report->eager_here = v->eager_here;
}
