/* SPDX-License-Identifier: Apache-2.0
 *
 * scratch.h - files and directories of a test: below TMPDIR, and never where the test was started,
 * which may belong to somebody else.
 */
#ifndef TESTS_SCRATCH_H
#define TESTS_SCRATCH_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { SCRATCH_LEN = 200 };

static inline bool scratch_name(char path[SCRATCH_LEN], const char *what)
{
    const char *tmp = getenv("TMPDIR");

    return snprintf(path, SCRATCH_LEN, "%s/dualpipe-%s-XXXXXX", tmp && *tmp ? tmp : P_tmpdir, what) <
           SCRATCH_LEN;
}

/* An empty directory that only this user may enter. */
static inline bool scratch_directory(char path[SCRATCH_LEN], const char *what)
{
    return scratch_name(path, what) && mkdtemp(path);
}

/* An empty file. */
static inline bool scratch_file(char path[SCRATCH_LEN], const char *what)
{
    int fd = scratch_name(path, what) ? mkstemp(path) : -1;

    return fd >= 0 && !close(fd);
}

/* All of it. */
static inline int scratch_remove(const char *path)
{
    char command[SCRATCH_LEN + 16];

    return snprintf(command, sizeof(command), "rm -rf '%s'", path) < (int)sizeof(command)
               ? system(command)
               : -1;
}

#endif
