/* SPDX-License-Identifier: Apache-2.0
 *
 * json_write.c - a topology as JSON, a node or link a line. What is left out has its usual value (see
 * README.md): no, none, 0, not known.
 */
#include "base/json.h"
#include "topology/build.h"

#include <inttypes.h>
#include <stdio.h>

/* ---- members -------------------------------------------------------------------------------- */

struct writer {
    const struct dp_topology *t;
    struct dp_text *out;
};

static void add_string(const struct writer *w, const char *key, uint32_t text)
{
    if (!text)
        return;
    dp_text_addf(w->out, ", \"%s\": ", key);
    dp_json_add_string(w->out, dp_topology_text(w->t, text));
}

static void add_int(const struct writer *w, const char *key, int32_t value, int32_t usual)
{
    if (value != usual)
        dp_text_addf(w->out, ", \"%s\": %" PRId32, key, value);
}

static void add_size(const struct writer *w, const char *key, uint64_t value)
{
    if (value)
        dp_text_addf(w->out, ", \"%s\": %" PRIu64, key, value);
}

static void add_number(const struct writer *w, const char *key, double value)
{
    dp_text_addf(w->out, ", \"%s\": ", key);
    dp_text_add_number(w->out, value);
}

static void add_flag(const struct writer *w, const char *key, bool is_set)
{
    if (is_set)
        dp_text_addf(w->out, ", \"%s\": true", key);
}

/* ---- nodes, links, ports -------------------------------------------------------------------- */

static void add_pci(const struct writer *w, const struct dp_topo_pci *pci)
{
    if (!pci->known)
        return;
    dp_text_addf(w->out, ", \"pci\": \"%04x:%02x:%02x.%x\", \"pci_class\": \"%06x\"", pci->domain,
                 pci->bus, pci->device, pci->function, pci->class_code);
    if (pci->vendor_id || pci->device_id)
        dp_text_addf(w->out, ", \"pci_id\": \"%04x:%04x\"", pci->vendor_id, pci->device_id);
    if (pci->subsystem_vendor_id || pci->subsystem_device_id)
        dp_text_addf(w->out, ", \"pci_subsystem\": \"%04x:%04x\"", pci->subsystem_vendor_id,
                     pci->subsystem_device_id);
}

static void add_node(const struct writer *w, int32_t i)
{
    const struct dp_topo_node *n = &w->t->nodes[i];
    char label[DP_TOPO_LABEL_LEN];

    dp_text_addf(w->out, "{\"id\": %" PRId32 ", \"kind\": \"%s\"", i, dp_topo_kind_name(n->kind));
    add_int(w, "parent", n->parent, -1);
    dp_text_adds(w->out, ", \"label\": ");
    dp_json_add_string(w->out, dp_topology_label(w->t, i, label));
    add_string(w, "name", n->name);
    add_string(w, "model", n->model);
    add_int(w, "os_index", n->os_index, -1);
    add_string(w, "cpus", n->cpus);
    add_string(w, "uuid", n->uuid);
    add_string(w, "arch", n->arch);
    add_string(w, "vendor", n->vendor);
    add_int(w, "family", n->family, -1);
    add_int(w, "cpu_model", n->cpu_model, -1);
    add_int(w, "package", n->package, -1);
    add_int(w, "memory_node", n->memory_node, -1);
    add_int(w, "sm", n->sm, 0);
    add_size(w, "memory_bytes", n->memory_bytes);
    add_size(w, "cache_bytes", n->cache_bytes);
    add_pci(w, &n->pci);
    dp_text_adds(w->out, "}");
}

