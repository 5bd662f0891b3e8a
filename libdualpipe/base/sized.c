/* SPDX-License-Identifier: Apache-2.0
 *
 * sized.c - structs of another release, in and out.
 */
#include "base/sized.h"

#include "base/fail.h"

#include <string.h>

int dp_sized_take(void *own, size_t known, const void *from, size_t size, const char *what)
{
    memset(own, 0, known);
    if (from)
        memcpy(own, from, size < known ? size : known);
    for (size_t i = known; from && i < size; i++)
        if (((const char *)from)[i])
            return dp_fail(DP_EINVAL, "%s of %zu bytes: byte %zu is set, expected zeros beyond the "
                           "%zu that this release knows", what, size, i, known);
    return 0;
}

void dp_sized_give(void *to, size_t size, const void *own, size_t known)
{
    memcpy(to, own, size < known ? size : known);
    if (size > known)
        memset((char *)to + known, 0, size - known);
}

int dp_reserved_check(const uint64_t words[2], const char *what)
{
    return words[0] | words[1] ? dp_fail(DP_EINVAL, "%s: reserved words are set, expected zeros", what)
                               : 0;
}
