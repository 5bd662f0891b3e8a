/* SPDX-License-Identifier: Apache-2.0
 *
 * links.c - "intra=450,inter=50,inter_us=3" and back.
 */
#include "base/fail.h"
#include "base/text.h"

#include <dualpipe/options.h>
#include <dualpipe/tuning.h>

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NUMBER_LEN = 32 };

static const char *const names[] = {"intra", "inter", "intra_us", "inter_us"};
enum { NAMES = sizeof(names) / sizeof(names[0]) };

static double *member(struct dp_tuning_links *links, int name)
{
    double *const members[] = {&links->intra_gbs, &links->inter_gbs, &links->intra_us,
                               &links->inter_us};

    return members[name];
}

static int find_name(const char *text, size_t len)
{
    int name = 0;

    while (name < NAMES && (strlen(names[name]) != len || strncmp(text, names[name], len)))
        name++;
    return name;
}

static int unknown_name(const char *text, size_t len)
{
    char word[NUMBER_LEN];

    snprintf(word, sizeof(word), "%.*s", (int)len, text);
    const char *near = dp_nearest(word, names, NAMES);
    return dp_fail(DP_EINVAL, "links: '%s', expected intra, inter, intra_us or inter_us%s%s%s", word,
                   near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

/* One NAME=NUMBER; *text moves behind it. */
static int parse_one(const char **text, struct dp_tuning_links *links)
{
    size_t len = strcspn(*text, "=,");
    int name = find_name(*text, len);
    char *end;

    if (name == NAMES)
        return unknown_name(*text, len);
    const char *number = *text + len + ((*text)[len] == '=');
    double value = dp_strtod(number, &end);
    if ((*text)[len] != '=' || end == number || (*end && *end != ',') || !(value >= 0) || value > 1e6)
        return dp_fail(DP_EINVAL, "links: '%s', expected %s=NUMBER in %s", *text, names[name],
                       name < 2 ? "GB/s" : "us");
    *member(links, name) = value;
    *text = end + (*end == ',');
    return 0;
}

int dp_tuning_links_parse(const char *text, struct dp_tuning_links *out)
{
    struct dp_tuning_links links = {0};
    int err = 0;

    while (*text && !err)
        err = parse_one(&text, &links);
    if (!err)
        *out = links;
    return err;
}

const char *dp_tuning_links_text(const struct dp_tuning_links *links,
                                 char text[DP_TUNING_LINKS_LEN])
{
    struct dp_tuning_links copy = *links;
    size_t used = 0;

    *text = '\0';
    for (int i = 0; i < NAMES; i++)
        if (*member(&copy, i) > 0)
            used += (size_t)dp_snprintf(text + used, DP_TUNING_LINKS_LEN - used, "%s%s=%.6g",
                                        used ? "," : "", names[i], *member(&copy, i));
    return text;
}
