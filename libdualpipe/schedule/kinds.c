/* SPDX-License-Identifier: Apache-2.0
 *
 * kinds.c - the kinds of schedules: their names, and the table of builders.
 */
#include "base/fail.h"
#include "base/text.h"
#include "schedule/build.h"

#include <string.h>

static const struct dp_builder *const builders[] = {
    [DP_SCHEDULE_USER] = NULL,
    [DP_SCHEDULE_GPIPE] = &dp_build_gpipe,
    [DP_SCHEDULE_1F1B] = &dp_build_1f1b,
    [DP_SCHEDULE_ZB1P] = &dp_build_zb1p,
    [DP_SCHEDULE_DUALPIPE] = &dp_build_dualpipe,
    [DP_SCHEDULE_DUALPIPEV] = &dp_build_dualpipev,
    [DP_SCHEDULE_INTERLEAVED] = &dp_build_interleaved,
    [DP_SCHEDULE_ZBV] = &dp_build_zbv,
    [DP_SCHEDULE_ASYNC] = &dp_build_async,
};
_Static_assert(sizeof(builders) / sizeof(builders[0]) == DP_SCHEDULE_KINDS, "a builder each");

const struct dp_builder *dp_builder_of(enum dp_schedule_kind kind)
{
    return (unsigned)kind < DP_SCHEDULE_KINDS ? builders[kind] : NULL;
}

const char *dp_schedule_kind_name(enum dp_schedule_kind kind)
{
    const struct dp_builder *builder = dp_builder_of(kind);
    return builder ? builder->name : "user";
}

int dp_schedule_kind_find(const char *name, enum dp_schedule_kind *kind)
{
    const char *names[DP_SCHEDULE_KINDS];

    for (int k = 0; k < DP_SCHEDULE_KINDS; k++) {
        names[k] = dp_schedule_kind_name((enum dp_schedule_kind)k);
        if (!strcmp(names[k], name)) {
            *kind = (enum dp_schedule_kind)k;
            return 0;
        }
    }
    const char *near = dp_nearest(name, names, DP_SCHEDULE_KINDS);
    return dp_fail_quietly(DP_EINVAL, "schedule '%s', expected one of gpipe, 1f1b, zb1p, dualpipe, "
                           "dualpipev, interleaved, zbv, async, user%s%s%s", name,
                           near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

int dp_schedule_kind_parse(const char *name, enum dp_schedule_kind *kind)
{
    int err = dp_schedule_kind_find(name, kind);
    return err ? dp_fail(err, "%s", dp_last_error()) : 0;
}

static const char *const recomputes[DP_RECOMPUTES] = {"never", "except_last", "always"};

const char *dp_recompute_name(enum dp_recompute recompute)
{
    return (unsigned)recompute < DP_RECOMPUTES ? recomputes[recompute] : "?";
}

int dp_recompute_parse(const char *name, enum dp_recompute *recompute)
{
    for (int i = 0; i < DP_RECOMPUTES; i++)
        if (!strcmp(name, recomputes[i])) {
            *recompute = (enum dp_recompute)i;
            return 0;
        }
    return dp_fail(DP_EINVAL, "recompute: '%s', expected never, except_last or always (A2)", name);
}
