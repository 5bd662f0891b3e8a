/* SPDX-License-Identifier: Apache-2.0
 *
 * json.c - a table as JSON: {"dualpipe_tuning": 1, "rules": [{"collective": "allreduce", ...}]}. The
 * members of a rule are the columns of the CSV form, and take the same texts.
 */
#include "base/fail.h"
#include "base/json_scan.h"
#include "tuning/rule.h"

#include <dualpipe/options.h>

#include <string.h>

struct reader {
    struct dp_json_scan json;
    struct dp_tuning_draft *draft;
    bool has_version;
};

static int fail_here(const struct reader *r, const char *why)
{
    return dp_fail(DP_EINVAL, "%s:%d: %s", r->draft->name, r->json.line, why);
}

/* What dp_json_scan_next found is not what belongs here. */
static int unexpected(const struct reader *r, enum dp_scan_type found, const char *expected)
{
    return fail_here(r, found == DP_SCAN_BAD ? r->json.why : expected);
}

static int read_column(struct reader *r, struct dp_tuning_rule *rule)
{
    char why[DP_RULE_WHY];
    int column = 0;

    while (column < DP_COLUMNS && strcmp(r->json.text, dp_tuning_columns[column]))
        column++;
    if (column == DP_COLUMNS) {
        const char *near = dp_nearest(r->json.text, dp_tuning_columns, DP_COLUMNS);
        return dp_fail(DP_EINVAL, "%s:%d: '%.40s' is no member of a rule%s%s%s", r->draft->name,
                       r->json.line, r->json.text, near ? "; did you mean " : "", near ? near : "",
                       near ? "?" : "");
    }
    enum dp_scan_type type = dp_json_scan_next(&r->json);
    if (type != DP_SCAN_STRING && type != DP_SCAN_NUMBER && type != DP_SCAN_WORD)
        return unexpected(r, type, "expected a string, a number, true, false or null");
    const bool is_null = type == DP_SCAN_WORD && !strcmp(r->json.text, "null");
    if (!dp_tuning_rule_set(rule, (enum dp_tuning_column)column, is_null ? "any" : r->json.text, why))
        return fail_here(r, why);
    return 0;
}

static int read_rule(struct reader *r)
{
    struct dp_tuning_rule rule = dp_tuning_rule_open;
    enum dp_scan_type type;
    int err = 0;

    rule.line = r->json.line;
    while (!err && (type = dp_json_scan_next(&r->json)) != DP_SCAN_OBJECT_END)
        err = type == DP_SCAN_KEY ? read_column(r, &rule) : unexpected(r, type, "expected a name");
    return err ? err : dp_tuning_draft_add(r->draft, &rule);
}

static int read_rules(struct reader *r)
{
    enum dp_scan_type type = dp_json_scan_next(&r->json);
    int err = type == DP_SCAN_LIST ? 0 : unexpected(r, type, "rules: expected a list");

    while (!err && (type = dp_json_scan_next(&r->json)) != DP_SCAN_LIST_END)
        err = type == DP_SCAN_OBJECT ? read_rule(r)
                                     : unexpected(r, type, "rules: expected an object for every rule");
    return err;
}

static int read_version(struct reader *r)
{
    enum dp_scan_type type = dp_json_scan_next(&r->json);

    r->has_version = type == DP_SCAN_NUMBER && !strcmp(r->json.text, "1");
    return r->has_version ? 0 : unexpected(r, type, "dualpipe_tuning: expected 1");
}

static int read_member(struct reader *r)
{
    if (!strcmp(r->json.text, "rules"))
        return read_rules(r);
    if (!strcmp(r->json.text, "dualpipe_tuning"))
        return read_version(r);
    return dp_fail(DP_EINVAL, "%s:%d: '%.40s', expected dualpipe_tuning or rules", r->draft->name,
                   r->json.line, r->json.text);
}

int dp_tuning_read_json(const char *text, size_t len, struct dp_tuning_draft *draft)
{
    struct reader r = {.json = dp_json_scan_begin(text, len), .draft = draft};
    enum dp_scan_type type = dp_json_scan_next(&r.json);
    int err = type == DP_SCAN_OBJECT ? 0 : unexpected(&r, type, "expected an object");

    while (!err && (type = dp_json_scan_next(&r.json)) != DP_SCAN_OBJECT_END)
        err = type == DP_SCAN_KEY ? read_member(&r) : unexpected(&r, type, "expected a name");
    if (!err && (type = dp_json_scan_next(&r.json)) != DP_SCAN_END)
        err = unexpected(&r, type, "expected the end");
    if (!err && !r.has_version)
        err = fail_here(&r, "no \"dualpipe_tuning\": 1, expected a table of this version");
    return err;
}
