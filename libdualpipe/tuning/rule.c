/* SPDX-License-Identifier: Apache-2.0
 *
 * rule.c - the columns of a table: which text each takes, and as which it is written.
 */
#include "tuning/internal.h"
#include "tuning/rule.h"

#include "base/text.h"

#include <dualpipe/options.h>

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_CHANNELS = 64 };

static const char *const functions[] = {"broadcast",     "reduce",    "allgather",
                                        "reducescatter", "allreduce", NULL};
static const char *const algorithms[] = {"tree", "ring",      "collnet_direct", "collnet_chain",
                                         "nvls", "nvls_tree", "pat",            NULL};
static const char *const protocols[] = {"ll", "ll128", "simple", NULL};

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

static const char *name_of(const char *const *names, int count, int value)
{
    if (value == DP_TUNING_DEFAULT)
        return "default";
    return value >= 0 && value < count ? names[value] : "?";
}

const char *dp_tuning_function_name(int function)
{
    return name_of(functions, DP_TUNING_FUNCTIONS, function);
}

const char *dp_tuning_algorithm_name(int algorithm)
{
    return name_of(algorithms, DP_TUNING_ALGORITHMS, algorithm);
}

const char *dp_tuning_protocol_name(int protocol)
{
    return name_of(protocols, DP_TUNING_PROTOCOLS, protocol);
}

/* ---- kinds of columns ------------------------------------------------------------------------ */

enum { EXPECTED_LEN = 192 };

struct column {
    const struct kind *kind;
    size_t offset, size; /* of the member of a rule */
    const char *open;    /* how an open column is written; NULL: it cannot be open */
    const char *const *names;
};

/* parse gets no text that leaves a column open; false with what was expected. */
struct kind {
    bool (*parse)(const struct column *c, const char *text, void *member, char expected[EXPECTED_LEN]);
    void (*write)(const struct column *c, const void *member, struct dp_text *out);
};

static bool expect(char *expected, const char *what)
{
    snprintf(expected, EXPECTED_LEN, "%s", what);
    return false;
}

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

static bool parse_name(const struct column *c, const char *text, void *member, char *expected)
{
    size_t count = 0, used = (size_t)snprintf(expected, EXPECTED_LEN, "one of");

    for (; c->names[count]; count++) {
        if (!strcasecmp(text, c->names[count])) {
            *(int *)member = (int)count;
            return true;
        }
        used += (size_t)snprintf(expected + used, EXPECTED_LEN - used, "%s %s", count ? "," : "",
                                 c->names[count]);
    }
    const char *near = dp_nearest(text, c->names, count);
    if (near)
        snprintf(expected + used, EXPECTED_LEN - used, "; did you mean %s?", near);
    return false;
}

static void write_name(const struct column *c, const void *member, struct dp_text *out)
{
    dp_text_adds(out, c->names[*(const int *)member]);
}

static bool parse_registered(const struct column *c, const char *text, void *member, char *expected)
{
    static const char *const words[] = {"0", "1", "no", "yes", "false", "true"};

    (void)c;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (!strcasecmp(text, words[i])) {
            *(int *)member = i % 2 ? DP_TUNING_REGISTERED : DP_TUNING_UNREGISTERED;
            return true;
        }
    return expect(expected, "yes, no or any");
}

static bool parse_bytes(const struct column *c, const char *text, void *member, char *expected)
{
    int64_t value;
    const char *end = parse_count(text, true, &value);

    (void)c;
    if (!end || *end)
        return expect(expected, "a size such as 65536 or 64KiB, or any");
    *(int64_t *)member = value;
    return true;
}

static void write_bytes(const struct column *c, const void *member, struct dp_text *out)
{
    (void)c;
    dp_text_addf(out, "%" PRId64, *(const int64_t *)member);
}

static bool parse_range(const struct column *c, const char *text, void *member, char *expected)
{
    struct dp_tuning_range r;
    const char *end = parse_count(text, false, &r.least);

    (void)c;
    r.most = r.least;
    if (end && *end == '-')
        end = parse_count(end + 1, false, &r.most);
    if (!end || *end || r.least < 1 || r.least > r.most)
        return expect(expected, "a number, a range such as 2-16, or any");
    *(struct dp_tuning_range *)member = r;
    return true;
}

static void write_range(const struct column *c, const void *member, struct dp_text *out)
{
    const struct dp_tuning_range *r = member;

    (void)c;
    dp_text_addf(out, r->least == r->most ? "%" PRId64 : "%" PRId64 "-%" PRId64, r->least, r->most);
}

static bool parse_channels(const struct column *c, const char *text, void *member, char *expected)
{
    int64_t value = 0;
    const char *end = parse_count(text, false, &value);

    (void)c;
    if (!end || *end || value > MAX_CHANNELS)
        return expect(expected, "a number from 1 to 64, or any");
    *(int *)member = (int)value;
    return true;
}

static void write_channels(const struct column *c, const void *member, struct dp_text *out)
{
    (void)c;
    dp_text_addf(out, "%d", *(const int *)member);
}

