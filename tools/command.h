/* SPDX-License-Identifier: Apache-2.0
 *
 * command.h - a sub-command of `dualpipe`: a row of the table in main.c and a file of its own.
 */
#ifndef DP_TOOLS_COMMAND_H
#define DP_TOOLS_COMMAND_H

/* What the program returns to the shell. */
enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

struct command {
    const char *name;
    const char *summary;                   /* one line */
    int (*run)(int argc, char **argv);     /* argv[0] is the sub-command's name */
};

#endif
