/* SPDX-License-Identifier: Apache-2.0
 *
 * append.h - reports that several processes write to one file.
 */
#ifndef DP_BASE_APPEND_H
#define DP_BASE_APPEND_H

#include <stddef.h>

/* Add text[len] to the file `path`, which is made if need be; "-" is standard error. It is one write to
 * a file opened for appending, so that the texts of several processes do not mix. What fails is warned
 * of, with the name of the option that asked for the file. */
void dp_append(const char *option, const char *path, const char *text, size_t len);

#endif
