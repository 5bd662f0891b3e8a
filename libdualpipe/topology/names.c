/* SPDX-License-Identifier: Apache-2.0
 *
 * names.c - what nodes are called, and which node a name means.
 */
#include "base/fail.h"
#include "base/text.h"
#include "topology/build.h"
#include "topology/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- words ---------------------------------------------------------------------------------- */

const char *const dp_topo_kind_names[DP_TOPO_KINDS + 1] = {
    "host", "numa", "root", "switch", "gpu", "nic", "nvswitch", "rail", "spine", NULL,
};
const char *const dp_topo_link_kind_names[DP_TOPO_LINK_KINDS + 1] = {
    "mesh", "pci", "cpu", "nvlink", "xgmi", "c2c", "net", NULL,
};

const char *const dp_topo_fabric_names[] = {"ethernet", "infiniband", "unknown", NULL};
const char *const dp_topo_gid_type_names[] = {"ib", "rocev1", "rocev2", NULL};
const char *const dp_topo_note_kind_names[] = {"missing", "assumed", NULL};

const char *dp_topo_kind_name(enum dp_topo_kind kind)
{
    return (unsigned)kind < DP_TOPO_KINDS ? dp_topo_kind_names[kind] : "?";
}

const char *dp_topo_link_kind_name(enum dp_topo_link_kind kind)
{
    return (unsigned)kind < DP_TOPO_LINK_KINDS ? dp_topo_link_kind_names[kind] : "?";
}

const char *dp_topo_class_name(enum dp_topo_class kind)
{
    static const char *const names[DP_TOPO_CLASSES] = {
        "X", "NV", "XGMI", "C2C", "PIX", "PXB", "PHB", "NODE", "SYS", "NET", "NET*", "-",
    };

    return (unsigned)kind < DP_TOPO_CLASSES ? names[kind] : "?";
}

int dp_topo_name_index(const char *name, size_t len, const char *const *names)
{
    for (int i = 0; names[i]; i++)
        if (strlen(names[i]) == len && !memcmp(name, names[i], len))
            return i;
    return -1;
}

/* ---- labels --------------------------------------------------------------------------------- */

const char *dp_topology_label(const struct dp_topology *t, int32_t node,
                              char text[DP_TOPO_LABEL_LEN])
{
    const struct dp_topo_node *n = &t->nodes[node];
    char host[DP_TOPO_LABEL_LEN] = "";

    if (n->kind == DP_TOPO_HOST && !n->name)
        snprintf(text, DP_TOPO_LABEL_LEN, t->host_count > 1 ? "node%d" : "node", n->index);
    else if (n->kind == DP_TOPO_HOST || n->kind == DP_TOPO_RAIL || n->kind == DP_TOPO_SPINE)
        snprintf(text, DP_TOPO_LABEL_LEN, "%s", dp_topology_text(t, n->name));
    else {
        if (n->host >= 0 && t->host_count > 1)
            dp_topology_label(t, n->host, host);
        snprintf(text, DP_TOPO_LABEL_LEN, "%.60s%s%s%d", host, *host ? "/" : "",
                 dp_topo_kind_name(n->kind), n->index);
    }
    return text;
}

/* ---- finding -------------------------------------------------------------------------------- */

/* "0000:1b:00.0" or "1b:00.0". */
static bool parse_address(const char *name, struct dp_topo_pci *pci)
{
    char full[DP_TOPO_PCI_LEN];

    snprintf(full, sizeof(full), "0000:%s", name);
    return dp_topo_parse_pci(name, pci) || dp_topo_parse_pci(full, pci);
}

/* A root has the address of the first device on its bus, which is the one that is meant. */
static bool names_pci(const struct dp_topo_node *n, const char *name)
{
    struct dp_topo_pci pci;

    return n->pci.known && n->kind != DP_TOPO_ROOT && parse_address(name, &pci) &&
           dp_topo_same_pci(&n->pci, &pci);
}

bool dp_topo_is_wireless(const struct dp_topology *t, const struct dp_topo_port *p)
{
    return !p->rdma && (t->nodes[p->nic].pci.class_code >> 8 == 0x0280 ||
                        !strncmp(dp_topology_text(t, p->net), "wl", 2));
}

