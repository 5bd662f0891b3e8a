/* SPDX-License-Identifier: Apache-2.0
 *
 * table.c - a table as lines of text, a rule a line: CSV, whose values have no commas, so there are no
 * quotes.
 */
#include "base/array.h"
#include "base/fail.h"
#include "base/text.h"
#include "tuning/rule.h"

#include <dualpipe/options.h>

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* A table is read whenever a communicator is made; this is a hundred thousand rules. */
enum { MAX_FILE = 8 << 20, LEAST_FIELDS = 8, MOST_FIELDS = 10 };

/* What a reader fills. */
struct draft {
    const char *name;
    struct dp_tuning_rule *rules;
    size_t count, capacity;
};

struct layout {
    size_t count;
    enum dp_tuning_column columns[DP_COLUMNS];
    bool is_named;
};

/* Cut at commas; one more than fits is counted, but not kept. */
static size_t split(char *line, char *fields[DP_COLUMNS])
{
    size_t count = 0;

    for (char *at = line, *comma; at; at = comma ? comma + 1 : NULL) {
        comma = strchr(at, ',');
        char *field = dp_trim(at, comma ? comma : at + strlen(at));
        if (count < DP_COLUMNS)
            fields[count] = field;
        count++;
    }
    return count;
}

static int fail_at(const struct draft *draft, int line, const char *why)
{
    return dp_fail(DP_EINVAL, "%s:%d: %s", draft->name, line, why);
}

/* DP_COLUMNS: it is none. NCCL's example has other names for its first column. */
static enum dp_tuning_column column_of(const char *field)
{
    int column = 0;

    if (!strcasecmp(field, "colltype") || !strcasecmp(field, "collective_type"))
        return DP_COLUMN_COLLECTIVE;
    while (column < DP_COLUMNS && strcasecmp(field, dp_tuning_columns[column]))
        column++;
    return (enum dp_tuning_column)column;
}

static int find_column(const struct draft *draft, int line, const char *field,
                       struct layout *layout)
{
    enum dp_tuning_column found = column_of(field);

    if (found == DP_COLUMNS) {
        const char *near = dp_nearest(field, dp_tuning_columns, DP_COLUMNS);
        return dp_fail(DP_EINVAL, "%s:%d: '%.40s' is no column%s%s%s", draft->name, line, field,
                       near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
    }
    for (size_t i = 0; i < layout->count; i++)
        if (layout->columns[i] == found)
            return dp_fail(DP_EINVAL, "%s:%d: column %s twice", draft->name, line, field);
    layout->columns[layout->count++] = found;
    return 0;
}

static int read_heading(const struct draft *draft, int line, char *const *fields,
                        size_t count, struct layout *layout)
{
    int err = 0;

    *layout = (struct layout){.is_named = true};
    for (size_t i = 0; i < count && !err; i++)
        err = find_column(draft, line, fields[i], layout);
    return err;
}

static int check_count(const struct draft *draft, int line, size_t count,
                       const struct layout *layout)
{
    if (layout->is_named && count != layout->count)
        return dp_fail(DP_EINVAL, "%s:%d: %zu fields, expected %zu as the line of names says",
                       draft->name, line, count, layout->count);
    if (!layout->is_named && (count < LEAST_FIELDS || count > MOST_FIELDS))
        return dp_fail(DP_EINVAL, "%s:%d: %zu fields, expected %d to %d, or a first line that names "
                                  "them",
                       draft->name, line, count, LEAST_FIELDS, MOST_FIELDS);
    return 0;
}

static int add_rule(struct draft *draft, const struct dp_tuning_rule *rule)
{
    struct dp_tuning_rule *rules =
        dp_array_grow(draft->rules, &draft->capacity, draft->count + 1, sizeof(*rules));

    if (!rules)
        return dp_fail(DP_ENOMEM, "%s: no memory for %zu rules", draft->name, draft->count + 1);
    draft->rules = rules;
    draft->rules[draft->count++] = *rule;
    return 0;
}

static int read_rule(struct draft *draft, int line, char *const *fields, size_t count,
                     const struct layout *layout)
{
    struct dp_tuning_rule rule = dp_tuning_rule_open;
    char why[DP_RULE_WHY];
    int err = check_count(draft, line, count, layout);

    if (err)
        return err;
    rule.line = line;
    for (size_t i = 0; i < count; i++)
        if (!dp_tuning_rule_set(&rule, layout->columns[i], fields[i], why))
            return fail_at(draft, line, why);
    const char *problem = dp_tuning_rule_check(&rule);
    return problem ? fail_at(draft, line, problem) : add_rule(draft, &rule);
}

static int read_line(struct draft *draft, int line, char *text, struct layout *layout)
{
    char *fields[DP_COLUMNS];

    size_t count = split(text, fields);
    if (count > DP_COLUMNS)
        return dp_fail(DP_EINVAL, "%s:%d: %zu fields, expected at most %d", draft->name, line, count,
                       DP_COLUMNS);
    if (!draft->count && !layout->is_named && column_of(fields[0]) != DP_COLUMNS)
        return read_heading(draft, line, fields, count, layout);
    return read_rule(draft, line, fields, count, layout);
}

static int read_lines(struct dp_lines *lines, struct draft *draft)
{
    struct layout layout = {.count = DP_COLUMNS};
    char *line;
    int err;

    for (int i = 0; i < DP_COLUMNS; i++)
        layout.columns[i] = (enum dp_tuning_column)i;
    do {
        err = dp_lines_next(lines, &line);
        if (!err && line)
            err = read_line(draft, lines->number, line, &layout);
    } while (!err && line);
    return err;
}

static int make_table(struct draft *draft, struct dp_tuning_table **out)
{
    struct dp_tuning_table *table = calloc(1, sizeof(*table));
    char *name = strdup(draft->name);

    if (!table || !name) {
        free(table);
        free(name);
        return dp_fail(DP_ENOMEM, "%s: no memory for the table", draft->name);
    }
    *table = (struct dp_tuning_table){name, draft->count, draft->rules};
    *out = table;
    return 0;
}

/* Words are the same in any letters, by the C locale: in a Turkish one a RING is no ring. */
int dp_tuning_table_read(const char *text, size_t len, const char *name,
                         struct dp_tuning_table **out)
{
    struct draft draft = {.name = name};
    struct dp_lines lines;
    int err = dp_lines_begin(&lines, text, len, name, "dualpipe tune fit --convert");

