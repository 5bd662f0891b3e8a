/* SPDX-License-Identifier: Apache-2.0
 *
 * settings.c - the options of `dualpipe train`, one table: what is parsed and what --help prints, and by
 * the marks what a checkpoint has, what may not change where a run goes on, and what ranks compare.
 */
#include "train/settings.h"

#include "command.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- values that have a form of their own -------------------------------------------------------- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Numbers to `most`, and with_ranges also "2-5", with commas between them. */
static bool parse_numbers(const char *at, bool with_ranges, int32_t most, struct number_list *list)
{
    for (list->count = 0;; at++) {
        if (!is_digit(*at))
            return false;
        const long first = strtol(at, (char **)&at, 10);
        const bool is_range = with_ranges && *at == '-' && is_digit(at[1]);
        const long last = is_range ? strtol(at + 1, (char **)&at, 10) : first;
        if (last < first || last > most)
            return false;
        for (long n = first; n <= last; n++) {
            if (list->count == NUMBERS_MOST)
                return false;
            list->items[list->count++] = (int32_t)n;
        }
        if (*at != ',')
            return !*at;
    }
}

static bool block_list_parse(const char *text, void *member, char *why, size_t why_len)
{
    struct number_list *list = member;

    if (parse_numbers(text, false, GPT_MAX_LAYERS, list) && list->count <= BLOCK_LIST_MAX)
        return true;
    snprintf(why, why_len, "at most %d numbers of blocks, as in 1,3,3,1", BLOCK_LIST_MAX);
    return false;
}

static bool stage_list_parse(const char *text, void *member, char *why, size_t why_len)
{
    if (parse_numbers(text, true, NUMBERS_MOST - 1, member))
        return true;
    snprintf(why, why_len, "stages from 0 to %d, such as 0,2-3", NUMBERS_MOST - 1);
    return false;
}

/* One name of the list, and behind optimizer "=FOLDER". */
static bool parse_part(struct offload_parts *parts, const char *text, size_t len)
{
    const struct {
        const char *name;
        bool *member;
    } known[] = {{"params", &parts->params},
                 {"optimizer", &parts->optimizer},
                 {"activations", &parts->activations}};

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        const size_t name = strlen(known[i].name);
        if (len < name || memcmp(text, known[i].name, name) || *known[i].member)
            continue;
        *known[i].member = true;
        if (len == name)
            return true;
        if (known[i].member != &parts->optimizer || text[name] != '=' || len < name + 2 ||
            len - name > sizeof(parts->folder))
            return false;
        memcpy(parts->folder, text + name + 1, len - name - 1);
        return true;
    }
    return false;
}

static bool offload_parts_parse(const char *text, void *member, char *why, size_t why_len)
{
    struct offload_parts *parts = member;

    if (parts->text) {
        snprintf(why, why_len, "it once; it was %s before", parts->text);
        return false;
    }
    parts->text = text;
    for (size_t len;; text += len + 1) {
        len = strcspn(text, ",");
        if (!parse_part(parts, text, len)) {
            snprintf(why, why_len,
                     "params, optimizer or optimizer=FOLDER, and activations, in a list with "
                     "commas");
            return false;
        }
        if (!text[len])
            return true;
    }
}

static bool offload_buffers_parse(const char *text, void *member, char *why, size_t why_len)
{
    enum { MOST = 10000 };
    const bool any = !strcmp(text, "auto");
    char *end = NULL;
    const long count = any ? BUFFERS_AUTO : strtol(text, &end, 10);

    if (!any && (end == text || *end || count < 2 || count > MOST)) {
        snprintf(why, why_len, "auto, or a number from 2 to %d", MOST);
        return false;
    }
    *(int32_t *)member = (int32_t)count;
    return true;
}

/* ---- the options -------------------------------------------------------------------------------- */

static const char *const schedules[] = {"dualpipe", "dualpipev", "zb1p",  "1f1b", "interleaved",
                                        "zbv",      "gpipe",     "async", "none", NULL};
static const char *const dtypes[] = {"f32", "bf16", NULL};
static const char *const executions[] = {"list", "messages", NULL};
static const char *const models[] = {"gpt", NULL};
static const char *const transports[] = {"auto", "shm", "tcp", "mpi", "nccl", NULL};

