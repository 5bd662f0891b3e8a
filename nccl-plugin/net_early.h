/* SPDX-License-Identifier: Apache-2.0
 *
 * net_early.h - messages over shm and tcp that go before the sender has heard of their receive.
 *
 *      sender                                     receiver
 *      isend of tag 7, no grant      ----->       stays in the wire as long as there is no receive
 *                                                 irecv of tag 7: it goes there;
 *                                                 irecv of tag 9: it is in the way, and kept until
 *      the grant: the send is done   <-----       irecv of tag 7
 *
 * A wire keeps the order, so both sides know which message a receive is for: the nth of its tag. An
 * early send is done when its receive is there, as others are; so those that are not done are all
 * that the receiver may have to keep.
 */
#ifndef DPN_NET_EARLY_H
#define DPN_NET_EARLY_H

#include <stdbool.h>
#include <stddef.h>

/* Of a connection, each of at most DPN_MAX_EAGER bytes. Fewer than there are requests, or those of
 * one tag would keep off all others. */
enum { DPN_EARLY_COUNT = 16 };

/* ---- sender -------------------------------------------------------------------------------- */

struct dpn_early_send {
    int tag;
    size_t size;
    unsigned slot; /* of the request */
};

/* Those that no grant has come for, eldest first. Zeroed memory: none. */
struct dpn_early_sends {
    unsigned count;
    size_t bytes; /* of all of them */
    struct dpn_early_send sends[DPN_EARLY_COUNT];
};

/* There are fewer than DPN_EARLY_COUNT. */
void dpn_early_add(struct dpn_early_sends *early, struct dpn_early_send send);
/* The eldest of this tag has its grant. false: there is none. */
bool dpn_early_take(struct dpn_early_sends *early, int tag, struct dpn_early_send *out);

/* ---- receiver ------------------------------------------------------------------------------ */

struct dpn_kept {
    struct dpn_kept *next;
    int tag;
    size_t size;
    char data[];
};

/* Messages that wait for their receives, eldest first. Zeroed memory: none. The first one has memory
 * mapped for as many as there may be, which costs no more than what is written there, and stays. */
struct dpn_kept_list {
    struct dpn_kept *head;
    char *memory;
    unsigned used; /* a bit for each that is not freed yet */
};

static inline unsigned dpn_kept_count(const struct dpn_kept_list *list)
{
    return (unsigned)__builtin_popcount(list->used);
}

/* Memory for a message. NULL: there is none, or the peer sends more than it may. */
struct dpn_kept *dpn_kept_new(struct dpn_kept_list *list, int tag, size_t size);
void dpn_kept_add(struct dpn_kept_list *list, struct dpn_kept *kept);
/* The eldest of this tag, off the list; NULL: none. */
struct dpn_kept *dpn_kept_take(struct dpn_kept_list *list, int tag);
/* kept, if not NULL, is not on the list. */
void dpn_kept_free(struct dpn_kept_list *list, struct dpn_kept *kept);
/* All on the list, and its memory. */
void dpn_kept_fini(struct dpn_kept_list *list);

#endif
