/* SPDX-License-Identifier: Apache-2.0
 *
 * show.c - `dualpipe mix show`: a graph in a format that --file reads back.
 */
#include "command.h"
#include "commands.h"
#include "files.h"
#include "mix/mix.h"

#include <stdlib.h>
#include <string.h>

struct show_args {
    struct mix_args common;
    const char *format, *output;
};

static const char *const formats[] = {"text", "json", NULL};
static const struct arg args[] = {
    {"format", 'f', NULL, "what to write", ARG_CHOICE, .offset = offsetof(struct show_args, format),
     .fallback = "text", .choices = formats},
    {"output", 'o', "FILE", "where to (default standard output)", ARG_STRING,
     .offset = offsetof(struct show_args, output), .written = true},
};

static int show(const void *values, const struct dp_graph *g)
{
    const struct show_args *a = values;
    struct output out;
    char *text;
    int err = dp_graph_write(
        g, strcmp(a->format, "json") ? DP_GRAPH_FORMAT_TEXT : DP_GRAPH_FORMAT_JSON, &text, NULL);

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
        .about = "Write a mixing graph round by round, as text or as JSON, which --file reads back.\n"
                 "{0 1} is a group whose members become its mean, {0 1}*0.7 one whose members keep\n"
                 "0.7 of their own; 0>1*0.5 says that worker 1 takes half of worker 0's value.",
        .groups = groups,
        .examples = "  dualpipe mix show ring -N 4\n"
                    "  dualpipe mix show one-peer-exp -N 8 --format json -o graph.json\n"
                    "  dualpipe mix show --file edges.txt --weights metropolis\n",
    };
    struct show_args a = {0};

    return mix_run(&usage, argc, argv, &a, false, show);
}