#define AT(member) .offset = offsetof(struct settings, member)
/* A row of the library's, but for what is said here. */
#define OF_TRAINER .type = ARG_OPTION, AT(how), .options = dp_trainer_options

static const struct arg what_args[] = {
    {"data", 'd', "FILE",
     "text to learn from (- for standard input); several are put one after the other", ARG_LIST,
     AT(data)},
    {"model", 0, NULL, "what learns", ARG_CHOICE, AT(model_name), "gpt", .choices = models,
     .marks = KEPT},
    {"steps", 0, "N", "updates of the weights in all", ARG_INT, AT(steps), "300", 1, 1e9, .marks = KEPT},
    {"batch", 0, "N", "sequences of a step, over all micro-batches", ARG_INT, AT(how.rows), "16", 1,
     65536, .marks = KEPT | PLANNED},
    {"seed", OF_TRAINER, .fallback = "1", .help = "of initial weights, batches and dropout",
     .marks = KEPT},
    {"eval-every", 0, "N", "steps from one held-out loss to the next; 0: at the end only", ARG_INT,
     AT(eval_every), "50", 0, 1e9, .marks = COMPARED},
};

static const struct arg schedule_args[] = {
    {"schedule", 's', NULL,
     "order of the work (default dualpipe); none: one rank, one micro-batch after the other", ARG_CHOICE,
     AT(schedule_name), .choices = schedules, .marks = LAYOUT | MIXES | PLANNED},
    {"file", 0, "FILE", "or a list of your own: text, JSON, CSV or PyTorch's CSV", ARG_STRING, AT(file),
     .marks = LAYOUT | MIXES},
    {"ranks", OF_TRAINER, .help = "pipeline ranks, each a process (default 4; 1 without a schedule)",
     .marks = LAYOUT | MIXES | PLANNED},
    {"microbatches", OF_TRAINER, .help = "micro-batches of a step (default 8, or what the list has)",
     .marks = KEPT | PLANNED},
    {"virtual-stages", OF_TRAINER, .marks = LAYOUT},
    {"slack", OF_TRAINER, .fallback = "0", .marks = LAYOUT | COMPARED | PLANNED},
    {"fixed-order", OF_TRAINER,
     .help = "add gradients up in one order under every schedule (the default on the CPU)"},
    {"any-order", 0, NULL, "add gradients up as they come: less memory, other last digits", ARG_FLAG,
     AT(any_order), .marks = KEPT},
    {"order-blocks", OF_TRAINER,
     .help = "sums of gradients in the fixed order: a power of two (default: 2, or as many as streams "
     "and replicas need)",
     .marks = KEPT},
    {"checkpoint", OF_TRAINER, .fallback = "never", .marks = PLANNED},
    {"checkpoint-stages", 0, "LIST", "the stages of which --checkpoint recomputes: 0,2-3 (all)",
     ARG_PARSE, AT(checkpoint_stages), .parse = stage_list_parse},
    {"offload", 0, "PARTS",
     "what may live on the host: params (with the optimizer's state; --device cuda needs it), "
     "activations, optimizer", ARG_PARSE, AT(offload), .parse = offload_parts_parse, .marks = OFFLOADED},
    {"device-memory", 0, "SIZE", "how much of the model may be on the device, with --offload",
     ARG_BYTES, AT(device_memory), .min = 1, .max = 1e15, .marks = OFFLOADED},
    {"buffers", 0, "N|auto",
     "layers whose parameters are on the device at once, with --offload params --schedule none; auto, "
     "the default: as many as there is room for",
     ARG_PARSE, AT(how.offload.layers), .parse = offload_buffers_parse},
    {"device-share", OF_TRAINER, .fallback = "0"},
    {"delay-update", OF_TRAINER, .marks = KEPT},
    {"blocks", 0, "LIST", "blocks of each stage, as in 1,3,3,1 (default: the same number)", ARG_PARSE,
     AT(blocks), .parse = block_list_parse, .marks = LAYOUT | COMPARED | PLANNED},
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
    {"mix", 0, "HOW",
     "all-reduce: sum their gradients; reduce-scatter: the same, each with a share of the optimizer's "
     "state; or average their weights by a graph of 'dualpipe mix', or by that of a file",
     ARG_STRING, AT(mix), .fallback = "all-reduce", .or_file = true, .marks = LAYOUT | MIXES},
    {"replicas", OF_TRAINER, .fallback = "1", .marks = LAYOUT | MIXES | COMPARED},
    {"mix-local", OF_TRAINER, .marks = LAYOUT | MIXES},
    {"survive", OF_TRAINER},
    {"spare", 0, "N",
     "ranks that wait to take the place of one that is killed, with --survive and a pipeline", ARG_INT,
     AT(spares), "0", 0, 1024, .marks = COMPARED},
    {"restart", 0, "N", "of those that are killed start the first N again, with --survive", ARG_INT,
     AT(restarts), "0", 0, 1e6},
    {"mix-algorithm", OF_TRAINER, .fallback = "d-psgd", .marks = LAYOUT | MIXES | COMPARED},
    {"mix-factor", OF_TRAINER, .marks = LAYOUT | MIXES | COMPARED},
    {"mix-compress", OF_TRAINER, .fallback = "none", .marks = LAYOUT | MIXES | COMPARED},
    {"mix-staleness", OF_TRAINER, .marks = LAYOUT | MIXES | COMPARED},
    {"local-steps", OF_TRAINER, .marks = LAYOUT | MIXES | COMPARED},
    {"outer-rate", OF_TRAINER, .marks = LAYOUT | MIXES | COMPARED},
    {"outer-momentum", OF_TRAINER, .fallback = "0", .marks = LAYOUT | MIXES | COMPARED},
};