static void add_link(const struct writer *w, int32_t i)
{
    const struct dp_topo_link *l = &w->t->links[i];

    dp_text_addf(w->out, "{\"kind\": \"%s\", \"a\": %" PRId32 ", \"b\": %" PRId32,
                 dp_topo_link_kind_name(l->kind), l->a, l->b);
    add_number(w, "bytes_per_ns", l->bytes_per_ns);
    add_number(w, "latency_ns", l->latency_ns);
    add_int(w, "count", l->count, 1);
    add_int(w, "port", l->port, -1);
    add_int(w, "gen", l->gen, 0);
    add_int(w, "width", l->width, 0);
    add_int(w, "gen_max", l->gen_max, 0);
    add_int(w, "width_max", l->width_max, 0);
    add_flag(w, "rate_assumed", l->flags & DP_TOPO_RATE_ASSUMED);
    add_flag(w, "rate_unknown", l->flags & DP_TOPO_RATE_UNKNOWN);
    add_flag(w, "degraded", l->flags & DP_TOPO_DEGRADED);
    dp_text_adds(w->out, "}");
}

static void add_gids(const struct writer *w, const struct dp_topo_port *p)
{
    if (!p->gid_count)
        return;
    dp_text_adds(w->out, ", \"gids\": [");
    for (int32_t i = 0; i < p->gid_count; i++) {
        const struct dp_topo_gid *g = &w->t->gids[p->first_gid + i];
        dp_text_addf(w->out, "%s{\"index\": %d, \"type\": \"%s\", \"gid\": \"", i ? ", " : "",
                     g->index, dp_topo_gid_type_names[g->type]);
        for (int k = 0; k < 16; k += 2)
            dp_text_addf(w->out, "%s%02x%02x", k ? ":" : "", g->raw[k], g->raw[k + 1]);
        dp_text_adds(w->out, "\"}");
    }
    dp_text_adds(w->out, "]");
}

static void add_port(const struct writer *w, int32_t i)
{
    const struct dp_topo_port *p = &w->t->ports[i];

    dp_text_addf(w->out, "{\"nic\": %" PRId32 ", \"number\": %" PRId32, p->nic, p->number);
    add_int(w, "rail", p->rail, -1);
    dp_text_addf(w->out, ", \"fabric\": \"%s\", \"up\": %s", dp_topo_fabric_names[p->fabric],
                 p->up ? "true" : "false");
    add_string(w, "rdma", p->rdma);
    add_string(w, "net", p->net);
    add_string(w, "subnet", p->subnet);
    add_int(w, "mtu_bytes", p->mtu_bytes, 0);
    if (p->guid)
        dp_text_addf(w->out, ", \"guid\": \"%016" PRIx64 "\"", p->guid);
    add_number(w, "bytes_per_ns", p->bytes_per_ns);
    add_gids(w, p);
    dp_text_adds(w->out, "}");
}

static void add_note(const struct writer *w, int32_t i)
{
    const struct dp_topo_note *n = &w->t->notes[i];

    dp_text_addf(w->out, "{\"kind\": \"%s\"", dp_topo_note_kind_names[n->kind]);
    add_int(w, "node", n->node, -1);
    dp_text_adds(w->out, ", \"text\": ");
    dp_json_add_string(w->out, dp_topology_text(w->t, n->text));
    dp_text_adds(w->out, "}");
}

/* ---- all of it ------------------------------------------------------------------------------ */

static void add_list(const struct writer *w, const char *name, int32_t count,
                     void (*add)(const struct writer *w, int32_t i))
{
    dp_text_addf(w->out, ",\n\"%s\": [", name);
    for (int32_t i = 0; i < count; i++) {
        dp_text_adds(w->out, i ? ",\n" : "\n");
        add(w, i);
    }
    dp_text_adds(w->out, "]");
}

void dp_topo_write_json(const struct dp_topology *t, struct dp_text *out)
{
    const struct writer w = {t, out};

    dp_text_addf(out, "{\"dualpipe_topology\": %d, \"source\": \"dualpipe %s\"", DP_TOPO_JSON_VERSION,
                 dp_version());
    add_list(&w, "nodes", t->node_count, add_node);
    add_list(&w, "links", t->link_count, add_link);
    add_list(&w, "ports", t->port_count, add_port);
    add_list(&w, "notes", t->note_count, add_note);
    dp_text_adds(out, "}\n");
}
