/* SPDX-License-Identifier: Apache-2.0
 *
 * ordered_copy.h - into memory that is watched while it is written to. With its protocols LL and
 * LL128 NCCL's kernels do not wait for the network to say that a message is there: they look for
 * flags in it.
 *
 *      LL      | data flag | data flag | ...     8 bytes each, to be seen at once
 *      LL128   | 120 bytes of data, flag | ...   the last 8 of a line, to be seen after the others
 *
 * The C library's memcpy and the kernel's copies promise neither. NCCL 2.24 and later say which
 * receives are of this kind (NCCL_NET_OPTIONAL_RECV_COMPLETION).
 */
#ifndef DPN_NET_ORDERED_COPY_H
#define DPN_NET_ORDERED_COPY_H

#include <stddef.h>

enum { DPN_LINE_BYTES = 128 };

/* Copy so that every aligned word of 8 bytes at dst is written by one store, and the last word of
 * each aligned line of 128 after the rest of its line. src may be anywhere; they do not overlap. */
void dpn_ordered_copy(void *dst, const void *src, size_t bytes);

#endif
