/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl-plugin/net/ordered_copy.h"

#include <stdint.h>
#include <string.h>

enum { WORD = 8 };

static void store_word(char *dst, const char *src, int order)
{
    uint64_t word;

    memcpy(&word, src, WORD);
    __atomic_store_n((uint64_t *)(void *)dst, word, order);
}

/* Whole words. The release keeps the stores before it before it, for other devices too. */
static void copy_words(char *dst, const char *src, size_t bytes)
{
    size_t last = bytes - WORD;

    for (size_t i = 0; i < last; i += WORD)
        store_word(dst + i, src + i, __ATOMIC_RELAXED);
    store_word(dst + last, src + last, __ATOMIC_RELEASE);
}

/* How much of it lies before the next multiple of unit. */
static size_t before_next(const char *dst, size_t unit, size_t bytes)
{
    size_t left = unit - (uintptr_t)dst % unit;

    return left < bytes ? left : bytes;
}

void dpn_ordered_copy(void *to, const void *from, size_t bytes)
{
    char *dst = to;
    const char *src = from;
    size_t len;

    for (; bytes; bytes -= len, dst += len, src += len) {
        len = before_next(dst, DPN_LINE_BYTES, bytes);
        if ((uintptr_t)dst % WORD == 0 && len >= WORD)
            copy_words(dst, src, len -= len % WORD);
        else /* a part of a word: NCCL's buffers have none */
            memcpy(dst, src, len = before_next(dst, WORD, bytes));
    }
}
