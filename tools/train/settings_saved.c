/* SPDX-License-Identifier: Apache-2.0
 *
 * settings_saved.c - the options about saved state: where it goes, and which options of a run hold
 * for the run that goes on from it.
 */
#include "train/settings.h"

#include "command.h"

#include <jansson.h>

#include <errno.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- writing ------------------------------------------------------------------------------- */

/* A file in the folder, of one byte: 0, or the errno of what was refused. */
static int try_to_write(const char *folder)
{
    char path[CHECKPOINT_PATH];

    if (snprintf(path, sizeof(path), "%s/probe-XXXXXX", folder) >= (int)sizeof(path))
        return ENAMETOOLONG;
    int fd = mkstemp(path);
    if (fd < 0)
        return errno;
    int err = write(fd, "", 1) == 1 ? 0 : errno;
    if (close(fd) && !err)
        err = errno;
    unlink(path);
    return err;
}

/* The folder, made and given up again if it is not there. What permissions do not tell (a file
 * system that is full, or takes no files) is known before any step is taken. */
static bool check_folder(const struct settings *s)
{
    const char *folder = s->how.checkpoint.folder;
    struct stat there;
    int err = 0;

    if (s->how.checkpoint.every && !folder) {
        command_misused("--save-every %d: expected --save, the folder for checkpoints",
                        (int)s->how.checkpoint.every);
        return false;
    }
    if (!folder)
        return true;
    const bool exists = !stat(folder, &there);
    if (exists && !S_ISDIR(there.st_mode))
        err = ENOTDIR;
    else if (!exists && mkdir(folder, 0777))
        err = errno;
    else
        err = try_to_write(folder);
    if (!exists)
        rmdir(folder);
    if (!err)
        return true;
    command_misused("--save %s: %s; expected a folder that can be written", folder, strerror(err));
    return false;
}

bool settings_check_save(const struct settings *s)
{
    const int err = !check_folder(s) ? -1 : s->offload.folder[0] ? try_to_write(s->offload.folder) : 0;

    if (err > 0)
        command_misused("--offload optimizer=%s: %s; expected a folder that can be written",
                        s->offload.folder, strerror(err));
    return !err;
}

bool settings_save_due(const struct settings *s, uint64_t step)
{
    const uint64_t every = s->how.checkpoint.every;

    return s->how.checkpoint.folder &&
           (step == (uint64_t)s->steps || (every && step % every == 0));
}

/* What the numbers of a run depend on. */
static const char *const kept[] = {
    "layers", "width", "heads",  "context", "model", "batch",   "microbatches", "steps",
    "seed",   "lr",    "warmup", "decay",   "clip",  "dropout", "any-order",    "order-blocks",
    "tie-embeddings", "delay-update", NULL,
};

/* What they do not depend on, unless replicas mix their weights. */
static const char *const layout[] = {
    "schedule", "file", "virtual-stages", "slack", "blocks", "ranks", "replicas", "mix", "mix-local",
    "mix-algorithm", "local-steps", "outer-rate", "outer-momentum", "mix-factor", "mix-compress",
    "mix-staleness", NULL,
};

static const char program_name[] = "dualpipe train";

/* ---- writing --------------------------------------------------------------------------------- */

static struct arg find_arg(const char *name)
{
    for (const struct arg_group *g = settings_usage.groups; g->title; g++)
        for (size_t i = 0; i < g->count; i++)
            if (!strcmp(g->args[i].name, name))
                return args_resolve(&g->args[i]);
    return (struct arg){0};
}

static int64_t whole_of(const struct arg *a, const void *member)
{
    return a->option && a->option->type == DP_OPTION_INT32 ? *(const int32_t *)member
                                                           : *(const int64_t *)member;
}

static const char *text_of(const struct arg *a, const void *member)
{
    return a->option && a->option->type == DP_OPTION_ENUM ? a->choices[*(const int32_t *)member]
                                                          : *(const char *const *)member;
}

