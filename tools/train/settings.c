/* SPDX-License-Identifier: Apache-2.0 */
#include "train/settings.h"

#include "command.h"
#include "schedule_args.h"

#include <errno.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the command line ---------------------------------------------------------------------- */

enum { MAX_BLOCKS = 64 };

static const char sequential[] = "none";
static const char *const schedules[] = {
    "dualpipe", "dualpipev", "zb1p",  "1f1b",     "interleaved",
    "zbv",      "gpipe",     "async", sequential, NULL,
};
static const char *const dtypes[] = {"f32", "bf16", NULL};
static const char *const executions[] = {"list", "messages", NULL};
static const char gpt[] = "gpt";
static const char *const models[] = {gpt, NULL};
static const char *const transports[] = {"auto", "shm", "tcp", "mpi", "nccl", NULL};

#define AT(member) .offset = offsetof(struct settings, member)
/* A row of the library's, but for what is said here. */
#define OF_TRAINER .type = ARG_OPTION, AT(how), .options = dp_trainer_options

static const struct arg what_args[] = {
    {"data", 'd', "FILE",
     "text to learn from (- for standard input); several are put one after the other", ARG_LIST,
     AT(data)},
    {"model", 0, NULL,
     "what learns", ARG_CHOICE, AT(model_name), gpt, .choices = models},
    {"steps", 0, "N", "updates of the weights in all", ARG_INT, AT(steps), "300", 1, 1e9},
    {"batch", 0, "N", "sequences of a step, over all micro-batches", ARG_INT, AT(how.rows), "16", 1,
     65536},
    {"seed", OF_TRAINER, .fallback = "1", .help = "of initial weights, batches and dropout"},
    {"eval-every", 0, "N", "steps from one held-out loss to the next; 0: at the end only", ARG_INT,
     AT(eval_every), "50", 0, 1e9},
};

static const struct arg schedule_args[] = {
    {"schedule", 's', NULL,
     "order of the work (default dualpipe); none: one rank, one micro-batch after the other",
     ARG_CHOICE, AT(schedule_name), .choices = schedules},
    {"file", 0, "FILE", "or a list of your own: text, JSON, CSV or PyTorch's CSV", ARG_STRING,
     AT(file)},
    {"ranks", OF_TRAINER, .help = "pipeline ranks, each a process (default 4; 1 without a schedule)"},
    {"microbatches", OF_TRAINER, .help = "micro-batches of a step (default 8, or what the list has)"},
    {"virtual-stages", OF_TRAINER},
    {"slack", OF_TRAINER, .fallback = "0"},
    {"fixed-order", OF_TRAINER,
     .help = "add gradients up in one order under every schedule (the default on the CPU)"},
    {"any-order", 0, NULL, "add gradients up as they come: less memory, other last digits",
     ARG_FLAG, AT(any_order)},
    {"order-blocks", OF_TRAINER,
     .help = "sums of gradients in the fixed order: a power of two (default: 2, or as many as "
             "streams and replicas need)"},
    {"checkpoint", OF_TRAINER, .fallback = "never"},
    {"checkpoint-stages", 0, "LIST", "the stages of which --checkpoint recomputes: 0,2-3 (all)",
     ARG_PARSE, AT(checkpoint_stages), .parse = stage_set_parse},
    {"offload", 0, "PARTS",
     "what may live on the host: params (with the optimizer's state; --device cuda needs it), "
     "activations, optimizer",
     ARG_PARSE, AT(offload), .parse = offload_parts_parse},
    {"device-memory", 0, "SIZE", "how much of the model may be on the device, with --offload",
     ARG_BYTES, AT(device_memory), .min = 1, .max = 1e15},
    {"buffers", 0, "N|auto",
     "layers whose parameters are on the device at once, with --offload params --schedule none; auto, "
     "the default: as many as there is room for",
     ARG_PARSE, AT(how.offload.layers), .parse = offload_buffers_parse},
    {"device-share", OF_TRAINER, .fallback = "0"},
    {"delay-update", OF_TRAINER},
    {"blocks", 0, "LIST", "blocks of each stage, as in 1,3,3,1 (default: the same number)",
     ARG_PARSE, AT(blocks), .parse = block_list_parse},
    {"plan", 0, "FILE", "what 'dualpipe plan' has written: all of the above, and the model",
     ARG_STRING, AT(plan)},
    {"execution", 0, NULL, "what decides which op comes next; messages: with --schedule async",
     ARG_CHOICE, AT(execution), "list", .choices = executions},
    {"placement", 0, "FILE",
     "of topo place: which process has which rank, and its CPUs (default DUALPIPE_PLACEMENT)",
     ARG_STRING, AT(placement)},
    {"transport", 0, NULL,
     "how ranks send each other messages (default auto); nccl: from GPU to GPU, with --device cuda",
     ARG_CHOICE, AT(transport), .choices = transports},
    {"port", 0, "N", "where rank 0 listens for the others; 0: any that is free", ARG_INT, AT(port),
     "0", 0, 65535},
};

