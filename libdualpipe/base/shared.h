/* SPDX-License-Identifier: Apache-2.0
 *
 * shared.h - memory of dp_shared_alloc, for code that passes it on.
 */
#ifndef DP_BASE_SHARED_H
#define DP_BASE_SHARED_H

#include <dualpipe/memory.h>

/* In a library that is loaded beside libdualpipe.so: what is not known here may be known there. */
typedef bool dp_shared_find_fn(const void *ptr, size_t len, struct dp_shared_place *out);
void dp_shared_ask(dp_shared_find_fn *find);

/* A file of zeroes without a name, to be mapped and passed on. It is sealed against
 * a change of its size, so no process can be killed for reading beyond its end. The caller closes.
 * DP_EUNSUPPORTED, DP_ENOMEM, DP_EIO (too many open files). */
int dp_shared_file(size_t bytes, int *out);
/* Whether a file is such a one. */
bool dp_shared_is_sealed(int fd);

#endif
