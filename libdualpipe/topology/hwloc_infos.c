/* SPDX-License-Identifier: Apache-2.0 */
#include "topology/hwloc_infos.h"

#include "base/number.h"
#include "topology/format.h"
#include "topology/names.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_LINKS = 65536, MOST_SWITCHES = 1024, MOST_FLAGS = 7 };

/* ---- writing -------------------------------------------------------------------------------- */

static void add_info(struct dp_text *out, const char *name, const struct dp_text *value)
{
    dp_text_adds(out, "<info");
    dp_xml_add(out, "name", name);
    dp_xml_add(out, "value", value->data ? value->data : "");
    dp_text_adds(out, "/>\n");
    out->failed |= value->failed;
}

static void add_pci(const struct dp_topo_link *l, struct dp_text *value)
{
    dp_text_addf(value, "%" PRId32 " %" PRId32 " %" PRId32 " %" PRId32 " %" PRIu32, l->gen, l->width,
                 l->gen_max, l->width_max, l->flags);
}

/* From the GPU: to an NVSwitch, or to a later GPU, which does not say it again. */
static void add_nvlink(const struct dp_topology *t, const struct dp_topo_link *l, struct dp_text *value)
{
    const struct dp_topo_node *to = &t->nodes[l->b];
    bool is_switch = to->kind == DP_TOPO_NVSWITCH;

    if (is_switch)
        dp_text_addf(value, "nvswitch%" PRId32, to->index);
    else
        dp_text_addf(value, "%04" PRIx32 ":%02x:%02x.%x", to->pci.domain, to->pci.bus, to->pci.device,
                     to->pci.function);
    dp_text_addf(value, " %" PRId32 " %.15g %" PRId32 " %" PRIu32, l->count, l->bytes_per_ns, l->gen,
                 l->flags);
    if (is_switch && to->name)
        dp_text_addf(value, " %s", dp_topology_text(t, to->name));
}

static void add_c2c(const struct dp_topology *t, const struct dp_topo_link *l, int32_t gpu,
                    struct dp_text *value)
{
    const struct dp_topo_node *numa = &t->nodes[l->a == gpu ? l->b : l->a];

    dp_text_addf(value, "%" PRId32 " %" PRId32 " %.15g %" PRIu32,
                 numa->os_index < 0 ? numa->index : numa->os_index, l->count, l->bytes_per_ns, l->flags);
}

static void add_link(const struct dp_topology *t, const struct dp_topo_link *l, int32_t node,
                     struct dp_text *out)
{
    struct dp_text value = {0};
    const char *name = NULL;

    if (l->kind == DP_TOPO_PCI && l->b == node && (l->gen || l->width || l->flags)) {
        name = "DualpipePCI";
        add_pci(l, &value);
    } else if (l->kind == DP_TOPO_NVLINK && l->a == node) {
        name = "DualpipeNVLink";
        add_nvlink(t, l, &value);
    } else if (l->kind == DP_TOPO_C2C && t->nodes[node].kind == DP_TOPO_GPU) {
        name = "DualpipeC2C";
        add_c2c(t, l, node, &value);
    }
    if (name)
        add_info(out, name, &value);
    dp_text_fini(&value);
}

static void add_port(const struct dp_topology *t, const struct dp_topo_port *p, struct dp_text *out)
{
    struct dp_text value = {0};

    dp_text_addf(&value, "%" PRId32 " %.15g %" PRId32 " %s %d", p->number, p->bytes_per_ns,
                 p->mtu_bytes, dp_topo_fabric_names[p->fabric], p->up);
    if (p->subnet)
        dp_text_addf(&value, " %s", dp_topology_text(t, p->subnet));
    add_info(out, "DualpipePort", &value);
    dp_text_fini(&value);
}

void dp_hwloc_add_infos(const struct dp_topology *t, int32_t node, struct dp_text *out)
{
    int32_t first, count = t->nodes[node].kind == DP_TOPO_NIC ? dp_topology_ports(t, node, &first) : 0;

    if (t->nodes[node].sm)
        dp_text_addf(out, "<info name=\"DualpipeSM\" value=\"%" PRId32 "\"/>\n", t->nodes[node].sm);
    for (int32_t k = t->first_around[node]; k < t->first_around[node + 1]; k++)
        add_link(t, &t->links[t->around[k]], node, out);
    for (int32_t i = 0; i < count; i++)
        add_port(t, &t->ports[first + i], out);
}