static const struct arg model_args[] = {
    {"layers", 'L', "N", "transformer blocks", ARG_INT, AT(layers), "8", 1, GPT_MAX_LAYERS,
     .marks = KEPT | MODEL | PLANNED},
    {"width", 0, "N", "of the residual stream", ARG_INT, AT(width), "64", 1, 16384,
     .marks = KEPT | MODEL | PLANNED},
    {"heads", 0, "N", "attention heads", ARG_INT, AT(heads), "4", 1, 1024,
     .marks = KEPT | MODEL | PLANNED},
    {"context", 0, "N", "bytes of a sequence", ARG_INT, AT(context), "64", 1, 16384,
     .marks = KEPT | MODEL | PLANNED},
    {"tie-embeddings", 0, NULL, "the head's weights are the table of the embedding", ARG_FLAG, AT(tied),
     .marks = KEPT | MODEL},
};

static const struct arg optimizer_args[] = {
    {"lr", OF_TRAINER, .fallback = "0.006", .marks = KEPT},
    {"warmup", OF_TRAINER, .fallback = "20",
     .help = "steps until the peak; then a cosine down to a tenth", .marks = KEPT},
    {"decay", OF_TRAINER, .fallback = "0.1", .marks = KEPT},
    {"clip", OF_TRAINER, .fallback = "1", .marks = KEPT},
    {"dropout", 0, "X", "share of activations set to zero", ARG_REAL, AT(dropout), "0", 0, 0.99,
     .marks = KEPT},
};

static const struct arg device_args[] = {
    {"device", 0, "NAME",
     "what computes: cpu, cuda (each rank on a GPU of its own, if there are enough) or cuda:N",
     ARG_STRING, AT(device), "cpu"},
    {"dtype", 0, NULL,
     "of activations on CUDA; with --schedule none of the weights that layers see, and of their "
     "gradients. What is updated is f32",
     ARG_CHOICE, AT(dtype), "f32", .choices = dtypes, .marks = COMPARED},
    {"no-graphs", 0, NULL, "on CUDA: launch kernels one by one, not callbacks as CUDA graphs", ARG_FLAG,
     AT(no_graphs)},
    {"kernels", 0, "FILE", "a fatbin, cubin or PTX of tools/train/cuda instead of that built in",
     ARG_STRING, AT(kernels)},
};

static const struct arg saved_args[] = {
    {"save", OF_TRAINER},
    {"save-every", OF_TRAINER, .fallback = "0", .marks = COMPARED},
    {"resume", 0, "DIR", "go on from the newest checkpoint there; options left out are as they were",
     ARG_STRING, AT(resume)},
    {"prompt", 0, "TEXT", "train nothing: let the model of --resume go on from this text",
     ARG_STRING, AT(prompt)},
};

