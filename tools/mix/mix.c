/* SPDX-License-Identifier: Apache-2.0
 *
 * mix.c - `dualpipe mix COMMAND ...`: the table of its commands, what they share, and show.
 */
#include "mix/mix.h"

#include "command.h"
#include "commands.h"
#include "files.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static const struct command commands[] = {
    {"show", "write it out, round by round", run_mix_show},
    {"check", "prove that it preserves the mean and reaches all workers, or say where it does not",
     run_mix_check},
    {"simulate", "train on paper: time per step, consensus, loss", run_mix_simulate},
    {0},
};

static const struct command_set set = {
    .name = "dualpipe mix",
    .about = "Mixing graphs for decentralized training: which workers average their parameters\n"
             "with which others, round by round. KIND is a built-in graph; --file FILE is one of\n"
             "your own, as the text that show writes.",
    .commands = commands,
    .examples = "  dualpipe mix show one-peer-exp -N 8 -o graph.txt\n"
                "  dualpipe mix check --file graph.txt\n"
                "  dualpipe mix simulate one-peer-exp -N 4096\n",
};

int run_mix(int argc, char **argv)
{
    return command_dispatch(&set, argc, argv);
}

/* ---- options ---------------------------------------------------------------------------------- */

#define AT(member) .offset = offsetof(struct mix_args, member)

static const struct arg graph_args[] = {
    {"workers", 'N', "N", "how many there are (default 8)", ARG_INT, AT(workers), .min = 1,
     .max = DP_GRAPH_MAX_WORKERS},
    {"local", 'L', "N", "workers of a node (default LOCAL_WORLD_SIZE, or 1)", ARG_INT, AT(local),
     .min = 1, .max = DP_GRAPH_MAX_WORKERS},
    {"rounds", 0, "N", "rounds of random-matching (default 2 log2 of the workers)", ARG_INT, AT(rounds),
     .min = 1, .max = 65536},
    {"seed", 0, "N", "of random-matching, and of a simulation", ARG_INT, AT(seed), .min = 0,
     .max = 9e15},
};
static const struct arg file_args[] = {
    {"file", 0, "FILE", "your own graph instead of KIND (- for stdin)", ARG_STRING, AT(file)},
};

#define GROUP(title, args) {title, args, sizeof(args) / sizeof(args[0])}

const struct arg_group mix_graph_group = GROUP("which graph", graph_args);
const struct arg_group mix_file_group = GROUP("or", file_args);

const char *mix_kinds(void)
{
    static char list[512];
    size_t len = 0;

    if (*list)
        return list;
    for (int i = 0; dp_graph_name(i) && len < sizeof(list); i++)
        len += (size_t)snprintf(list + len, sizeof(list) - len, "%s%s", i ? "|" : "",
                                dp_graph_name(i));
    return list;
}

/* ---- the graph --------------------------------------------------------------------------------- */

enum { WORKERS = 8 };

/* An EXIT_ value; what is wrong has been said. */
static int build_graph(const struct mix_args *a, const char *name, struct dp_graph **out)
{
    int err = dp_graph_new(
        &(struct dp_graph_spec){
            .name = name,
            .workers = a->workers ? (int)a->workers : WORKERS,
            .local = (int)a->local,
            .rounds = (int)a->rounds,
            .seed = (uint64_t)a->seed,
        },
        out);

    return err ? command_failed(err) : 0;
}

static int read_graph(const struct mix_args *a, bool check, struct dp_graph **out)
{
    size_t len;
    char *text = input_read(a->file, INPUT_MOST, &len);

    if (!text)
        return command_misused("--file %s: %s", a->file, input_error(errno));
    command_mute(true);
    int err = dp_graph_read(text, len, out);
    free(text);
    if (err || !check)
        return command_read(a->file, err);
    err = dp_graph_check(*out, NULL);
    if (err)
        dp_graph_free(*out);
    return command_read(a->file, err);
}

static int load(const struct mix_args *a, const struct operands *operands, bool check,
                struct dp_graph **out)
{
    if (!a->file && !operands->count)
        return command_misused("which graph? expected one of %s, or --file FILE", mix_kinds());
    if (!a->file)
        return build_graph(a, operands->items[0], out);
    if (operands->count)
        return command_misused("'%s' and --file %s: expected one of the two", operands->items[0],
                               a->file);
    return read_graph(a, check, out);
}

int mix_run(const struct usage *usage, int argc, char **argv, void *values, bool check,
            int (*act)(const void *values, const struct dp_graph *g))
{
    struct operands operands;
    struct dp_graph *g;
    int status;

    if (!args_parse(usage, argc, argv, values, &operands, &status))
        return status;
    if ((status = load(values, &operands, check, &g)))
        return status;
    status = act(values, g);
    dp_graph_free(g);
    return status;
}

/* ---- show: a graph as the text that --file reads back ------------------------------------------- */

struct show_args {
    struct mix_args common;
    const char *output;
};

static const struct arg show_rows[] = {
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
        mix_graph_group, mix_file_group, GROUP("output", show_rows), {0},
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
