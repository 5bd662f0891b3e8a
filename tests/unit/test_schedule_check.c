/* SPDX-License-Identifier: Apache-2.0
 *
 * The checker: passes what the builders write, names what is wrong in what they did not.
 */
#include "cmocka_all.h"

#include <dualpipe/schedule.h>

#include <stdlib.h>
#include <string.h>

static bool is_legal(enum dp_schedule_kind kind, int ranks, int microbatches)
{
    if (kind == DP_SCHEDULE_DUALPIPE && (ranks % 2 || microbatches % 2))
        return false;
    return kind < DP_SCHEDULE_DUALPIPE || microbatches >= 2 * ranks;
}

static void expect_valid(struct dp_schedule_spec spec)
{
    struct dp_finding finding;
    struct dp_schedule *s;

    if (dp_schedule_new(&spec, &s))
        fail_msg("%s", dp_last_error());
    if (dp_schedule_check(s, NULL, &finding))
        fail_msg("%s P=%d M=%d%s: %s: %s", dp_schedule_kind_name(spec.kind), spec.ranks,
                 spec.microbatches, spec.forward_only ? " forward only" : "",
                 dp_rule_name(finding.rule), finding.text);
    dp_schedule_free(s);
}

static void all_built_schedules_up_to_24_ranks_are_valid(void **state)
{
    (void)state;
    for (int kind = DP_SCHEDULE_GPIPE; kind <= DP_SCHEDULE_DUALPIPEV; kind++)
        for (int ranks = 1; ranks <= 24; ranks++)
            for (int m = 1; m <= 2 * ranks + 8; m++)
                for (int flags = 0; flags < 4 && is_legal(kind, ranks, m); flags++)
                    expect_valid((struct dp_schedule_spec){
                        .kind = kind, .ranks = ranks, .microbatches = m,
                        .forward_only = flags & 1, .return_outputs = flags & 2,
                        .no_overlap = flags & 2, .mirror_reduce = flags & 2});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_built_schedules_up_to_24_ranks_are_valid),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
