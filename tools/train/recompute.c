/* SPDX-License-Identifier: Apache-2.0 */
#include "train/recompute.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- stages --------------------------------------------------------------------------------------
 */

/* One number, and where it ends. */
static bool parse_stage(const char **at, int *out)
{
    char *end;

    if (**at < '0' || **at > '9')
        return false;
    errno = 0;
    const long n = strtol(*at, &end, 10);
    if (errno || n >= STAGE_SET_MAX)
        return false;
    *at = end;
    *out = (int)n;
    return true;
}

static bool parse_range(const char **at, struct stage_set *set)
{
    int first, last;

    if (!parse_stage(at, &first))
        return false;
    last = first;
    if (**at == '-') {
        ++*at;
        if (!parse_stage(at, &last) || last < first)
            return false;
    }
    for (int s = first; s <= last; s++)
        set->has[s] = true;
    if (last > set->last)
        set->last = last;
    return true;
}

bool stage_set_parse(const char *text, void *member, char *why, size_t why_len)
{
    struct stage_set *set = member;
    const char *at = text;
    bool good;

    memset(set, 0, sizeof(*set));
    set->any = true;
    do
        good = parse_range(&at, set);
    while (good && *at == ',' && *++at);
    if (good && !*at && at[-1] != ',')
        return true;
    snprintf(why, why_len, "stages from 0 to %d, such as 0,2-3", STAGE_SET_MAX - 1);
    return false;
}

/* ---- recomputation -------------------------------------------------------------------------------
 */

struct wanted {
    const struct stage_set *stages;
    int32_t microbatches; /* of a stream; the later ones are kept */
};

static bool is_wanted(void *user, const struct dp_slot *slot, int32_t mb)
{
    const struct wanted *w = user;
    return mb < w->microbatches && (!w->stages->any || w->stages->has[slot->stage]);
}

int recompute_add(struct dp_schedule *s, const char *mode, const struct stage_set *stages)
{
    struct wanted w = {stages, s->mb_per_stream};

    if (!strcmp(mode, "never"))
        return 0;
    w.microbatches -= !strcmp(mode, "except_last");
    return dp_schedule_add_recomputes(s, is_wanted, &w);
}