static const struct arg replica_args[] = {
    {"replicas", OF_TRAINER, .fallback = "1"},
    {"mix", 0, "HOW",
     "all-reduce: sum their gradients; reduce-scatter: the same, each with a share of the "
     "optimizer's "
     "state; or average their weights by a graph of 'dualpipe mix', or by that of a file",
     ARG_STRING, AT(mix), .fallback = "all-reduce", .or_file = true},
    {"mix-local", OF_TRAINER},
    {"survive", OF_TRAINER,
     .help = "go on without ranks that are killed: replicas, with a graph and --schedule none, or "
             "ranks of --schedule dualpipe"},
    {"spare", 0, "N",
     "ranks that wait to take the place of one that is killed, with --survive and a pipeline", ARG_INT,
     AT(spares), "0", 0, 1024},
    {"restart", 0, "N", "of those that are killed start the first N again, with --survive", ARG_INT,
     AT(restarts), "0", 0, 1e6},
    {"mix-algorithm", OF_TRAINER, .fallback = "d-psgd"},
    {"mix-factor", OF_TRAINER},
    {"mix-compress", OF_TRAINER, .fallback = "none"},
    {"mix-staleness", OF_TRAINER},
    {"local-steps", OF_TRAINER},
    {"outer-rate", OF_TRAINER},
    {"outer-momentum", OF_TRAINER, .fallback = "0"},
};

static const struct arg model_args[] = {
    {"layers", 'L', "N", "transformer blocks", ARG_INT, AT(layers), "8", 1,
     GPT_MAX_LAYERS},
    {"width", 0, "N", "of the residual stream", ARG_INT, AT(width), "64", 1, 16384},
    {"heads", 0, "N", "attention heads", ARG_INT, AT(heads), "4", 1, 1024},
    {"context", 0, "N", "bytes of a sequence", ARG_INT, AT(context), "64",
     1, 16384},
    {"tie-embeddings", 0, NULL, "the head's weights are the table of the embedding", ARG_FLAG,
     AT(tied)},
};

static const struct arg optimizer_args[] = {
    {"lr", OF_TRAINER, .fallback = "0.006"},
    {"warmup", OF_TRAINER, .fallback = "20",
     .help = "steps until the peak; then a cosine down to a tenth"},
    {"decay", OF_TRAINER, .fallback = "0.1"},
    {"clip", OF_TRAINER, .fallback = "1"},
    {"dropout", 0, "X", "share of activations set to zero", ARG_REAL, AT(dropout), "0", 0, 0.99},
};

static const struct arg device_args[] = {
    {"device", 0, "NAME",
     "what computes: cpu, cuda (each rank on a GPU of its own, if there are enough) or cuda:N",
     ARG_STRING, AT(device), "cpu"},
    {"dtype", 0, NULL,
     "of activations on CUDA; with --schedule none of the weights that layers see, and of their "
     "gradients. What is updated is f32",
     ARG_CHOICE, AT(dtype), "f32", .choices = dtypes},
    {"no-graphs", 0, NULL, "on CUDA: launch kernels one by one, not callbacks as CUDA graphs", ARG_FLAG,
     AT(no_graphs)},
    {"kernels", 0, "FILE", "a fatbin, cubin or PTX of tools/train/cuda instead of that built in",
     ARG_STRING, AT(kernels)},
};

