/* SPDX-License-Identifier: Apache-2.0
 *
 * commands.h - the functions that main.c's table names, one a file.
 */
#ifndef DP_TOOLS_COMMANDS_H
#define DP_TOOLS_COMMANDS_H

int run_bench(int argc, char **argv);
int run_info(int argc, char **argv);
int run_schedule(int argc, char **argv);

#endif
