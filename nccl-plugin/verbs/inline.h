/* SPDX-License-Identifier: Apache-2.0
 *
 * inline.h - the layout of an inline message in the receiver's memory, which the receiver polls: no
 * completion has to be generated and polled for, and no receive posted again. A device may write
 * the message in pieces and in any order, so, as with CTS entries, it is valid only once the
 * checksum of all of it matches. The number distinguishes it from the previous message there.
 */
#ifndef DPN_VERBS_INLINE_H
#define DPN_VERBS_INLINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Header of an eager message in the ring; see verbs/recv.c. */
struct dpn_eager_head {
    uint32_t number, size;
    int32_t tag;
    uint32_t cts; /* the message is for the first matching CTS entry from this number on */
};

enum { DPN_INLINE_MESSAGE_BYTES = 104, DPN_INLINE_WORD = sizeof(uint64_t) };

struct dpn_inline_message {
    struct dpn_eager_head head;
    uint64_t check;                      /* checksum of the head and the data */
    char data[DPN_INLINE_MESSAGE_BYTES]; /* padded with zeros to a multiple of DPN_INLINE_WORD */
};
_Static_assert(sizeof(struct dpn_eager_head) == 2 * DPN_INLINE_WORD, "as dpn_inline_sum assumes");

static inline uint32_t dpn_inline_words(uint32_t size)
{
    return (size + DPN_INLINE_WORD - 1) / DPN_INLINE_WORD;
}

static inline uint64_t dpn_inline_mix(uint64_t sum, const void *at)
{
    uint64_t word;

    memcpy(&word, at, DPN_INLINE_WORD);
    sum = (sum ^ word) * UINT64_C(0xbf58476d1ce4e5b9);
    return sum ^ sum >> 32;
}

static inline uint64_t dpn_inline_sum(const struct dpn_eager_head *head, const char *data,
                                     uint32_t words)
{
    uint64_t sum = dpn_inline_mix(UINT64_C(0x9e3779b97f4a7c15), head);

    sum = dpn_inline_mix(sum, (const char *)head + DPN_INLINE_WORD);
    for (uint32_t i = 0; i < words; i++)
        sum = dpn_inline_mix(sum, data + i * DPN_INLINE_WORD);
    return sum;
}

/* Sender. Returns how many bytes are to be written. */
static inline uint32_t dpn_inline_make(struct dpn_inline_message *message,
                                       const struct dpn_eager_head *head, const void *data)
{
    const uint32_t words = dpn_inline_words(head->size);

    message->head = *head;
    if (words) {
        memset(message->data + (words - 1) * DPN_INLINE_WORD, 0, DPN_INLINE_WORD);
        memcpy(message->data, data, head->size);
    }
    message->check = dpn_inline_sum(head, message->data, words);
    return (uint32_t)offsetof(struct dpn_inline_message, data) + words * DPN_INLINE_WORD;
}

/* Receiver: whether message `number` has arrived completely. */
static inline bool dpn_inline_has_arrived(const struct dpn_inline_message *message, uint32_t number)
{
    if (__atomic_load_n(&message->head.number, __ATOMIC_ACQUIRE) != number)
        return false;
    const struct dpn_eager_head head = message->head;
    return head.number == number && head.size <= DPN_INLINE_MESSAGE_BYTES &&
           message->check == dpn_inline_sum(&head, message->data, dpn_inline_words(head.size));
}

#endif
