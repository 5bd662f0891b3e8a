/* SPDX-License-Identifier: Apache-2.0
 *
 * settings_saved.c - the options that a checkpoint has, and how they hold for the run that goes on from
 * it.
 */
#include "train/settings.h"

#include "command.h"

#include <jansson.h>

#include <inttypes.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char program_name[] = "dualpipe train";

/* ---- writing ------------------------------------------------------------------------------- */

/* A list is its own schedule. NULL: no memory. */
static json_t *list_words(const struct settings *s, enum settings_mark mark)
{
    struct word_list words = {0};
    json_t *list = json_array();
    char value[VALUE_LEN];
    struct setting a;
    bool good = list;

    for (int i = 0; good && settings_option(i, &a); i++)
        if (a.marks & mark && !(s->file && !strcmp(a.name, "schedule")) &&
            settings_value(&a, s, 17, value))
            good = word_list_add(&words, a.name, value);
    for (int i = 0; good && i < words.count; i++)
        good = !json_array_append_new(list, json_string(words.items[i]));
    word_list_fini(&words);
    if (!good)
        json_decref(list);
    return good ? list : NULL;
}

char *settings_text(const struct settings *s, uint64_t data)
{
    char digest[17];

    snprintf(digest, sizeof(digest), "%016" PRIx64, data);
    json_t *root = json_pack("{s:s, s:s, s:s, s:o, s:o}", "program", program_name, "version",
                             dp_version(), "data", digest, "options", list_words(s, KEPT), "layout",
                             list_words(s, LAYOUT));
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return text;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* The name of a word's option, cut off at its end. */
static const char *name_of(const char *word, char name[static 64])
{
    snprintf(name, 64, "%.*s", (int)strcspn(word + 2, "="), word + 2);
    return name;
}

/* Those that are not there yet. */
static bool take_words(const json_t *list, struct word_list *out)
{
    const size_t count = json_array_size(list);
    char name[64];

    for (size_t i = 0; i < count; i++) {
        const char *word = json_string_value(json_array_get(list, i));
        if (!word || strncmp(word, "--", 2) || strlen(word) >= VALUE_LEN)
            return false;
        if (!word_list_find(out, name_of(word, name)) &&
            !word_list_add(out, name, strchr(word, '=') ? strchr(word, '=') + 1 : ""))
            return false;
    }
    return true;
}

bool resume_take(const struct dp_checkpoint *c, struct resume *out)
{
    json_t *root = json_loads(dp_checkpoint_json(c), 0, NULL);
    const char *program = json_string_value(json_object_get(root, "program"));
    const char *version = json_string_value(json_object_get(root, "version"));
    const char *data = json_string_value(json_object_get(root, "data"));
    const json_int_t step = json_integer_value(json_object_get(root, "step"));
    const bool good = program && !strcmp(program, program_name) && step > 0 &&
                      take_words(json_object_get(root, "options"), &out->words) && out->words.count &&
                      take_words(json_object_get(root, "layout"), &out->words);

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
    int status = input_checkpoint("--resume ", where, out->path);
    int err = status ? 0 : dp_checkpoint_open(out->path, &c);

    if (status || err)
        return status ? status : command_failed(err);
    if (!resume_take(c, out))
        status = command_misused("--resume %s: expected a checkpoint of 'dualpipe train'; this file is "
                                 "another program's", out->path);
    dp_checkpoint_close(c);
    return status;
}

/* A later version may have options that this one has not. */
static bool knows_options(const struct resume *from)
{
    char name[64];
    struct setting a;

    for (int k = 0; k < from->words.count; k++) {
        bool known = false;
        name_of(from->words.items[k], name);
        for (int i = 0; !known && settings_option(i, &a); i++)
            known = a.marks & (KEPT | LAYOUT) && !strcmp(a.name, name);
        if (refuse_if(!known, "%s: written by version %s with %s, which this one, %s, does not have",
                      from->path, from->version, from->words.items[k], dp_version()))
            return false;
    }
    return true;
}

/* Every checkpoint says these; with a default for what it lacks, another run would go on. */
bool settings_of_words(const struct resume *from, struct settings *out)
{
    char *program[] = {(char *)program_name, NULL};
    int argc = 1, status;
    struct operands none;
    const bool known = knows_options(from);
    char **words = known ? word_list_before(&from->words, &argc, program) : NULL;
    if (known && !words)
        command_broke("%s: out of memory", from->path);
    const bool good = words && args_parse(&settings_usage, argc, words, out, &none, &status);

    free(words);
    return good && !(refuse_if(!out->how.microbatches,
                               "%s: no --microbatches among its options, expected one", from->path) ||
                     refuse_if(out->width % out->heads, "%s: --width=%d among its options, expected a "
                               "multiple of %d, its --heads", from->path, (int)out->width,
                               (int)out->heads));
}

/* ---- going on ------------------------------------------------------------------------------ */

static bool differ(const struct setting *a, const struct settings *s, const struct settings *was,
                   int digits, char now[VALUE_LEN], char then[VALUE_LEN])
{
    if (!settings_value(a, s, digits, now))
        strcpy(now, "none");
    if (!settings_value(a, was, digits, then))
        strcpy(then, "none");
    return strcmp(now, then);
}

bool settings_same(const struct settings *s, const struct settings *was, unsigned marks, const char *as,
                   const char *path, const char *why)
{
    char now[VALUE_LEN], then[VALUE_LEN];
    struct setting a;

    for (int i = 0; settings_option(i, &a); i++) {
        if (!(a.marks & marks) || !differ(&a, s, was, 17, now, then))
            continue;
        if (!differ(&a, s, was, 9, now, then))
            differ(&a, s, was, 17, now, then);
        command_misused("--%s%s%s: expected %s, %s %s%s", a.name, *now ? " " : "", now, then, as,
                        path, why);
        return false;
    }
    return true;
}

static bool is_one_of(const char *const *names, const char *name)
{
    while (*names && strcmp(name, *names))
        names++;
    return *names;
}

/* Whether what the command line says leaves no place for a part of the layout: another order of work
 * has its own ranks and blocks, another number of ranks (or a job of another size) its own blocks. */
static bool is_overruled(const struct settings *typed, const struct settings *was, int world,
                         const char *name)
{
    static const char *const order[] = {"schedule", "file", "virtual-stages", "slack", NULL};
    static const char *const replicas[] = {"replicas", "mix", NULL};
    const bool alone = was->schedule_name && !strcmp(was->schedule_name, "none");
    const bool orders = typed->schedule_name || typed->file;
    const bool counts =
        typed->how.schedule.ranks || (world && settings_processes(was) + typed->spares != world);

    if (!settings_sums(was))
        return false;
    if (is_one_of(order, name))
        return orders || (alone && counts);
    if (!strcmp(name, "blocks"))
        return orders || counts;
    if (!strcmp(name, "ranks"))
        return counts || typed->file || (orders && (alone || !strcmp(typed->schedule_name, "none")));
    return is_one_of(replicas, name) && (typed->offload.text || typed->how.delay_update);
}

/* The words of the checkpoint come first, so that the command line's replace them. What is in flight
 * between replicas that mix belongs to their layout. */
static bool parse_again(struct settings *s, int argc, char **argv, int world, struct operands *files,
                        int *status)
{
    const struct word_list *all = &s->from.words;
    struct word_list *held = &s->from.held;
    struct settings was = {0};
    char name[64];

    if (!settings_of_words(&s->from, &was))
        return false;
    for (int i = 0; i < all->count; i++)
        if (!is_overruled(s, &was, world, name_of(all->items[i], name)))
            held->items[held->count++] = all->items[i];
    char **line = word_list_before(held, &argc, argv);
    *s = (struct settings){.from = s->from, .planned = s->planned, .lines = s->lines};
    s->lines.with_saved = line;
    if (!line)
        return *status = command_broke("--resume: out of memory"), false;
    if (!args_parse(&settings_usage, argc, line, s, files, status))
        return false;
    *status = EXIT_USAGE;
    return settings_same(s, &was, MODEL, "as the model in", s->from.path, " has it") &&
           (s->prompt || (settings_sums(s) && settings_sums(&was)) ||
            settings_same(s, &was, MIXES, "as in", s->from.path,
                          "; replicas that mix their weights go on as they were"));
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

bool settings_resume(struct settings *s, int argc, char **argv, int world, struct operands *files,
                     int *status)
{
    if (!s->resume)
        return true;
    *status = read_checkpoint(s->resume, &s->from);
    if (*status)
        return false;
    *status = EXIT_USAGE;
    if (!parse_again(s, argc, argv, world, files, status))
        return false;
    for (int i = 0; i < DRAWN; i++)
        if (refuse_if(is_beside(s->drawn[i], s->from.path), "%s %s: is in the folder of the checkpoint "
                      "that --resume reads; expected another one", drawn_names[i], s->drawn[i]))
            return false;
    return !refuse_if(!s->prompt && (uint64_t)s->steps <= s->from.step,
                      "--steps %d: expected more than " "the %" PRIu64 " that are done in %s",
                      (int)s->steps, s->from.step, s->from.path);
}

/* ---- where an option is from --------------------------------------------------------------------- */

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

/* A mistake has it as "--ranks 2" or "-P 2", or, where the library says it, as "ranks: 2"; and it was
 * not typed. */
static bool is_restored(const struct setting *a, const struct restored *r, const char *line)
{
    const char letter[] = {'-', a->letter, '\0'};
    const size_t len = strlen(a->name);
    char option[64];

    snprintf(option, sizeof(option), "--%s", a->name);
    if (!has_word(line, option) && !(a->letter && has_word(line, letter)) &&
        !(!strncmp(line, a->name, len) && line[len] == ':'))
        return false;
    for (int i = 1; i < r->argc; i++)
        if ((!strncmp(r->argv[i], option, len + 2) && strchr("=", r->argv[i][len + 2])) ||
            (a->letter && !strncmp(r->argv[i], letter, 2)))
            return false;
    return true;
}

void settings_explain(void *user, const char *line, char *more, size_t room)
{
    const struct restored *r = user;
    char name[64];
    size_t used = 0;
    struct setting a;

    for (int k = 0; k < r->from->held.count && used < room; k++)
        for (int i = 0; settings_option(i, &a); i++)
            if (!strcmp(a.name, name_of(r->from->held.items[k], name)) && is_restored(&a, r, line))
                used += (size_t)snprintf(more + used, room - used, "%s%s", used ? ", " : "; ",
                                         r->from->held.items[k]);
    if (used && used < room)
        snprintf(more + used, room - used, " as in %s", r->from->path);
}
