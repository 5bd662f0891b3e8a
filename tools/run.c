/* SPDX-License-Identifier: Apache-2.0
 *
 * run.c - `dualpipe run -- COMMAND`: a job as it is, with NCCL's net and tuner plugins and the
 * preload library of this program, next to its GPU, and with a report in the end.
 */
#include "config.h"

#include "command.h"
#include "commands.h"
#include "run/run.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- saying and setting ---------------------------------------------------------------------- */

/* In quotes, as a shell takes it. */
static void print_quoted(const char *value)
{
    putchar('\'');
    for (; *value; value++)
        fputs(*value == '\'' ? "'\\''" : (char[]){*value, '\0'}, stdout);
    putchar('\'');
}

/* What the user has set already is the user's wish. */
static bool stays(const struct run_setting *one)
{
    const char *set = getenv(one->name);
    const bool kept = set && !one->adds && strcmp(set, one->value);

    if (kept)
        fprintf(stderr, "dualpipe: %s=%s stays, it was set before\n", one->name, set);
    return kept;
}

static void print_settings(const struct run_settings *s)
{
    for (size_t i = 0; i < s->count; i++) {
        if (stays(&s->list[i]))
            continue;
        printf("export %s=", s->list[i].name);
        print_quoted(s->list[i].value);
        putchar('\n');
    }
}

static int apply(const struct run_settings *s)
{
    for (size_t i = 0; i < s->count; i++) {
        const struct run_setting *one = &s->list[i];
        if (!stays(one) && setenv(one->name, one->value, 1))
            return command_broke("cannot set %s: %s", one->name, strerror(errno));
    }
    return 0;
}

static void show(void *user)
{
    const struct run_settings *s = user;

    for (size_t i = 0; i < s->part_count; i++)
        fprintf(stderr, "dualpipe: %-11s %s\n", s->parts[i].name, s->parts[i].words);
}

static void show_nothing(void *user)
{
    (void)user;
}

static int be_the_parent(const struct run_values *v, const struct dp_process *process,
                         struct run_settings *s, bool shows, char **command)
{
    struct run_outcome *outcome = calloc(1, sizeof(*outcome));

    if (!outcome)
        return command_broke("no memory for what a job has done");
    int status = run_job(command, shows ? show : show_nothing, s, outcome);
    if (!status) {
        run_report(v, process, s, outcome); /* what the job returned goes before what that did */
        status = run_leave(outcome);
    }
    run_outcome_fini(outcome);
    free(outcome);
    return status;
}

static int begin(const struct run_values *v, struct run_settings *s, char **command)
{
    struct dp_process process;
    int err = dp_process_from_env(&process);

    if (err)
        return command_failed(err);
    int status = apply(s);
    if (status)
        return status;
    run_bind(v, &process, s);
    status = run_number(v, command[0], &process, s);
    if (status)
        return status;
    const bool shows = !v->quiet && process.rank <= 0; /* the other ranks have the same */
    if (!v->exec)
        return be_the_parent(v, &process, s, shows, command);
    if (shows)
        show(s);
    return run_become(command);
}

static int run(const struct run_values *v, const struct operands *operands)
{
    struct run_settings s = {0};
    int status;

    if (v->exec && v->report)
        return command_misused(
            "--exec and --report: expected one of the two, as nothing is left to report");
    status = run_settings_choose(v, operands->count ? operands->items[0] : NULL, &s);
    if (!status && v->only_prints) {
        run_say(&s, "CPUs", "%s",
                v->no_bind ? "not bound: --no-bind"
                           : "bound when the job starts, where a launcher tells the rank");
        if (v->placement && !v->no_reorder)
            run_say(&s, "ranks", "those of torchrun by the placement, when the job starts");
        if (!v->quiet)
            show(&s);
        print_settings(&s);
    }
    else if (!status && !operands->count)
        status = command_misused("no command to run, expected one behind --");
    else if (!status)
        status = begin(v, &s, operands->items);
    run_settings_fini(&s);
    return status;
}

/* ---- the command ----------------------------------------------------------------------------- */

#define AT(member) .offset = offsetof(struct run_values, member)
static const struct arg args[] = {
    {"table", 'T', "FILE", "rules for the tuner", ARG_STRING, AT(table)},
    {"links", 'l', "LINKS", "for its cost model: as in intra=450,inter=400", ARG_STRING, AT(links)},
    {"topology", 't', "FILE", "of topo json, to work the links out from", ARG_STRING,
     AT(source.topology)},
    {"synthetic", 's', "STR", "the same from a description in a few words", ARG_STRING,
     AT(source.synthetic), .offer = args_offer_presets},
    {"sysfs", 0, "DIR", "the same from a machine whose /sys was captured below DIR", ARG_STRING,
     AT(source.sysfs)},
    {"placement", 0, "FILE", "of topo place: which rank is where, which NICs, rates for the tuner",
     ARG_STRING, AT(placement)},
    {"traffic", 0, "FILE", "add to it what every rank sends to every other",
     ARG_STRING, AT(traffic), .written = true},
    {"trace", 0, "FILE", "add to it what NCCL did when, over which rail, waiting for what: Perfetto",
     ARG_STRING, AT(trace), .written = true},
    {"report", 0, "FILE", "add a line of JSON for every rank",
     ARG_STRING, AT(report), .written = true},
    {"no-net", 0, NULL, "leave the network to NCCL", ARG_FLAG, AT(no_net)},
    {"no-tuner", 0, NULL, "leave the choice of algorithms to NCCL", ARG_FLAG, AT(no_tuner)},
    {"no-preload", 0, NULL, "leave pinned memory and copies of CUDA as they are", ARG_FLAG,
     AT(no_preload)},
    {"no-bind", 0, NULL, "leave CPUs and memory as they are", ARG_FLAG, AT(no_bind)},
    {"no-reorder", 0, NULL, "leave every process its rank, with --placement", ARG_FLAG,
     AT(no_reorder)},
    {"quiet", 'q', NULL, "say nothing of what is used, and nothing in the end", ARG_FLAG, AT(quiet)},
    {"exec", 0, NULL, "become the command, instead of staying its parent", ARG_FLAG, AT(exec)},
    {"print", 'p', NULL, "start nothing: say what is used, and print the variables for a shell",
     ARG_FLAG, AT(only_prints)},
};

int run_run(int argc, char **argv)
{
    const struct arg_group groups[] = {ARG_GROUP("what the job gets", args), {0}};
    const struct usage usage = {
        .command = "dualpipe run", .operands = "[-- COMMAND [ARGUMENT...]]", .groups = groups,
        .about = "Run a job that uses NCCL, as it is, with the net and the tuner plugin and the\n"
                 "preload library: set NCCL's variables and LD_PRELOAD, bind the rank to the CPUs\n"
                 "and the memory next to its GPU, start the command, pass signals on to it, and\n"
                 "end as it ends, with a report. What is set already stays, and so do CPUs that\n"
                 "a launcher has given. Ranks on other machines need the same, so it goes behind\n"
                 "mpirun, srun or torchrun --no-python.",
        .examples =
            "  dualpipe run -- python train.py\n"
            "  mpirun -np 16 dualpipe run --table cluster.csv -- all_reduce_perf -b 1K -e 1G\n"
            "  dualpipe run --no-net --synthetic dgx-h100 --print\n",
    };
    struct operands operands;
    struct run_values v;
    int status;

    if (!args_parse(&usage, argc, argv, &v, &operands, &status))
        return status;
    return run(&v, &operands);
}
