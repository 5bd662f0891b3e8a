/* SPDX-License-Identifier: Apache-2.0
 *
 * json_read.c - read what json_write.c writes. Nodes are those of a topology that the reader has:
 * whose number has changed is found by its label.
 */
#include "base/fail.h"
#include "base/json.h"
#include "base/utf8.h"
#include "placement/format.h"

#include <dualpipe/placement.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IDS_MAX = 1 << 26, WORKERS_MAX = 1 << 20 };

struct reader {
    const struct dp_topology *t;
    struct dp_placement *p;
    int32_t *ids;  /* [id_count] what the file calls a node -> the topology's number, -1 */
    int32_t id_count;
};

/* ---- nodes ---------------------------------------------------------------------------------- */

static bool is_called(const struct dp_topology *t, int32_t node, const char *label)
{
    char text[DP_TOPO_LABEL_LEN];

    return node < t->node_count && !strcmp(dp_topology_label(t, node, text), label);
}

static int read_node(struct reader *r, const struct dp_json *at)
{
    const struct dp_json in = dp_json_member(at, "label");
    const char *label = json_string_value(in.value);
    int id, err = dp_json_get_int(at, "id", 0, r->id_count - 1, &id);

    if (!err && !label)
        err = dp_json_expected(&in, "the label of a node");
    if (err)
        return err;
    r->ids[id] = id;
    return is_called(r->t, id, label) ? 0 : dp_topology_find(r->t, label, &r->ids[id]);
}

/* Ids may have holes: the largest says how many. */
static int count_ids(struct reader *r, const struct dp_json *nodes)
{
    for (size_t i = 0; i < json_array_size(nodes->value); i++) {
        const struct dp_json at = dp_json_element(nodes, i);
        int id, err = dp_json_get_int(&at, "id", 0, IDS_MAX, &id);
        if (err)
            return err;
        r->id_count = id >= r->id_count ? id + 1 : r->id_count;
    }
    r->ids = malloc(((size_t)r->id_count + 1) * sizeof(*r->ids));
    if (!r->ids)
        return dp_fail(DP_ENOMEM, "no memory for %d nodes", r->id_count);
    for (int32_t i = 0; i < r->id_count; i++)
        r->ids[i] = -1;
    return 0;
}

static int look_up(const struct reader *r, const struct dp_json *at, enum dp_topo_kind kind,
                   int32_t *node)
{
    char expected[64];
    const json_int_t id = json_is_integer(at->value) ? json_integer_value(at->value) : -1;

    *node = id >= 0 && id < r->id_count ? r->ids[id] : -1;
    if (*node >= 0 && (kind == DP_TOPO_KINDS || r->t->nodes[*node].kind == kind))
        return 0;
    snprintf(expected, sizeof(expected), "the id of a %s in nodes",
             kind == DP_TOPO_KINDS ? "node" : dp_topo_kind_name(kind));
    return dp_json_expected(at, expected);
}

static int get_node(const struct reader *r, const struct dp_json *at, const char *key,
                    enum dp_topo_kind kind, int32_t *node)
{
    const struct dp_json in = dp_json_member(at, key);

    return look_up(r, &in, kind, node);
}

/* -1 where it is not there. */
static int take_node(const struct reader *r, const struct dp_json *at, const char *key,
                     enum dp_topo_kind kind, int32_t *node)
{
    *node = -1;
    return dp_json_member(at, key).value ? get_node(r, at, key, kind, node) : 0;
}

/* ---- workers -------------------------------------------------------------------------------- */

static int read_nics(const struct reader *r, const struct dp_json *at, struct dp_placed_worker *w)
{
    struct dp_json nics, qps;
    int err = dp_json_get_array(at, "nics", &nics);

    if (!err)
        err = dp_json_get_array(at, "qps", &qps);
    const size_t count = err ? 0 : json_array_size(nics.value);
    if (!err && count > DP_PLACEMENT_NICS_MAX)
        err = dp_json_expected(&nics, "at most 16 of them");
    if (!err && json_array_size(qps.value) != count)
        err = dp_json_expected(&qps, "as many as nics");
    for (size_t i = 0; i < count && !err; i++) {
        const struct dp_json nic = dp_json_element(&nics, i), qp = dp_json_element(&qps, i);
        const json_int_t n = json_integer_value(qp.value);
        err = look_up(r, &nic, DP_TOPO_NIC, &w->nics[i]);
        if (!err && (n < 1 || n > 256))
            err = dp_json_expected(&qp, "a whole number from 1 to 256");
        w->qps[i] = (int32_t)n;
        w->nic_count = (int32_t)i + 1;
    }
    return err;
}

