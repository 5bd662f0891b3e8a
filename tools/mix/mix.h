/* SPDX-License-Identifier: Apache-2.0
 *
 * mix.h - what the commands of `dualpipe mix` share: which graph.
 */
#ifndef DP_TOOLS_MIX_MIX_H
#define DP_TOOLS_MIX_MIX_H

#include "args.h"

#include <dualpipe/mixing.h>

/* A command's values begin with it; zero them before args_parse. */
struct mix_args {
    int64_t workers, local, rounds, seed;
    const char *file;
};

extern const struct arg_group mix_graph_group; /* workers, local, ... */
extern const struct arg_group mix_file_group;  /* --file */

/* "complete|ring|...": every built-in graph, for --help. */
const char *mix_kinds(void);

/* A command about one graph: parse into *values, which begins with a struct mix_args, take the graph of
 * --file or of the kind that is the operand, and let act do something with it. A graph of a file has not
 * been checked; with `check` one that breaks a rule is refused. */
int mix_run(const struct usage *usage, int argc, char **argv, void *values, bool check,
            int (*act)(const void *values, const struct dp_graph *g));

#endif
