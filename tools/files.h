/* SPDX-License-Identifier: Apache-2.0
 *
 * files.h - an output never replaces an input, nor another output of the same command.
 */
#ifndef DP_TOOLS_FILES_H
#define DP_TOOLS_FILES_H

#include <stdbool.h>
#include <stddef.h>

/* A file named on the command line. option: "--output", or "" for an operand. */
struct file_use {
    const char *option, *path;
    bool written;
};

/* Two names are one file if they lead to the same inode, or would once it is made. "-" is standard
 * input or standard output; devices and pipes may be named as often as one likes. false after one
 * line on standard error. */
bool files_are_apart(const struct file_use *uses, size_t count);

#endif
