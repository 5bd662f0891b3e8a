/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_control.c - the words of verbs_talk.h on their way, and who hears what. Words are numbered, and
 * each says how many of the other side's were heard: until then a word is kept, to be said once more
 * over the next wire if this one is lost.
 */
#include "base/fail.h"
#include "nccl-plugin/verbs/verbs_comm.h"

#include <stdlib.h>
#include <string.h>

/* The tag of a word: its kind, its number and how many were heard, the last bits of both. */
enum { KIND_BITS = 8, COUNT_BITS = 28 };
static const uint32_t COUNT = (1u << COUNT_BITS) - 1;

static uint64_t tag_of(enum dpn_talk_kind kind, uint32_t number, uint32_t heard)
{
    return (uint64_t)(number & COUNT) << (KIND_BITS + COUNT_BITS) |
           (uint64_t)(heard & COUNT) << KIND_BITS | (uint64_t)kind;
}

/* The count near this one that has these last bits. */
static uint32_t widen(uint64_t bits, uint32_t near)
{
    const uint32_t ahead = ((uint32_t)bits - near) & COUNT;

    return near + (ahead <= COUNT / 2 ? ahead : ahead - COUNT - 1);
}

struct dpn_letter {
    struct dpn_letter *next;
    struct dp_wire_request req;
    enum dpn_talk_kind kind;
    uint32_t number;
    union dpn_talk talk;
};

/* ---- what is said ---------------------------------------------------------------------------- */

/* HEARD is said for its tag, and of no use over another wire. */
static bool is_numbered(enum dpn_talk_kind kind)
{
    return kind != DPN_RESUME && kind != DPN_HEARD;
}

static bool is_heard(const struct dpn_verbs *v, const struct dpn_letter *letter)
{
    return !is_numbered(letter->kind) || (int32_t)(v->words.confirmed - letter->number) > 0;
}

/* The wire must have no business with it any more. */
static void forget_those_heard(struct dpn_verbs *v)
{
    for (struct dpn_letter **at = &v->letters; *at;) {
        struct dpn_letter *letter = *at;
        if (letter->req.status == DP_EAGAIN || !is_heard(v, letter)) {
            at = &letter->next;
            continue;
        }
        *at = letter->next;
        free(letter);
    }
}

static void post(struct dpn_verbs *v, struct dpn_letter *letter)
{
    dp_wire_isend(v->comm->wire, tag_of(letter->kind, letter->number, v->words.heard), &letter->talk,
                  dpn_talk_len(letter->kind), &letter->req);
}

void dpn_verbs_say(struct dpn_verbs *v, enum dpn_talk_kind kind, const union dpn_talk *talk)
{
    forget_those_heard(v);
    struct dpn_letter *letter = calloc(1, sizeof(*letter));
    if (!letter) {
        dpn_verbs_fail(v, DP_ENOMEM, "no memory for a word to the peer");
        return;
    }
    memcpy(&letter->talk, talk, dpn_talk_len(kind));
    letter->kind = kind;
    letter->number = is_numbered(kind) ? v->words.said++ : v->words.said;
    struct dpn_letter **end = &v->letters;
    while (*end)
        end = &(*end)->next;
    *end = letter;
    if (v->words.is_greeted)
        post(v, letter);
}

bool dpn_verbs_is_talking(struct dpn_verbs *v)
{
    bool any = false;

    for (const struct dpn_letter *letter = v->letters; letter; letter = letter->next)
        any |= letter->req.status == DP_EAGAIN;
    return any;
}

bool dpn_verbs_has_news(const struct dpn_verbs *v)
{
    bool any = false;

    for (const struct dpn_letter *letter = v->letters; letter; letter = letter->next)
        any |= !is_heard(v, letter) &&
               (letter->kind == DPN_FENCED_SENDER || letter->kind == DPN_FENCED_RECEIVER);
    return any;
}

/* The wire is closed, or has nothing of ours any more. */
void dpn_verbs_forget_letters(struct dpn_verbs *v)
{
    while (v->letters) {
        struct dpn_letter *letter = v->letters;
        v->letters = letter->next;
        free(letter);
    }
}

/* ---- a new wire ------------------------------------------------------------------------------ */

/* What was said over the last one is its no more. */
void dpn_verbs_greet(struct dpn_verbs *v)
{
    for (struct dpn_letter *letter = v->letters; letter; letter = letter->next)
        letter->req.status = 0;
    v->words.greeting = (struct dpn_resume){.heard = v->words.heard};
    dp_wire_isend(v->comm->wire, tag_of(DPN_RESUME, 0, v->words.heard), &v->words.greeting,
                  sizeof(v->words.greeting), &v->words.greeting_req);
}

static void confirm(struct dpn_verbs *v, uint32_t heard)
{
    if ((int32_t)(heard - v->words.confirmed) < 0)
        return;
    if ((int32_t)(v->words.said - heard) < 0) {
        dpn_verbs_fail(v, DP_EMISMATCH, "the peer has heard %u words of %u", heard, v->words.said);
        return;
    }
    v->words.confirmed = heard;
    forget_those_heard(v);
}

static void take_resume(struct dpn_verbs *v, const struct dpn_resume *resume)
{
    if (v->words.is_greeted) {
        dpn_verbs_fail(v, DP_EMISMATCH, "the peer resumes what was not interrupted");
        return;
    }
    confirm(v, resume->heard);
    for (struct dpn_letter *letter = v->letters; letter && !v->error; letter = letter->next)
        post(v, letter);
    dpn_words_are_back(v);
}

