/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_line.c - lines, which a device writes while they are read.
 */
#include "nccl-plugin/verbs/verbs_comm.h"

#include <string.h>

/* Of everything but check itself. */
static uint32_t sum_of(const struct dpn_line *line)
{
    uint64_t words[sizeof(*line) / sizeof(uint64_t)], sum = UINT64_C(0x9e3779b97f4a7c15);
    struct dpn_line copy = *line;

    copy.check = 0;
    memcpy(words, &copy, sizeof(words));
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        sum = (sum ^ words[i]) * UINT64_C(0xbf58476d1ce4e5b9);
    return (uint32_t)(sum >> 32);
}

void dpn_line_seal(struct dpn_line *line)
{
    line->check = sum_of(line);
}

bool dpn_line_read(const struct dpn_line *from, uint32_t number, struct dpn_line *out)
{
    if (__atomic_load_n(&from->number, __ATOMIC_ACQUIRE) != number)
        return false;
    memcpy(out, from, sizeof(*out));
    return out->number == number && out->check == sum_of(out);
}
