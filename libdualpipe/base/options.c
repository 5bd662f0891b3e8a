/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h" /* GNU extensions: secure_getenv */

#include "base/options.h"

#include "base/fail.h"
#include "base/text.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

static const char prefix[] = "DUALPIPE_";

/* What base/fail.c reads by itself, listed here so that it is checked and shown like the rest. */
static const char *const log_levels[] = {"error", "warn", "info", "debug", NULL};
struct log_options {
    const char *level;
};
static const struct dp_option log_table[] = {
    {"LEVEL", DP_OPTION_CHOICE, "warn", "messages up to this level are shown",
     offsetof(struct log_options, level), .choices = log_levels},
};
const struct dp_option_area dp_log_option_area = {"LOG", log_table, 1};

/* ---- values -------------------------------------------------------------------------------- */

static bool is_within(const struct dp_option *o, double number)
{
    const double min = (double)o->min, max = (double)o->max;

    return (!o->min && !o->max) || ((o->above ? number > min : number >= min) && number <= max);
}

static bool parse_int(const struct dp_option *o, const char *text, int64_t *value)
{
    char *end;

    errno = 0;
    *value = strtoll(text, &end, 0);
    return !errno && end != text && !*end && is_within(o, (double)*value);
}

static bool parse_real(const struct dp_option *o, const char *text, double *value)
{
    char *end;

    *value = dp_strtod(text, &end);
    return end != text && !*end && isfinite(*value) && is_within(o, *value) &&
           (*value >= 0 || o->min);
}

static bool parse_bytes(const struct dp_option *o, const char *text, size_t *value)
{
    static const struct {
        const char *name;
        double bytes;
    } units[] = {{"", 1},      {"B", 1},      {"kB", 1e3},     {"KB", 1e3},     {"MB", 1e6},
                 {"GB", 1e9},  {"K", 0x1p10}, {"M", 0x1p20},   {"G", 0x1p30},   {"KiB", 0x1p10},
                 {"MiB", 0x1p20}, {"GiB", 0x1p30}};
    char *end;
    const double number = dp_strtod(text, &end);

    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]) && end != text; i++)
        if (!strcmp(end, units[i].name) && number >= 0 && number * units[i].bytes < 0x1p63 &&
            is_within(o, number * units[i].bytes)) {
            *value = (size_t)(number * units[i].bytes);
            return true;
        }
    return false;
}

static bool parse_bool(const char *text, bool *value)
{
    static const char *const words[] = {"0", "1", "no", "yes", "off", "on", "false", "true"};

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (!strcmp(text, words[i])) {
            *value = i % 2;
            return true;
        }
    return false;
}

static int find_choice(const struct dp_option *o, const char *text)
{
    for (int i = 0; o->choices[i]; i++)
        if (!strcmp(text, o->choices[i]))
            return i;
    return -1;
}

static void say_expected(const struct dp_option *o, char *out, size_t len)
{
    const char *number = o->type == DP_OPTION_REAL ? "a number" : "a whole number";
    size_t n;

    switch (o->type) {
    case DP_OPTION_INT:
    case DP_OPTION_INT32:
    case DP_OPTION_REAL:
        if (o->min || o->max)
            snprintf(out, len, o->above ? "%s above %lld, up to %lld" : "%s from %lld to %lld", number,
                     (long long)o->min, (long long)o->max);
        else
            snprintf(out, len, "%s%s", number, o->type == DP_OPTION_REAL ? ", 0 or more" : "");
        return;
    case DP_OPTION_BYTES:
        snprintf(out, len, "a size such as 4096, 64KiB or 1.5MB");
        return;
    case DP_OPTION_BOOL:
        snprintf(out, len, "0, 1, no, yes, off, on, false or true");
        return;
    case DP_OPTION_CHOICE:
    case DP_OPTION_ENUM:
    case DP_OPTION_PARSE:
        n = (size_t)snprintf(out, len, "%s", o->choices ? "one of " : o->help);
        for (size_t i = 0; o->choices && o->choices[i] && n < len; i++)
            n += (size_t)snprintf(out + n, len - n, "%s%s", i ? ", " : "", o->choices[i]);
        return;
    case DP_OPTION_STRING:
    case DP_OPTION_SECRET:
        snprintf(out, len, "any text");
        return;
    }
}

