/* SPDX-License-Identifier: Apache-2.0
 *
 * schedule.c - `dualpipe schedule COMMAND ...`: the table of its commands.
 */
#include "command.h"
#include "commands.h"

#include <stddef.h>

static const struct command commands[] = {
    {"show", "draw it: for a terminal, as SVG, as a trace", run_schedule_show},
    {"check", "prove that it can be carried out, or name the first fault", run_schedule_check},
    {"simulate", "how long it takes, and where time and memory go", run_schedule_simulate},
    {"export", "write it in a format that --file reads back", run_schedule_export},
    {"compare", "set all kinds side by side", run_schedule_compare},
    {0},
};

static const struct command_set set = {
    .name = "dualpipe schedule",
    .about = "Pipeline schedules as data: which rank computes, sends and receives what, in which\n"
             "order. KIND is a built-in schedule; --file FILE is one of your own.",
    .commands = commands,
    .examples = "  dualpipe schedule show dualpipe -P 4 -M 8\n"
                "  dualpipe schedule show dualpipev -P 4 -M 10 --format svg -o dualpipev.svg\n"
                "  dualpipe schedule simulate 1f1b -P 8 -M 20 --cost f=1,b=2 --latency 50us\n"
                "  dualpipe schedule export gpipe -P 2 -M 4 --format text -o mine.txt\n"
                "  dualpipe schedule check --file mine.txt\n"
                "  dualpipe schedule compare -P 8 -M 20\n",
};

int run_schedule(int argc, char **argv)
{
    return command_dispatch(&set, argc, argv);
}
