/* SPDX-License-Identifier: Apache-2.0
 *
 * shared.h - which memory is of dp_shared_alloc, for those who can pass it on.
 */
#ifndef DP_BASE_SHARED_H
#define DP_BASE_SHARED_H

#include <dualpipe/memory.h>

/* Where something lies in a piece of shared memory. */
struct dp_shared_place {
    uint64_t id;  /* of the piece; never 0, and never given again */
    size_t offset;
    size_t bytes; /* of the whole piece */
    int fd;       /* its file, sealed against being cut: not the caller's, and open until it is freed */
};

/* Whether all of ptr[len] lies in one piece. The caller sees to it that this piece is not freed
 * meanwhile; others may be. No lock, no system call. */
bool dp_shared_find(const void *ptr, size_t len, struct dp_shared_place *out);

/* A file of zeroes without a name, to be mapped and passed on. Its size stays, whoever has it: nobody
 * can be killed for reading beyond its end. The caller closes. DP_EUNSUPPORTED, DP_ENOMEM. */
int dp_shared_file(size_t bytes, int *out);
/* Whether a file is such a one. */
bool dp_shared_is_sealed(int fd);

#endif