static bool set_number(const struct dp_option *o, const char *text, void *member)
{
    int64_t whole = 0;
    double real = 0;

    if (o->type == DP_OPTION_REAL ? !parse_real(o, text, &real) : !parse_int(o, text, &whole))
        return false;
    if (o->type == DP_OPTION_REAL)
        *(double *)member = real;
    else if (o->type == DP_OPTION_INT)
        *(int64_t *)member = whole;
    else
        *(int32_t *)member = (int32_t)whole;
    return true;
}

static bool set_choice(const struct dp_option *o, const char *text, void *member)
{
    const int at = find_choice(o, text);

    if (at < 0)
        return false;
    if (o->type == DP_OPTION_ENUM)
        *(int32_t *)member = at;
    else
        *(const char **)member = o->choices[at];
    return true;
}

static bool set_member(const struct dp_option *o, const char *text, void *values, char *expected,
                       size_t room)
{
    void *member = (char *)values + o->offset;

    switch (o->type) {
    case DP_OPTION_INT:
    case DP_OPTION_INT32:
    case DP_OPTION_REAL:
        return set_number(o, text, member);
    case DP_OPTION_BYTES:
        return parse_bytes(o, text, member);
    case DP_OPTION_BOOL:
        return parse_bool(text, member);
    case DP_OPTION_CHOICE:
    case DP_OPTION_ENUM:
        return set_choice(o, text, member);
    case DP_OPTION_STRING:
    case DP_OPTION_SECRET:
        *(const char **)member = text;
        return true;
    case DP_OPTION_PARSE:
        return o->parse(text, values, expected, room);
    }
    return false;
}

bool dp_option_set(const struct dp_option *o, const char *text, void *values, char *expected,
                   size_t room)
{
    if (o->type != DP_OPTION_PARSE)
        say_expected(o, expected, room);
    return set_member(o, text, values, expected, room);
}

enum { MAX_NAMES = 192, NAME_LEN = 64 };

static void full_name(const struct dp_option_area *area, const char *option, char out[NAME_LEN])
{
    snprintf(out, NAME_LEN, "%s%s%s%s", prefix, area->area, *option ? "_" : "", option);
    for (char *c = out; *c; c++)
        *c = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
}

/* The value in the environment, and in *name the variable that has it; NULL if there is none. */
static const char *look_up(const struct dp_option_area *area, const struct dp_option *o,
                           char name[NAME_LEN])
{
    char old_name[NAME_LEN];

    full_name(area, o->name, name);
    const char *text = getenv(name);
    if (text && o->is_code && !secure_getenv(name)) {
        dp_log(DP_LOG_WARN, "%s is not read in a program that has more rights than its caller", name);
        return NULL;
    }
    if (text || !o->old_name)
        return text;
    full_name(area, o->old_name, old_name);
    text = getenv(old_name);
    if (text) {
        dp_log(DP_LOG_WARN, "%s is now called %s; the old name will go with the next release",
               old_name, name);
        memcpy(name, old_name, NAME_LEN);
    }
    return text;
}

/* ---- names --------------------------------------------------------------------------------- */

/* The full names of some areas' options. */
struct names {
    size_t count;
    char text[MAX_NAMES][NAME_LEN];
    const char *list[MAX_NAMES];
};

static void add_name(struct names *names, const struct dp_option_area *area, const char *option)
{
    if (!option || names->count == MAX_NAMES)
        return;
    char *name = names->text[names->count];
    full_name(area, option, name);
    names->list[names->count++] = name;
}

static void add_names(struct names *names, const struct dp_option_area *area)
{
    for (size_t i = 0; i < area->count; i++) {
        add_name(names, area, area->options[i].name);
        add_name(names, area, area->options[i].old_name);
    }
}

/* If `entry` of the environment begins with `start` and is none of names, put its name into *name
 * and the sentence that says so into *why. */
