/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h" /* GNU extensions: secure_getenv */

#include "base/options.h"

#include "base/fail.h"

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

static bool parse_int(const struct dp_option *o, const char *text, int64_t *value)
{
    char *end;

    errno = 0;
    long long v = strtoll(text, &end, 0);
    if (errno || end == text || *end)
        return false;
    *value = v;
    return (!o->min && !o->max) || (v >= o->min && v <= o->max);
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

static bool parse_choice(const struct dp_option *o, const char *text, const char **value)
{
    for (size_t i = 0; o->choices[i]; i++)
        if (!strcmp(text, o->choices[i])) {
            *value = o->choices[i];
            return true;
        }
    return false;
}

static bool parse_value(const struct dp_option *o, const char *text, void *member)
{
    switch (o->type) {
    case DP_OPTION_INT:
        return parse_int(o, text, member);
    case DP_OPTION_BOOL:
        return parse_bool(text, member);
    case DP_OPTION_CHOICE:
        return parse_choice(o, text, member);
    case DP_OPTION_STRING:
    case DP_OPTION_SECRET:
        *(const char **)member = text;
        return true;
    }
    return false;
}

static void say_expected(const struct dp_option *o, char *out, size_t len)
{
    size_t n;

    switch (o->type) {
    case DP_OPTION_INT:
        if (o->min || o->max)
            snprintf(out, len, "a whole number from %lld to %lld", (long long)o->min,
                     (long long)o->max);
        else
            snprintf(out, len, "a whole number");
        return;
    case DP_OPTION_BOOL:
        snprintf(out, len, "0, 1, no, yes, off, on, false or true");
        return;
    case DP_OPTION_CHOICE:
        n = (size_t)snprintf(out, len, "one of ");
        for (size_t i = 0; o->choices[i] && n < len; i++)
            n += (size_t)snprintf(out + n, len - n, "%s%s", i ? ", " : "", o->choices[i]);
        return;
    case DP_OPTION_STRING:
    case DP_OPTION_SECRET:
        snprintf(out, len, "any text");
        return;
    }
}

enum { MAX_NAMES = 192, NAME_LEN = 64 };

static void full_name(const struct dp_option_area *area, const char *option, char out[NAME_LEN])
{
    snprintf(out, NAME_LEN, "%s%s%s%s", prefix, area->area, *option ? "_" : "", option);
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

static int read_one(const struct dp_option_area *area, const struct dp_option *o, void *values)
{
    char name[NAME_LEN], expected[256];
    void *member = (char *)values + o->offset;

    const char *text = look_up(area, o, name);
    if (!text)
        text = o->fallback;
    if (!text) {
        *(const char **)member = NULL;
        return 0;
    }
    if (parse_value(o, text, member))
        return 0;
    say_expected(o, expected, sizeof(expected));
    return dp_fail(DP_EINVAL, "%s=%s: expected %s (%s)", name, text, expected, o->help);
}

int dp_options_read(const struct dp_option_area *area, void *values)
{
    struct names names = {.count = 0};
    char start[NAME_LEN];

    add_names(&names, area);
    snprintf(start, sizeof(start), "%s%s_", prefix, area->area);
    int err = fail_on_strangers(start, &names);
    for (size_t i = 0; !err && i < area->count; i++)
        err = read_one(area, &area->options[i], values);
    return err;
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
    union {
        int64_t number;
        bool flag;
        const char *text;
    } value;

    say_expected(o, expected, sizeof(expected));
    const char *text = look_up(area, o, name);
    const char *shown = text && o->type == DP_OPTION_SECRET ? "(set)" : text;
    struct dp_option_info info = {
        .name = name, .value = shown ? shown : o->fallback, .fallback = o->fallback, .help = o->help,
        .expected = expected, .from_environment = text,
    };
    if (text && !parse_value(o, text, &value)) {
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
