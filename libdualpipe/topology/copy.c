/* SPDX-License-Identifier: Apache-2.0 */
#include "topology/build.h"

#include <dualpipe/topology.h>

#include <stdlib.h>
#include <string.h>

struct copy {
    struct dp_topo_builder *b;
    const struct dp_topology *t;
    int32_t home, *place, *port_place;
};

static uint32_t copy_text(const struct copy *c, uint32_t text)
{
    return dp_topo_add_text(c->b, dp_topology_text(c->t, text));
}

static void copy_node(const struct copy *c, int32_t i)
{
    struct dp_topo_node n = c->t->nodes[i];

    if (c->place[i] >= 0)
        return; /* there already */
    if (c->place[i] == DP_TOPO_LEAVE || (n.parent >= 0 && c->place[n.parent] < 0)) {
        c->place[i] = DP_TOPO_LEAVE;
        return;
    }
    n.parent = n.parent >= 0 ? c->place[n.parent] : n.kind == DP_TOPO_HOST ? -1 : c->home;
    n.name = copy_text(c, n.name);
    n.model = copy_text(c, n.model);
    n.cpus = copy_text(c, n.cpus);
    n.uuid = copy_text(c, n.uuid);
    n.arch = copy_text(c, n.arch);
    n.vendor = copy_text(c, n.vendor);
    c->place[i] = dp_topo_add_node(c->b, n.kind, n.parent);
    *dp_topo_node(c->b, c->place[i]) = n;
}

static void copy_port(const struct copy *c, int32_t i)
{
    struct dp_topo_port p = c->t->ports[i], *out;

    c->port_place[i] = -1;
    if (c->place[p.nic] < 0)
        return;
    c->port_place[i] = c->b->t.port_count;
    p.nic = c->place[p.nic];
    p.rail = p.rail < 0 ? -1 : c->place[p.rail];
    p.rdma = copy_text(c, p.rdma);
    p.net = copy_text(c, p.net);
    p.subnet = copy_text(c, p.subnet);
    out = dp_topo_add_port(c->b, p.nic, p.number);
    p.first_gid = out->first_gid;
    p.gid_count = 0;
    *out = p;
    for (int32_t k = 0; k < c->t->ports[i].gid_count; k++) {
        const struct dp_topo_gid *g = &c->t->gids[c->t->ports[i].first_gid + k];
        dp_topo_add_gid(c->b, g->index, g->type, g->raw);
    }
}

static void copy_link(const struct copy *c, int32_t i)
{
    struct dp_topo_link l = c->t->links[i];

    if (c->place[l.a] < 0 || c->place[l.b] < 0)
        return;
    l.a = c->place[l.a];
    l.b = c->place[l.b];
    l.port = l.port < 0 ? -1 : c->port_place[l.port];
    *dp_topo_add_link(c->b, l.kind, l.a, l.b, l.bytes_per_ns) = l;
}

void dp_topo_copy(struct dp_topo_builder *b, const struct dp_topology *t, int32_t home, int32_t *place)
{
    struct copy c = {b, t, home, place, malloc(((size_t)t->port_count + 1) * sizeof(int32_t))};

    b->failed |= !c.port_place;
    for (int32_t i = 0; i < t->node_count && !b->failed; i++)
        copy_node(&c, i);
    for (int32_t i = 0; i < t->port_count && !b->failed; i++)
        copy_port(&c, i);
    for (int32_t i = 0; i < t->link_count && !b->failed; i++)
        copy_link(&c, i);
    for (int32_t i = 0; i < t->note_count && !b->failed; i++) {
        int32_t node = t->notes[i].node;
        if (node < 0 || place[node] >= 0)
            dp_topo_add_note(b, t->notes[i].kind, node < 0 ? -1 : place[node], "%s",
                             dp_topology_text(t, t->notes[i].text));
    }
    free(c.port_place);
}