static bool names_port(const struct dp_topology *t, int32_t nic, const char *name)
{
    int32_t first, count = dp_topology_ports(t, nic, &first);

    for (int32_t i = first; i < first + count; i++)
        if (!strcmp(dp_topology_text(t, t->ports[i].rdma), name) ||
            !strcmp(dp_topology_text(t, t->ports[i].net), name))
            return true;
    return false;
}

/* Is this one of the node's own names, without its host? */
static bool is_called(const struct dp_topology *t, int32_t node, const char *name)
{
    const struct dp_topo_node *n = &t->nodes[node];
    char numbered[32], label[DP_TOPO_LABEL_LEN];

    if (n->kind == DP_TOPO_HOST && !strcmp(name, dp_topology_label(t, node, label)))
        return true;
    snprintf(numbered, sizeof(numbered), "%s%d", dp_topo_kind_name(n->kind), n->index);
    return !strcmp(name, numbered) || !strcmp(name, dp_topology_text(t, n->name)) ||
           !strcmp(name, dp_topology_text(t, n->uuid)) || names_pci(n, name) ||
           (n->kind == DP_TOPO_NIC && names_port(t, node, name));
}

/* The nodes that `name` may mean: those of the host before its '/', or all. */
static const char *narrow(const struct dp_topology *t, const char *name, int32_t *from, int32_t *end)
{
    const char *slash = strchr(name, '/');
    char label[DP_TOPO_LABEL_LEN];

    *from = 0;
    *end = t->node_count;
    for (int32_t i = 0; slash && i < t->node_count && t->nodes[i].kind == DP_TOPO_HOST;
         i = t->nodes[i].end) {
        const char *host = dp_topology_label(t, i, label);
        if (strlen(host) == (size_t)(slash - name) && !strncmp(host, name, strlen(host))) {
            *from = i + 1;
            *end = t->nodes[i].end;
            return slash + 1;
        }
    }
    return name;
}

/* "numa0, gpu0 to gpu3", what the first host has. */
static void add_names(const struct dp_topology *t, struct dp_text *out)
{
    static const enum dp_topo_kind kinds[] = {DP_TOPO_NUMA, DP_TOPO_GPU, DP_TOPO_NIC,
                                              DP_TOPO_NVSWITCH};

    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        const char *word = dp_topo_kind_name(kinds[k]);
        const int32_t count = dp_topology_count(t, kinds[k], 0);
        if (count)
            dp_text_addf(out, "%s%s0", out->len ? ", " : "", word);
        if (count > 1)
            dp_text_addf(out, " to %s%d", word, count - 1);
    }
}

/* The nearest of the labels, which are built for the purpose. */
static int no_such_node(const struct dp_topology *t, const char *name)
{
    enum { LOOK_AT = 4096 };
    size_t count = (size_t)(t->node_count < LOOK_AT ? t->node_count : LOOK_AT);
    char (*labels)[DP_TOPO_LABEL_LEN] = malloc(count * sizeof(*labels));
    const char **names = malloc(count * sizeof(*names));
    const char *near = NULL;
    struct dp_text all = {0};

    for (size_t i = 0; labels && names && i < count; i++)
        names[i] = dp_topology_label(t, (int32_t)i, labels[i]);
    if (labels && names)
        near = dp_nearest(name, names, count);
    add_names(t, &all);
    int err = dp_fail(DP_EINVAL, "'%s' is no node of this topology; %s%s%s%s", name,
                      near ? "did you mean '" : "expected one of ", near ? near : "",
                      near ? "'? There are " : "", all.data ? all.data : "those that it has");
    dp_text_fini(&all);
    free(labels);
    free(names);
    return err;
}

int dp_topology_find(const struct dp_topology *t, const char *name, int32_t *node)
{
    int32_t from, end;
    const char *own = narrow(t, name, &from, &end);

    for (int32_t i = from; *own && i < end; i++)
        if (is_called(t, i, own)) {
            *node = i;
            return 0;
        }
    return no_such_node(t, name);
}