void dp_hwloc_add_gids(const struct dp_topology *t, const struct dp_topo_port *port,
                       struct dp_text *out)
{
    for (int32_t i = port->first_gid; i < port->first_gid + port->gid_count; i++) {
        const struct dp_topo_gid *g = &t->gids[i];
        dp_text_addf(out, "<info name=\"Port%" PRId32 "GID%" PRId32 "\" value=\"", port->number,
                     g->index);
        for (int k = 0; k < 16; k += 2)
            dp_text_addf(out, "%s%02x%02x", k ? ":" : "", g->raw[k], g->raw[k + 1]);
        dp_text_addf(out, "\"/>\n<info name=\"DualpipeGIDType\" value=\"%" PRId32 " %" PRId32
                     " %s\"/>\n", port->number, g->index, dp_topo_gid_type_names[g->type]);
    }
}

/* ---- reading: words ------------------------------------------------------------------------- */

/* The next word of *at; "" at the end. */
static void next_word(const char **at, char word[64])
{
    size_t len = strcspn(*at += strspn(*at, " "), " ");

    snprintf(word, 64, "%.*s", (int)(len < 63 ? len : 63), *at);
    *at += len;
}

static bool next_int(const char **at, long least, long most, int32_t *out)
{
    char word[64], *end;

    next_word(at, word);
    long value = strtol(word, &end, 10);
    *out = (int32_t)value;
    return end != word && !*end && value >= least && value <= most;
}

static bool next_rate(const char **at, double *out)
{
    char word[64], *end;

    next_word(at, word);
    *out = dp_strtod(word, &end);
    return end != word && !*end && *out >= 0 && *out < 1e9;
}

/* ---- reading: links ------------------------------------------------------------------------- */

static struct dp_topo_link *find_uplink(struct dp_topo_builder *b, int32_t node)
{
    for (int32_t i = 0; i < b->t.link_count; i++)
        if (b->t.links[i].kind == DP_TOPO_PCI && b->t.links[i].b == node)
            return &b->t.links[i];
    return NULL;
}

static void take_pci(struct dp_topo_builder *b, int32_t node, const char *value)
{
    struct dp_topo_link *l = find_uplink(b, node);
    int32_t gen, width, gen_max, width_max, flags;

    if (!l || !next_int(&value, 0, DP_PCI_GEN_MAX, &gen) || !next_int(&value, 0, 32, &width) ||
        !next_int(&value, 0, DP_PCI_GEN_MAX, &gen_max) || !next_int(&value, 0, 32, &width_max) ||
        !next_int(&value, 0, MOST_FLAGS, &flags))
        return;
    l->gen = gen;
    l->width = width;
    l->gen_max = gen_max;
    l->width_max = width_max;
    l->flags = (uint32_t)flags;
    if (gen && width)
        l->bytes_per_ns = dp_pci_lane_rate(gen) * width;
}

static int32_t host_of(const struct dp_topo_builder *b, int32_t node)
{
    while (b->t.nodes[node].parent >= 0)
        node = b->t.nodes[node].parent;
    return node;
}

/* Switches are added as they are met, and all of lower numbers before: no other GPU may have said a
 * word of them yet, or none ever will. */
static int32_t get_switch(struct dp_topo_builder *b, int32_t host, int number)
{
    int32_t last = -1;

    for (int32_t i = 0; i < b->t.node_count && !b->failed; i++)
        if (b->t.nodes[i].kind == DP_TOPO_NVSWITCH && !number--)
            return i;
    for (; number >= 0 && !b->failed; number--)
        last = dp_topo_add_node(b, DP_TOPO_NVSWITCH, host);
    return last;
}

static int32_t find_gpu(const struct dp_topo_builder *b, const struct dp_topo_pci *pci)
{
    for (int32_t i = 0; i < b->t.node_count; i++) {
        const struct dp_topo_node *n = &b->t.nodes[i];
        if (n->kind == DP_TOPO_GPU && n->pci.known && n->pci.domain == pci->domain &&
            n->pci.bus == pci->bus && n->pci.device == pci->device && n->pci.function == pci->function)
            return i;
    }
    return -1;
}

static void take_nvlink(struct dp_topo_builder *b, int32_t gpu, const char *value)
{
    struct dp_topo_pci pci;
    char target[64];
    int32_t count, version, flags, number;
    double rate;

    next_word(&value, target);
    if (!next_int(&value, 1, MOST_LINKS, &count) || !next_rate(&value, &rate) ||
        !next_int(&value, 0, DP_PCI_GEN_MAX, &version) || !next_int(&value, 0, MOST_FLAGS, &flags))
        return;
    const char *digits = target + strlen("nvswitch");
    bool is_switch = !strncmp(target, "nvswitch", strlen("nvswitch")) &&
                     next_int(&digits, 0, MOST_SWITCHES - 1, &number);
    int32_t to = is_switch ? get_switch(b, host_of(b, gpu), number)
                 : dp_topo_parse_pci(target, &pci) ? find_gpu(b, &pci) : -1;
    if (to < 0 || to == gpu || b->failed)
        return;
    if (is_switch)
        dp_topo_node(b, to)->name = dp_topo_add_text(b, value + strspn(value, " "));
    struct dp_topo_link *l = dp_topo_add_link(b, DP_TOPO_NVLINK, gpu, to, rate);
    l->count = count;
    l->gen = version;
    l->flags = (uint32_t)flags;
}

