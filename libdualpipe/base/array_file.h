/* SPDX-License-Identifier: Apache-2.0
 *
 * array_file.h - a trace that several processes write: one JSON object whose array "traceEvents" grows
 * by what each of them adds, and which is complete after every one.
 */
#ifndef DP_BASE_ARRAY_FILE_H
#define DP_BASE_ARRAY_FILE_H

#include <stddef.h>

/* Add the events, text[len] with commas between them, to the array of the file `path`, which is made if
 * need be. The file is locked meanwhile, for which it waits 10 s at most. What fails is warned of, with
 * the name of the option that asked for the file; a file that is no such trace stays as it is. */
void dp_array_file_add(const char *option, const char *path, const char *text, size_t len);

#endif
