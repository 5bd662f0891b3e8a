/* SPDX-License-Identifier: Apache-2.0 */
#include "topology/pci_tree.h"

#include <stdlib.h>

enum { DEEPEST = 32 };

/* ---- classes -------------------------------------------------------------------------------- */

enum { VENDOR_NVIDIA = 0x10de, VENDOR_AMD = 0x1002 };

/* Displays of NVIDIA and AMD, 3D and other displays of any vendor (what has a VGA class besides is a
 * management console's or a CPU's), and processing accelerators. */
bool dp_pci_is_gpu(const struct dp_topo_pci *id)
{
    uint32_t class_ = id->class_code >> 16, sub = id->class_code >> 8 & 0xff;

    return class_ == 0x12 || (class_ == 0x03 && (sub != 0 || id->vendor_id == VENDOR_NVIDIA ||
                                                 id->vendor_id == VENDOR_AMD));
}

bool dp_pci_is_nic(const struct dp_topo_pci *id)
{
    return id->class_code >> 16 == 0x02;
}

enum dp_topo_fabric dp_pci_fabric(const struct dp_topo_pci *id)
{
    return id->class_code >> 8 == 0x0207   ? DP_TOPO_INFINIBAND
           : id->class_code >> 8 == 0x0200 ? DP_TOPO_ETHERNET
                                           : DP_TOPO_FABRIC_UNKNOWN;
}

bool dp_pci_is_bridge(const struct dp_topo_pci *id)
{
    return id->class_code >> 8 == 0x0604;
}

/* ---- containers ----------------------------------------------------------------------------- */

struct tree {
    struct dp_topo_builder *b;
    struct dp_pci_functions *f;
    int32_t host;
};

static int32_t find_numa(const struct tree *t, int32_t os_index)
{
    for (int32_t i = t->host + 1; i < t->b->t.node_count; i++)
        if (t->b->t.nodes[i].kind == DP_TOPO_NUMA && t->b->t.nodes[i].parent == t->host &&
            (os_index < 0 || t->b->t.nodes[i].os_index == os_index))
            return i;
    return -1;
}

static int32_t find_root(const struct tree *t, const struct dp_pci_function *f)
{
    for (int32_t i = t->host + 1; i < t->b->t.node_count; i++) {
        const struct dp_topo_node *n = &t->b->t.nodes[i];
        if (n->kind == DP_TOPO_ROOT && n->pci.domain == f->root_domain && n->pci.bus == f->root_bus)
            return i;
    }
    return -1;
}

/* Where the firmware does not say which NUMA node a root is next to, the first is taken. */
static int32_t numa_of(const struct tree *t, const struct dp_pci_function *f)
{
    int32_t first = find_numa(t, -1), numa = f->numa < 0 ? -1 : find_numa(t, f->numa);
    bool has_several = false;

    for (int32_t i = first + 1; i < t->b->t.node_count; i++)
        has_several |= t->b->t.nodes[i].kind == DP_TOPO_NUMA && t->b->t.nodes[i].parent == t->host;
    if (numa < 0 && has_several)
        dp_topo_add_note(t->b, DP_TOPO_ASSUMED, first,
                         "PCI bus %04x:%02x does not say which NUMA node it is next to: taken to be "
                         "the first", f->root_domain, f->root_bus);
    return numa < 0 ? first : numa;
}

static int32_t root_of(const struct tree *t, const struct dp_pci_function *f)
{
    int32_t root = find_root(t, f), numa;

    if (root >= 0 || t->b->failed)
        return root;
    numa = numa_of(t, f);
    root = dp_topo_add_node(t->b, DP_TOPO_ROOT, numa);
    dp_topo_node(t->b, root)->pci = (struct dp_topo_pci){
        .known = true, .domain = f->root_domain, .bus = f->root_bus, .class_code = 0x060000,
    };
    dp_topo_add_link(t->b, DP_TOPO_MESH, numa, root, 0);
    return root;
}

static int least_known(int a, int b)
{
    return !a ? b : !b || a < b ? a : b;
}

/* The link of f to the container above it. A GPU that has nothing to do lets its link fall to the
 * lowest speed, so that its speed counts as what both ends can do; its width does not change. */
static void link_up(const struct tree *t, const struct dp_pci_function *f, int32_t container)
{
    const struct dp_pci_function *above = f->parent < 0 ? NULL : &t->f->list[f->parent];
    int gen_max = least_known(f->gen_max, above ? above->gen_max : 0);
    int width_max = least_known(f->width_max, above ? above->width_max : 0);
    bool idles = dp_pci_is_gpu(&f->id) && f->gen && gen_max > f->gen;
    char address[DP_TOPO_PCI_LEN];

    struct dp_topo_link *l = dp_topo_add_pci_link(t->b, container, f->node, idles ? gen_max : f->gen,
                                                  f->width, gen_max, width_max);
    if (!f->gen && f->rate > 0) {
        l->bytes_per_ns = f->rate;
        l->flags &= ~(uint32_t)DP_TOPO_RATE_UNKNOWN;
    }
    if (idles)
        dp_topo_add_note(t->b, DP_TOPO_ASSUMED, f->node,
                         "%s: the link of the GPU rests at PCIe %d; taken to run at %d under load",
                         dp_topo_pci_text(&f->id, address), f->gen, gen_max);
}

static void add_function(const struct tree *t, struct dp_pci_function *f, enum dp_topo_kind kind,
                         int32_t container)
{
    f->node = dp_topo_add_node(t->b, kind, container);
    uint32_t model = dp_topo_add_text(t->b, f->model);
    struct dp_topo_node *n = dp_topo_node(t->b, f->node);
    n->pci = f->id;
    n->model = model;
    link_up(t, f, container);
}

/* What f stands in: of the bridges above it the first is a root port; then upstream and downstream
 * ports of switches alternate. */
static int32_t container_of(const struct tree *t, const struct dp_pci_function *f)
{
    struct dp_pci_function *bridges[DEEPEST];
    int count = 0;
    int32_t container = root_of(t, f);

    for (int32_t i = f->parent; i >= 0 && count < DEEPEST; i = t->f->list[i].parent)
        bridges[count++] = &t->f->list[i];
    for (int i = count - 2; i >= 0; i -= 2) {
        if (bridges[i]->node < 0)
            add_function(t, bridges[i], DP_TOPO_SWITCH, container);
        container = bridges[i]->node;
    }
    return container;
}

/* ---- all of it ------------------------------------------------------------------------------ */

void dp_pci_tree_add(struct dp_topo_builder *b, int32_t host, struct dp_pci_functions *f)
{
    const struct tree t = {b, f, host};

    for (int32_t i = 0; i < f->count; i++)
        f->list[i].node = -1;
    for (int32_t i = 0; i < f->count && !b->failed; i++) {
        struct dp_pci_function *one = &f->list[i];
        if (dp_pci_is_gpu(&one->id))
            add_function(&t, one, DP_TOPO_GPU, container_of(&t, one));
        else if (dp_pci_is_nic(&one->id))
            add_function(&t, one, DP_TOPO_NIC, container_of(&t, one));
    }
}

void dp_pci_functions_fini(struct dp_pci_functions *f)
{
    for (int32_t i = 0; i < f->count; i++)
        free(f->list[i].dir);
    free(f->list);
    *f = (struct dp_pci_functions){0};
}
