/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/crc32c.h"

#include <pthread.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { SLICES = 8 };

/* table[k][b]: what byte b does to the CRC with k bytes behind it. */
static uint32_t table[SLICES][256];

static void fill_table(void)
{
    const uint32_t polynomial = 0x82f63b78; /* reflected */

    for (uint32_t b = 0; b < 256; b++) {
        uint32_t crc = b;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? polynomial : 0);
        table[0][b] = crc;
    }
    for (int k = 1; k < SLICES; k++)
        for (uint32_t b = 0; b < 256; b++)
            table[k][b] = table[k - 1][b] >> 8 ^ table[0][table[k - 1][b] & 255];
}

uint32_t dp_crc32c_table(uint32_t crc, const void *data, size_t len)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const uint8_t *p = data;

    pthread_once(&once, fill_table);
    crc = ~crc;
    for (; len >= SLICES; len -= SLICES, p += SLICES) {
        uint32_t next = 0;
        for (int k = 0; k < SLICES; k++)
            next ^= table[SLICES - 1 - k][k < 4 ? p[k] ^ (crc >> 8 * k & 255) : p[k]];
        crc = next;
    }
    while (len--)
        crc = crc >> 8 ^ table[0][(crc ^ *p++) & 255];
    return ~crc;
}

#if defined(__x86_64__)

__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t crc, const void *data,
                                                                size_t len)
{
    const uint8_t *p = data;
    uint64_t state = ~crc, word;

    for (; len >= sizeof(word); len -= sizeof(word), p += sizeof(word)) {
        memcpy(&word, p, sizeof(word));
        state = _mm_crc32_u64(state, word);
    }
    while (len--)
        state = _mm_crc32_u8((uint32_t)state, *p++);
    return ~(uint32_t)state;
}

#endif

uint32_t dp_crc32c(uint32_t crc, const void *data, size_t len)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2"))
        return by_instruction(crc, data, len);
#endif
    return dp_crc32c_table(crc, data, len);
}
