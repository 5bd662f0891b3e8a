/* SPDX-License-Identifier: Apache-2.0
 *
 * input.h - all of a file, of one that does not say how long it is, too: those of proc and sys,
 * pipes, standard input.
 */
#ifndef DP_TOOLS_INPUT_H
#define DP_TOOLS_INPUT_H

#include <stddef.h>

/* What is written by hand or by a program has less; a device may have no end. */
#define INPUT_MOST ((size_t)256 << 20)

/* malloc'ed, with a NUL behind its *len bytes, without the byte order mark of UTF-8; path "-": standard
 * input. NULL with errno, quietly; EFBIG: it has more than `most` bytes. */
char *input_read(const char *path, size_t most, size_t *len);
/* As strerror, for what input_read with INPUT_MOST leaves in errno. */
const char *input_error(int error);

#endif
