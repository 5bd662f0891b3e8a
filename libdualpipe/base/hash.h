/* SPDX-License-Identifier: Apache-2.0
 *
 * hash.h - FNV-1a with 64 bits, for tables and for what ranks compare; no protection against anyone who
 * wants two texts to have the same.
 */
#ifndef DP_BASE_HASH_H
#define DP_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define DP_HASH_BEGIN UINT64_C(0xcbf29ce484222325)

static inline uint64_t dp_hash_bytes(uint64_t hash, const void *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++)
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * UINT64_C(0x100000001b3);
    return hash;
}

/* With its end, so that "a", "bc" and "ab", "c" differ. */
static inline uint64_t dp_hash_text(uint64_t hash, const char *text)
{
    return dp_hash_bytes(hash, text, strlen(text) + 1);
}

static inline uint64_t dp_hash_number(uint64_t hash, int64_t number)
{
    return dp_hash_bytes(hash, &number, sizeof(number));
}

#endif
