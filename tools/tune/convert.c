/* SPDX-License-Identifier: Apache-2.0
 *
 * convert.c - a table as older releases had it, {"dualpipe_tuning": 1, "rules": [{"collective":
 * "allreduce", ...}]}, becomes lines of text: the members of its rules are the columns.
 */
#include "tune/fit.h"

#include "command.h"
#include "files.h"

#include <jansson.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* All that rules have, in the order in which it comes. */
static json_t *list_columns(const json_t *rules)
{
    json_t *columns = json_object(), *rule;
    size_t i;

    json_array_foreach (rules, i, rule)
        json_object_update_missing(columns, rule);
    return columns;
}

/* false: it is no text of a column. */
static bool put_value(const json_t *value, FILE *to)
{
    char *text = NULL;
    bool is_one = true;

    if (!value || json_is_null(value))
        fputs("any", to);
    else if (json_is_string(value))
        is_one = !strpbrk(json_string_value(value), ",#\n") && fputs(json_string_value(value), to) >= 0;
    else if ((text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17))))
        is_one = !strpbrk(text, "[{") && fputs(text, to) >= 0;
    free(text);
    return is_one;
}

static int put_rules(const char *path, const json_t *rules, FILE *to)
{
    json_t *columns = list_columns(rules), *rule, *unused;
    const char *key, *between = "";
    int status = 0;
    size_t i;

    json_object_foreach (columns, key, unused) {
        fprintf(to, "%s%s", between, key);
        between = ",";
    }
    json_array_foreach (rules, i, rule) {
        between = "\n";
        json_object_foreach (columns, key, unused) {
            fputs(between, to);
            between = ",";
            if (!status && !put_value(json_object_get(rule, key), to))
                status = command_misused("%s: rules[%zu].%s: expected a string without commas, a "
                                         "number, true, false or null", path, i, key);
        }
    }
    json_decref(columns);
    return status;
}

static int convert_rules(const char *path, const json_t *all, struct dp_tuning_table **out)
{
    const json_t *rules = json_object_get(all, "rules");
    char *text = NULL, name[4096];
    size_t len;

    if (json_integer_value(json_object_get(all, "dualpipe_tuning")) != 1 || !json_is_array(rules))
        return command_misused("%s: expected a table of the tuner as JSON, {\"dualpipe_tuning\": 1, "
                               "\"rules\": [...]}", path);
    FILE *to = open_memstream(&text, &len);
    int status = to ? put_rules(path, rules, to) : command_broke("no memory for %s", path);
    if (to && fclose(to) && !status)
        status = command_broke("no memory for %s", path);
    snprintf(name, sizeof(name), "%s, as lines of text", path);
    const int err = status ? 0 : dp_tuning_table_read(text, len, name, out);
    free(text);
    return err ? command_failed(err) : status;
}

int tune_convert(const char *path, struct dp_tuning_table **out)
{
    json_error_t error;
    size_t len;
    char *text = input_read(path, INPUT_MOST, &len);

    if (!text)
        return command_misused("%s: %s", path, input_error(errno));
    json_t *all = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error);
    int status = all ? convert_rules(path, all, out)
                     : command_misused("%s:%d: %s", path, error.line, error.text);
    json_decref(all);
    free(text);
    return status;
}
