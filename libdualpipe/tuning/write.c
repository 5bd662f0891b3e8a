/* SPDX-License-Identifier: Apache-2.0
 *
 * write.c - a table as CSV or JSON. Both forms write the same columns, as the same texts.
 */
#include "base/fail.h"
#include "base/number.h"
#include "base/text.h"
#include "tuning/rule.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VALUE_LEN = 48 };

static void write_number(int64_t value, int64_t open, char *out)
{
    if (value == open)
        snprintf(out, VALUE_LEN, "any");
    else
        snprintf(out, VALUE_LEN, "%" PRId64, value);
}

static void write_range(const struct dp_tuning_range *r, char *out)
{
    if (!r->least && r->most == INT64_MAX)
        snprintf(out, VALUE_LEN, "any");
    else if (r->least == r->most)
        snprintf(out, VALUE_LEN, "%" PRId64, r->least);
    else
        snprintf(out, VALUE_LEN, "%" PRId64 "-%" PRId64, r->least, r->most);
}

/* With as few digits as give it back. */
static void write_time(double us, char *out)
{
    if (us <= 0) {
        snprintf(out, VALUE_LEN, "any");
        return;
    }
    for (int digits = 4; digits <= 17; digits++) {
        dp_snprintf(out, VALUE_LEN, "%.*g", digits, us);
        if (dp_strtod(out, NULL) == us)
            return;
    }
}

/* The text that dp_tuning_rule_set would take. */
static void write_value(const struct dp_tuning_rule *r, enum dp_tuning_column column, char *out)
{
    static const char *const registered[] = {"no", "yes", "any"};

    switch (column) {
    case DP_COLUMN_COLLECTIVE:
        snprintf(out, VALUE_LEN, "%s", dp_tuning_function_name(r->function));
        return;
    case DP_COLUMN_MIN_BYTES:
        snprintf(out, VALUE_LEN, "%" PRId64, r->bytes.least);
        return;
    case DP_COLUMN_MAX_BYTES:
        write_number(r->bytes.most, INT64_MAX, out);
        return;
    case DP_COLUMN_ALGORITHM:
        snprintf(out, VALUE_LEN, "%s", dp_tuning_algorithm_name(r->algorithm));
        return;
    case DP_COLUMN_PROTOCOL:
        snprintf(out, VALUE_LEN, "%s", dp_tuning_protocol_name(r->protocol));
        return;
    case DP_COLUMN_CHANNELS:
        write_number(r->channels, 0, out);
        return;
    case DP_COLUMN_NODES:
        write_range(&r->nodes, out);
        return;
    case DP_COLUMN_RANKS:
        write_range(&r->ranks, out);
        return;
    case DP_COLUMN_PIPE_OPS:
        write_range(&r->pipe_ops, out);
        return;
    case DP_COLUMN_REGISTERED:
        snprintf(out, VALUE_LEN, "%s", registered[r->registered]);
        return;
    case DP_COLUMN_CHUNK_BYTES:
        write_number(r->chunk_bytes, 0, out);
        return;
    case DP_COLUMN_TIME_US:
        write_time(r->time_us, out);
        return;
    case DP_COLUMN_DEFAULT_US:
        write_time(r->default_us, out);
        return;
    case DP_COLUMNS:
        snprintf(out, VALUE_LEN, "any");
    }
}

/* Where one form goes for people is where the other one goes. */
static const enum dp_tuning_column order[] = {
    DP_COLUMN_COLLECTIVE, DP_COLUMN_MIN_BYTES,   DP_COLUMN_MAX_BYTES,  DP_COLUMN_RANKS,
    DP_COLUMN_NODES,      DP_COLUMN_REGISTERED,  DP_COLUMN_PIPE_OPS,   DP_COLUMN_ALGORITHM,
    DP_COLUMN_PROTOCOL,   DP_COLUMN_CHANNELS,    DP_COLUMN_CHUNK_BYTES, DP_COLUMN_TIME_US,
    DP_COLUMN_DEFAULT_US,
};
enum { ORDER = sizeof(order) / sizeof(order[0]) };

/* ---- CSV ------------------------------------------------------------------------------------ */

static void write_csv(const struct dp_tuning_table *table, struct dp_text *t)
{
    char value[VALUE_LEN];

    for (int i = 0; i < ORDER; i++)
        dp_text_addf(t, "%s%s", i ? "," : "", dp_tuning_columns[order[i]]);
    dp_text_adds(t, "\n");
    for (size_t k = 0; k < table->count; k++)
        for (int i = 0; i < ORDER; i++) {
            write_value(&table->rules[k], order[i], value);
            dp_text_addf(t, "%s%s", value, i + 1 < ORDER ? "," : "\n");
        }
}

/* ---- JSON ----------------------------------------------------------------------------------- */

static bool is_plain_number(const char *value)
{
    return value[strspn(value, "0123456789.e+-")] == '\0' && !strchr(value + 1, '-');
}

static void write_member(const char *name, const char *value, bool is_first, struct dp_text *t)
{
    const char *quote = is_plain_number(value) ? "" : "\"";

    dp_text_addf(t, "%s\"%s\": %s%s%s", is_first ? "" : ", ", name, quote, value, quote);
}

/* What is open is left out. */
static void write_object(const struct dp_tuning_rule *rule, struct dp_text *t)
{
    char value[VALUE_LEN];
    bool is_first = true;

    dp_text_adds(t, "    {");
    for (int i = 0; i < ORDER; i++) {
        write_value(rule, order[i], value);
        if (!strcmp(value, "any"))
            continue;
        write_member(dp_tuning_columns[order[i]], value, is_first, t);
        is_first = false;
    }
    dp_text_adds(t, "}");
}

static void write_json(const struct dp_tuning_table *table, struct dp_text *t)
{
    dp_text_adds(t, "{\n  \"dualpipe_tuning\": 1,\n  \"rules\": [\n");
    for (size_t i = 0; i < table->count; i++) {
        write_object(&table->rules[i], t);
        dp_text_adds(t, i + 1 < table->count ? ",\n" : "\n");
    }
    dp_text_adds(t, "  ]\n}\n");
}

int dp_tuning_table_write(const struct dp_tuning_table *table, enum dp_tuning_format format,
                          char **out, size_t *len)
{
    struct dp_text t = {0};

    (format == DP_TUNING_JSON ? write_json : write_csv)(table, &t);
    return dp_text_take(&t, out, len);
}