static const struct arg output_args[] = {
    {"timeline", 0, "FILE.svg", "draw the last step, all ranks", ARG_STRING, AT(drawn[0]),
     .written = true},
    {"trace", 0, "FILE.json", "the last step for ui.perfetto.dev", ARG_STRING, AT(drawn[1]),
     .written = true},
    {"sample", 0, "N", "bytes of text to generate in the end", ARG_INT, AT(sample), "300", 0, 1e6,
     .marks = COMPARED},
    {"temperature", 0, "X", "of that text: below 1 likelier, 0 always the likeliest byte", ARG_REAL,
     AT(temperature), "0.8", 0, 100, .marks = COMPARED},
    {"json", 0, NULL, "one JSON object a line on standard output", ARG_FLAG, AT(json)},
    {"stat-dir", 0, "DIR",
     "where 'dualpipe stat' sees this job (default DUALPIPE_NET_STAT_DIR, or /dev/shm/dualpipe-UID); "
     "none: nowhere", ARG_STRING, AT(stat_dir)},
};

static const struct arg_group groups[] = {
    ARG_GROUP("what to learn", what_args), ARG_GROUP("how the work is ordered", schedule_args),
    ARG_GROUP("replicas", replica_args), ARG_GROUP("the model", model_args),
    ARG_GROUP("the optimizer", optimizer_args), ARG_GROUP("the device", device_args),
    ARG_GROUP("saved state", saved_args), ARG_GROUP("output", output_args), {0}
};

