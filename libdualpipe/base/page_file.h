/* SPDX-License-Identifier: Apache-2.0
 *
 * page_file.h - counters of one process in a file of shared memory, which other processes of its user
 * read while it runs. The writer holds a lock on the file, so that a reader knows whether it lives.
 */
#ifndef DP_BASE_PAGE_FILE_H
#define DP_BASE_PAGE_FILE_H

#include <stddef.h>

struct dp_page_kind {
    const char *option; /* that asks for it, for warnings */
    const char *suffix; /* of its name: <pid>-<random><suffix> */
    const char *magic;  /* its first 8 bytes */
    size_t bytes;
    void (*fill)(void *page); /* zeroes until then; not seen by others before */
};

/* Make and map a page in the directory, which is made if need be and must be this user's alone, and
 * remove those of processes that have ended. `path` is where it is; the caller removes it in the end.
 * NULL: it cannot be, and a warning says why. */
void *dp_page_new(const char *directory, const struct dp_page_kind *kind, char *path, size_t len);

/* The command line of this process, cut to len, without what a terminal would obey. */
void dp_page_command(char *out, size_t len);

#endif
