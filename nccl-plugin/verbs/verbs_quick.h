/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_quick.h - what a very short message looks like in the receiver's memory, where he looks for
 * it: there is no completion to make, to fetch and to pay back with another receive. A device may
 * write it in whatever pieces and order; so, as with lines, what is there counts once the check of
 * all of it is right. The number makes that of the message that was there before wrong.
 */
#ifndef DPN_VERBS_QUICK_H
#define DPN_VERBS_QUICK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Before a short message in the ring; see verbs_eager.c. */
struct dpn_eager_head {
    uint32_t number, size;
    int32_t tag;
    uint32_t line; /* of the lines from this on, one is its own */
};

enum { DPN_QUICK_BYTES = 104, DPN_QUICK_WORD = sizeof(uint64_t) };

struct dpn_quick {
    struct dpn_eager_head head;
    uint64_t check; /* of all the rest */
    char data[DPN_QUICK_BYTES]; /* zeros from its end to the end of a word */
};
_Static_assert(sizeof(struct dpn_eager_head) == 2 * DPN_QUICK_WORD, "which is what the sum takes");

static inline uint32_t dpn_quick_words(uint32_t size)
{
    return (size + DPN_QUICK_WORD - 1) / DPN_QUICK_WORD;
}

static inline uint64_t dpn_quick_mix(uint64_t sum, const void *at)
{
    uint64_t word;

    memcpy(&word, at, DPN_QUICK_WORD);
    sum = (sum ^ word) * UINT64_C(0xbf58476d1ce4e5b9);
    return sum ^ sum >> 32;
}

static inline uint64_t dpn_quick_sum(const struct dpn_eager_head *head, const char *data,
                                     uint32_t words)
{
    uint64_t sum = dpn_quick_mix(UINT64_C(0x9e3779b97f4a7c15), head);

    sum = dpn_quick_mix(sum, (const char *)head + DPN_QUICK_WORD);
    for (uint32_t i = 0; i < words; i++)
        sum = dpn_quick_mix(sum, data + i * DPN_QUICK_WORD);
    return sum;
}

/* Sender. Returns how many bytes are to be written. */
static inline uint32_t dpn_quick_make(struct dpn_quick *quick, const struct dpn_eager_head *head,
                                      const void *data)
{
    const uint32_t words = dpn_quick_words(head->size);

    quick->head = *head;
    if (words) {
        memset(quick->data + (words - 1) * DPN_QUICK_WORD, 0, DPN_QUICK_WORD);
        memcpy(quick->data, data, head->size);
    }
    quick->check = dpn_quick_sum(head, quick->data, words);
    return (uint32_t)offsetof(struct dpn_quick, data) + words * DPN_QUICK_WORD;
}

/* Receiver: whether this one has come, all of it. */
static inline bool dpn_quick_is_here(const struct dpn_quick *quick, uint32_t number)
{
    if (__atomic_load_n(&quick->head.number, __ATOMIC_ACQUIRE) != number)
        return false;
    const struct dpn_eager_head head = quick->head;
    return head.number == number && head.size <= DPN_QUICK_BYTES &&
           quick->check == dpn_quick_sum(&head, quick->data, dpn_quick_words(head.size));
}

#endif
