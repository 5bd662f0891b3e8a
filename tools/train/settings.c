/* SPDX-License-Identifier: Apache-2.0 */
#include "train/settings.h"

#include "command.h"

#include <errno.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the command line ---------------------------------------------------------------------- */

static const char sequential[] = "none";
static const char *const schedules[] = {
    "dualpipe", "dualpipev", "zb1p", "1f1b", "gpipe", sequential, NULL,
};
static const char *const transports[] = {"auto", "shm", "tcp", NULL};

#define AT(member) .offset = offsetof(struct settings, member)

static const struct arg what_args[] = {
    {"data", 'd', "FILE", "text to learn from; several are put one after the other", ARG_LIST,
     AT(data)},
    {"steps", 0, "N", "updates of the weights", ARG_INT, AT(steps), "300", 1, 1e9},
    {"batch", 0, "N", "sequences of a step, over all micro-batches", ARG_INT, AT(batch), "16", 1,
     65536},
    {"seed", 0, "N", "of initial weights, batches and dropout", ARG_INT, AT(seed), "1", 0, 9e18},
    {"eval-every", 0, "N", "steps from one held-out loss to the next; 0: at the end only", ARG_INT,
     AT(eval_every), "50", 0, 1e9},
};

static const struct arg schedule_args[] = {
    {"schedule", 's', NULL, "order of the work; none: one rank, one micro-batch after the other",
     ARG_CHOICE, AT(schedule_name), "dualpipe", .choices = schedules},
    {"ranks", 'P', "N", "pipeline ranks, each a process (default 4; 1 without a schedule)", ARG_INT,
     AT(ranks), .min = 1, .max = 1024},
    {"microbatches", 'M', "N", "micro-batches of a step", ARG_INT, AT(microbatches), "8", 1, 65536},
    {"fixed-order", 0, NULL, "add gradients up in one order under every schedule (the default)",
     ARG_FLAG, AT(fixed_order)},
    {"any-order", 0, NULL, "add gradients up as they come: less memory, other last digits",
     ARG_FLAG, AT(any_order)},
    {"placement", 0, "FILE",
     "of topo place: which process has which rank, and its CPUs (default DUALPIPE_PLACEMENT)",
     ARG_STRING, AT(placement)},
    {"transport", 0, NULL, "how ranks send each other messages (default auto)", ARG_CHOICE,
     AT(transport), .choices = transports},
    {"port", 0, "N", "where rank 0 listens for the others; 0: any that is free", ARG_INT, AT(port),
     "0", 0, 65535},
};

static const struct arg model_args[] = {
    {"layers", 'L', "N", "transformer blocks", ARG_INT, AT(layers), "8", 1, GPT_MAX_LAYERS},
    {"width", 0, "N", "of the residual stream", ARG_INT, AT(width), "64", 1, 16384},
    {"heads", 0, "N", "attention heads", ARG_INT, AT(heads), "4", 1, 1024},
    {"context", 0, "N", "bytes of a sequence", ARG_INT, AT(context), "64", 1, 16384},
};

static const struct arg optimizer_args[] = {
    {"lr", 0, "X", "learning rate at its peak", ARG_REAL, AT(rate), "0.006", 0, 10},
    {"warmup", 0, "N", "steps until the peak; then a cosine down to a tenth", ARG_INT, AT(warmup),
     "20", 0, 1e9},
    {"decay", 0, "X", "weight decay of matrices", ARG_REAL, AT(decay), "0.1", 0, 10},
    {"clip", 0, "X", "largest norm of the whole gradient; 0: any", ARG_REAL, AT(clip), "1", 0, 1e9},
    {"dropout", 0, "X", "share of activations set to zero", ARG_REAL, AT(dropout), "0", 0, 0.99},
};

static const struct arg output_args[] = {
    {"timeline", 0, "FILE.svg", "draw the last step, all ranks", ARG_STRING, AT(timeline)},
    {"trace", 0, "FILE.json", "the last step for ui.perfetto.dev", ARG_STRING, AT(trace)},
    {"sample", 0, "N", "bytes of text to generate in the end", ARG_INT, AT(sample), "300", 0, 1e6},
    {"json", 0, NULL, "one JSON object a line on standard output", ARG_FLAG, AT(json)},
};

#define GROUP(title, args) {title, args, sizeof(args) / sizeof((args)[0])}

static const struct arg_group groups[] = {
    GROUP("what to learn", what_args), GROUP("how the work is ordered", schedule_args),
    GROUP("the model", model_args),    GROUP("the optimizer", optimizer_args),
    GROUP("output", output_args),      {0},
};

static const struct usage usage = {
    .command = "dualpipe train",
    .operands = "[FILE...]",
    .max_operands = 0,
    .about =
        "Train a byte-level GPT on text, its layers spread over the ranks of a pipeline. The\n"
        "ranks are processes that the command starts and ends itself; under torchrun (RANK,\n"
        "WORLD_SIZE, MASTER_ADDR, MASTER_PORT) each process is one. Every schedule gives the\n"
        "same losses, to the last bit, as '--schedule none' in one process.",
    .groups = groups,
    .examples =
        "  dualpipe train --data /usr/share/common-licenses/GPL-3 --timeline step.svg\n"
        "  dualpipe train --data book.txt --schedule dualpipev -P 2 -M 8 --steps 100\n"
        "  dualpipe train --data *.txt --schedule none --json\n"
        "  torchrun --no-python --nproc-per-node 2 dualpipe train -P 2 --data book.txt\n",
};

/* ---- checks -------------------------------------------------------------------------------- */

static bool is_sequential(const struct settings *s)
{
    return !strcmp(s->schedule_name, sequential);
}

