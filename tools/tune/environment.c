/* SPDX-License-Identifier: Apache-2.0
 *
 * environment.c - what the tuner plugin would be told by DUALPIPE_TUNER_* and DUALPIPE_PLACEMENT.
 */
#include "tune/tune.h"

#include "command.h"

#include <dualpipe/options.h>

#include <string.h>

struct search {
    struct tune_environment *out;
    int status;
};

static void take(void *user, const struct dp_option_info *option)
{
    struct search *s = user;
    const struct {
        const char *name;
        const char **to;
    } wanted[] = {{"DUALPIPE_TUNER_TABLE", &s->out->table},
                  {"DUALPIPE_TUNER_LINKS", &s->out->links},
                  {"DUALPIPE_TUNER_REGISTERED", &s->out->registered},
                  {"DUALPIPE_PLACEMENT", &s->out->placement}};

    if (option->problem && !s->status && !strncmp(option->name, "DUALPIPE_TUNER_", 15))
        s->status = command_misused("%s", option->problem);
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
        if (!strcmp(option->name, wanted[i].name) && option->from_environment && *option->value)
            *wanted[i].to = option->value;
}

int tune_read_environment(struct tune_environment *out)
{
    struct search s = {out, 0};

    *out = (struct tune_environment){0};
    dp_options_each(take, &s);
    if (s.status)
        return s.status;
    if (!out->links || strcmp(out->links, "placement"))
        out->placement = NULL;
    else if (!out->placement)
        return command_misused("DUALPIPE_TUNER_LINKS=placement: DUALPIPE_PLACEMENT names no file");
    else
        out->links = NULL;
    return 0;
}