static bool is_stranger(const char *entry, const char *start, const struct names *names,
                        char name[NAME_LEN], char *why, size_t why_len)
{
    if (strncmp(entry, start, strlen(start)))
        return false;
    snprintf(name, NAME_LEN, "%.*s", (int)strcspn(entry, "="), entry);
    for (size_t i = 0; i < names->count; i++)
        if (!strcmp(name, names->list[i]))
            return false;
    const char *near = dp_nearest(name, names->list, names->count);
    snprintf(why, why_len, "%s: no such option%s%s%s ('dualpipe info --options' lists all)", name,
             near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
    return true;
}

static int fail_on_strangers(const char *start, const struct names *names)
{
    char name[NAME_LEN], why[256];

    for (char **e = environ; e && *e; e++)
        if (is_stranger(*e, start, names, name, why, sizeof(why)))
            return dp_fail(DP_EINVAL, "%s", why);
    return 0;
}

/* ---- what components call ------------------------------------------------------------------ */

static int read_one(const struct dp_option_area *area, const struct dp_option *o, bool over,
                    void *values)
{
    char name[NAME_LEN], expected[256];
    const char *text = look_up(area, o, name);

    if (!text && over)
        return 0;
    if (!text)
        text = o->fallback;
    if (!text) {
        *(const char **)((char *)values + o->offset) = NULL;
        return 0;
    }
    if (dp_option_set(o, text, values, expected, sizeof(expected)))
        return 0;
    return dp_fail(DP_EINVAL, "%s=%s: expected %s (%s)", name, text, expected, o->help);
}

static int read_all(const struct dp_option_area *area, bool over, void *values)
{
    struct names names = {.count = 0};
    char start[NAME_LEN];

    add_names(&names, area);
    snprintf(start, sizeof(start), "%s%s_", prefix, area->area);
    int err = fail_on_strangers(start, &names);
    for (size_t i = 0; !err && i < area->count; i++)
        err = read_one(area, &area->options[i], over, values);
    return err;
}

int dp_options_read(const struct dp_option_area *area, void *values)
{
    return read_all(area, false, values);
}

int dp_options_read_over(const struct dp_option_area *area, void *values)
{
    return read_all(area, true, values);
}

const char *dp_foreign_variable(const char *name)
{
    const char *text = getenv(name);

    return text && *text ? text : NULL;
}

const char *dp_trusted_variable(const char *name)
{
    return secure_getenv(name) ? dp_foreign_variable(name) : NULL;
}

/* ---- what programs are shown ------------------------------------------------------------- */

static int show_one(const struct dp_option_area *area, const struct dp_option *o, dp_option_fn fn,
                    void *user)
{
    char name[NAME_LEN], expected[256], problem[512];
    struct dp_option alone = *o;
    union {
        int64_t number;
        double real;
        bool flag;
        const char *text;
    } value;

    alone.offset = 0;
    say_expected(o, expected, sizeof(expected));
    const char *text = look_up(area, o, name);
    const char *shown = text && o->type == DP_OPTION_SECRET ? "(set)" : text;
    struct dp_option_info info = {
        .name = name, .value = shown ? shown : o->fallback, .fallback = o->fallback, .help = o->help,
        .expected = expected, .from_environment = text,
    };
    if (text && !set_member(&alone, text, o->type == DP_OPTION_PARSE ? NULL : (void *)&value, expected,
                            sizeof(expected))) {
        snprintf(problem, sizeof(problem), "%s=%s: expected %s", name, text, expected);
        info.problem = problem;
    }
    fn(user, &info);
    return info.problem != NULL;
}

static int show_strangers(const struct names *names, dp_option_fn fn, void *user)
{
    char name[NAME_LEN], why[256];
    int count = 0;

    for (char **e = environ; e && *e; e++) {
        if (!is_stranger(*e, prefix, names, name, why, sizeof(why)))
            continue;
        fn(user, &(struct dp_option_info){.name = name, .value = getenv(name), .problem = why,
                                          .from_environment = true});
        count++;
    }
    return count;
}

int dp_options_show(const struct dp_option_area *const *areas, size_t count, dp_option_fn fn,
                    void *user)
{
    struct names names = {.count = 0};
    int problems = 0;

    for (size_t i = 0; i < count; i++) {
        add_names(&names, areas[i]);
        for (size_t j = 0; j < areas[i]->count; j++)
            problems += show_one(areas[i], &areas[i]->options[j], fn, user);
    }
    return problems + show_strangers(&names, fn, user);
}
