/* SPDX-License-Identifier: Apache-2.0
 *
 * utf8.h - what every reader of a text format does first: skip a byte order mark, and refuse bytes
 * that are not UTF-8. What was read can then be written as JSON.
 */
#ifndef DP_BASE_UTF8_H
#define DP_BASE_UTF8_H

#include <stddef.h>

/* The bytes of the UTF-8 character at s, of which `left` may be read; 0: there is none. */
size_t dp_utf8_len(const char *s, size_t left);

/* Move *text and *len behind a byte order mark. DP_EINVAL, with line and column of the first byte that
 * is not UTF-8; name, which may be NULL, begins that sentence. */
int dp_utf8_begin(const char **text, size_t *len, const char *name);

#endif