static bool take_files(struct settings *s, const struct operands *more)
{
    for (int i = 0; i < more->count; i++) {
        if (s->data.count == ARG_LIST_MAX) {
            command_misused("--data: expected at most %d files; put them together with cat",
                            ARG_LIST_MAX);
            return false;
        }
        s->data.items[s->data.count++] = more->items[i];
    }
    if (s->data.count > 0)
        return true;
    command_misused("--data is missing: expected text to learn from, for instance "
                    "--data /usr/share/common-licenses/GPL-3");
    return false;
}

/* One rank has nothing to be placed; but who asks for it should hear so. */
static bool take_placement(struct settings *s, int *status)
{
    int err = 0;

    if (is_sequential(s) && s->placement)
        return command_misused("--placement: expected a schedule; --schedule none has one rank"),
               false;
    if (s->placement)
        err = dp_seats_load(s->placement, &s->seats);
    else if (!is_sequential(s))
        err = dp_seats_from_env(&s->seats);
    if (err)
        *status = command_failed(err);
    return !err;
}

static int usual_ranks(const struct settings *s)
{
    return s->seats ? s->seats->ranks : is_sequential(s) ? 1 : 4;
}

static bool take_ranks(struct settings *s, int world)
{
    if (s->ranks == 0)
        s->ranks = world ? world : usual_ranks(s);
    if (world && s->ranks != world)
        command_misused("-P %d: expected %d, the WORLD_SIZE that this process was started with",
                        (int)s->ranks, world);
    else if (is_sequential(s) && s->ranks != 1)
        command_misused("-P %d: expected -P 1 with --schedule none, which has one rank",
                        (int)s->ranks);
    else
        return true;
    return false;
}

/* false, and one line, unless number is a multiple of unit. */
static bool multiple(const char *name, int64_t number, int64_t unit, const char *unit_name)
{
    if (number % unit == 0)
        return true;
    command_misused("%s %d: expected a multiple of %d, %s", name, (int)number, (int)unit,
                    unit_name);
    return false;
}

/* The pipeline rank of each process, malloc'ed; NULL: as they come. */
static int make_map(const struct settings *s, int **out)
{
    int err = s->seats ? dp_seats_check(s->seats, 1, (int)s->ranks) : 0;

    *out = s->seats && !err ? malloc((size_t)s->ranks * sizeof(**out)) : NULL;
    if (!err && s->seats)
        err = *out ? dp_seats_map(s->seats, 0, *out) : DP_ENOMEM;
    return err;
}

static bool build_schedules(struct settings *s, int *status)
{
    struct dp_schedule_spec spec = {.ranks = (int)s->ranks, .microbatches = (int)s->microbatches};
    int *map = NULL, err = dp_schedule_kind_parse(s->schedule_name, &spec.kind);

    if (!err)
        err = make_map(s, &map);
    spec.rank_map = map;
    spec.mirror_reduce = true;
    if (!err)
        err = dp_schedule_new(&spec, &s->training);
    spec.forward_only = true;
    spec.mirror_reduce = false;
    if (!err)
        err = dp_schedule_new(&spec, &s->forward);
    free(map);
    if (err)
        *status = command_failed(err);
    return !err;
}

static bool check_model(const struct settings *s)
{
    int stages = s->training ? s->training->stages : 1;

    return multiple("--width", s->width, s->heads, "the number of --heads") &&
           multiple("--batch", s->batch, s->microbatches, "the number of micro-batches (-M)") &&
           multiple("--layers", s->layers, stages, "the number of stages");
}

/* Whether `path` can be written, found out without writing. */
static bool check_output(const char *option, const char *path)
{
    char parent[4096];
    struct stat there;

    if (!path)
        return true;
    if (!stat(path, &there)) {
        if (S_ISDIR(there.st_mode))
            errno = EISDIR;
        else if (!access(path, W_OK))
            return true;
    } else if (snprintf(parent, sizeof(parent), "%s", path) < (int)sizeof(parent)) {
        if (!access(dirname(parent), W_OK | X_OK))
            return true;
    } else {
        errno = ENAMETOOLONG;
    }
    command_misused("%s %s: %s; expected a file that can be written", option, path,
                    strerror(errno));
    return false;
}

static bool check_outputs(const struct settings *s)
{
    if (is_sequential(s) && (s->trace || s->timeline)) {
        command_misused("%s: expected a schedule; with --schedule none there is no pipeline to see",
                        s->trace ? "--trace" : "--timeline");
        return false;
    }
    return check_output("--trace", s->trace) && check_output("--timeline", s->timeline);
}

static bool check_order(const struct settings *s)
{
    if (!s->fixed_order || !s->any_order)
        return true;
    command_misused("--fixed-order and --any-order: expected one of them");
    return false;
}

static bool check(struct settings *s, const struct operands *files, int world, int *status)
{
    *status = EXIT_USAGE;
    return take_files(s, files) && take_placement(s, status) && take_ranks(s, world) &&
           check_order(s) && check_outputs(s) &&
           (is_sequential(s) || build_schedules(s, status)) && check_model(s);
}

bool settings_parse(int argc, char **argv, int world, struct settings *s, int *status)
{
    struct operands files;

    *s = (struct settings){0};
    if (!args_parse(&usage, argc, argv, s, &files, status))
        return false;
    if (!check(s, &files, world, status)) {
        settings_fini(s);
        return false;
    }
    s->model = (struct gpt_config){
        .layers = (int)s->layers,
        .width = (int)s->width,
        .heads = (int)s->heads,
        .context = (int)s->context,
        .batch = (int)(s->batch / s->microbatches),
        .dropout = (float)s->dropout,
        .seed = (uint64_t)s->seed,
    };
    return true;
}

void settings_fini(struct settings *s)
{
    dp_schedule_free(s->training);
    dp_schedule_free(s->forward);
    dp_seats_free(s->seats);
}
