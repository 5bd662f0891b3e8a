/* SPDX-License-Identifier: Apache-2.0
 *
 * mixing_graphs.c - mixing graphs: who averages with whom, and how fast it contracts.
 */
#include "golden_check/golden.h"

#include <dualpipe/mixing.h>

#include <math.h>
#include <string.h>

static bool is_topologies(const json_t *value)
{
    return json_is_array(json_object_get(value, "valid")) &&
           json_is_array(json_object_get(value, "constructor"));
}

static int build_graph(const json_t *record, struct dp_graph **out)
{
    return dp_graph_new(
        &(struct dp_graph_spec){
            .name = golden_string(record, "topology"),
            .workers = (int)golden_integer(record, "world"),
            .local = (int)golden_integer(record, "local_world"),
        },
        out);
}

static bool same_group(const struct dp_graph *g, int64_t t, const json_t *recorded)
{
    const json_t *ranks = json_object_get(recorded, "ranks");
    int first = (int)json_integer_value(json_array_get(ranks, 0));
    const struct dp_mix_group *group;

    return first >= 0 && first < g->workers && (group = dp_graph_group(g, t, first)) &&
           golden_same(ranks, g->members + group->first, group->count) &&
           group->self == golden_number(recorded, "weight");
}

/* Every recorded group is ours, and there are as many. */
static bool same_step(const struct dp_graph *g, int32_t t, const json_t *recorded)
{
    bool same = json_array_size(recorded) == g->rounds[t].group_count;
    const json_t *group;
    size_t i;

    json_array_foreach(recorded, i, group)
        same = same && same_group(g, t, group);
    return same;
}

static bool same_sigma(const struct dp_graph *g, int32_t steps, const json_t *recorded)
{
    double sigma;

    return json_is_number(recorded) && !dp_graph_contraction(g, 0, steps, &sigma) &&
           fabs(sigma - json_number_value(recorded)) <= 2e-9;
}

static bool check_graph(struct golden *g, const json_t *record, const struct dp_graph *ours)
{
    const json_t *steps = json_object_get(record, "steps");
    const json_t *sigma = json_object_get(record, "sigma_prefix");

    if (ours->period != golden_integer(record, "period") ||
        json_array_size(steps) != (size_t)ours->period)
        return FAIL(g, "%s of %d: our period is %d", ours->name, ours->workers, ours->period);
    for (int32_t t = 0; t < ours->period; t++) {
        if (!same_step(ours, t, json_array_get(steps, (size_t)t)))
            return FAIL(g, "%s of %d: step %d is another one with us", ours->name, ours->workers,
                        t);
        if (sigma && !same_sigma(ours, t + 1, json_array_get(sigma, (size_t)t)))
            return FAIL(g, "%s of %d: another contraction after %d steps", ours->name,
                        ours->workers, t + 1);
    }
    return true;
}

static bool check_valid(struct golden *g, size_t i, const json_t *record)
{
    struct dp_graph *ours;

    (void)i;
    if (build_graph(record, &ours))
        return FAIL(g, "%s", dp_last_error());
    bool same = check_graph(g, record, ours);
    dp_graph_free(ours);
    return same;
}

static bool check_constructor(struct golden *g, size_t i, const json_t *record)
{
    const char *result = golden_string(record, "result"), *name = golden_string(record, "topology");
    struct dp_graph *ours = NULL;
    bool wanted = result && !strcmp(result, "constructs"), built = !build_graph(record, &ours);

    (void)i;
    dp_graph_free(ours);
    return built == wanted ||
           FAIL(g, "%s of %lld: recorded was '%s', with us it %s", name ? name : "?",
                (long long)golden_integer(record, "world"), result ? result : "?",
                built ? "constructs" : "does not");
}

static bool check_topologies(struct golden *g)
{
    const json_t *valid = json_object_get(g->value, "valid");
    const json_t *constructor = json_object_get(g->value, "constructor");

    return golden_each(g, valid, check_valid) && golden_each(g, constructor, check_constructor) &&
           PASS(g, "%zu graphs, %zu constructors", json_array_size(valid),
                json_array_size(constructor));
}

const struct golden_kind golden_mixing_graphs = {is_topologies, check_topologies};