/* ---- what is heard --------------------------------------------------------------------------- */

static void take_refusal(struct dpn_verbs *v, const struct dpn_refused *r)
{
    const struct dpn_recv *recv = &v->recvs[r->slot];
    const struct dpn_room *room =
        r->sub < recv->count && recv->generation == r->generation ? &recv->rooms[r->sub] : NULL;

    dpn_verbs_fail(v, DP_EMISMATCH, "the peer has %llu bytes for a receive of %zu (tag %d)",
                   (unsigned long long)r->size, room ? room->size : 0, room ? room->tag : -1);
}

static bool is_our_lane(struct dpn_verbs *v, unsigned lane)
{
    if ((int)lane < v->lane_count)
        return true;
    dpn_verbs_fail(v, DP_EMISMATCH, "the peer speaks of lane %u of %d", lane, v->lane_count);
    return false;
}

/* Messages wait for such a word to be heard, so its sender wants to know. */
static void say_heard(struct dpn_verbs *v)
{
    static const union dpn_talk nothing;

    if (!v->error)
        dpn_verbs_say(v, DPN_HEARD, &nothing);
}

static void take(struct dpn_verbs *v, enum dpn_talk_kind kind, const union dpn_talk *t)
{
    switch (kind) {
    case DPN_OPEN:
        if (is_our_lane(v, t->open.lane))
            dpn_lane_take_open(v, &t->open);
        break;
    case DPN_OPENED:
        if (is_our_lane(v, t->opened.lane))
            dpn_lane_take_opened(v, &t->opened);
        break;
    case DPN_FENCED_SENDER:
        if (!is_our_lane(v, t->fenced_sender.lane))
            break;
        dpn_verbs_rewind_lines(v, t->fenced_sender.lane, t->fenced_sender.lines_read);
        dpn_lane_take_fenced(v, t->fenced_sender.lane, t->fenced_sender.epoch);
        say_heard(v);
        break;
    case DPN_FENCED_RECEIVER:
        if (!is_our_lane(v, t->fenced_receiver.lane))
            break;
        v->reports[t->fenced_receiver.lane] = t->fenced_receiver;
        dpn_lane_take_fenced(v, t->fenced_receiver.lane, t->fenced_receiver.epoch);
        say_heard(v);
        break;
    case DPN_REFUSED:
        take_refusal(v, &t->refused);
        break;
    case DPN_HEARD:
        break;
    case DPN_RESUME:
        take_resume(v, &t->resume);
        break;
    case DPN_READY: /* receiver: with no lane the connection is off, see verbs.c */
        v->step = t->ready.lanes ? DPN_STEP_READY : DPN_STEP_AGREE;
        break;
    case DPN_HELLO:
    case DPN_PLAN: /* read in verbs.c, before there are lanes */
        dpn_verbs_fail(v, DP_EMISMATCH, "the peer begins anew");
        break;
    }
}

static void wait_for_word(struct dpn_verbs *v)
{
    dp_wire_irecv(v->comm->wire, &v->heard, sizeof(v->heard), &v->incoming);
    v->is_listening = true;
}

/* By its number: whether it was not heard before, over another wire. */
static bool is_news(struct dpn_verbs *v, enum dpn_talk_kind kind, uint64_t tag)
{
    const uint32_t number = widen(tag >> (KIND_BITS + COUNT_BITS), v->words.heard);

    confirm(v, widen(tag >> KIND_BITS, v->words.confirmed));
    if (!is_numbered(kind))
        return true;
    if ((int32_t)(number - v->words.heard) > 0)
        dpn_verbs_fail(v, DP_EMISMATCH, "the peer said word %u after word %u", number,
                       v->words.heard - 1);
    if (v->error || number != v->words.heard)
        return false;
    v->words.heard++;
    return true;
}

bool dpn_verbs_hear(struct dpn_verbs *v, enum dpn_talk_kind *kind)
{
    for (;;) {
        if (!v->is_listening)
            wait_for_word(v);
        if (v->error || v->incoming.status)
            return false;
        v->is_listening = false;
        *kind = (enum dpn_talk_kind)(v->incoming.tag & ((1u << KIND_BITS) - 1));
        if (dpn_talk_check(*kind, v->is_sender, &v->heard, v->incoming.moved)) {
            dpn_verbs_fail(v, DP_EMISMATCH, "the peer said %s", dp_last_error());
            return false;
        }
        if (is_news(v, *kind, v->incoming.tag))
            return true;
    }
}

/* A word may end what the next one would be for. */
void dpn_verbs_listen(struct dpn_verbs *v)
{
    enum { WORDS = 32 };
    enum dpn_talk_kind kind;

    v->comm->wire->ops->progress(v->comm->wire);
    for (int i = 0; i < WORDS && v->step != DPN_STEP_AGREE && dpn_verbs_hear(v, &kind); i++)
        take(v, kind, &v->heard);
}

/* Who closes a socket with something unread in it resets the connection, and the peer would take it for
 * lost on the way. */
void dpn_verbs_hear_out(struct dpn_verbs *v)
{
    enum { WORDS = 1000 };

    for (int i = 0; i < WORDS; i++) {
        if (!v->is_listening)
            wait_for_word(v);
        v->comm->wire->ops->progress(v->comm->wire);
        if (v->incoming.status)
            return;
        v->is_listening = false;
    }
}