static void take_c2c(struct dp_topo_builder *b, int32_t gpu, const char *value)
{
    int32_t numa, count, flags;
    double rate;

    if (!next_int(&value, 0, INT32_MAX, &numa) || !next_int(&value, 1, MOST_LINKS, &count) ||
        !next_rate(&value, &rate) || !next_int(&value, 0, MOST_FLAGS, &flags))
        return;
    for (int32_t i = 0; i < b->t.node_count && !b->failed; i++)
        if (b->t.nodes[i].kind == DP_TOPO_NUMA && b->t.nodes[i].os_index == numa) {
            struct dp_topo_link *l = dp_topo_add_link(b, DP_TOPO_C2C, i, gpu, rate);
            l->count = count;
            l->flags = (uint32_t)flags;
            return;
        }
}

/* ---- reading: ports ------------------------------------------------------------------------- */

static void take_port(struct dp_topo_builder *b, int32_t nic, const char *value)
{
    int32_t number, mtu, up;
    double rate;
    char fabric[64];

    if (!next_int(&value, 1, INT32_MAX, &number) || !next_rate(&value, &rate) ||
        !next_int(&value, 0, INT32_MAX, &mtu))
        return;
    next_word(&value, fabric);
    int kind = dp_topo_name_index(fabric, strlen(fabric), dp_topo_fabric_names);
    if (kind < 0 || !next_int(&value, 0, 1, &up))
        return;
    for (int32_t i = 0; i < b->t.port_count; i++) {
        struct dp_topo_port *p = &b->t.ports[i];
        if (p->nic != nic || p->number != number)
            continue;
        p->bytes_per_ns = rate;
        p->mtu_bytes = mtu;
        p->fabric = (enum dp_topo_fabric)kind;
        p->up = up;
        p->subnet = dp_topo_add_text(b, value + strspn(value, " "));
    }
}

static void take_type(struct dp_topo_builder *b, struct dp_topo_port *p, const char *value)
{
    int32_t port, index;
    char type[64];

    if (!next_int(&value, 1, INT32_MAX, &port) || !next_int(&value, 0, INT32_MAX, &index))
        return;
    next_word(&value, type);
    int kind = dp_topo_name_index(type, strlen(type), dp_topo_gid_type_names);
    if (kind < 0 || port != p->number)
        return;
    for (int32_t i = p->first_gid; i < p->first_gid + p->gid_count; i++)
        if (b->t.gids[i].index == index)
            b->t.gids[i].type = (enum dp_topo_gid_type)kind;
}

void dp_hwloc_take_gid(struct dp_topo_builder *b, const char *name, const char *value)
{
    struct dp_topo_port *p = b->t.port_count ? &b->t.ports[b->t.port_count - 1] : NULL;
    int port, index, end = -1;
    uint8_t raw[16];

    if (!p || b->failed)
        return;
    if (!strcmp(name, "DualpipeGIDType"))
        take_type(b, p, value);
    else if (sscanf(name, "Port%9dGID%9d%n", &port, &index, &end) == 2 && end > 0 && !name[end] &&
             port == p->number && dp_topo_parse_gid(value, raw))
        dp_topo_add_gid(b, index, p->fabric == DP_TOPO_INFINIBAND ? DP_TOPO_GID_IB
                                                                  : DP_TOPO_GID_ROCE_V2, raw);
}

/* ---- all of them ---------------------------------------------------------------------------- */

void dp_hwloc_take_info(struct dp_topo_builder *b, int32_t node, const char *name, const char *value)
{
    enum dp_topo_kind kind = b->failed ? DP_TOPO_KINDS : b->t.nodes[node].kind;
    int32_t sm;

    if (!strcmp(name, "DualpipePCI"))
        take_pci(b, node, value);
    else if (kind == DP_TOPO_GPU && !strcmp(name, "DualpipeSM") && next_int(&value, 0, 999, &sm))
        dp_topo_node(b, node)->sm = sm;
    else if (kind == DP_TOPO_GPU && !strcmp(name, "DualpipeNVLink"))
        take_nvlink(b, node, value);
    else if (kind == DP_TOPO_GPU && !strcmp(name, "DualpipeC2C"))
        take_c2c(b, node, value);
    else if (kind == DP_TOPO_NIC && !strcmp(name, "DualpipePort"))
        take_port(b, node, value);
}