static const struct arg saved_args[] = {
    {"save", OF_TRAINER},
    {"save-every", OF_TRAINER, .fallback = "0"},
    {"resume", 0, "DIR",
     "go on from the newest checkpoint there; options left out are as they were", ARG_STRING,
     AT(resume)},
    {"prompt", 0, "TEXT", "train nothing: let the model of --resume go on from this text",
     ARG_STRING, AT(prompt)},
};

static const struct arg output_args[] = {
    {"timeline", 0, "FILE.svg", "draw the last step, all ranks", ARG_STRING, AT(drawn[0]),
     .written = true},
    {"trace", 0, "FILE.json", "the last step for ui.perfetto.dev", ARG_STRING, AT(drawn[1]),
     .written = true},
    {"sample", 0, "N", "bytes of text to generate in the end", ARG_INT, AT(sample), "300", 0, 1e6},
    {"temperature", 0, "X", "of that text: below 1 likelier, 0 always the likeliest byte", ARG_REAL,
     AT(temperature), "0.8", 0, 100},
    {"json", 0, NULL, "one JSON object a line on standard output", ARG_FLAG, AT(json)},
    {"stat-dir", 0, "DIR",
     "where 'dualpipe stat' sees this job (default DUALPIPE_NET_STAT_DIR, or /dev/shm/dualpipe-UID); "
     "none: nowhere", ARG_STRING, AT(stat_dir)},
};

#define GROUP(title, args) {title, args, sizeof(args) / sizeof((args)[0])}

static const struct arg_group groups[] = {
    GROUP("what to learn", what_args),      GROUP("how the work is ordered", schedule_args),
    GROUP("replicas", replica_args),        GROUP("the model", model_args),
    GROUP("the optimizer", optimizer_args), GROUP("the device", device_args),
    GROUP("saved state", saved_args),       GROUP("output", output_args),
    {0},
};

