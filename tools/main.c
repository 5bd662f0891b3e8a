/* SPDX-License-Identifier: Apache-2.0
 *
 * main.c - `dualpipe COMMAND ...`: the table of commands.
 */
#include "command.h"
#include "commands.h"

#include <dualpipe/dualpipe.h>

#include <stdio.h>
#include <string.h>

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
