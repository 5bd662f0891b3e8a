/* SPDX-License-Identifier: Apache-2.0
 *
 * digest.h - FNV-1a over bytes or numbers: to tell one thing from another, not against forgery.
 */
#ifndef DP_DIGEST_H
#define DP_DIGEST_H

#include <stddef.h>
#include <stdint.h>

#define DIGEST_BEGIN UINT64_C(0xcbf29ce484222325)

static inline uint64_t digest_add(uint64_t digest, uint64_t value)
{
    return (digest ^ value) * UINT64_C(0x100000001b3);
}

static inline uint64_t digest_bytes(uint64_t digest, const void *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++)
        digest = digest_add(digest, ((const uint8_t *)bytes)[i]);
    return digest;
}

#endif
