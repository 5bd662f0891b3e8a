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

/* ---- reading -------------------------------------------------------------------------------- */

/* The text of an option: a word, a number or a list of numbers. */
static bool take_value(const json_t *value, char out[static VALUE_LEN])
{
    const bool is_list = json_is_array(value);
    const size_t count = is_list ? json_array_size(value) : 1;
    const char *word = json_string_value(value);
    int used = 0;

    if (word)
        return word[strspn(word, "0123456789")] && snprintf(out, VALUE_LEN, "%s", word) < WORD_LEN;
    for (size_t i = 0; i < count && used < VALUE_LEN; i++) {
        const json_t *n = is_list ? json_array_get(value, i) : value;
        if (!json_is_integer(n) || json_integer_value(n) < 0)
            return false;
        used += snprintf(out + used, (size_t)(VALUE_LEN - used), "%s%" JSON_INTEGER_FORMAT,
                         i ? "," : "", json_integer_value(n));
    }
    return count > 0 && used < VALUE_LEN;
}

static int take_members(const char *path, const json_t *root, struct word_list *plan)
{
    const char *program = json_string_value(json_object_get(root, "program"));
    char text[VALUE_LEN];
    struct setting a;

    if (!program || strcmp(program, program_name))
        return command_misused("--plan %s: program: expected \"%s\"", path, program_name);
    for (int i = 0; settings_option(i, &a); i++) {
        const json_t *value = json_object_get(root, a.name);
        if (!(a.marks & (PLANNED | OFFLOADED)) || (!value && a.marks & OFFLOADED))
            continue;
        if (!value || !take_value(value, text))
            return command_misused("--plan %s: %s: %s, expected a word, a number or a list of numbers",
                                   path, a.name, value ? "something else" : "missing");
        if (!word_list_add(plan, a.name, text))
            return command_broke("--plan %s: out of memory", path);
    }
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

/* ---- writing -------------------------------------------------------------------------------- */

static json_t *json_of(const char *text, bool is_list)
{
    if (!*text || text[strspn(text, ",0123456789")])
        return json_string(text);
    if (!is_list)
        return json_integer(strtoll(text, NULL, 10));
    json_t *list = json_array();
    for (const char *at = text; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        json_array_append_new(list, json_integer(strtoll(at, NULL, 10)));
    return list;
}

int plan_file_write(FILE *to, const struct settings *s, int64_t step_ns, const size_t *rank_bytes)
{
    json_t *root = json_pack("{s:s}", "program", program_name), *bytes = json_array();
    char text[VALUE_LEN];
    struct setting a;

    for (int i = 0; settings_option(i, &a); i++)
        if (a.marks & (PLANNED | OFFLOADED) && settings_value(&a, s, 17, text))
            json_object_set_new(root, a.name, json_of(text, !strcmp(a.name, "blocks")));
    for (int rank = 0; rank < s->how.schedule.ranks; rank++)
        json_array_append_new(bytes, json_integer((json_int_t)rank_bytes[rank]));
    json_object_set_new(root, "step_ns", json_integer(step_ns));
    json_object_set_new(root, "rank_bytes", bytes);
    const int err = root && bytes ? json_dumpf(root, to, JSON_INDENT(1)) : -1;
    json_decref(root);
    putc('\n', to);
    return err || fflush(to) ? DP_EIO : 0;
}
