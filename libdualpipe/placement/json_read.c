/* SPDX-License-Identifier: Apache-2.0
 *
 * json_read.c - read what json_write.c writes: an assignment, whose nodes become those of a
 * topology that the reader has. A node whose number has changed is found by its label.
 */
#include "base/fail.h"
#include "placement/assignment_read.h"
#include "placement/assignment_resolve.h"

#include <dualpipe/placement.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct reader {
    const struct dp_topology *t;
    const struct dp_assignment *s;
    const struct dp_placement_rest *rest;
    struct dp_placement *p;
    int32_t *nodes; /* [s->node_count] the topology's numbers */
};

/* ---- nodes ---------------------------------------------------------------------------------- */

static bool is_called(const struct dp_topology *t, int32_t node, const char *label)
{
    char text[DP_TOPO_LABEL_LEN];

    return node < t->node_count && !strcmp(dp_topology_label(t, node, text), label);
}

static int find_node(struct reader *r, int32_t i)
{
    const struct dp_assigned_node *node = &r->s->nodes[i];
    const char *label = dp_assignment_text(r->s, node->label);
    const char *kind = dp_assignment_text(r->s, node->kind);
    int err = 0;

    if (!*label)
        return dp_fail(DP_EINVAL, "nodes: id %" PRId32 " has no label, expected the name of a node",
                       node->id);
    if (is_called(r->t, node->id, label))
        r->nodes[i] = node->id;
    else
        err = dp_topology_find(r->t, label, &r->nodes[i]);
    if (!err && strcmp(kind, dp_topo_kind_name(r->t->nodes[r->nodes[i]].kind)))
        err = dp_fail(DP_EINVAL, "nodes: id %" PRId32 ", %s: kind '%s', expected %s", node->id,
                      label, kind, dp_topo_kind_name(r->t->nodes[r->nodes[i]].kind));
    return err;
}

static int32_t node_of(const struct reader *r, int32_t place)
{
    return place < 0 ? -1 : r->nodes[place];
}

/* ---- workers, flows, links ------------------------------------------------------------------ */

static int take_worker(struct reader *r, int32_t i)
{
    const struct dp_assigned_worker *from = &r->s->workers[i];
    struct dp_placed_worker *w = &r->p->workers[i];

    w->gpu = node_of(r, from->gpu);
    w->came_as = from->process;
    w->memory = node_of(r, from->memory);
    w->nic_count = from->nic_count;
    for (int32_t k = 0; k < w->nic_count; k++) {
        w->nics[k] = node_of(r, from->nics[k]);
        w->qps[k] = from->qps[k];
    }
    return 0;
}

static int take_flow(struct reader *r, int32_t i)
{
    const struct dp_assigned_flow *from = &r->s->flows[i];
    const char *name = dp_assignment_text(r->s, r->rest->classes[i]);
    int class_ = 0;

    while (class_ < DP_TOPO_CLASSES && strcmp(name, dp_topo_class_name((enum dp_topo_class)class_)))
        class_++;
    if (class_ == DP_TOPO_CLASSES)
        return dp_fail(DP_EINVAL, "flows[%" PRId32 "].class: '%s', expected the class of a route",
                       i, name);
    r->p->flows[i] = (struct dp_flow){
        .kind = from->kind,
        .from = from->from,
        .to = from->to,
        .bytes = from->bytes,
        .nic_from = node_of(r, from->nic_from),
        .nic_to = node_of(r, from->nic_to),
        .rail = node_of(r, from->rail),
        .class_ = (enum dp_topo_class)class_,
        .traffic_class = (uint8_t)from->traffic_class,
    };
    return 0;
}

static int take_link(struct reader *r, int32_t i)
{
    const struct dp_topology *t = r->t;
    struct dp_assigned_link link = r->rest->links[i];
    struct dp_placed_link *l = &r->p->links[i];

    if (!dp_assignment_resolve_id(r->s, NULL, &link.from) ||
        !dp_assignment_resolve_id(r->s, NULL, &link.to))
        return dp_fail(DP_EINVAL, "links[%" PRId32 "].from, to: expected ids of nodes", i);
    *l = (struct dp_placed_link){-1, node_of(r, link.from), node_of(r, link.to), link.before_ns,
                                 link.after_ns};
    for (int32_t k = t->first_around[l->from]; k < t->first_around[l->from + 1]; k++)
        if (dp_topology_across(t, t->around[k], l->from) == l->to) {
            l->link = t->around[k];
            return 0;
        }
    return dp_fail(DP_EINVAL,
                   "links[%" PRId32 "]: expected two nodes that a link of the topology joins", i);
}

/* ---- all of it ------------------------------------------------------------------------------ */

static int take_all(struct reader *r, int32_t count, int (*take)(struct reader *r, int32_t i))
{
    int err = 0;

    for (int32_t i = 0; i < count && !err; i++)
        err = take(r, i);
    return err;
}

static int take_file(struct reader *r)
{
    const struct dp_assignment *s = r->s;
    struct dp_placement *p = r->p;

    p->ranks = s->ranks;
    p->replicas = s->replicas;
    p->exact = r->rest->exact;
    p->before_ns = r->rest->before_ns;
    p->after_ns = r->rest->after_ns;
    p->flow_count = s->flow_count;
    p->link_count = r->rest->link_count;
    p->workers = calloc((size_t)s->worker_count, sizeof(*p->workers));
    p->flows = calloc((size_t)p->flow_count + 1, sizeof(*p->flows));
    p->links = calloc((size_t)p->link_count + 1, sizeof(*p->links));
    r->nodes = calloc((size_t)s->node_count + 1, sizeof(*r->nodes));
    if (!p->workers || !p->flows || !p->links || !r->nodes)
        return dp_fail(DP_ENOMEM, "no memory for a placement of %" PRId32 " flows", p->flow_count);
    int err = take_all(r, s->node_count, find_node);
    if (!err)
        err = take_all(r, s->worker_count, take_worker);
    if (!err)
        err = take_all(r, s->flow_count, take_flow);
    return err ? err : take_all(r, p->link_count, take_link);
}

int dp_placement_read(const char *text, size_t len, const struct dp_topology *t,
                      struct dp_placement **out)
{
    struct dp_placement_rest rest = {0};
    struct dp_assignment *s = NULL;
    struct reader r = {.t = t, .rest = &rest};
    int err = dp_assignment_read_all(text, len, "placement", &rest, &s);

    if (!err) {
        r.s = s;
        r.p = calloc(1, sizeof(*r.p));
        err = r.p ? take_file(&r) : dp_fail(DP_ENOMEM, "no memory for a placement");
    }
    free(r.nodes);
    free(rest.classes);
    free(rest.links);
    dp_assignment_free(s);
    if (err)
        dp_placement_free(r.p);
    else
        *out = r.p;
    return err;
}
