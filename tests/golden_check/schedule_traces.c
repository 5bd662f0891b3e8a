/* SPDX-License-Identifier: Apache-2.0
 *
 * schedule_traces.c - recorded traces of DualPipe and DualPipeV.
 */
#include "golden_check/golden.h"
#include "schedule/internal.h"

#include <dualpipe/schedule.h>

#include <stdlib.h>
#include <string.h>

static bool is_trace(const json_t *value)
{
    return json_is_string(json_object_get(value, "algo")) &&
           json_is_array(json_object_get(value, "ranks"));
}

/* The schedule that we build from the parameters of the recorded one. */
static struct dp_schedule *build_same(const struct dp_schedule *recorded)
{
    int *rank_map = calloc((size_t)recorded->ranks, sizeof(*rank_map));
    struct dp_schedule *s = NULL;

    for (int rank = 0; rank_map && rank < recorded->ranks; rank++)
        rank_map[recorded->group_rank[rank]] = rank;
    if (!rank_map || dp_schedule_new(&(struct dp_schedule_spec){
                                         .kind = recorded->kind,
                                         .ranks = recorded->ranks,
                                         .microbatches = recorded->microbatches,
                                         .forward_only = recorded->forward_only,
                                         .return_outputs = recorded->return_outputs,
                                         .no_overlap = !recorded->overlap,
                                         .rank_map = rank_map,
                                     }, &s))
        s = NULL;
    free(rank_map);
    return s;
}

static struct dp_op op_at(const struct dp_schedule *s, int rank, size_t index)
{
    return index < dp_schedule_count(s, rank) ? dp_schedule_ops(s, rank)[index]
                                              : (struct dp_op){.kind = DP_OP_NONE};
}

static bool tell_first_difference(struct golden *g, const struct dp_schedule *recorded,
                                  const struct dp_schedule *ours)
{
    char theirs_text[DP_OP_TEXT_LEN], ours_text[DP_OP_TEXT_LEN];

    for (int rank = 0; rank < recorded->ranks; rank++)
        for (size_t i = 0; i <= dp_schedule_count(recorded, rank); i++) {
            struct dp_op theirs = op_at(recorded, rank, i), mine = op_at(ours, rank, i);
            if (memcmp(&theirs, &mine, sizeof(mine)))
                return FAIL(g, "rank %d, op %zu: recorded was |%u| %s, we build |%u| %s", rank, i,
                            dp_op_unit(theirs), dp_op_text(theirs, theirs_text), dp_op_unit(mine),
                            dp_op_text(mine, ours_text));
        }
    return FAIL(g, "the ops are the same, the ranks or slots are not");
}

/* A pair is one event and two ops. */
static size_t count_events(const struct dp_schedule *s)
{
    size_t events = 0;

    for (size_t i = 0; i < s->first[s->ranks]; i++)
        events += !(s->ops[i].flags & DP_OP_OVERLAP);
    return events;
}

static size_t count_recorded_events(const json_t *value)
{
    size_t events = 0, i;
    const json_t *rank;

    json_array_foreach(json_object_get(value, "ranks"), i, rank)
        events += json_array_size(json_object_get(rank, "events"));
    return events;
}

static bool compare_traces(struct golden *g, const struct dp_schedule *recorded,
                           const struct dp_schedule *ours)
{
    struct dp_finding finding;

    if (count_events(recorded) != count_recorded_events(g->value))
        return FAIL(g, "%zu events, of which no trace can be made",
                    count_recorded_events(g->value));
    if (!dp_schedule_equal(recorded, ours))
        return tell_first_difference(g, recorded, ours);
    if (dp_schedule_check(ours, NULL, &finding))
        return FAIL(g, "breaks the %s rule: %s", dp_name(DP_NAMES_RULE, finding.rule), finding.text);
    return PASS(g, "%s P=%d M=%d, all %zu events", dp_name(DP_NAMES_SCHEDULE, ours->kind),
                ours->ranks, ours->microbatches, count_events(ours));
}

static bool check_trace(struct golden *g)
{
    struct dp_schedule *recorded, *ours;
    bool same;

    if (dp_schedule_read(g->text, g->len, DP_FORMAT_JSON, &recorded))
        return FAIL(g, "%s", dp_last_error());
    ours = build_same(recorded);
    same = ours ? compare_traces(g, recorded, ours) : FAIL(g, "%s", dp_last_error());
    dp_schedule_free(recorded);
    dp_schedule_free(ours);
    return same;
}

const struct golden_kind golden_schedule_traces = {is_trace, check_trace};
