/* SPDX-License-Identifier: Apache-2.0
 *
 * main.c - `dp-bench COMMAND ...`: figures of the library's parts, for those who change them. What says how
 * fast a machine is, `dualpipe bench` measures.
 */
#include "command.h"
#include "tests/bench/dp_bench/dp_bench.h"

static const struct command commands[] = {
    {"copy", "how fast the host copies, beside libc", run_bench_copy},
    {"executor", "what an op costs beside its compute", run_bench_executor},
    {"mixing", "an iteration of decentralized training, beside an all-reduce", run_bench_mixing},
    {"optimizer", "a step of AdamW, alone and with mixing", run_bench_optimizer},
    {"schedule", "how fast schedules are built, proven and simulated", run_bench_schedule},
    {"topology", "machines of many GPUs: shown, built and read", run_bench_topology},
    {0},
};

static const struct command_set set = {
    .name = "dp-bench",
    .about = "Figures of the library's parts, each beside its target; as dualpipe-bench(1) says.",
    .commands = commands,
    .examples = "  dp-bench schedule\n"
                "  dp-bench copy --smallest 16MiB --json\n",
};

int main(int argc, char **argv)
{
    command_open();
    return command_close(command_dispatch(&set, argc, argv));
}