    if (err)
        return err;
    locale_t before = dp_point_begin();
    err = read_lines(&lines, &draft);
    dp_point_end(before);
    if (!err && !draft.count)
        err = dp_fail(DP_EINVAL, "%s: no rules, expected at least one", name);
    if (!err)
        err = make_table(&draft, out);
    if (err)
        free(draft.rules);
    return err;
}

int dp_tuning_table_load(const char *path, struct dp_tuning_table **out)
{
    struct dp_text text = {0};
    int err = dp_text_add_file(&text, path, MAX_FILE, "a table");

    if (!err)
        err = dp_tuning_table_read(text.data ? text.data : "", text.len, path, out);
    dp_text_fini(&text);
    return err;
}

void dp_tuning_table_free(struct dp_tuning_table *table)
{
    if (!table)
        return;
    free(table->name);
    free(table->rules);
    free(table);
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Where a rule applies, what it takes, what was measured. */
static const enum dp_tuning_column order[] = {
    DP_COLUMN_COLLECTIVE, DP_COLUMN_MIN_BYTES,   DP_COLUMN_MAX_BYTES,  DP_COLUMN_RANKS,
    DP_COLUMN_NODES,      DP_COLUMN_REGISTERED,  DP_COLUMN_PIPE_OPS,   DP_COLUMN_ALGORITHM,
    DP_COLUMN_PROTOCOL,   DP_COLUMN_CHANNELS,    DP_COLUMN_CHUNK_BYTES, DP_COLUMN_TIME_US,
    DP_COLUMN_DEFAULT_US,
};

int dp_tuning_table_write(const struct dp_tuning_table *table, char **out, size_t *len)
{
    struct dp_text t = {0};

    for (int i = 0; i < DP_COLUMNS; i++)
        dp_text_addf(&t, "%s%s", i ? "," : "", dp_tuning_columns[order[i]]);
    for (size_t k = 0; k < table->count; k++)
        for (int i = 0; i < DP_COLUMNS; i++) {
            dp_text_adds(&t, i ? "," : "\n");
            dp_tuning_rule_write(&table->rules[k], order[i], &t);
        }
    dp_text_adds(&t, "\n");
    return dp_text_take(&t, out, len);
}
