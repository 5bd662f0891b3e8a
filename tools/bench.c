/* SPDX-License-Identifier: Apache-2.0
 *
 * bench.c - `dualpipe bench COMMAND ...`: the table of its commands.
 */
#include "bench/bench.h"
#include "command.h"
#include "commands.h"

static const struct command commands[] = {
    {"comm", "all-reduces between processes, from 8 bytes to 256 MiB", run_bench_comm},
    {"step", "a real step of a process a rank, against its critical path", run_bench_step},
    {"net", "net plugins for NCCL, beside each other", run_bench_net},
    {"offload", "a model that is streamed through the device: does it overlap?", run_bench_offload},
    {"wire", "messages between two processes: latency and bandwidth", run_bench_wire},
    {0},
};

static const struct command_set set = {
    .name = "dualpipe bench",
    .about = "Figures of this machine and this library, beside a target if they have one. Samples\n"
             "count only if little else runs meanwhile; a figure is their median, the quartiles that\n"
             "half of them lie between, and the best of them.",
    .commands = commands,
    .examples = "  dualpipe bench step -P 4 -M 16 --cost f=2,i=2,w=2,fb=5\n"
                "  dualpipe bench wire --transport tcp --json\n",
};

int run_bench(int argc, char **argv)
{
    return command_dispatch(&set, argc, argv);
}