const struct usage settings_usage = {
    .command = "dualpipe train", .operands = "[FILE...]", .max_operands = 0, .operand_files = true,
    .groups = groups,
    .about = "Train a byte-level GPT on text, its layers spread\n"
             "over the ranks of a pipeline. The ranks are processes that the command starts and\n"
             "ends itself; under torchrun (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT) each\n"
             "process is one. Every schedule gives the same losses, to the last bit, as\n"
             "'--schedule none' in one process; so do replicas that sum their gradients.",
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

/* ---- words ------------------------------------------------------------------------------------- */

bool word_list_add(struct word_list *list, const char *name, const char *value)
{
    const size_t room = strlen(name) + strlen(value) + sizeof("--=");
    char *word = list->count < WORDS_MOST ? malloc(room) : NULL;

    if (word)
        snprintf(list->items[list->count++] = word, room, "--%s%s%s", name, *value ? "=" : "", value);
    return word;
}

const char *word_list_find(const struct word_list *list, const char *name)
{
    for (int i = 0; i < list->count; i++) {
        const char *word = list->items[i] + 2, *end = word + strcspn(word, "=");
        if (strlen(name) == (size_t)(end - word) && !strncmp(name, word, strlen(name)))
            return *end ? end + 1 : end;
    }
    return NULL;
}

void word_list_fini(struct word_list *list)
{
    while (list->count)
        free(list->items[--list->count]);
}

char **word_list_before(const struct word_list *list, int *argc, char **argv)
{
    char **line = calloc((size_t)(*argc + list->count) + 1, sizeof(*line));

    if (!line)
        return NULL;
    line[0] = argv[0];
    memcpy(line + 1, list->items, (size_t)list->count * sizeof(*line));
    memcpy(line + 1 + list->count, argv + 1, (size_t)(*argc - 1) * sizeof(*line));
    *argc += list->count;
    return line;
}

/* ---- values as text ---------------------------------------------------------------------------- */

static bool find_option(int i, struct arg *out)
{
    for (const struct arg_group *g = groups; g->title; i -= (int)g++->count)
        if ((size_t)i < g->count) {
            *out = args_resolve(&g->args[i]);
            return true;
        }
    return false;
}

bool settings_option(int i, struct setting *out)
{
    struct arg a;
    const bool found = find_option(i, &a);

    if (found)
        *out = (struct setting){i, a.name, a.letter, a.marks};
    return found;
}

static bool join(const struct number_list *list, char *out)
{
    int used = 0;

    for (int i = 0; i < list->count && used < VALUE_LEN; i++)
        used += snprintf(out + used, (size_t)(VALUE_LEN - used), "%s%d", i ? "," : "", list->items[i]);
    return list->count;
}

/* A number that may not be 0 is 0 where the option was left out. */
static bool value_of(const struct arg *a, const struct settings *s, int digits, char *out)
{
    const void *member = (const char *)s + a->offset;
    const enum dp_option_type type = a->option ? a->option->type : DP_OPTION_INT;

    if (a->type == ARG_INT) {
        const int64_t n = type == DP_OPTION_INT32 ? *(const int32_t *)member : *(const int64_t *)member;
        snprintf(out, VALUE_LEN, "%" PRId64, n);
        return n || a->min <= 0;
    }
    if (a->type == ARG_REAL || a->type == ARG_BYTES) {
        snprintf(out, VALUE_LEN, "%.*g", digits, *(const double *)member);
        return *(const double *)member > 0 || (a->min <= 0 && !(a->option && a->option->above));
    }
    if (a->parse == block_list_parse)
        return join(member, out);
    *out = '\0';
    if (a->type == ARG_FLAG)
        return *(const bool *)member;
    const char *text = type == DP_OPTION_ENUM
                           ? a->choices[*(const int32_t *)member]
                           : *(const char *const *)member; /* --offload begins so, too */
    if (text)
        snprintf(out, VALUE_LEN, "%s", text);
    return text;
}

bool settings_value(const struct setting *option, const struct settings *s, int digits, char *out)
{
    struct arg a;

    return find_option(option->number, &a) && value_of(&a, s, digits, out);
}

/* ---- all of it --------------------------------------------------------------------------------- */

/* The words of the plan come first, so that the command line's replace them. */
static bool take_plan(struct settings *s, int *argc, char ***argv, struct operands *files, int *status)
{
    const char *path = s->plan;
    char *alone[] = {(*argv)[0], NULL}, **words = NULL, **line = NULL;
    struct resume plan = {0};
    struct settings own = {0};
    bool is_parsed = false;
    int count = 1;

    snprintf(plan.path, sizeof(plan.path), "--plan %s", path);
    *status = plan_file_read(path, &plan.held);
    if (!*status)
        words = word_list_before(&plan.held, &count, alone);
    struct restored r = {&plan, *argc, *argv};
    if (!*status)
        line = word_list_before(&plan.held, argc, *argv);
    *s = (struct settings){.planned = plan.held, .lines.with_plan = line};
    if (!*status && (!words || !line))
        *status = command_broke("--plan %s: out of memory", path);
    command_explain(settings_explain, &r);
    is_parsed = !*status && args_parse(&settings_usage, count, words, &own, files, status) &&
                args_parse(&settings_usage, *argc, line, s, files, status);
    if (is_parsed) {
        const unsigned marks = PLANNED | (own.offload.text ? OFFLOADED : 0);
        *argv = line;
        *status = settings_same(s, &own, marks, "as in", plan.path, "") ? 0 : EXIT_USAGE;
    }
    command_explain(NULL, NULL);
    free(words);
    return is_parsed && !*status;
}

bool settings_parse(int argc, char **argv, int world, struct settings *s, int *status)
{
    struct operands files;

    *s = (struct settings){0};
    if (!args_parse(&settings_usage, argc, argv, s, &files, status))
        return false;
    bool good = (!s->plan || take_plan(s, &argc, &argv, &files, status)) &&
                settings_resume(s, argc, argv, world, &files, status);
    struct restored r = {&s->from, argc, argv};
    if (good) {
        command_explain(settings_explain, &r);
        good = settings_check(s, &files, world, status);
        command_explain(NULL, NULL);
    }
    if (good)
        s->model = settings_model(s);
    else
        settings_fini(s);
    return good;
}

void settings_fini(struct settings *s)
{
    dp_schedule_free(s->training);
    dp_assignment_free(s->assignment);
    dp_graph_free(s->graph);
    free(s->kernels_read);
    word_list_fini(&s->from.words);
    word_list_fini(&s->planned);
    free(s->lines.with_plan);
    free(s->lines.with_saved);
}
