/* SPDX-License-Identifier: Apache-2.0
 *
 * graph_json.c - graphs as JSON, in the form of the golden files:
 *
 *      {"topology": "ring", "world": 4, "local_world": 1, "period": 2, "steps": [
 *      [{"ranks": [0, 1], "weight": 0.5}, {"ranks": [2, 3], "weight": 0.5}],
 *      [{"ranks": [0, 3], "weight": 0.5}, {"ranks": [1, 2], "weight": 0.5}]]}
 *
 * A link is {"from": 0, "to": 1, "weight": 0.5}; "push_sum" stands there where it is true. Other
 * members are left alone.
 */
#include "base/fail.h"
#include "base/json.h"
#include "base/text.h"
#include "mixing/graph.h"

#include <stdlib.h>

/* ---- writing --------------------------------------------------------------------------------- */

static void write_group(const struct dp_graph *g, const struct dp_mix_group *group,
                        struct dp_text *t)
{
    dp_text_adds(t, "{\"ranks\": [");
    for (int32_t i = 0; i < group->count; i++)
        dp_text_addf(t, "%s%d", i ? ", " : "", g->members[group->first + (size_t)i]);
    dp_text_adds(t, "], \"weight\": ");
    dp_text_add_number(t, group->self);
    dp_text_adds(t, "}");
}

static void write_link(const struct dp_mix_link *l, struct dp_text *t)
{
    dp_text_addf(t, "{\"from\": %d, \"to\": %d, \"weight\": ", l->from, l->to);
    dp_text_add_number(t, l->weight);
    dp_text_adds(t, "}");
}

static void write_round(const struct dp_graph *g, const struct dp_mix_round *r, struct dp_text *t)
{
    for (size_t i = 0; i < r->group_count; i++) {
        dp_text_adds(t, i ? ", " : "");
        write_group(g, &g->groups[r->first_group + i], t);
    }
    for (size_t i = 0; i < r->link_count; i++) {
        dp_text_adds(t, i ? ", " : "");
        write_link(&g->links[r->first_link + i], t);
    }
}

void dp_graph_write_json(const struct dp_graph *g, struct dp_text *t)
{
    dp_text_adds(t, "{\"topology\": ");
    dp_json_add_string(t, g->name);
    dp_text_addf(t, ", \"world\": %d, \"local_world\": %d, \"period\": %d, %s\"steps\": [", g->workers,
                 g->local, g->period, g->push_sum ? "\"push_sum\": true, " : "");
    for (int32_t k = 0; k < g->period; k++) {
        dp_text_adds(t, k ? ",\n[" : "\n[");
        write_round(g, &g->rounds[k], t);
        dp_text_adds(t, "]");
    }
    dp_text_adds(t, "]}\n");
}

/* ---- reading --------------------------------------------------------------------------------- */

static int read_weight(const struct dp_json *at, double *weight)
{
    struct dp_json in = dp_json_member(at, "weight");

    return json_is_number(in.value) ? dp_json_take_number(at, "weight", weight)
                                    : dp_json_expected(&in, "a weight from 0 to 1");
}

static int read_link(const struct dp_json *at, int workers, struct dp_graph_builder *b)
{
    int from = 0, to = 0, err = dp_json_get_int(at, "from", 0, workers - 1, &from);
    double weight = 0;

    if (!err)
        err = dp_json_get_int(at, "to", 0, workers - 1, &to);
    if (!err)
        err = read_weight(at, &weight);
    if (!err)
        dp_graph_add_link(b, from, to, weight);
    return err;
}

static int read_rank(const struct dp_json *at, int workers, int32_t *rank)
{
    json_int_t value = json_integer_value(at->value);
    char what[48];

    if (json_is_integer(at->value) && value >= 0 && value < workers) {
        *rank = (int32_t)value;
        return 0;
    }
    dp_snprintf(what, sizeof(what), "a worker from 0 to %d", workers - 1);
    return dp_json_expected(at, what);
}

static int read_group(const struct dp_json *at, int workers, struct dp_graph_builder *b)
{
    struct dp_json list;
    double self = 0;
    int err = dp_json_get_array(at, "ranks", &list);
    size_t count = json_array_size(list.value);

    if (!err && (!count || count > (size_t)workers))
        err = dp_json_expected(&list, "a list of workers, each once");
    if (!err)
        err = read_weight(at, &self);
    if (err)
        return err;
    int32_t *ranks = malloc(count * sizeof(*ranks));
    if (!ranks)
        return dp_fail(DP_ENOMEM, "no memory for a group of %zu workers", count);
    for (size_t i = 0; i < count && !err; i++) {
        struct dp_json rank = dp_json_element(&list, i);
        err = read_rank(&rank, workers, &ranks[i]);
    }
    if (!err)
        dp_graph_add_group(b, ranks, (int32_t)count, self);
    free(ranks);
    return err;
}

static int read_round(const struct dp_json *at, int workers, struct dp_graph_builder *b)
{
    int err = json_is_array(at->value) ? 0 : dp_json_expected(at, "a list of groups or links");

    dp_graph_add_round(b);
    for (size_t i = 0; !err && i < json_array_size(at->value); i++) {
        struct dp_json item = dp_json_element(at, i);
        err = dp_json_member(&item, "ranks").value ? read_group(&item, workers, b)
                                                   : read_link(&item, workers, b);
    }
    return err;
}

static int read_rounds(const struct dp_json *file, int workers, struct dp_graph_builder *b)
{
    struct dp_json steps, period = dp_json_member(file, "period");
    int err = dp_json_get_array(file, "steps", &steps);

    if (!err && period.value &&
        json_integer_value(period.value) != (json_int_t)json_array_size(steps.value))
        err = dp_json_expected(&period, "the number of steps, or nothing");
    for (size_t i = 0; !err && i < json_array_size(steps.value); i++) {
        struct dp_json round = dp_json_element(&steps, i);
        err = read_round(&round, workers, b);
    }
    return err;
}

static int read_file(const struct dp_json *file, struct dp_graph **out)
{
    struct dp_graph_builder *b;
    struct dp_graph *unused;
    const char *name = "user";
    int workers = 0, local = 1;
    bool push_sum = false;
    int err = dp_json_get_int(file, "world", 1, DP_GRAPH_MAX_WORKERS, &workers);

    if (!err)
        err = dp_json_take_int(file, "local_world", 1, workers, &local);
    if (!err)
        err = dp_json_get_bool(file, "push_sum", false, &push_sum);
    if (!err)
        err = dp_json_take_string(file, "topology", &name);
    if (!err)
        err = dp_graph_builder_new(name, workers, local, &b);
    if (err)
        return err;
    if (push_sum)
        dp_graph_set_push_sum(b);
    err = read_rounds(file, workers, b);
    if (!err)
        return dp_graph_builder_end(b, out);
    if (!dp_graph_builder_end(b, &unused))
        dp_graph_free(unused);
    return err;
}

int dp_graph_read_json(const char *text, size_t len, struct dp_graph **out)
{
    json_t *value;
    int err = dp_json_load(text, len, &value);

    if (err)
        return err;
    struct dp_json file = {.value = value};
    err = json_is_object(value) ? read_file(&file, out)
                                : dp_json_expected(&file, "a mixing graph: {\"topology\": ...}");
    json_decref(value);
    return err;
}
