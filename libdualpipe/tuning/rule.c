/* SPDX-License-Identifier: Apache-2.0 */
#include "tuning/rule.h"

#include "base/array.h"
#include "base/fail.h"
#include "base/number.h"

#include <dualpipe/options.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_CHANNELS = 64 };

const char *const dp_tuning_columns[DP_COLUMNS + 1] = {
    "collective", "min_bytes",  "max_bytes",   "algorithm", "protocol",   "channels", "nodes", "ranks",
    "pipe_ops",   "registered", "chunk_bytes", "time_us",   "default_us", NULL,
};

const struct dp_tuning_rule dp_tuning_rule_open = {
    .function = DP_TUNING_FUNCTIONS,
    .bytes = {0, INT64_MAX},
    .ranks = {0, INT64_MAX},
    .nodes = {0, INT64_MAX},
    .pipe_ops = {0, INT64_MAX},
    .registered = DP_TUNING_EITHER,
    .algorithm = DP_TUNING_DEFAULT,
    .protocol = DP_TUNING_DEFAULT,
};

static bool is_open(const char *text)
{
    return !*text || !strcmp(text, "-1") || !strcasecmp(text, "any") ||
           !strcasecmp(text, "default") || !strcmp(text, "*");
}

static bool refuse(char *why, enum dp_tuning_column column, const char *text, const char *expected)
{
    snprintf(why, DP_RULE_WHY, "%s: '%.40s', expected %s", dp_tuning_columns[column], text, expected);
    return false;
}

/* ---- names ---------------------------------------------------------------------------------- */

static bool set_name(const char *const *names, enum dp_tuning_column column, const char *text,
                     int *out, char *why)
{
    char expected[160] = "one of";
    size_t count = 0, used;

    for (; names[count]; count++)
        if (!strcasecmp(text, names[count])) {
            *out = (int)count;
            return true;
        }
    for (size_t i = 0; i < count; i++) {
        used = strlen(expected);
        snprintf(expected + used, sizeof(expected) - used, "%s %s", i ? "," : "", names[i]);
    }
    const char *near = dp_nearest(text, names, count);
    used = strlen(expected);
    if (near)
        snprintf(expected + used, sizeof(expected) - used, "; did you mean %s?", near);
    return refuse(why, column, text, expected);
}

static bool set_choice(const char *const *names, enum dp_tuning_column column, const char *text,
                       int *out, char *why)
{
    if (is_open(text)) {
        *out = DP_TUNING_DEFAULT;
        return true;
    }
    return set_name(names, column, text, out, why);
}

/* ---- numbers -------------------------------------------------------------------------------- */