/* A number that may not be 0 is 0 where the option was left out. */
static bool is_set(const struct arg *a, const void *member)
{
    if (a->type == ARG_FLAG)
        return *(const bool *)member;
    if (a->type == ARG_INT)
        return whole_of(a, member) || a->min <= 0;
    if (a->type == ARG_REAL || a->type == ARG_BYTES)
        return *(const double *)member > 0 || (a->min <= 0 && !(a->option && a->option->above));
    if (a->parse == block_list_parse)
        return ((const struct block_list *)member)->count;
    return text_of(a, member);
}

static size_t join_blocks(const struct block_list *blocks, char out[static RESUME_WORD])
{
    size_t used = 0;

    for (int i = 0; i < blocks->count && used < RESUME_WORD; i++)
        used += (size_t)snprintf(out + used, RESUME_WORD - used, "%s%d", i ? "," : "",
                                 (int)blocks->items[i]);
    return used;
}

/* What an option says, "" of a flag; NULL: nothing, or a list that is too long. */
static const char *value_of(const struct arg *a, const void *values, int digits,
                            char out[static RESUME_WORD])
{
    const void *member = (const char *)values + a->offset;

    if (!is_set(a, member))
        return NULL;
    if (a->parse == block_list_parse)
        return join_blocks(member, out) + strlen(a->name) + 3 < RESUME_WORD ? out : NULL;
    if (a->type == ARG_FLAG)
        *out = '\0';
    else if (a->type == ARG_INT)
        snprintf(out, RESUME_WORD, "%" PRId64, whole_of(a, member));
    else if (a->type == ARG_REAL || a->type == ARG_BYTES)
        snprintf(out, RESUME_WORD, "%.*g", digits, *(const double *)member);
    else
        snprintf(out, RESUME_WORD, "%s", text_of(a, member));
    return out;
}

const char *settings_value(const struct settings *s, const char *name, char out[static RESUME_WORD])
{
    const struct arg a = find_arg(name);

    return value_of(&a, s, 17, out);
}

/* 17 digits tell every double from its neighbours. */
static void add_word(json_t *list, const struct arg *a, const void *values)
{
    char value[RESUME_WORD], word[2 * RESUME_WORD];

    if (!value_of(a, values, 17, value))
        return;
    snprintf(word, sizeof(word), "--%s%s%s", a->name, a->type == ARG_FLAG ? "" : "=", value);
    word[RESUME_WORD - 1] = '\0';
    json_array_append_new(list, json_string(word));
}

static json_t *list_words(const char *const *names, const struct settings *values)
{
    json_t *list = json_array();

    for (; *names; names++) {
        const struct arg a = find_arg(*names);
        add_word(list, &a, values);
    }
    return list;
}

