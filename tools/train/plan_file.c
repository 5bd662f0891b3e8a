/* SPDX-License-Identifier: Apache-2.0
 *
 * plan_file.c - what `dualpipe plan` has found, as a JSON file: options of train by their names.
 */
#include "train/settings.h"

#include "command.h"
#include "files.h"

#include <jansson.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { PLAN_BYTES = 1 << 20, WORD_LEN = 64 };
static const char program_name[] = "dualpipe plan";

/* What a plan decides, and what it is a plan of. Each is an option of train, too, those with a number
 * there have one here. Of the parts of a model a plan offloads activations only. */
static const struct member {
    const char *name;
    enum { NUMBER, WORD, LIST } type;
} members[] = {
    {"schedule", WORD},        {"checkpoint", WORD}, {"ranks", NUMBER}, {"microbatches", NUMBER},
    {"layers", NUMBER},        {"width", NUMBER},    {"heads", NUMBER}, {"context", NUMBER},
    {"batch", NUMBER},         {"blocks", LIST},     {"slack", NUMBER}, {"offload", WORD},
    {"device-memory", NUMBER},
};
enum {
    MEMBERS = sizeof(members) / sizeof(members[0]),
    REQUIRED = MEMBERS - 3,
    OF_OFFLOAD = MEMBERS - 2
};

/* ---- reading -------------------------------------------------------------------------------- */

/* The text of a member. false: it is of another type. */
static bool take_value(const json_t *value, const struct member *m, char out[static VALUE_LEN])
{
    const size_t count = json_array_size(value);
    const char *word = json_string_value(value);
    int used = 0;

    switch (m->type) {
    case WORD:
        return word && *word && snprintf(out, VALUE_LEN, "%s", word) < WORD_LEN;
    case NUMBER:
        return json_is_integer(value) && json_integer_value(value) >= 0 &&
               snprintf(out, VALUE_LEN, "%" JSON_INTEGER_FORMAT, json_integer_value(value)) > 0;
    default:
        for (size_t i = 0; i < count && used < VALUE_LEN; i++) {
            const json_t *item = json_array_get(value, i);
            const json_int_t n = json_integer_value(item);
            if (!json_is_integer(item) || n < 0 || n > GPT_MAX_LAYERS)
                return false;
            used += snprintf(out + used, (size_t)(VALUE_LEN - used), "%s%d", i ? "," : "", (int)n);
        }
        return count > 0 && count <= BLOCK_LIST_MAX && used < VALUE_LEN;
    }
}

static int take_members(const char *path, const json_t *root, struct word_list *plan)
{
    static const char *const expected[] = {"a number", "a word", "a list of numbers of blocks"};
    const char *program = json_string_value(json_object_get(root, "program"));
    char text[VALUE_LEN];

    if (!program || strcmp(program, program_name))
        return command_misused("--plan %s: program: expected \"%s\"", path, program_name);
    for (int i = 0; i < MEMBERS; i++) {
        const json_t *value = json_object_get(root, members[i].name);
        if (!value && i >= REQUIRED)
            continue;
        if (!take_value(value, &members[i], text))
            return command_misused("--plan %s: %s: %s, expected %s", path, members[i].name,
                                   value ? "something else" : "missing", expected[members[i].type]);
        if (!word_list_add(plan, members[i].name, text))
            return command_broke("--plan %s: out of memory", path);
    }
    if (!json_object_get(root, "offload") != !json_object_get(root, "device-memory"))
        return command_misused("--plan %s: one of offload and device-memory, expected both or neither",
                               path);
    return 0;
}

int plan_file_read(const char *path, struct word_list *out)
{
    json_error_t error;
    size_t len;
    char *text = input_read(path, PLAN_BYTES, &len);

    if (!text)
        return command_misused("--plan %s: %s; expected a file of 'dualpipe plan'", path,
                               strerror(errno));
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error);
    free(text);
    if (root && !json_is_object(root))
        error = (json_error_t){.line = 1, .column = 1, .text = "no object"};
    const int status =
        json_is_object(root)
            ? take_members(path, root, out)
            : command_misused("--plan %s: line %d, column %d: %.100s; expected a JSON file of 'dualpipe "
                              "plan'", path, error.line, error.column, error.text);
    json_decref(root);
    return status;
}

/* ---- is it what was parsed? ------------------------------------------------------------------ */

int plan_file_check(const struct word_list *plan, const char *path, const struct settings *s)
{
    char *program[] = {(char *)program_name, NULL}, text[2][VALUE_LEN];
    int argc = 1, status = EXIT_USAGE;
    struct operands none;
    struct settings *own = calloc(1, sizeof(*own));
    char **words = word_list_before(plan, &argc, program);

    if (!own || !words)
        status = command_broke("--plan %s: out of memory", path);
    else if (args_parse(&settings_usage, argc, words, own, &none, &status))
        status =
            refuse_if(s->file, "--plan %s with --file: expected one of them", path) ? EXIT_USAGE : 0;
    const bool offloads = word_list_find(plan, "offload");
    for (int i = 0; i < MEMBERS && !status; i++) {
        const bool is_there[] = {settings_value_of(members[i].name, own, text[0]),
                                 settings_value_of(members[i].name, s, text[1])};
        const char *value = word_list_find(plan, members[i].name);
        const bool differ = is_there[0] != is_there[1] || (is_there[0] && strcmp(text[0], text[1]));
        if (refuse_if(differ && (offloads || i < OF_OFFLOAD), "--%s: expected %s, as in --plan %s",
                      members[i].name, value ? value : "0", path))
            status = EXIT_USAGE;
    }
    free(words);
    free(own);
    return status;
}

/* ---- writing -------------------------------------------------------------------------------- */

/* NULL: nothing was said. */
static json_t *json_member(const struct settings *s, const struct member *m)
{
    char text[VALUE_LEN];
    const bool is_there = settings_value_of(m->name, s, text);

    switch (m->type) {
    case WORD:
        return is_there ? json_string(text) : NULL;
    case NUMBER:
        return is_there ? json_integer(strtoll(text, NULL, 10)) : NULL;
    default: {
        json_t *list = json_array();
        for (int i = 0; i < s->blocks.count; i++)
            json_array_append_new(list, json_integer(s->blocks.items[i]));
        return list;
    }
    }
}

int plan_file_write(FILE *to, const struct settings *s, int64_t step_ns, const size_t *rank_bytes)
{
    json_t *root = json_pack("{s:s}", "program", program_name), *bytes = json_array();

    for (int i = 0; i < MEMBERS; i++)
        json_object_set_new(root, members[i].name, json_member(s, &members[i]));
    for (int rank = 0; rank < s->how.schedule.ranks; rank++)
        json_array_append_new(bytes, json_integer((json_int_t)rank_bytes[rank]));
    json_object_set_new(root, "step_ns", json_integer(step_ns));
    json_object_set_new(root, "rank_bytes", bytes);
    const int err = root && bytes ? json_dumpf(root, to, JSON_INDENT(1)) : -1;
    json_decref(root);
    putc('\n', to);
    return err || fflush(to) ? DP_EIO : 0;
}