/* Digits, then a unit of a size if units are wanted. Returns what stands behind, NULL: no number. */
static const char *parse_count(const char *text, bool units, int64_t *out)
{
    static const struct {
        const char *name;
        int shift;
    } sizes[] = {{"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"K", 10}, {"M", 20}, {"G", 30}, {"B", 0}};
    char *end;

    if (*text < '0' || *text > '9')
        return NULL;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno)
        return NULL;
    for (size_t i = 0; units && i < sizeof(sizes) / sizeof(sizes[0]); i++)
        if (!strcmp(end, sizes[i].name)) {
            if (value > INT64_MAX >> sizes[i].shift)
                return NULL;
            *out = value << sizes[i].shift;
            return end + strlen(end);
        }
    *out = value;
    return end;
}

static bool set_bytes(enum dp_tuning_column column, const char *text, int64_t open, int64_t *out,
                      char *why)
{
    int64_t value;
    const char *end;

    if (is_open(text)) {
        *out = open;
        return true;
    }
    end = parse_count(text, true, &value);
    if (!end || *end)
        return refuse(why, column, text, "a size such as 65536 or 64KiB, or any");
    *out = value;
    return true;
}

static bool set_range(enum dp_tuning_column column, const char *text, struct dp_tuning_range *out,
                      char *why)
{
    struct dp_tuning_range r;
    const char *end;

    if (is_open(text)) {
        *out = (struct dp_tuning_range){0, INT64_MAX};
        return true;
    }
    end = parse_count(text, false, &r.least);
    r.most = r.least;
    if (end && *end == '-')
        end = parse_count(end + 1, false, &r.most);
    if (!end || *end || r.least < 1 || r.least > r.most)
        return refuse(why, column, text, "a number, a range such as 2-16, or any");
    *out = r;
    return true;
}

static bool set_channels(const char *text, int *out, char *why)
{
    int64_t value = 0;
    const char *end = is_open(text) ? "" : parse_count(text, false, &value);

    if (!end || *end || value > MAX_CHANNELS)
        return refuse(why, DP_COLUMN_CHANNELS, text, "a number from 1 to 64, or any");
    *out = (int)value;
    return true;
}

static bool set_time(enum dp_tuning_column column, const char *text, double *out, char *why)
{
    char *end;
    double value = is_open(text) ? 0 : dp_strtod(text, &end);

    if (!is_open(text) && (end == text || *end || !isfinite(value) || value < 0))
        return refuse(why, column, text, "a time in us");
    *out = value;
    return true;
}

static bool set_registered(const char *text, enum dp_tuning_registered *out, char *why)
{
    static const char *const words[] = {"0", "1", "no", "yes", "false", "true"};

    if (is_open(text)) {
        *out = DP_TUNING_EITHER;
        return true;
    }
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (!strcasecmp(text, words[i])) {
            *out = i % 2 ? DP_TUNING_REGISTERED : DP_TUNING_UNREGISTERED;
            return true;
        }
    return refuse(why, DP_COLUMN_REGISTERED, text, "yes, no or any");
}

/* ---- a rule --------------------------------------------------------------------------------- */

bool dp_tuning_rule_set(struct dp_tuning_rule *r, enum dp_tuning_column column, const char *text,
                        char why[DP_RULE_WHY])
{
    switch (column) {
    case DP_COLUMN_COLLECTIVE:
        return set_name(dp_tuning_functions, column, text, &r->function, why);
    case DP_COLUMN_MIN_BYTES:
        return set_bytes(column, text, 0, &r->bytes.least, why);
    case DP_COLUMN_MAX_BYTES:
        return set_bytes(column, text, INT64_MAX, &r->bytes.most, why);
    case DP_COLUMN_ALGORITHM:
        return set_choice(dp_tuning_algorithms, column, text, &r->algorithm, why);
    case DP_COLUMN_PROTOCOL:
        return set_choice(dp_tuning_protocols, column, text, &r->protocol, why);
    case DP_COLUMN_CHANNELS:
        return set_channels(text, &r->channels, why);
    case DP_COLUMN_NODES:
        return set_range(column, text, &r->nodes, why);
    case DP_COLUMN_RANKS:
        return set_range(column, text, &r->ranks, why);
    case DP_COLUMN_PIPE_OPS:
        return set_range(column, text, &r->pipe_ops, why);
    case DP_COLUMN_REGISTERED:
        return set_registered(text, &r->registered, why);
    case DP_COLUMN_CHUNK_BYTES:
        return set_bytes(column, text, 0, &r->chunk_bytes, why);
    case DP_COLUMN_TIME_US:
        return set_time(column, text, &r->time_us, why);
    case DP_COLUMN_DEFAULT_US:
        return set_time(column, text, &r->default_us, why);
    case DP_COLUMNS:
        break;
    }
    return false;
}

static bool is_for_any(const struct dp_tuning_range *range)
{
    return !range->least && range->most == INT64_MAX;
}

bool dp_tuning_rule_check(const struct dp_tuning_rule *r, char why[DP_RULE_WHY])
{
    const char *problem = NULL;

    if (r->function == DP_TUNING_FUNCTIONS)
        problem = "the rule has no collective";
    else if (r->bytes.least > r->bytes.most)
        problem = "min_bytes is more than max_bytes, expected at most as much";
    else if ((r->algorithm == DP_TUNING_DEFAULT) != (r->protocol == DP_TUNING_DEFAULT))
        problem = "one of algorithm and protocol, expected both or neither";
    else if (r->algorithm == DP_TUNING_DEFAULT && r->channels)
        problem = "channels without an algorithm: how many NCCL has depends on it";
    else if (r->chunk_bytes && r->algorithm == DP_TUNING_DEFAULT)
        problem = "chunk_bytes without an algorithm and a protocol";
    else if (r->chunk_bytes && r->registered != DP_TUNING_EITHER)
        problem = "chunk_bytes for registered or other buffers only: NCCL does not say which they are "
                  "when it asks for a chunk";
    else if (r->chunk_bytes && !is_for_any(&r->pipe_ops))
        problem = "chunk_bytes for some pipe_ops only: NCCL does not say how many there are when it "
                  "asks for a chunk";
    if (problem)
        snprintf(why, DP_RULE_WHY, "%s", problem);
    return !problem;
}

/* ---- a table in the making ----------------------------------------------------------------------- */

static int grow(struct dp_tuning_draft *draft)
{
    struct dp_tuning_rule *rules =
        dp_array_grow(draft->rules, &draft->capacity, draft->count + 1, sizeof(*rules));

    if (!rules)
        return dp_fail(DP_ENOMEM, "%s: no memory for %zu rules", draft->name, draft->count + 1);
    draft->rules = rules;
    return 0;
}

int dp_tuning_draft_add(struct dp_tuning_draft *draft, const struct dp_tuning_rule *rule)
{
    char why[DP_RULE_WHY];

    if (!dp_tuning_rule_check(rule, why))
        return dp_fail(DP_EINVAL, "%s:%d: %s", draft->name, rule->line, why);
    int err = grow(draft);
    if (!err)
        draft->rules[draft->count++] = *rule;
    return err;
}
