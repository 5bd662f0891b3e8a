/* SPDX-License-Identifier: Apache-2.0
 *
 * schedule_traces.c - recorded traces of DualPipe and DualPipeV.
 */
#include "golden_check/golden.h"

#include <dualpipe/schedule.h>

#include <stdlib.h>
#include <string.h>

static bool is_trace(const json_t *value)
{
    return json_is_string(json_object_get(value, "algo")) &&
           json_is_array(json_object_get(value, "ranks"));
}

static bool is_true(const json_t *record, const char *key, bool absent)
{
    const json_t *value = json_object_get(record, key);

    return value ? json_is_true(value) : absent;
}

/* Where rank `rank` stands in a list: its member `rank` says so, or its place. */
static const json_t *find_rank(const json_t *ranks, int rank)
{
    const json_t *at;
    size_t i;

    json_array_foreach(ranks, i, at) {
        const json_t *number = json_object_get(at, "rank");
        if ((number ? json_integer_value(number) : (json_int_t)i) == rank)
            return at;
    }
    return NULL;
}

/* The schedule that we build from the parameters of the recorded one; NULL: it has been logged. */
static struct dp_schedule *build_same(const json_t *trace)
{
    const json_t *all = json_object_get(trace, "ranks");
    struct dp_schedule_spec spec = {
        .ranks = (int)golden_integer(trace, "P"),
        .microbatches = (int)golden_integer(trace, "M"),
        .virtual_stages = (int)golden_integer(trace, "virtual_stages"),
        .slack = (int)golden_integer(trace, "slack"),
        .forward_only = is_true(trace, "forward_only", false),
        .return_outputs = is_true(trace, "return_outputs", false),
        .no_overlap = !is_true(trace, "overlap_hook", true),
    };
    const size_t count = json_array_size(all);
    int *rank_map = calloc(count + 1, sizeof(*rank_map));
    struct dp_schedule *s = NULL;

    for (int rank = 0; rank_map && rank < (int)count; rank++) {
        const json_t *group = json_object_get(find_rank(all, rank), "group_rank");
        const json_int_t at = group ? json_integer_value(group) : rank;
        if (at >= 0 && at < (json_int_t)count)
            rank_map[at] = rank;
    }
    spec.rank_map = (size_t)spec.ranks == count ? rank_map : NULL;
    while (spec.kind < DP_SCHEDULE_KINDS &&
           strcmp(dp_schedule_kind_name(spec.kind), golden_string(trace, "algo")))
        spec.kind++;
    if (!rank_map || dp_schedule_new(&spec, &s))
        s = NULL;
    free(rank_map);
    return s;
}

/* Every member of ours is in the recorded event; what else that has is not ours to know. */
static bool is_same_event(const json_t *recorded, const json_t *ours)
{
    const char *key;
    json_t *mine;

    json_object_foreach((json_t *)ours, key, mine) {
        const json_t *theirs = json_object_get(recorded, key);
        if (json_is_object(mine) ? !is_same_event(theirs, mine) : !json_equal(theirs, mine))
            return false;
    }
    return true;
}

static bool compare_rank(struct golden *g, int rank, const json_t *recorded, const json_t *ours)
{
    const json_t *theirs = json_object_get(recorded, "events"), *mine = json_object_get(ours, "events");
    const size_t count = json_array_size(theirs);

    for (size_t i = 0; i < count && i < json_array_size(mine); i++) {
        if (is_same_event(json_array_get(theirs, i), json_array_get(mine, i)))
            continue;
        char *was = json_dumps(json_array_get(theirs, i), JSON_ENCODE_ANY);
        char *built = json_dumps(json_array_get(mine, i), 0);
        (void)FAIL(g, "rank %d, event %zu: recorded was %s, we build %s", rank, i,
                   was ? was : "?", built ? built : "?");
        free(was);
        free(built);
        return false;
    }
    return count == json_array_size(mine) ||
           FAIL(g, "rank %d: recorded were %zu events, we build %zu", rank, count, json_array_size(mine));
}

static bool compare_traces(struct golden *g, const struct dp_schedule *s, const json_t *ours)
{
    const json_t *theirs = json_object_get(g->value, "ranks"), *mine = json_object_get(ours, "ranks");
    struct dp_finding finding;
    size_t events = 0;

    if (json_array_size(theirs) != (size_t)s->ranks)
        return FAIL(g, "ranks: a list of %zu, expected P, %d", json_array_size(theirs), s->ranks);
    for (int rank = 0; rank < s->ranks; rank++) {
        const json_t *recorded = find_rank(theirs, rank), *built = json_array_get(mine, (size_t)rank);
        if (!compare_rank(g, rank, recorded, built))
            return false;
        events += json_array_size(json_object_get(recorded, "events"));
    }
    if (dp_schedule_check(s, NULL, &finding))
        return FAIL(g, "breaks the %s rule: %s", dp_rule_name(finding.rule), finding.text);
    return PASS(g, "%s P=%d M=%d, all %zu events", dp_schedule_kind_name(s->kind), s->ranks,
                s->microbatches, events);
}

static bool check_trace(struct golden *g)
{
    struct dp_schedule *s = build_same(g->value);
    char *text = NULL;
    json_t *ours = NULL;
    bool same;

    if (s && !dp_schedule_write(s, DP_FORMAT_JSON, &text, NULL))
        ours = json_loads(text, 0, NULL);
    same = ours ? compare_traces(g, s, ours) : FAIL(g, "%s", dp_last_error());
    json_decref(ours);
    free(text);
    dp_schedule_free(s);
    return same;
}

const struct golden_kind golden_schedule_traces = {is_trace, check_trace};