char *settings_text(const struct settings *s, uint64_t step, uint64_t data)
{
    const char *const *from = s->file ? layout + 1 : layout; /* a list is its own schedule */
    char digest[17];

    snprintf(digest, sizeof(digest), "%016" PRIx64, data);
    json_t *root = json_pack("{s:s, s:s, s:s, s:I, s:o, s:o}", "program", program_name, "version",
                             dp_version(), "data", digest, "step", (json_int_t)step, "options",
                             list_words(kept, s), "layout",
                             list_words(from, s));
    char *text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    return text;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Is it the word of this option? */
static bool is_of(const char *word, const char *option)
{
    const size_t len = strcspn(word + 2, "=");

    return strlen(option) == len && !strncmp(option, word + 2, len);
}

static bool has_option_of(const struct resume *r, const char *word)
{
    char option[RESUME_WORD];

    snprintf(option, sizeof(option), "%.*s", (int)strcspn(word + 2, "="), word + 2);
    for (int i = 0; i < r->word_count; i++)
        if (is_of(r->words[i], option))
            return true;
    return false;
}

/* Those that are not there yet. */
static bool take_words(const json_t *list, struct resume *out)
{
    const size_t count = json_array_size(list);

    for (size_t i = 0; i < count; i++) {
        const char *word = json_string_value(json_array_get(list, i));
        if (!word || strlen(word) >= RESUME_WORD || strncmp(word, "--", 2))
            return false;
        if (has_option_of(out, word))
            continue;
        if (out->word_count == RESUME_WORDS)
            return false;
        snprintf(out->words[out->word_count++], RESUME_WORD, "%s", word);
    }
    return true;
}

bool resume_take(const struct dp_checkpoint *c, struct resume *out)
{
    json_t *root = json_loads(dp_checkpoint_json(c), 0, NULL);
    const char *program = json_string_value(json_object_get(root, "program"));
    const char *version = json_string_value(json_object_get(root, "version"));
    const json_int_t step = json_integer_value(json_object_get(root, "step"));
    const bool good = program && !strcmp(program, program_name) && step > 0 &&
                      take_words(json_object_get(root, "options"), out) && out->word_count &&
                      take_words(json_object_get(root, "layout"), out);

    const char *data = json_string_value(json_object_get(root, "data"));
    out->data = data ? strtoull(data, NULL, 16) : 0;
    snprintf(out->version, sizeof(out->version), "%s", version ? version : "unknown");
    out->step = (uint64_t)step;
    json_decref(root);
    return good;
}

/* The checkpoint that --resume names. 0, else an EXIT_ value after one line. */
static int read_checkpoint(const char *where, struct resume *out)
{
    struct dp_checkpoint *c;
    int status = checkpoint_find("--resume ", where, out->path);
    int err = status ? 0 : dp_checkpoint_open(out->path, &c);

    if (status || err)
        return status ? status : command_failed(err);
    if (!resume_take(c, out))
        status =
            command_misused("--resume %s: expected a checkpoint of 'dualpipe train'; this file "
                            "is another program's",
                            out->path);
    dp_checkpoint_close(c);
    return status;
}

static bool is_named(const char *const *names, const char *word)
{
    while (*names && !is_of(word, *names))
        names++;
    return *names;
}

/* ---- going on ------------------------------------------------------------------------------ */

struct values {
    char now[RESUME_WORD], then[RESUME_WORD];
    const char *x, *y;
};

static bool differ(const struct arg *a, const struct settings *s, const struct settings *was, int digits,
                   struct values *v)
{
    v->x = value_of(a, s, digits, v->now);
    v->y = value_of(a, was, digits, v->then);
    v->x = v->x ? v->x : "none";
    v->y = v->y ? v->y : "none";
    return strcmp(v->x, v->y);
}

/* false, after one line, if one of the options differs from what the checkpoint has. */
static bool same(const struct settings *s, const struct settings *was, const char *const *names,
                 const char *as, const char *why)
{
    struct values v;

    for (; *names; names++) {
        const struct arg a = find_arg(*names);
        if (!differ(&a, s, was, 17, &v))
            continue;
        if (!differ(&a, s, was, 6, &v))
            differ(&a, s, was, 17, &v);
        command_misused("--%s%s%s: expected %s, %s %s%s", *names, *v.x ? " " : "", v.x, v.y, as,
                        s->from.path, why);
        return false;
    }
    return true;
}

static bool same_model(const struct settings *s, const struct settings *was)
{
    static const char *const names[] = {"layers", "width", "heads", "context", "tie-embeddings", NULL};

    return same(s, was, names, "as the model in", " has it");
}

bool settings_sums(const struct settings *s)
{
    return !strcmp(s->mix, "all-reduce") || !strcmp(s->mix, "reduce-scatter");
}

/* What is in flight between replicas that mix belongs to their layout. */
static bool same_replicas(const struct settings *s, const struct settings *was)
{
    static const char *const names[] = {
        "mix", "mix-algorithm", "mix-compress", "schedule", "file", "replicas", "ranks", "mix-local",
        "local-steps", "outer-rate", "outer-momentum", "mix-factor", "mix-staleness", NULL,
    };

    return (settings_sums(s) && settings_sums(was)) ||
           same(s, was, names, "as in", "; replicas that mix their weights go on as they were");
}

/* A later version may have options that this one has not. */
static bool knows_options(const struct resume *from)
{
    for (int i = 0; i < from->word_count; i++)
        if (!is_named(kept, from->words[i]) && !is_named(layout, from->words[i])) {
            command_misused("%s: written by version %s with %s, which this one, %s, does not have",
                            from->path, from->version, from->words[i], dp_version());
            return false;
        }
    return true;
}

/* Every checkpoint says these; with a default for what it lacks, another run would go on. */
static bool is_whole(const struct resume *from, const struct settings *was)
{
    if (!was->how.microbatches)
        command_misused("%s: no --microbatches among its options, expected one", from->path);
    else if (was->width % was->heads)
        command_misused("%s: --width=%d among its options, expected a multiple of %d, its --heads",
                        from->path, (int)was->width, (int)was->heads);
    else
        return true;
    return false;
}

bool settings_of_words(const struct resume *from, struct settings *out)
{
    char *words[1 + RESUME_WORDS] = {"dualpipe train"};
    struct operands none;
    int status;

    for (int i = 0; i < from->word_count; i++)
        words[1 + i] = (char *)from->words[i];
    return knows_options(from) &&
           args_parse(&settings_usage, 1 + from->word_count, words, out, &none, &status) &&
           is_whole(from, out);
}

/* Whether what the command line says leaves no place for a part of the layout: another order of work
 * has its own ranks and blocks, another number of ranks (or a job of another size) its own blocks. */
static bool is_overruled(const struct settings *typed, const struct settings *was, int world,
                         const char *word)
{
    static const char *const order[] = {"schedule", "file", "virtual-stages", "slack", NULL};
    static const char *const replicas[] = {"replicas", "mix", NULL};
    const bool alone = was->schedule_name && !strcmp(was->schedule_name, "none");
    const bool orders = typed->schedule_name || typed->file;
    const bool counts =
        typed->how.schedule.ranks || (world && settings_processes(was) + typed->spares != world);

    if (!settings_sums(was))
        return false;
    if (is_named(order, word))
        return orders || (alone && counts);
    if (is_of(word, "blocks"))
        return orders || counts;
    if (is_of(word, "ranks"))
        return counts || typed->file ||
               (orders && (alone || !strcmp(typed->schedule_name, "none")));
    return is_named(replicas, word) && (typed->offload.text || typed->how.delay_update);
}

static void drop_overruled(struct resume *from, const struct settings *typed,
                           const struct settings *was, int world)
{
    int count = 0;

    for (int i = 0; i < from->word_count; i++)
        if (!is_overruled(typed, was, world, from->words[i]))
            memmove(from->words[count++], from->words[i], RESUME_WORD);
    from->word_count = count;
}

/* The words of the checkpoint come first, so that the command line's replace them. */
static bool parse_again(struct settings *s, int argc, char **argv, int world, struct operands *files,
                        int *status)
{
    struct settings was = {0};
    struct resume *from = malloc(sizeof(*from)), *then = malloc(sizeof(*then));
    char **words = calloc((size_t)argc + RESUME_WORDS + 1, sizeof(*words));
    bool good = from && then && words;

    if (good) {
        *from = *then = s->from;
        *status = EXIT_USAGE;
        good = settings_of_words(then, &was);
        if (good)
            drop_overruled(from, s, &was, world);
        const int more = from->word_count;
        words[0] = argv[0];
        for (int i = 0; i < more; i++)
            words[1 + i] = from->words[i];
        memcpy(words + 1 + more, argv + 1, (size_t)(argc - 1) * sizeof(*words));
        *s = (struct settings){0};
        good = good && args_parse(&settings_usage, argc + more, words, s, files, status);
        s->from = *from;
        s->parsed = from;
        /* The operands are at the end of words, which ends here. */
        memcpy(argv + argc - files->count, files->items, (size_t)files->count * sizeof(*argv));
        files->items = argv + argc - files->count;
        *status = good ? EXIT_USAGE : *status;
        good = good && same_model(s, &was) && (s->prompt || same_replicas(s, &was));
    } else {
        *status = command_broke("--resume: out of memory");
        free(from);
    }
    free(then);
    free(words);
    return good;
}

/* Of the checkpoint's files some are read only after an output has been opened. */
static bool is_beside(const char *output, const char *index)
{
    char copy[2][CHECKPOINT_PATH];
    struct stat there[2];

    if (!output)
        return false;
    snprintf(copy[0], sizeof(copy[0]), "%s", output);
    snprintf(copy[1], sizeof(copy[1]), "%s", index);
    return !stat(dirname(copy[0]), &there[0]) && !stat(dirname(copy[1]), &there[1]) &&
           there[0].st_dev == there[1].st_dev && there[0].st_ino == there[1].st_ino;
}

static bool spares_checkpoint(const struct settings *s)
{
    for (int i = 0; i < DRAWN; i++)
        if (is_beside(s->drawn[i], s->from.path)) {
            command_misused("%s %s: is in the folder of the checkpoint that --resume reads; expected "
                            "another one", drawn_names[i], s->drawn[i]);
            return false;
        }
    return true;
}

bool settings_resume(struct settings *s, int argc, char **argv, int world, struct operands *files,
                     int *status)
{
    if (!s->resume)
        return true;
    *status = read_checkpoint(s->resume, &s->from);
    if (*status)
        return false;
    *status = EXIT_USAGE;
    if (!parse_again(s, argc, argv, world, files, status) ||
        !spares_checkpoint(s))
        return false;
    if (s->prompt || (uint64_t)s->steps > s->from.step)
        return true;
    *status = command_misused("--steps %d: expected more than the %" PRIu64 " that are done in %s",
                              (int)s->steps, s->from.step, s->from.path);
    return false;
}

static bool has_word(const char *line, const char *word)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz-";
    const size_t len = strlen(word);

    for (const char *at = line; (at = strstr(at, word)); at++)
        if ((at == line || !memchr(letters, at[-1], sizeof(letters) - 1)) &&
            !memchr(letters, at[len], sizeof(letters) - 1))
            return true;
    return false;
}