const struct usage settings_usage = {
    .command = "dualpipe train",
    .operands = "[FILE...]",
    .max_operands = 0,
    .operand_files = true,
    .about = "Train a byte-level GPT on text, its layers spread\n"
             "over the ranks of a pipeline. The ranks are processes that the command starts and\n"
             "ends itself; under torchrun (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT) each\n"
             "process is one. Every schedule gives the same losses, to the last bit, as\n"
             "'--schedule none' in one process; so do replicas that sum their gradients.",
    .groups = groups,
    .examples =
        "  dualpipe train --data /usr/share/common-licenses/GPL-3 --timeline step.svg\n"
        "  dualpipe train --data book.txt --schedule dualpipev -P 2 -M 8 --steps 100\n"
        "  dualpipe train --data *.txt --schedule none --json\n"
        "  dualpipe train --data book.txt --file mine.csv --steps 100\n"
        "  dualpipe train --data book.txt --schedule none -D 4 --mix one-peer-exp\n"
        "  dualpipe train --data book.txt --save saved --save-every 100\n"
        "  dualpipe train --data book.txt --resume saved -P 2 --schedule 1f1b\n"
        "  dualpipe train --resume saved --prompt 'Once upon' --sample 200\n"
        "  dualpipe train --data *.txt --schedule none --offload params --device-memory 5M\n"
        "  dualpipe train --data *.txt -P 2 --offload activations,optimizer --device-memory 16M\n"
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

/* ---- the list of --file ---------------------------------------------------------------------- */

static bool has_kind(const struct dp_schedule *s, enum dp_op_kind kind)
{
    for (size_t i = 0; i < s->first[s->ranks]; i++)
        if (s->ops[i].kind == kind)
            return true;
    return false;
}

/* What no list can be trained with. */
static bool check_list(const struct settings *s)
{
    const struct dp_schedule *list = s->training;

    if (list->forward_only || (!has_kind(list, DP_OP_B) && !has_kind(list, DP_OP_I)))
        command_misused("--file %s: no backward, expected a schedule of training steps", s->file);
    else if (has_kind(list, DP_OP_REDUCE))
        command_misused("--file %s: has REDUCE, expected none; they are added where gradients are "
                        "complete",
                        s->file);
    else if (s->offload.text && (has_kind(list, DP_OP_RECOMPUTE) || has_kind(list, DP_OP_EVICT)))
        command_misused("--offload with --file %s: has RECOMPUTE or EVICT, expected none; they are "
                        "added where the device's memory needs them",
                        s->file);
    else if (s->placement)
        command_misused("--placement with --file %s: expected one of them", s->file);
    else
        return true;
    return false;
}

/* false, after one line, if the option was given another number than the list has. */
static bool take_number(const struct settings *s, const char *option, int32_t has, int32_t *member)
{
    if (*member && *member != has) {
        command_misused("%s %d: expected %d, as in --file %s", option, *member, has, s->file);
        return false;
    }
    *member = has;
    return true;
}

static bool read_list(struct settings *s, int *status)
{
    if (s->schedule_name || s->how.schedule.slack)
        *status = command_misused("%s %s and --file %s: expected one of them",
                                  s->how.schedule.slack ? "--slack" : "--schedule",
                                  s->how.schedule.slack ? "1" : s->schedule_name, s->file);
    else
        *status = schedule_file_read(s->file, &s->training);
    if (*status)
        return false;
    *status = EXIT_USAGE;
    s->schedule_name = dp_schedule_kind_name(s->training->kind);
    return check_list(s) && take_number(s, "-P", s->training->ranks, &s->how.schedule.ranks) &&
           take_number(s, "-M", s->training->microbatches * s->how.replicas, &s->how.microbatches);
}

static bool take_list(struct settings *s, int *status)
{
    if (s->file)
        return read_list(s, status);
    if (!s->schedule_name)
        s->schedule_name = "dualpipe";
    if (!s->how.microbatches)
        s->how.microbatches = 8;
    if (s->how.schedule.virtual_stages && strcmp(s->schedule_name, "interleaved"))
        *status = command_misused("--virtual-stages %d: expected --schedule interleaved",
                                  (int)s->how.schedule.virtual_stages);
    else if (s->how.schedule.slack && strncmp(s->schedule_name, "dualpipe", 8))
        *status = command_misused("--slack 1: expected --schedule dualpipe or dualpipev");
    else
        return true;
    return false;
}

/* ---- ranks and stages ------------------------------------------------------------------------ */

/* One rank has nothing to be placed: asking for it is an error. */
static bool take_placement(struct settings *s, int *status)
{
    int err = 0;

    if (is_sequential(s) && s->placement)
        return command_misused("--placement: expected a schedule; --schedule none has one rank"),
               false;
    if (s->placement)
        err = dp_assignment_load(s->placement, &s->assignment);
    else if (!is_sequential(s) && !s->file)
        err = dp_assignment_from_env(&s->assignment);
    if (err)
        *status = command_failed(err);
    return !err;
}

static int default_ranks(const struct settings *s)
{
    return s->assignment ? s->assignment->ranks : is_sequential(s) ? 1 : 4;
}

static bool take_ranks(struct settings *s, int world)
{
    const int replicas = (int)s->how.replicas;

    if (world > s->spares)
        world -= (int)s->spares;
    if (s->how.schedule.ranks == 0)
        s->how.schedule.ranks = world >= replicas ? world / replicas : default_ranks(s);
    if (world && s->how.schedule.ranks * replicas != world && replicas > 1)
        command_misused("-P %d -D %d: %d processes, expected %d, the size of the job that this one was "
                        "started in (WORLD_SIZE, or the launcher's)",
                        s->how.schedule.ranks, replicas, settings_processes(s), world);
    else if (world && s->how.schedule.ranks * replicas != world)
        command_misused("-P %d: expected %d, the size of the job that this process was started in "
                        "(WORLD_SIZE, or the launcher's)",
                        s->how.schedule.ranks, world);
    else if (is_sequential(s) && s->how.schedule.ranks != 1)
        command_misused("-P %d: expected -P 1 with --schedule none, which has one rank",
                        s->how.schedule.ranks);
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

int settings_processes(const struct settings *s)
{
    return (int)(s->how.schedule.ranks * s->how.replicas);
}

int settings_started(const struct settings *s)
{
    return settings_processes(s) + (int)s->spares;
}

/* Whether the schedule says when gradients are summed over replicas. Messages that drive the ranks carry
 * no REDUCE out: sums then come after the step. */
static bool sums_early(const struct settings *s)
{
    const bool sums = s->how.replicas > 1 || s->how.sums == DP_SUMS_SHARDS;

    return sums && settings_processes(s) > 1 && strcmp(s->execution, "messages");
}

/* The pipeline rank of each process, malloc'ed; NULL: as they come. */
static int make_map(const struct settings *s, int **out)
{
    int err = s->assignment ? dp_assignment_check(s->assignment, 1, s->how.schedule.ranks) : 0;

    *out = s->assignment && !err ? malloc((size_t)s->how.schedule.ranks * sizeof(**out)) : NULL;
    if (!err && s->assignment)
        err = *out ? dp_assignment_map(s->assignment, 0, *out) : DP_ENOMEM;
    return err;
}

static bool finish_list(struct settings *s, int *status)
{
    struct dp_finding finding;
    int err = dp_schedule_check(s->training, NULL, &finding);

    if (!err)
        err = recompute_add(s->training, s->how.schedule.recompute, &s->checkpoint_stages);
    if (!err && sums_early(s))
        err = dp_schedule_add_all_reduces(s->training);
    else if (!err && s->training->streams > 1)
        err = dp_schedule_add_reduces(s->training);
    if (err)
        *status = command_failed(err);
    return !err;
}

static bool check_stages(const struct settings *s, int *status)
{
    if (!s->checkpoint_stages.any || s->checkpoint_stages.last < s->training->stages)
        return true;
    *status = command_misused("--checkpoint-stages: stage %d, expected 0 to %d of this schedule",
                              s->checkpoint_stages.last, s->training->stages - 1);
    return false;
}

static bool build_schedules(struct settings *s, int *status)
{
    if (s->file)
        return finish_list(s, status) && check_stages(s, status);
    struct dp_schedule_spec spec = {.ranks = s->how.schedule.ranks,
                                    .microbatches = (int)(s->how.microbatches / s->how.replicas),
                                    .virtual_stages = (int)s->how.schedule.virtual_stages,
                                    .slack = s->how.schedule.slack};
    int *map = NULL, err = dp_schedule_kind_parse(s->schedule_name, &spec.kind);

    if (!err)
        err = make_map(s, &map);
    spec.rank_map = map;
    spec.mirror_reduce = true;
    spec.reduce_all = sums_early(s);
    if (!err)
        err = dp_schedule_new(&spec, &s->training);
    if (!err)
        err = recompute_add(s->training, s->how.schedule.recompute, &s->checkpoint_stages);
    free(map);
    if (err)
        *status = command_failed(err);
    return !err && check_stages(s, status);
}

static bool check_blocks(const struct settings *s, int stages)
{
    int64_t sum = 0;
    int empty = 0; /* a stage between the first and the last that has none */

    for (int i = 0; i < s->blocks.count; i++) {
        sum += s->blocks.items[i];
        if (i && i < s->blocks.count - 1 && !s->blocks.items[i])
            empty = i;
    }
    if (!s->blocks.count)
        return multiple("--layers", s->layers, stages, "the number of stages");
    if (is_sequential(s) || s->graph)
        command_misused("--blocks: expected a schedule, and replicas that sum their gradients");
    else if (s->blocks.count != stages)
        command_misused("--blocks: %d numbers, expected %d, one for each stage", s->blocks.count,
                        stages);
    else if (empty)
        command_misused("--blocks: 0 for stage %d, expected 1 or more between the first and the last",
                        empty);
    else if (sum != s->layers)
        command_misused("--blocks: %d blocks together, expected %d, the number of --layers",
                        (int)sum, (int)s->layers);
    else
        return true;
    return false;
}

static bool check_model(const struct settings *s)
{
    int stages = s->training ? s->training->stages : 1;

    return multiple("--width", s->width, s->heads, "the number of --heads") &&
           multiple("--batch", s->how.rows, s->how.microbatches, "the number of micro-batches (-M)") &&
           check_blocks(s, stages);
}

/* ---- replicas ------------------------------------------------------------------------------ */

static bool take_replicas(struct settings *s, int *status)
{
    if (s->how.replicas > 1 && s->assignment) {
        command_misused("-D %d: expected -D 1 with a placement, which is of one replica",
                        (int)s->how.replicas);
        return false;
    }
    if (!multiple("-M", s->how.microbatches, s->how.replicas, "the number of replicas (-D)") ||
        !settings_take_mix(s, status))
        return false;
    if (settings_processes(s) == 1)
        s->how.sums = DP_SUMS_ALL;
    return true;
}

/* Every stream of every replica whose gradients are summed holds whole blocks of the fixed order.
 */
static bool take_order_blocks(struct settings *s)
{
    const bool summed = !s->graph && !s->any_order;
    const int64_t streams = s->training ? s->training->streams : 1;
    const int64_t replicas = summed ? s->how.replicas : 1, least = streams * replicas;

    if (!s->how.order_blocks)
        s->how.order_blocks = least > 2 ? least : 2;
    if (replicas & (replicas - 1) || least > MAX_BLOCKS)
        command_misused("-D %d: expected a power of two up to %d, or --any-order: sums over other "
                        "numbers of replicas have no fixed order",
                        (int)replicas, (int)(MAX_BLOCKS / streams));
    else if (s->how.order_blocks < least)
        command_misused("--order-blocks %d: expected at least %d, one for each stream (%d) of each "
                        "replica (%d)",
                        (int)s->how.order_blocks, (int)least, (int)streams, (int)replicas);
    else
        return true;
    return false;
}

/* ---- output -------------------------------------------------------------------------------- */

/* Whether `path` can be written, found out without writing. */
static bool check_output(const char *option, const char *path)
{
    char parent[4096];
    struct stat there;

    if (!path)
        return true;
    if (!strcmp(path, "-")) {
        command_misused("%s -: expected a file; standard output is for the steps", option);
        return false;
    }
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

const char *const drawn_names[DRAWN] = {"--timeline", "--trace"};

const char *settings_drawn(const struct settings *s)
{
    for (int i = 0; i < DRAWN; i++)
        if (s->drawn[i])
            return drawn_names[i];
    return NULL;
}

static bool check_outputs(const struct settings *s)
{
    bool good = !is_sequential(s) || !settings_drawn(s);

    if (!good)
        command_misused("%s: expected a schedule; with --schedule none there is no pipeline to see",
                        settings_drawn(s));
    for (int i = 0; i < DRAWN && good; i++)
        good = check_output(drawn_names[i], s->drawn[i]);
    return good;
}

static bool check_order(const struct settings *s)
{
    if (is_sequential(s) && s->how.schedule.recompute)
        command_misused("--checkpoint %s: expected a schedule; --schedule none recomputes nothing",
                        dp_recompute_name(s->how.schedule.recompute));
    else if (s->checkpoint_stages.any && !s->how.schedule.recompute)
        command_misused("--checkpoint-stages: expected --checkpoint except_last or always");
    else if (s->how.fixed_order && s->any_order)
        command_misused("--fixed-order and --any-order: expected one of them");
    else if (!strcmp(s->execution, "messages") && strcmp(s->schedule_name, "async"))
        command_misused("--execution messages: expected --schedule async");
    else if (s->how.order_blocks & (s->how.order_blocks - 1))
        command_misused("--order-blocks %d: expected a power of two", (int)s->how.order_blocks);
    else
        return true;
    return false;
}

static bool check_offload(const struct settings *s)
{
    if (s->offload.text && is_sequential(s) && !s->offload.params)
        command_misused("--offload: expected params among them with --schedule none, where the others "
                        "go with the parameters");
    else if (s->offload.activations && strcmp(s->execution, "list"))
        command_misused("--offload activations: expected --execution list; what is evicted is chosen "
                        "for one order of ops");
    else if (s->offload.text && s->how.schedule.recompute)
        command_misused("--offload with --checkpoint %s: expected --checkpoint never; with --offload "
                        "activations as many are recomputed as the device's memory needs",
                        dp_recompute_name(s->how.schedule.recompute));
    else if (s->offload.folder[0] && s->how.sums)
        command_misused("--offload optimizer=%s: expected --mix all-reduce", s->offload.folder);
    else if (s->offload.text && !(s->device_memory > 0))
        command_misused("--offload: expected --device-memory, what may be on the device, for "
                        "instance --device-memory 64M");
    else if (s->how.offload.layers && !(s->offload.params && is_sequential(s)))
        command_misused("--buffers: expected --offload params and --schedule none");
    else if (s->how.offload.kept_share > 0 && !s->offload.params)
        command_misused("--device-share: expected --offload params");
    else if (s->device_memory > 0 && !s->offload.text)
        command_misused(
            "--device-memory: expected --offload params, or there is nothing that could "
            "be elsewhere");
    else
        return true;
    return false;
}

static bool check_late(const struct settings *s)
{
    const char *other = s->how.sums ? "--mix all-reduce"
                        : settings_on_cuda(s) && !s->offload.params
                            ? "--device cpu, or --offload params"
                            : NULL;

    if (s->how.delay_update && other)
        command_misused("--delay-update: expected %s; optimizers on the host are delayed that have all "
                        "gradients", other);
    return !s->how.delay_update || !other;
}

/* Its stages were measured, and their bytes counted, on the CPU and with all parameters apart. */
static bool check_plan(const struct settings *s)
{
    const bool offloads = s->offload.text && !(s->planned && s->planned->offloads);
    const char *other = offloads               ? "--offload"
                        : s->tied              ? "--tie-embeddings"
                        : settings_on_cuda(s) ? "--device cuda"
                                               : NULL;

    if (!s->planned || !other)
        return true;
    command_misused("--plan with %s: expected one of them; no plan was made with it", other);
    return false;
}

static bool check(struct settings *s, const struct operands *files, int world, int *status)
{
    *status = EXIT_USAGE;
    if (s->prompt)
        return settings_check_prompt(s, files);
    return take_list(s, status) && take_files(s, files) && take_placement(s, status) &&
           check_plan(s) && take_ranks(s, world) && check_order(s) &&
           check_outputs(s) &&
           settings_take_device(s) && take_replicas(s, status) && check_offload(s) &&
           (is_sequential(s) || build_schedules(s, status)) &&
           check_model(s) && check_late(s) &&
           take_order_blocks(s) && settings_check_save(s);
}

bool settings_parse(int argc, char **argv, int world, struct settings *s, int *status)
{
    struct operands files;
    struct plan_file *plan = NULL;

    *s = (struct settings){0};
    if (!args_parse(&settings_usage, argc, argv, s, &files, status))
        return false;
    if (s->plan) {
        const char *path = s->plan;
        if ((*status = plan_file_read(path, argc, argv, &plan)))
            return false;
        argc = plan->argc;
        argv = plan->argv;
        *s = (struct settings){.planned = plan};
        if (!args_parse(&settings_usage, argc, argv, s, &files, status) ||
            (*status = plan_file_check(plan, path, &settings_usage, s)))
            return settings_fini(s), false;
    }
    bool good = settings_resume(s, argc, argv, world, &files, status);
    struct restored r = {s->parsed, argc, argv};
    s->planned = plan;
    if (r.from)
        command_explain(settings_explain, &r);
    good = good && check(s, &files, world, status);
    command_explain(NULL, NULL);
    if (good)
        s->model = settings_model(s);
    else
        settings_fini(s);
    return good;
}

struct gpt_config settings_model(const struct settings *s)
{
    return (struct gpt_config){
        .layers = (int)s->layers,
        .width = (int)s->width,
        .heads = (int)s->heads,
        .context = (int)s->context,
        .batch = (int)(s->how.rows / s->how.microbatches),
        .dropout = (float)s->dropout,
        .seed = (uint64_t)s->how.seed,
        .tied = s->tied,
        .blocks = s->blocks.count ? s->blocks.items : NULL,
    };
}

void settings_fini(struct settings *s)
{
    dp_schedule_free(s->training);
    dp_assignment_free(s->assignment);
    dp_graph_free(s->graph);
    free(s->kernels_read);
    free(s->parsed);
    plan_file_free(s->planned);
}