static bool parse_time(const struct column *c, const char *text, void *member, char *expected)
{
    char *end;
    const double value = dp_strtod(text, &end);

    (void)c;
    if (end == text || *end || !isfinite(value) || value < 0)
        return expect(expected, "a time in us");
    *(double *)member = value;
    return true;
}

static void write_time(const struct column *c, const void *member, struct dp_text *out)
{
    (void)c;
    dp_text_add_number(out, *(const double *)member);
}

/* ---- the columns ------------------------------------------------------------------------------ */

static const struct kind name = {parse_name, write_name};
static const struct kind bytes = {parse_bytes, write_bytes};
static const struct kind range = {parse_range, write_range};
static const struct kind channels = {parse_channels, write_channels};
static const struct kind registered = {parse_registered, write_name};
static const struct kind time_us = {parse_time, write_time};
static const char *const registered_names[] = {"no", "yes"};

#define AT(member) offsetof(struct dp_tuning_rule, member), sizeof(dp_tuning_rule_open.member)
static const struct column columns[DP_COLUMNS] = {
    [DP_COLUMN_COLLECTIVE] = {&name, AT(function), NULL, functions},
    [DP_COLUMN_MIN_BYTES] = {&bytes, AT(bytes.least), "0", NULL},
    [DP_COLUMN_MAX_BYTES] = {&bytes, AT(bytes.most), "any", NULL},
    [DP_COLUMN_ALGORITHM] = {&name, AT(algorithm), "default", algorithms},
    [DP_COLUMN_PROTOCOL] = {&name, AT(protocol), "default", protocols},
    [DP_COLUMN_CHANNELS] = {&channels, AT(channels), "any", NULL},
    [DP_COLUMN_NODES] = {&range, AT(nodes), "any", NULL},
    [DP_COLUMN_RANKS] = {&range, AT(ranks), "any", NULL},
    [DP_COLUMN_PIPE_OPS] = {&range, AT(pipe_ops), "any", NULL},
    [DP_COLUMN_REGISTERED] = {&registered, AT(registered), "any", registered_names},
    [DP_COLUMN_CHUNK_BYTES] = {&bytes, AT(chunk_bytes), "any", NULL},
    [DP_COLUMN_TIME_US] = {&time_us, AT(time_us), "any", NULL},
    [DP_COLUMN_DEFAULT_US] = {&time_us, AT(default_us), "any", NULL},
};

static bool is_open(const char *text)
{
    return !*text || !strcmp(text, "-1") || !strcasecmp(text, "any") ||
           !strcasecmp(text, "default") || !strcmp(text, "*");
}

bool dp_tuning_rule_set(struct dp_tuning_rule *r, enum dp_tuning_column column, const char *text,
                        char why[DP_RULE_WHY])
{
    const struct column *c = &columns[column];
    char *member = (char *)r + c->offset, expected[EXPECTED_LEN];

    if (c->open && is_open(text))
        memcpy(member, (const char *)&dp_tuning_rule_open + c->offset, c->size);
    else if (!c->kind->parse(c, text, member, expected)) {
        snprintf(why, DP_RULE_WHY, "%s: '%.40s', expected %s", dp_tuning_columns[column], text,
                 expected);
        return false;
    }
    return true;
}

void dp_tuning_rule_write(const struct dp_tuning_rule *r, enum dp_tuning_column column,
                          struct dp_text *out)
{
    const struct column *c = &columns[column];
    const char *member = (const char *)r + c->offset;

    if (c->open && !memcmp(member, (const char *)&dp_tuning_rule_open + c->offset, c->size))
        dp_text_adds(out, c->open);
    else
        c->kind->write(c, member, out);
}

/* ---- a rule --------------------------------------------------------------------------------- */

static bool is_for_any(const struct dp_tuning_range *r)
{
    return !r->least && r->most == INT64_MAX;
}

const char *dp_tuning_rule_check(const struct dp_tuning_rule *r)
{
    if (r->function == DP_TUNING_FUNCTIONS)
        return "the rule has no collective";
    if (r->bytes.least > r->bytes.most)
        return "min_bytes is more than max_bytes, expected at most as much";
    if ((r->algorithm == DP_TUNING_DEFAULT) != (r->protocol == DP_TUNING_DEFAULT))
        return "one of algorithm and protocol, expected both or neither";
    if (r->algorithm == DP_TUNING_DEFAULT && r->channels)
        return "channels without an algorithm: how many NCCL has depends on it";
    if (r->chunk_bytes && r->algorithm == DP_TUNING_DEFAULT)
        return "chunk_bytes without an algorithm and a protocol";
    if (r->chunk_bytes && r->registered != DP_TUNING_EITHER)
        return "chunk_bytes for registered or other buffers only: NCCL does not say which they are "
               "when it asks for a chunk";
    if (r->chunk_bytes && !is_for_any(&r->pipe_ops))
        return "chunk_bytes for some pipe_ops only: NCCL does not say how many there are when it "
               "asks for a chunk";
    return NULL;
}
