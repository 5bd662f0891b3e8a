/* SPDX-License-Identifier: Apache-2.0
 *
 * eager.h - messages over shm and tcp that are sent before their clear-to-send (CTS) has come.
 *
 *      sender                             receiver
 *      isend of tag 7, no CTS yet   -->   stays in the wire as long as there is no open receive
 *                                         irecv of tag 7: the message goes to its buffer
 *                                         irecv of tag 9: the message is unexpected, it is in front
 *      the CTS: the send is done    <--   of tag 9 in the wire, and is stored until irecv of tag 7
 *
 * A wire keeps the order, so both sides agree which receive a message is for: the nth of its tag. An
 * eager send is done when its CTS has come, as other sends are. So the receiver never has to store
 * more messages than the sender has eager sends that are not done.
 */
#ifndef DPN_NET_EAGER_H
#define DPN_NET_EAGER_H

#include <stdbool.h>
#include <stddef.h>

/* Of a connection, each of at most DPN_MAX_EAGER bytes. Fewer than there are requests, or those of
 * one tag would keep off all others. */
enum { DPN_EAGER_COUNT = 16 };

/* ---- sender -------------------------------------------------------------------------------- */

struct dpn_eager_entry {
    int tag;
    size_t size;
    unsigned slot; /* of the request */
};

/* Sends whose CTS has not come yet, oldest first. Zeroed memory is an empty queue. */
struct dpn_eager_queue {
    unsigned count;
    size_t bytes; /* of all of them */
    struct dpn_eager_entry sends[DPN_EAGER_COUNT];
};

/* There are fewer than DPN_EAGER_COUNT. */
void dpn_eager_queue_add(struct dpn_eager_queue *queue, struct dpn_eager_entry send);
/* Take out the oldest entry of this tag: its CTS has come. false: there is none. */
bool dpn_eager_queue_take(struct dpn_eager_queue *queue, int tag, struct dpn_eager_entry *out);

/* ---- receiver ------------------------------------------------------------------------------ */

struct dpn_unexpected {
    struct dpn_unexpected *next;
    int tag;
    size_t size;
    char data[];
};

/* Messages that wait for their receives, oldest first. Zeroed memory: none. The first one has
 * memory mapped for as many as there may be, which costs no more than what is written there, and
 * stays. */
struct dpn_unexpected_list {
    struct dpn_unexpected *head;
    char *memory;
    unsigned used; /* a bit for each that is not freed yet */
};

static inline unsigned dpn_unexpected_count(const struct dpn_unexpected_list *list)
{
    return (unsigned)__builtin_popcount(list->used);
}

/* Memory for a message. NULL: there is none, or the peer sends more than it may. */
struct dpn_unexpected *dpn_unexpected_new(struct dpn_unexpected_list *list, int tag, size_t size);
void dpn_unexpected_add(struct dpn_unexpected_list *list, struct dpn_unexpected *message);
/* The oldest of this tag, off the list; NULL: none. */
struct dpn_unexpected *dpn_unexpected_take(struct dpn_unexpected_list *list, int tag);
/* message is not on the list; NULL is fine. */
void dpn_unexpected_free(struct dpn_unexpected_list *list, struct dpn_unexpected *message);
/* All on the list, and its memory. */
void dpn_unexpected_fini(struct dpn_unexpected_list *list);

#endif
