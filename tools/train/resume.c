/* SPDX-License-Identifier: Apache-2.0 */
#include "train/resume.h"

#include "command.h"
#include "train/plan_file.h"

#include <jansson.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char program_name[] = "dualpipe train";

/* ---- writing --------------------------------------------------------------------------------- */

static struct arg find_arg(const struct arg_group *groups, const char *name)
{
    for (const struct arg_group *g = groups; g->title; g++)
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
    if (a->type == ARG_REAL)
        return *(const double *)member > 0 || (a->min <= 0 && !(a->option && a->option->above));
    if (a->type == ARG_PARSE)
        return ((const struct block_list *)member)->count;
    return text_of(a, member);
}

/* "--blocks=1,3,3,1"; one that is too long is left out. */
static void add_blocks(json_t *list, const struct arg *a, const struct block_list *blocks)
{
    char word[RESUME_WORD];
    size_t used = (size_t)snprintf(word, sizeof(word), "--%s=", a->name);

    for (int i = 0; i < blocks->count && used < sizeof(word); i++)
        used += (size_t)snprintf(word + used, sizeof(word) - used, "%s%d", i ? "," : "",
                                 (int)blocks->items[i]);
    if (used < sizeof(word))
        json_array_append_new(list, json_string(word));
}

/* 17 digits tell every double from its neighbours. */
static void add_word(json_t *list, const struct arg *a, const void *values)
{
    const void *member = (const char *)values + a->offset;
    char word[RESUME_WORD];

    if (!is_set(a, member))
        return;
    if (a->type == ARG_PARSE) {
        add_blocks(list, a, member);
        return;
    }
    if (a->type == ARG_FLAG)
        snprintf(word, sizeof(word), "--%s", a->name);
    else if (a->type == ARG_INT)
        snprintf(word, sizeof(word), "--%s=%" PRId64, a->name, whole_of(a, member));
    else if (a->type == ARG_REAL)
        snprintf(word, sizeof(word), "--%s=%.17g", a->name, *(const double *)member);
    else
        snprintf(word, sizeof(word), "--%s=%s", a->name, text_of(a, member));
    json_array_append_new(list, json_string(word));
}

static json_t *list_words(const struct arg_group *groups, const char *const *names,
                          const void *values)
{
    json_t *list = json_array();

    for (; *names; names++) {
        const struct arg a = find_arg(groups, *names);
        add_word(list, &a, values);
    }
    return list;
}

char *resume_text(const struct arg_group *groups, const char *const *options,
                  const char *const *layout, const void *values, uint64_t step, uint64_t data)
{
    char digest[17];

    snprintf(digest, sizeof(digest), "%016" PRIx64, data);
    json_t *root = json_pack("{s:s, s:s, s:s, s:I, s:o, s:o}", "program", program_name, "version",
                             dp_version(), "data", digest, "step", (json_int_t)step, "options",
                             list_words(groups, options, values), "layout",
                             list_words(groups, layout, values));
    char *text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    return text;
}

/* ---- reading --------------------------------------------------------------------------------- */

bool resume_is_of(const char *word, const char *option)
{
    const size_t len = strcspn(word + 2, "=");

    return strlen(option) == len && !strncmp(option, word + 2, len);
}

static bool has_option_of(const struct resume *r, const char *word)
{
    char option[RESUME_WORD];

    snprintf(option, sizeof(option), "%.*s", (int)strcspn(word + 2, "="), word + 2);
    for (int i = 0; i < r->word_count; i++)
        if (resume_is_of(r->words[i], option))
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

int resume_read(const char *where, struct resume *out)
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
