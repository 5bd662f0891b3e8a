/* SPDX-License-Identifier: Apache-2.0
 *
 * bench.c - `dualpipe bench COMMAND ...`: the table of its commands, and the options they share.
 */
#include "bench/bench.h"
#include "command.h"
#include "commands.h"

static const struct arg args[] = {
    {"samples", 0, "N", "samples that count, of each figure", ARG_INT,
     .offset = offsetof(struct bench_options, samples), .fallback = "5", .min = 1,
     .max = BENCH_SAMPLES_MAX},
    {"limit", 0, "TIME", "stop after that, with what there is", ARG_TIME,
     .offset = offsetof(struct bench_options, limit_ns), .fallback = "60s"},
    {"json", 0, NULL, "print JSON", ARG_FLAG, .offset = offsetof(struct bench_options, json)},
};
const struct arg_group bench_group = {"measuring", args, sizeof(args) / sizeof(args[0])};

static const struct command commands[] = {
    {"copy", "how fast the host copies, beside libc", run_bench_copy},
    {"schedule", "how fast schedules are built, proven and simulated", run_bench_schedule},
    {"executor", "what an op costs beside its compute", run_bench_executor},
    {"step", "a real step of a process a rank, against its critical path", run_bench_step},
    {"net", "net plugins for NCCL, beside each other and what the machine could do", run_bench_net},
    {"topology", "machines of many GPUs, beside lstopo", run_bench_topology},
    {"tuner", "an answer of the tuner of NCCL, against a scan of all rules", run_bench_tuner},
    {"wire", "messages between two processes: latency and bandwidth", run_bench_wire},
    {0},
};

static const struct command_set set = {
    .name = "dualpipe bench",
    .about = "Figures of this machine and this library, each beside its target. Samples count\n"
             "only if little else runs meanwhile; a figure is their median, the quartiles that\n"
             "half of them lie between, and the best of them.",
    .commands = commands,
    .examples = "  dualpipe bench schedule\n"
                "  dualpipe bench step -P 4 -M 16 --cost f=2,i=2,w=2,fb=5\n"
                "  dualpipe bench wire --transport tcp --json\n",
};

int run_bench(int argc, char **argv)
{
    return command_dispatch(&set, argc, argv);
}