static int read_worker(struct reader *r, const struct dp_json *at, size_t i)
{
    struct dp_placed_worker *w = &r->p->workers[i];
    const int workers = r->p->ranks * r->p->replicas, ranks = r->p->ranks;
    const int rank = (int)i % ranks, replica = (int)i / ranks;
    int found, err = dp_json_get_int(at, "replica", replica, replica, &found);

    if (!err)
        err = dp_json_get_int(at, "rank", rank, rank, &found);
    if (!err)
        err = dp_json_get_int(at, "came_as", 0, workers - 1, &w->came_as);
    if (!err)
        err = get_node(r, at, "gpu", DP_TOPO_GPU, &w->gpu);
    if (!err)
        err = take_node(r, at, "memory", DP_TOPO_NUMA, &w->memory);
    return err ? err : read_nics(r, at, w);
}

/* Every process has one worker. */
static int check_came_as(const struct reader *r, const struct dp_json *workers)
{
    const int32_t count = r->p->ranks * r->p->replicas;
    bool *is_taken = calloc((size_t)count, sizeof(*is_taken));
    int err = is_taken ? 0 : dp_fail(DP_ENOMEM, "no memory for %d workers", count);

    for (int32_t i = 0; !err && i < count; i++) {
        const struct dp_json worker = dp_json_element(workers, (size_t)i);
        const struct dp_json in = dp_json_member(&worker, "came_as");
        const int32_t came_as = r->p->workers[i].came_as;
        if (is_taken[came_as])
            err = dp_json_expected(&in, "a number that no worker before it has");
        is_taken[came_as] = true;
    }
    free(is_taken);
    return err;
}

/* ---- flows and links ------------------------------------------------------------------------ */

static int read_name(const struct dp_json *at, const char *key, const char *(*name)(int), int count,
                     int *out)
{
    const struct dp_json in = dp_json_member(at, key);
    const char *word = json_string_value(in.value);

    for (int i = 0; word && i < count; i++)
        if (!strcmp(word, name(i))) {
            *out = i;
            return 0;
        }
    return dp_json_expected(&in, "a word that is known");
}

static const char *flow_name(int kind)
{
    return dp_flow_kind_name((enum dp_flow_kind)kind);
}

static const char *class_name(int class_)
{
    return dp_topo_class_name((enum dp_topo_class)class_);
}

static int take_class(const struct dp_json *at, uint8_t *out)
{
    int class_ = 0, err = dp_json_take_int(at, "traffic_class", 0, 255, &class_);

    *out = (uint8_t)class_;
    return err;
}

static int read_flow(struct reader *r, const struct dp_json *at, size_t i)
{
    struct dp_flow *f = &r->p->flows[i];
    const int last = r->p->ranks * r->p->replicas - 1;
    int kind = 0, class_ = 0, err = read_name(at, "kind", flow_name, DP_FLOW_KINDS, &kind);

    if (!err)
        err = read_name(at, "class", class_name, DP_TOPO_CLASSES, &class_);
    f->kind = (enum dp_flow_kind)kind;
    f->class_ = (enum dp_topo_class)class_;
    if (!err)
        err = dp_json_get_int(at, "from", 0, last, &f->from);
    if (!err)
        err = dp_json_get_int(at, "to", 0, last, &f->to);
    if (!err)
        err = dp_json_take_number(at, "bytes", &f->bytes);
    if (!err)
        err = take_node(r, at, "nic_from", DP_TOPO_NIC, &f->nic_from);
    if (!err)
        err = take_node(r, at, "nic_to", DP_TOPO_NIC, &f->nic_to);
    if (!err)
        err = take_class(at, &f->traffic_class);
    return err ? err : take_node(r, at, "rail", DP_TOPO_RAIL, &f->rail);
}

