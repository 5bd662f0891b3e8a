/* SPDX-License-Identifier: Apache-2.0 */
#include "base/options.h"

#include "base/fail.h"
#include "base/nearest.h"

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

static int parse_int(const char *text, int64_t *value)
{
    char *end;

    errno = 0;
    long long v = strtoll(text, &end, 0);
    if (errno || end == text || *end)
        return DP_EINVAL;
    *value = v;
    return 0;
}

static int parse_bool(const char *text, bool *value)
{
    static const char *const words[] = {"0", "1", "no", "yes", "off", "on", "false", "true"};

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (!strcmp(text, words[i])) {
            *value = i % 2;
            return 0;
        }
    return DP_EINVAL;
}

static int bad_choice(const char *name, const char *text, const char *const *choices)
{
    char list[256] = "";

    for (size_t i = 0, n = 0; choices[i] && n < sizeof(list) - 1; i++)
        n += (size_t)snprintf(list + n, sizeof(list) - n, "%s%s", i ? ", " : "", choices[i]);
    return dp_fail(DP_EINVAL, "%s=%s: expected one of %s", name, text, list);
}

static int set_value(const struct dp_option *o, const char *name, const char *text, void *values)
{
    void *member = (char *)values + o->offset;

    switch (o->type) {
    case DP_OPTION_INT:
        if (parse_int(text, member))
            return dp_fail(DP_EINVAL, "%s=%s: expected a whole number (%s)", name, text, o->help);
        if ((o->min || o->max) && (*(int64_t *)member < o->min || *(int64_t *)member > o->max))
            return dp_fail(DP_EINVAL, "%s=%s: expected a number from %lld to %lld (%s)", name, text,
                           (long long)o->min, (long long)o->max, o->help);
        return 0;
    case DP_OPTION_BOOL:
        if (parse_bool(text, member))
            return dp_fail(DP_EINVAL, "%s=%s: expected 0, 1, no, yes, off, on, false or true", name,
                           text);
        return 0;
    case DP_OPTION_CHOICE:
        for (size_t i = 0; o->choices[i]; i++)
            if (!strcmp(text, o->choices[i])) {
                *(const char **)member = o->choices[i];
                return 0;
            }
        return bad_choice(name, text, o->choices);
    case DP_OPTION_STRING:
        *(const char **)member = text;
        return 0;
    }
    return DP_EINVAL;
}

/* A variable of the area that no option of it claims is most likely a misspelt one. */
static int check_names(const struct dp_option_area *area)
{
    const char *names[64];
    char start[64];
    size_t start_len = (size_t)snprintf(start, sizeof(start), "%s%s_", prefix, area->area);

    for (size_t i = 0; i < area->count; i++)
        names[i] = area->options[i].name;
    for (char **e = environ; e && *e; e++) {
        const char *equals = strchr(*e, '=');
        char name[64];
        bool known = false;

        if (!equals || strncmp(*e, start, start_len))
            continue;
        snprintf(name, sizeof(name), "%.*s", (int)(equals - *e - (ptrdiff_t)start_len),
                 *e + start_len);
        for (size_t i = 0; i < area->count && !known; i++)
            known = !strcmp(name, names[i]);
        if (known)
            continue;
        const char *near = dp_nearest(name, names, area->count);
        return dp_fail(DP_EINVAL, "%s%s: no such option%s%s%s ('dualpipe info --options' lists all)",
                       start, name, near ? "; did you mean " : "", near ? start : "",
                       near ? near : "");
    }
    return 0;
}

int dp_options_read(const struct dp_option_area *area, void *values)
{
    int err = check_names(area);

    for (size_t i = 0; !err && i < area->count; i++) {
        const struct dp_option *o = &area->options[i];
        char name[96];
        snprintf(name, sizeof(name), "%s%s_%s", prefix, area->area, o->name);
        const char *text = getenv(name);
        if (!text)
            text = o->fallback;
        if (text)
            err = set_value(o, name, text, values);
        else
            *(const char **)((char *)values + o->offset) = NULL;
    }
    return err;
}

int dp_options_check_areas(void)
{
    const char *names[16];

    for (size_t i = 0; i < dp_option_area_count; i++)
        names[i] = dp_option_areas[i]->area;
    for (char **e = environ; e && *e; e++) {
        bool known = false;
        if (strncmp(*e, prefix, sizeof(prefix) - 1))
            continue;
        const char *rest = *e + sizeof(prefix) - 1;
        for (size_t i = 0; i < dp_option_area_count && !known; i++) {
            size_t len = strlen(names[i]);
            known = !strncmp(rest, names[i], len) && rest[len] == '_';
        }
        if (known)
            continue;
        char area[32];
        snprintf(area, sizeof(area), "%.*s", (int)strcspn(rest, "_="), rest);
        const char *near = dp_nearest(area, names, dp_option_area_count);
        return dp_fail(DP_EINVAL, "%.*s: no such option%s%s%s ('dualpipe info --options' lists all)",
                       (int)strcspn(*e, "="), *e, near ? "; did you mean DUALPIPE_" : "",
                       near ? near : "", near ? "_...?" : "");
    }
    return 0;
}
