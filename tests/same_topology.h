/* SPDX-License-Identifier: Apache-2.0
 *
 * same_topology.h - are two topologies the same in every member? Padding is not compared, and texts as
 * texts. dp_topology_equal compares what is written of them, which cannot tell whether all is written.
 */
#ifndef DP_TESTS_SAME_TOPOLOGY_H
#define DP_TESTS_SAME_TOPOLOGY_H

#include <dualpipe/topology.h>

#include <string.h>

struct two {
    const struct dp_topology *a, *b;
};

static inline bool same_text(const struct two *t, uint32_t a, uint32_t b)
{
    return !strcmp(dp_topology_text(t->a, a), dp_topology_text(t->b, b));
}

static inline bool same_pci(const struct dp_topo_pci *a, const struct dp_topo_pci *b)
{
    return a->known == b->known && a->domain == b->domain && a->bus == b->bus &&
           a->device == b->device && a->function == b->function && a->class_code == b->class_code &&
           a->vendor_id == b->vendor_id && a->device_id == b->device_id &&
           a->subsystem_vendor_id == b->subsystem_vendor_id &&
           a->subsystem_device_id == b->subsystem_device_id;
}

static inline bool same_node(const struct two *t, int32_t i)
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

static inline bool same_link(const struct two *t, int32_t i)
{
    const struct dp_topo_link *a = &t->a->links[i], *b = &t->b->links[i];

    return a->kind == b->kind && a->a == b->a && a->b == b->b && a->flags == b->flags &&
           a->count == b->count && a->port == b->port && a->gen == b->gen && a->width == b->width &&
           a->gen_max == b->gen_max && a->width_max == b->width_max &&
           a->bytes_per_ns == b->bytes_per_ns && a->latency_ns == b->latency_ns;
}

static inline bool same_port(const struct two *t, int32_t i)
{
    const struct dp_topo_port *a = &t->a->ports[i], *b = &t->b->ports[i];

    return a->nic == b->nic && a->number == b->number && a->rail == b->rail &&
           a->fabric == b->fabric && a->up == b->up && same_text(t, a->rdma, b->rdma) &&
           same_text(t, a->net, b->net) && same_text(t, a->subnet, b->subnet) &&
           a->mtu_bytes == b->mtu_bytes && a->guid == b->guid &&
           a->bytes_per_ns == b->bytes_per_ns && a->first_gid == b->first_gid &&
           a->gid_count == b->gid_count;
}

static inline bool same_gid(const struct two *t, int32_t i)
{
    const struct dp_topo_gid *a = &t->a->gids[i], *b = &t->b->gids[i];

    return a->index == b->index && a->type == b->type && !memcmp(a->raw, b->raw, sizeof(a->raw));
}

static inline bool same_note(const struct two *t, int32_t i)
{
    const struct dp_topo_note *a = &t->a->notes[i], *b = &t->b->notes[i];

    return a->kind == b->kind && a->node == b->node && same_text(t, a->text, b->text);
}

static inline bool same_all(const struct two *t, int32_t a_count, int32_t b_count,
                     bool (*same)(const struct two *t, int32_t i))
{
    int32_t i = 0;

    while (i < a_count && a_count == b_count && same(t, i))
        i++;
    return i == a_count && a_count == b_count;
}

static inline bool is_same_topology(const struct dp_topology *a, const struct dp_topology *b)
{
    const struct two t = {a, b};

    return same_all(&t, a->node_count, b->node_count, same_node) &&
           same_all(&t, a->link_count, b->link_count, same_link) &&
           same_all(&t, a->port_count, b->port_count, same_port) &&
           same_all(&t, a->gid_count, b->gid_count, same_gid) &&
           same_all(&t, a->note_count, b->note_count, same_note);
}

#endif
