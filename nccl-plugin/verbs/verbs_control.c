/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_control.c - the words of verbs_talk.h on their way, and who hears what.
 */
#include "base/fail.h"
#include "nccl-plugin/verbs/verbs_comm.h"

#include <stdlib.h>
#include <string.h>

struct dpn_letter {
    struct dpn_letter *next;
    struct dp_wire_request req;
    union dpn_talk talk;
};

static void forget_those_sent(struct dpn_verbs *v)
{
    for (struct dpn_letter **at = &v->letters; *at;) {
        struct dpn_letter *letter = *at;
        if (letter->req.status == DP_EAGAIN) {
            at = &letter->next;
            continue;
        }
        *at = letter->next;
        free(letter);
    }
}

void dpn_verbs_say(struct dpn_verbs *v, enum dpn_talk_kind kind, const union dpn_talk *talk)
{
    forget_those_sent(v);
    struct dpn_letter *letter = malloc(sizeof(*letter));
    if (!letter) {
        dpn_verbs_fail(v, DP_ENOMEM, "no memory for a word to the peer");
        return;
    }
    const size_t len = dpn_talk_len(kind);
    memcpy(&letter->talk, talk, len);
    letter->next = v->letters;
    v->letters = letter;
    dp_wire_isend(v->comm->wire, kind, &letter->talk, len, &letter->req);
}

bool dpn_verbs_is_talking(struct dpn_verbs *v)
{
    forget_those_sent(v);
    return v->letters;
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
        dpn_verbs_rewind_lines(v, t->fenced_sender.lines_read);
        dpn_lane_take_fenced(v, t->fenced_sender.lane, t->fenced_sender.epoch);
        break;
    case DPN_FENCED_RECEIVER:
        if (!is_our_lane(v, t->fenced_receiver.lane))
            break;
        v->reports[t->fenced_receiver.lane] = t->fenced_receiver;
        dpn_lane_take_fenced(v, t->fenced_receiver.lane, t->fenced_receiver.epoch);
        break;
    case DPN_REFUSED:
        take_refusal(v, &t->refused);
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

bool dpn_verbs_hear(struct dpn_verbs *v, enum dpn_talk_kind *kind)
{
    if (!v->is_listening)
        wait_for_word(v);
    if (v->error || v->incoming.status)
        return false;
    v->is_listening = false;
    if (dpn_talk_check(v->incoming.tag, v->is_sender, &v->heard, v->incoming.moved)) {
        dpn_verbs_fail(v, DP_EMISMATCH, "the peer said %s", dp_last_error());
        return false;
    }
    *kind = (enum dpn_talk_kind)v->incoming.tag;
    return true;
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
