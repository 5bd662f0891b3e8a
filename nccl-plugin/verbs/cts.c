/* SPDX-License-Identifier: Apache-2.0
 *
 * cts.c - checksums of CTS entries, which a device may write while they are read.
 */
#include "nccl-plugin/verbs/comm.h"

#include <string.h>

/* Checksum of the whole entry except `check`. */
static uint32_t sum_of(const struct dpn_cts_entry *entry)
{
    uint64_t words[sizeof(*entry) / sizeof(uint64_t)], sum = UINT64_C(0x9e3779b97f4a7c15);
    struct dpn_cts_entry copy = *entry;

    copy.check = 0;
    memcpy(words, &copy, sizeof(words));
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        sum = (sum ^ words[i]) * UINT64_C(0xbf58476d1ce4e5b9);
    return (uint32_t)(sum >> 32);
}

void dpn_cts_entry_seal(struct dpn_cts_entry *entry)
{
    entry->check = sum_of(entry);
}

bool dpn_cts_entry_read(const struct dpn_cts_entry *from, uint32_t number,
                        struct dpn_cts_entry *out)
{
    if (__atomic_load_n(&from->number, __ATOMIC_ACQUIRE) != number)
        return false;
    memcpy(out, from, sizeof(*out));
    return out->number == number && out->check == sum_of(out);
}
