/* SPDX-License-Identifier: Apache-2.0
 *
 * csv.c - a table as CSV: a rule a line. Values have no commas, so there are no quotes.
 */
#include "base/fail.h"
#include "tuning/rule.h"

#include <dualpipe/options.h>

#include <string.h>
#include <strings.h>

enum { LINE_MAX_LEN = 1023, LEAST_FIELDS = 8, MOST_FIELDS = 10 };

struct layout {
    size_t count;
    enum dp_tuning_column columns[DP_COLUMNS];
    bool is_named;
};

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* The text of [from, end) without the blanks around it. */
static char *trim(char *from, char *end)
{
    while (from < end && is_blank(*from))
        from++;
    while (end > from && is_blank(end[-1]))
        end--;
    *end = '\0';
    return from;
}

/* Cut at commas; one more than fits is counted, but not kept. */
static size_t split(char *line, char *fields[DP_COLUMNS])
{
    size_t count = 0;

    for (char *at = line, *comma; at; at = comma ? comma + 1 : NULL) {
        comma = strchr(at, ',');
        char *field = trim(at, comma ? comma : at + strlen(at));
        if (count < DP_COLUMNS)
            fields[count] = field;
        count++;
    }
    return count;
}

static int fail_at(const struct dp_tuning_draft *draft, int line, const char *why)
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

static int find_column(const struct dp_tuning_draft *draft, int line, const char *field,
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

static int read_heading(const struct dp_tuning_draft *draft, int line, char *const *fields,
                        size_t count, struct layout *layout)
{
    int err = 0;

    *layout = (struct layout){.is_named = true};
    for (size_t i = 0; i < count && !err; i++)
        err = find_column(draft, line, fields[i], layout);
    return err;
}

static int check_count(const struct dp_tuning_draft *draft, int line, size_t count,
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

static int read_rule(struct dp_tuning_draft *draft, int line, char *const *fields, size_t count,
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
    return dp_tuning_draft_add(draft, &rule);
}

static int read_line(struct dp_tuning_draft *draft, int line, char *text, struct layout *layout)
{
    char *fields[DP_COLUMNS];

    text[strcspn(text, "#")] = '\0';
    text = trim(text, text + strlen(text));
    if (!*text)
        return 0;
    size_t count = split(text, fields);
    if (count > DP_COLUMNS)
        return dp_fail(DP_EINVAL, "%s:%d: %zu fields, expected at most %d", draft->name, line, count,
                       DP_COLUMNS);
    if (!draft->count && !layout->is_named && column_of(fields[0]) != DP_COLUMNS)
        return read_heading(draft, line, fields, count, layout);
    return read_rule(draft, line, fields, count, layout);
}

int dp_tuning_read_csv(const char *text, size_t len, struct dp_tuning_draft *draft)
{
    struct layout layout = {.count = DP_COLUMNS};
    const char *end = text + len;
    char copy[LINE_MAX_LEN + 1];
    int err = 0;

    for (int i = 0; i < DP_COLUMNS; i++)
        layout.columns[i] = (enum dp_tuning_column)i;
    for (int line = 1; text < end && !err; line++) {
        const char *stop = memchr(text, '\n', (size_t)(end - text));
        size_t n = (size_t)((stop ? stop : end) - text);
        if (n > LINE_MAX_LEN || memchr(text, '\0', n))
            return fail_at(draft, line, n > LINE_MAX_LEN ? "a line of more than 1023 characters"
                                                         : "a NUL, expected text");
        memcpy(copy, text, n);
        copy[n] = '\0';
        err = read_line(draft, line, copy, &layout);
        text = stop ? stop + 1 : end;
    }
    return err;
}
