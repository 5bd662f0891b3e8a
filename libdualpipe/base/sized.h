/* SPDX-License-Identifier: Apache-2.0
 *
 * sized.h - structs that grow from release to release (DP_SIZED in dualpipe.h), of callers that may have
 * been compiled against another one. Source: copy_struct_from_user of Linux.
 */
#ifndef DP_BASE_SIZED_H
#define DP_BASE_SIZED_H

#include <stddef.h>
#include <stdint.h>

/* The caller's struct, from[size], in own[known], which has what is known even where this fails.
 * DP_EINVAL: beyond that it is not zero. */
int dp_sized_take(void *own, size_t known, const void *from, size_t size, const char *what);
/* The other way round: what the caller has room for, and zeros beyond what is known. */
void dp_sized_give(void *to, size_t size, const void *own, size_t known);

/* Return DP_EINVAL unless the reserved words of a struct that keeps its size are zero. */
int dp_reserved_check(const uint64_t words[2], const char *what);
#define DP_RESERVED(s, what)                                                                          \
    if (dp_reserved_check((s)->reserved, what))                                                       \
    return DP_EINVAL

/* From here on the pointer `config`, or NULL, is to a struct of this release; config_err says whether it
 * is all that was given. It is for calls of all ranks, which go on to where they agree on an error. */
#define DP_TAKE_KNOWN(type, config, size)                                                             \
    struct type config##_own;                                                                         \
    const int config##_err =                                                                          \
        dp_sized_take(&config##_own, sizeof(config##_own), config, size, "struct " #type);            \
    config = config ? &config##_own : NULL
/* The same; where it is not all, return. */
#define DP_TAKE(type, config, size)                                                                   \
    DP_TAKE_KNOWN(type, config, size);                                                                \
    if (config##_err)                                                                                 \
        return config##_err

#endif
