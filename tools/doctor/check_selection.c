/* SPDX-License-Identifier: Apache-2.0
 *
 * check_selection.c - whether NCCL_ALGO and NCCL_PROTO name what NCCL has. Their form, as NCCL
 * parses it without regard to case:
 *
 *      ring,tree                       these, for every collective
 *      ^tree                           all but these
 *      allreduce:tree;broadcast:ring   an entry a collective; only the first may lack its name
 */
#include "config.h"

#include "doctor/doctor.h"

#include <dualpipe/options.h>

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { NAMES_MAX = 8 };

struct selection {
    const char *variable, *word;
    const char *names[NAMES_MAX];
};

static const struct selection selections[] = {
    {"NCCL_ALGO",
     "algorithm",
     {"Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"}},
    {"NCCL_PROTO", "protocol", {"LL", "LL128", "Simple"}},
};
static const struct selection collectives = {
    .word = "collective",
    .names = {"Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"}};

static size_t count_names(const struct selection *s)
{
    size_t count = 0;

    while (count < NAMES_MAX && s->names[count])
        count++;
    return count;
}

static bool has_name(const struct selection *s, const char *name)
{
    for (size_t i = 0; i < count_names(s); i++)
        if (!strcasecmp(s->names[i], name))
            return true;
    return false;
}

static const char *list_names(struct doctor *d, const struct selection *s)
{
    const char *list = s->names[0];

    for (size_t i = 1; i < count_names(s); i++)
        list = doctor_text(d, "%s, %s", list, s->names[i]);
    return list;
}

static void expect_name(struct doctor *d, const struct selection *s, const char *name,
                        const char *variable)
{
    if (has_name(s, name))
        return;
    const char *near = dp_nearest(name, s->names, count_names(s));
    doctor_add(d, DOCTOR_FAULT,
               doctor_text(d, "%s: NCCL has no %s '%s'%s%s%s", variable, s->word, name,
                           near ? "; did you mean " : "", near ? near : "", near ? "?" : ""),
               doctor_origin(d, variable),
               "recent releases stop with 'invalid usage', older ones ignore the name",
               doctor_text(d, "unset %s, or name one of %s", variable, list_names(d, s)));
}

/* "allreduce:tree,ring" or "^tree". */
static void look_at_entry(struct doctor *d, const struct selection *s, char *entry)
{
    char *colon = strchr(entry, ':'), *name;

    if (colon) {
        *colon = 0;
        expect_name(d, &collectives, entry, s->variable);
        entry = colon + 1;
    }
    entry += *entry == '^';
    while ((name = strsep(&entry, ",")))
        if (*name)
            expect_name(d, s, name, s->variable);
}

void doctor_selection(struct doctor *d)
{
    for (size_t i = 0; i < sizeof(selections) / sizeof(selections[0]); i++) {
        const char *value = doctor_variable(d, selections[i].variable);
        char *copy = value ? strdup(value) : NULL, *rest = copy, *entry;

        while (copy && (entry = strsep(&rest, ";")))
            if (*entry)
                look_at_entry(d, &selections[i], entry);
        free(copy);
    }
}
