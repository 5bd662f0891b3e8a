/* SPDX-License-Identifier: Apache-2.0
 *
 * files.h - an output never replaces an input, nor another output of the same command.
 */
#ifndef DP_TOOLS_FILES_H
#define DP_TOOLS_FILES_H

#include "checkpoint/newest.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* A file named on the command line. option: "--output", or "" for an operand. */
struct file_use {
    const char *option, *path;
    bool written;
};

/* Two names are one file if they lead to the same inode, or would once it is made. "-" is standard
 * input or standard output; devices and pipes may be named as often as one likes. false after one
 * line on standard error. */
bool files_are_apart(const struct file_use *uses, size_t count);

/* ---- input ----------------------------------------------------------------------------------- */

/* All of a file, of one that does not say how long it is, too: those of proc and sys,
 * pipes, standard input. */

/* What is written by hand or by a program has less; a device may have no end. */
#define INPUT_MOST ((size_t)256 << 20)

/* malloc'ed, with a NUL behind its *len bytes, without the byte order mark of UTF-8; path "-": standard
 * input. NULL with errno, quietly; EFBIG: it has more than `most` bytes. */
char *input_read(const char *path, size_t most, size_t *len);
/* With that mark. */
char *input_bytes(const char *path, size_t most, size_t *len);
/* As strerror, for what input_read with INPUT_MOST leaves in errno. */
const char *input_error(int error);

/* The index of the newest checkpoint at `path` (checkpoint_find). 0, else EXIT_USAGE after one line that
 * begins with `option`. */
int input_checkpoint(const char *option, const char *path, char out[static CHECKPOINT_PATH]);

/* ---- output ---------------------------------------------------------------------------------- */

/* Where a command's result goes: standard output, or a file that appears only once it is
 * complete. */

/* Zeroed memory is a valid closed output. */
struct output {
    FILE *file;       /* write here */
    const char *path; /* NULL: standard output */
    char *target;     /* path without symbolic links: they stay what they are */
    char *temporary;  /* target's neighbour, until output_close */
};

/* path may be NULL or "-" for standard output. 0, else EXIT_FAILED; the sentence has been printed. */
int output_open(const char *path, struct output *out);

/* Finish: err is 0 or what writing has returned (DP_EIO, DP_ENOMEM, ...). The file takes its place
 * if all went well, else it is removed and the reason printed. Returns an EXIT_ value. */
int output_close(struct output *out, int err);

/* ---- where the shared objects for other people's processes are ------------------------------- */

#define NET_PLUGIN "libnccl-net-dualpipe.so"
#define TUNER_PLUGIN "libnccl-tuner-dualpipe.so"
#define PROFILER_PLUGIN "libnccl-profiler-dualpipe.so"
#define PRELOAD_LIBRARY "libdualpipe-preload.so"

enum { PLUGIN_PATH_LEN = 4096 + 64 };

/* The path of `file`, beside the program in its build tree or where both were installed. false: in
 * neither; then out is the bare name, for the dynamic linker to find. */
bool plugin_path(const char *file, char out[PLUGIN_PATH_LEN]);

#endif
