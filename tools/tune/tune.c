/* SPDX-License-Identifier: Apache-2.0
 *
 * tune.c - `dualpipe tune COMMAND ...`: the table of its commands, and what they share.
 */
#include "tune/tune.h"

#include "command.h"
#include "commands.h"

#include <stdio.h>
#include <string.h>

static const struct command commands[] = {
    {"explain", "what the tuner would answer, size by size, and why", run_tune_explain},
    {"fit", "turn what NCCL's tests measured into a table for the tuner", run_tune_fit},
    {0},
};

static const struct command_set set = {
    .name = "dualpipe tune",
    .about = "Which algorithm and protocol NCCL uses for a collective, by the tuner plugin\n"
             "libnccl-tuner-dualpipe.so.",
    .commands = commands,
    .examples = "  dualpipe tune explain allreduce --ranks 16 --nodes 2 --links intra=450,inter=400\n"
                "  dualpipe tune explain --topology dgx-h100 --table cluster.csv\n"
                "  dualpipe tune fit own.txt ring/ll128=b.txt tree/ll=c.txt -o cluster.csv\n",
};

int run_tune(int argc, char **argv)
{
    return command_dispatch(&set, argc, argv);
}

/* ---- words ---------------------------------------------------------------------------------- */

const char *tune_cell_text(int algorithm, int protocol, char out[TUNE_CELL_LEN])
{
    snprintf(out, TUNE_CELL_LEN, "%s/%s", dp_tuning_algorithm_name(algorithm),
             dp_tuning_protocol_name(protocol));
    return out;
}

int tune_find(const char *(*name_of)(int), int count, const char *name, size_t len)
{
    for (int i = 0; i < count; i++)
        if (strlen(name_of(i)) == len && !strncmp(name_of(i), name, len))
            return i;
    return -1;
}
