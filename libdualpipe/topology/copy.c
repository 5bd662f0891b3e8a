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

/* ---- equal ----------------------------------------------------------------------------------- */

/* Are two topologies the same? Padding is not compared, and texts as texts. */

struct two {
    const struct dp_topology *a, *b;
};

static bool same_text(const struct two *t, uint32_t a, uint32_t b)
{
    return !strcmp(dp_topology_text(t->a, a), dp_topology_text(t->b, b));
}

static bool same_pci(const struct dp_topo_pci *a, const struct dp_topo_pci *b)
{
    return a->known == b->known && a->domain == b->domain && a->bus == b->bus &&
           a->device == b->device && a->function == b->function && a->class_code == b->class_code &&
           a->vendor_id == b->vendor_id && a->device_id == b->device_id &&
           a->subsystem_vendor_id == b->subsystem_vendor_id &&
           a->subsystem_device_id == b->subsystem_device_id;
}

static bool same_node(const struct two *t, int32_t i)
{
    const struct dp_topo_node *a = &t->a->nodes[i], *b = &t->b->nodes[i];

    return a->kind == b->kind && a->parent == b->parent && a->end == b->end && a->host == b->host &&
           a->index == b->index && a->os_index == b->os_index && same_text(t, a->name, b->name) &&
           same_text(t, a->model, b->model) && same_text(t, a->cpus, b->cpus) &&
           same_text(t, a->uuid, b->uuid) && same_text(t, a->arch, b->arch) &&
           same_text(t, a->vendor, b->vendor) && a->family == b->family &&
           a->cpu_model == b->cpu_model && a->package == b->package && a->sm == b->sm &&
           a->memory_node == b->memory_node && a->memory_bytes == b->memory_bytes &&
           a->cache_bytes == b->cache_bytes && same_pci(&a->pci, &b->pci);
}

static bool same_link(const struct two *t, int32_t i)
{
    const struct dp_topo_link *a = &t->a->links[i], *b = &t->b->links[i];

    return a->kind == b->kind && a->a == b->a && a->b == b->b && a->flags == b->flags &&
           a->count == b->count && a->port == b->port && a->gen == b->gen && a->width == b->width &&
           a->gen_max == b->gen_max && a->width_max == b->width_max &&
           a->bytes_per_ns == b->bytes_per_ns && a->latency_ns == b->latency_ns;
}

static bool same_port(const struct two *t, int32_t i)
{
    const struct dp_topo_port *a = &t->a->ports[i], *b = &t->b->ports[i];

    return a->nic == b->nic && a->number == b->number && a->rail == b->rail &&
           a->fabric == b->fabric && a->up == b->up && same_text(t, a->rdma, b->rdma) &&
           same_text(t, a->net, b->net) && same_text(t, a->subnet, b->subnet) &&
           a->mtu_bytes == b->mtu_bytes && a->guid == b->guid &&
           a->bytes_per_ns == b->bytes_per_ns && a->first_gid == b->first_gid &&
           a->gid_count == b->gid_count;
}

static bool same_gid(const struct two *t, int32_t i)
{
    const struct dp_topo_gid *a = &t->a->gids[i], *b = &t->b->gids[i];

    return a->index == b->index && a->type == b->type && !memcmp(a->raw, b->raw, sizeof(a->raw));
}

static bool same_note(const struct two *t, int32_t i)
{
    const struct dp_topo_note *a = &t->a->notes[i], *b = &t->b->notes[i];

    return a->kind == b->kind && a->node == b->node && same_text(t, a->text, b->text);
}

static bool same_all(const struct two *t, int32_t a_count, int32_t b_count,
                     bool (*same)(const struct two *t, int32_t i))
{
    int32_t i = 0;

    while (i < a_count && a_count == b_count && same(t, i))
        i++;
    return i == a_count && a_count == b_count;
}

bool dp_topology_equal(const struct dp_topology *a, const struct dp_topology *b)
{
    const struct two t = {a, b};

    return same_all(&t, a->node_count, b->node_count, same_node) &&
           same_all(&t, a->link_count, b->link_count, same_link) &&
           same_all(&t, a->port_count, b->port_count, same_port) &&
           same_all(&t, a->gid_count, b->gid_count, same_gid) &&
           same_all(&t, a->note_count, b->note_count, same_note);
}