/* As "--ranks 2" or "-P 2", or, where the library says it, as "ranks: 2". */
static bool mentions(const char *line, const struct arg *a)
{
    const char letter[] = {'-', a->letter, '\0'};
    const size_t len = strlen(a->name);
    char option[64];

    snprintf(option, sizeof(option), "--%s", a->name);
    return has_word(line, option) || (a->letter && has_word(line, letter)) ||
           (!strncmp(line, a->name, len) && line[len] == ':');
}

static bool is_typed(const struct arg *a, int argc, char **argv)
{
    const char letter[] = {'-', a->letter, '\0'};

    for (int i = 1; i < argc; i++)
        if ((!strncmp(argv[i], "--", 2) && is_of(argv[i], a->name)) ||
            (a->letter && !strncmp(argv[i], letter, 2)))
            return true;
    return false;
}

static bool is_restored(const struct restored *r, const char *word, const char *line)
{
    for (const struct arg_group *g = settings_usage.groups; g->title; g++)
        for (size_t k = 0; k < g->count; k++) {
            const struct arg a = args_resolve(&g->args[k]);
            if (is_of(word, a.name) && mentions(line, &a))
                return !is_typed(&a, r->argc, r->argv);
        }
    return false;
}

void settings_explain(void *user, const char *line, char *more, size_t room)
{
    const struct restored *r = user;
    size_t used = 0;

    for (int i = 0; i < r->from->word_count && used < room; i++)
        if (is_restored(r, r->from->words[i], line))
            used += (size_t)snprintf(more + used, room - used, "%s%s", used ? ", " : "; ",
                                     r->from->words[i]);
    if (used && used < room)
        snprintf(more + used, room - used, " as in %s", r->from->path);
}

/* ---- text from a saved model ---------------------------------------------------------------- */

bool settings_check_prompt(const struct settings *s, const struct operands *files)
{
    if (!s->resume)
        command_misused("--prompt: expected --resume, the folder with the model that is to write");
    else if (s->data.count || files->count)
        command_misused("--prompt with --data %s: expected one of them; the model learns nothing",
                        s->data.count ? s->data.items[0] : files->items[0]);
    else if (s->how.checkpoint.folder || settings_drawn(s))
        command_misused("--prompt with %s: expected one of them; no step is taken",
                        s->how.checkpoint.folder ? "--save" : settings_drawn(s));
    else
        return true;
    return false;
}