static int read_link(struct reader *r, const struct dp_json *at, size_t i)
{
    const struct dp_topology *t = r->t;
    struct dp_placed_link *l = &r->p->links[i];
    int err = get_node(r, at, "from", DP_TOPO_KINDS, &l->from);

    if (!err)
        err = get_node(r, at, "to", DP_TOPO_KINDS, &l->to);
    if (!err)
        err = dp_json_take_number(at, "before_ns", &l->before_ns);
    if (!err)
        err = dp_json_take_number(at, "after_ns", &l->after_ns);
    if (err)
        return err;
    for (int32_t k = t->first_around[l->from]; k < t->first_around[l->from + 1]; k++)
        if (dp_topology_across(t, t->around[k], l->from) == l->to) {
            l->link = t->around[k];
            return 0;
        }
    return dp_json_expected(at, "two nodes that a link of the topology joins");
}

/* ---- all of it ------------------------------------------------------------------------------ */

static int read_list(struct reader *r, const struct dp_json *list,
                     int (*read)(struct reader *r, const struct dp_json *at, size_t i))
{
    int err = 0;

    for (size_t i = 0; i < json_array_size(list->value) && !err; i++) {
        const struct dp_json at = dp_json_element(list, i);
        err = read(r, &at, i);
    }
    return err;
}

static int read_nodes(struct reader *r, const struct dp_json *nodes)
{
    int err = count_ids(r, nodes);

    for (size_t i = 0; i < json_array_size(nodes->value) && !err; i++) {
        const struct dp_json at = dp_json_element(nodes, i);
        err = read_node(r, &at);
    }
    return err;
}

static int read_head(struct reader *r, const struct dp_json *file)
{
    int version, err = dp_json_get_int(file, "dualpipe_placement", 1, DP_PLACEMENT_JSON_VERSION,
                                       &version);

    if (!err)
        err = dp_json_get_int(file, "ranks", 1, WORKERS_MAX, &r->p->ranks);
    if (!err)
        err = dp_json_get_int(file, "replicas", 1, WORKERS_MAX / r->p->ranks, &r->p->replicas);
    if (!err)
        err = dp_json_get_bool(file, "exact", false, &r->p->exact);
    if (!err)
        err = dp_json_take_number(file, "before_ns", &r->p->before_ns);
    return err ? err : dp_json_take_number(file, "after_ns", &r->p->after_ns);
}

static int read_file(struct reader *r, const struct dp_json *file)
{
    struct dp_json nodes, workers, flows, links;
    struct dp_placement *p = r->p;
    int err = read_head(r, file);

    if (!err)
        err = dp_json_get_array(file, "nodes", &nodes);
    if (!err)
        err = dp_json_get_array(file, "workers", &workers);
    if (!err)
        err = dp_json_get_array(file, "flows", &flows);
    if (!err)
        err = dp_json_get_array(file, "links", &links);
    if (!err && json_array_size(workers.value) != (size_t)(p->ranks * p->replicas))
        err = dp_json_expected(&workers, "one for each rank of each replica");
    if (err)
        return err;
    p->flow_count = (int32_t)json_array_size(flows.value);
    p->link_count = (int32_t)json_array_size(links.value);
    p->workers = calloc(json_array_size(workers.value), sizeof(*p->workers));
    p->flows = calloc((size_t)p->flow_count + 1, sizeof(*p->flows));
    p->links = calloc((size_t)p->link_count + 1, sizeof(*p->links));
    if (!p->workers || !p->flows || !p->links)
        return dp_fail(DP_ENOMEM, "no memory for a placement of %d flows", p->flow_count);
    err = read_nodes(r, &nodes);
    if (!err)
        err = read_list(r, &workers, read_worker);
    if (!err)
        err = check_came_as(r, &workers);
    if (!err)
        err = read_list(r, &flows, read_flow);
    return err ? err : read_list(r, &links, read_link);
}

int dp_placement_read(const char *text, size_t len, const struct dp_topology *t,
                      struct dp_placement **out)
{
    struct reader r = {.t = t, .p = calloc(1, sizeof(*r.p))};
    json_t *value;
    int err = r.p ? dp_utf8_begin(&text, &len, NULL)
                  : dp_fail(DP_ENOMEM, "no memory for a placement");

    if (!err)
        err = dp_json_load(text, len, &value);
    if (!err) {
        const struct dp_json file = {.value = value};
        err = read_file(&r, &file);
        json_decref(value);
    }
    free(r.ids);
    if (err)
        dp_placement_free(r.p);
    else
        *out = r.p;
    return err;
}
