/* SPDX-License-Identifier: Apache-2.0
 *
 * show.c - `dualpipe mix show`: a graph as the text that --file reads back.
 */
#include "command.h"
#include "commands.h"
#include "files.h"
#include "mix/mix.h"

#include <stdlib.h>

struct show_args {
    struct mix_args common;
    const char *output;
};

static const struct arg args[] = {
    {"output", 'o', "FILE", "where to (default standard output)", ARG_STRING,
     .offset = offsetof(struct show_args, output), .written = true},
};

static int show(const void *values, const struct dp_graph *g)
{
    const struct show_args *a = values;
    struct output out;
    char *text;
    int err = dp_graph_write(g, &text, NULL);

    if (err)
        return command_failed(err);
    int status = output_open(a->output, &out);
    if (!status) {
        fputs(text, out.file);
        status = output_close(&out, 0);
    }
    free(text);
    return status;
}

int run_mix_show(int argc, char **argv)
{
    const struct arg_group groups[] = {
        mix_graph_group, mix_file_group, {"output", args, sizeof(args) / sizeof(args[0])}, {0},
    };
    const struct usage usage = {
        .command = "dualpipe mix show",
        .operands = "[KIND]",
        .operand_choices = mix_kinds(),
        .max_operands = 1,
        .about = "Write a mixing graph round by round, as the text that --file reads back.\n"
                 "{0 1} is a group whose members become its mean, {0 1}*0.7 one whose members keep\n"
                 "0.7 of their own; 0>1*0.5 says that worker 1 takes half of worker 0's value.",
        .groups = groups,
        .examples = "  dualpipe mix show ring -N 4\n"
                    "  dualpipe mix show one-peer-exp -N 8 -o graph.txt\n",
    };
    struct show_args a = {0};

    return mix_run(&usage, argc, argv, &a, false, show);
}
