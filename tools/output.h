/* SPDX-License-Identifier: Apache-2.0
 *
 * output.h - where a command's result goes: standard output, or a file that appears only once it is
 * complete.
 */
#ifndef DP_TOOLS_OUTPUT_H
#define DP_TOOLS_OUTPUT_H

#include <stdio.h>

/* Zeroed memory is a valid closed output. */
struct output {
    FILE *file;       /* write here */
    const char *path; /* NULL: standard output */
    char *target;     /* path without symbolic links: they stay what they are */
    char *temporary;  /* target's neighbour, until output_close */
};

/* path may be NULL or "-" for standard output. 0, else EXIT_FAILED; the sentence has been printed. */
int output_open(const char *path, struct output *out);

/* Nothing is written after all: whether it could be was the question. */
void output_drop(struct output *out);

/* Finish: err is 0 or what writing has returned (DP_EIO, DP_ENOMEM, ...). The file takes its place
 * if all went well, else it is removed and the reason printed. Returns an EXIT_ value. */
int output_close(struct output *out, int err);

#endif
