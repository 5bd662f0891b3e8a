/* SPDX-License-Identifier: Apache-2.0
 *
 * main.c - `dualpipe COMMAND ...`, `dualpipe schedule COMMAND ...` and `dualpipe bench COMMAND ...`: the
 * tables of commands.
 */
#include "bench/bench.h"
#include "command.h"
#include "commands.h"

#include <dualpipe/dualpipe.h>

#include <stdio.h>
#include <string.h>

static const struct command schedule_commands[] = {
    {"show", "draw it: for a terminal, as SVG, as a trace", run_schedule_show},
    {"check", "prove that it can be carried out, or name the first fault", run_schedule_check},
    {"simulate", "how long it takes, and where time and memory go", run_schedule_simulate},
    {"export", "write it in a format that --file reads back", run_schedule_export},
    {"compare", "set all kinds side by side", run_schedule_compare},
    {0},
};

static const struct command_set schedule = {
    .name = "dualpipe schedule",
    .about = "Pipeline schedules as data: which rank computes, sends and receives what, in which\n"
             "order. KIND is a built-in schedule; --file FILE is one of your own.",
    .commands = schedule_commands,
    .examples = "  dualpipe schedule show dualpipe -P 4 -M 8\n"
                "  dualpipe schedule show dualpipev -P 4 -M 10 --format svg -o dualpipev.svg\n"
                "  dualpipe schedule simulate 1f1b -P 8 -M 20 --cost f=1,b=2 --latency 50us\n"
                "  dualpipe schedule export gpipe -P 2 -M 4 --format text -o mine.txt\n"
                "  dualpipe schedule check --file mine.txt\n"
                "  dualpipe schedule compare -P 8 -M 20\n",
};

int run_schedule(int argc, char **argv)
{
    return command_dispatch(&schedule, argc, argv);
}

static const struct command bench_commands[] = {
    {"comm", "all-reduces between processes, from 8 bytes to 256 MiB", run_bench_comm},
    {"step", "a real step of a process a rank, against its critical path", run_bench_step},
    {"net", "net plugins for NCCL, beside each other", run_bench_net},
    {"offload", "a model that is streamed through the device: does it overlap?", run_bench_offload},
    {"wire", "messages between two processes: latency and bandwidth", run_bench_wire},
    {0},
};

static const struct command_set bench = {
    .name = "dualpipe bench",
    .about = "Figures of this machine and this library, beside a target if they have one. Samples\n"
             "count only if little else runs meanwhile; a figure is their median, the quartiles that\n"
             "half of them lie between, and the best of them.",
    .commands = bench_commands,
    .examples = "  dualpipe bench step -P 4 -M 16 --cost f=2,i=2,w=2,fb=5\n"
                "  dualpipe bench wire --transport tcp --json\n",
};

int run_bench(int argc, char **argv)
{
    return command_dispatch(&bench, argc, argv);
}

static const struct command commands[] = {
    {"schedule", "show, check, simulate, export and compare pipeline schedules", run_schedule},
    {"topo", "show what is near what in this machine or another, and how wide the ways are",
     run_topo},
    {"train", "train a small GPT on text, its layers spread over processes", run_train},
    {"plan", "find the fastest schedule and stages for a model, within a budget of memory", run_plan},
    {"checkpoint", "verify, show and export what a training run has saved", run_checkpoint},
    {"mix", "show, check and simulate mixing graphs", run_mix},
    {"run", "run a job with NCCL's net and tuner plugins of this program", run_run},
    {"tune", "which algorithm and protocol NCCL should use, and why", run_tune},
    {"bench", "measure this machine and this library", run_bench},
    {"stat", "training jobs as they run, and what the net plugin counts", run_stat},
    {"doctor", "say why NCCL is slow here, or does not use the plugin", run_doctor},
    {"info", "version, what was built in, what the machine has, all options", run_info},
    {0},
};

static const struct command_set program = {
    .name = "dualpipe",
    .about = "Pipeline-parallel training steps in C: schedules as data, a runtime that\n"
             "carries them out, and a model to train with it.",
    .commands = commands,
    .examples = "  dualpipe schedule show dualpipe -P 4 -M 8\n"
                "  dualpipe schedule compare -P 8 -M 20\n"
                "  dualpipe train --data book.txt --timeline step.svg\n"
                "  dualpipe info --options\n",
};

int main(int argc, char **argv)
{
    command_open();
    if (argc > 1 && !strcmp(argv[1], "--version")) {
        printf("dualpipe %s\n", dp_version());
        return command_close(EXIT_OK);
    }
    if (argc > 2 && !strcmp(argv[1], "--complete")) {
        command_completes = true;
        command_mute(true);
        argc--;
        argv++;
    }
    return command_close(command_dispatch(&program, argc, argv));
}
