/* SPDX-License-Identifier: Apache-2.0
 *
 * check.c - is this a topology? What topology.h promises, one rule a function; but for the order and the
 * texts, which dp_topo_finish and the builder make so.
 */
#include "base/fail.h"
#include "topology/build.h"
#include "topology/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- nodes ---------------------------------------------------------------------------------- */

/* Which kinds may stand right below which; bits. */
static unsigned parents_of(enum dp_topo_kind kind)
{
    static const unsigned allowed[DP_TOPO_KINDS] = {
        [DP_TOPO_NUMA] = 1u << DP_TOPO_HOST,
        [DP_TOPO_ROOT] = 1u << DP_TOPO_NUMA,
        [DP_TOPO_SWITCH] = 1u << DP_TOPO_ROOT | 1u << DP_TOPO_SWITCH,
        [DP_TOPO_GPU] = 1u << DP_TOPO_NUMA | 1u << DP_TOPO_ROOT | 1u << DP_TOPO_SWITCH,
        [DP_TOPO_NIC] = 1u << DP_TOPO_NUMA | 1u << DP_TOPO_ROOT | 1u << DP_TOPO_SWITCH,
        [DP_TOPO_NVSWITCH] = 1u << DP_TOPO_HOST,
    };

    return allowed[kind];
}

static bool may_have_no_parent(enum dp_topo_kind kind)
{
    return !parents_of(kind) || kind == DP_TOPO_NVSWITCH;
}

static int check_parent(const struct dp_topology *t, int32_t i)
{
    const struct dp_topo_node *n = &t->nodes[i];

    if ((unsigned)n->kind >= DP_TOPO_KINDS)
        return dp_fail(DP_EINVAL, "node %d: kind %d, expected one of dp_topo_kind", i, n->kind);
    if (n->parent < 0 ? !may_have_no_parent(n->kind)
                      : !(parents_of(n->kind) >> t->nodes[n->parent].kind & 1))
        return dp_fail(DP_EINVAL, "node %d: a %s may not stand %s%s%s", i,
                       dp_topo_kind_name(n->kind), n->parent < 0 ? "alone" : "in a ",
                       n->parent < 0 ? "" : dp_topo_kind_name(t->nodes[n->parent].kind),
                       n->parent < 0 ? "; it is a part of a host" : "");
    return 0;
}

static int check_nodes(const struct dp_topology *t)
{
    char label[DP_TOPO_LABEL_LEN];
    int err = 0;

    if (t->node_count < 1 || t->nodes[0].kind != DP_TOPO_HOST)
        return dp_fail(DP_EINVAL, "a topology of %d nodes, expected a host first", t->node_count);
    for (int32_t i = 0; i < t->node_count && !err; i++)
        err = check_parent(t, i);
    for (int32_t i = 0; i < t->node_count && !err; i++)
        if (t->nodes[i].kind == DP_TOPO_HOST &&
            (i + 1 == t->node_count || t->nodes[i + 1].kind != DP_TOPO_NUMA))
            err = dp_fail(DP_EINVAL, "host '%s' (node %d) has no NUMA node, expected one at least",
                          dp_topology_label(t, i, label), i);
    return err;
}

/* ---- names ---------------------------------------------------------------------------------- */

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool has_unique_name(enum dp_topo_kind kind)
{
    return kind == DP_TOPO_HOST || kind == DP_TOPO_RAIL || kind == DP_TOPO_SPINE;
}

static int check_names(const struct dp_topology *t)
{
    const char **names = malloc(((size_t)t->node_count + 1) * sizeof(*names));
    size_t count = 0;
    int err = names ? 0 : dp_fail(DP_ENOMEM, "no memory for %d names", t->node_count);

    for (int32_t i = 0; i < t->node_count && !err; i++)
        if (has_unique_name(t->nodes[i].kind)) {
            const char *name = dp_topology_text(t, t->nodes[i].name);
            if (t->nodes[i].kind == DP_TOPO_HOST && !*name)
                continue;
            names[count++] = name;
            if (!*name || strchr(name, '/'))
                err = dp_fail(DP_EINVAL, "node %d: a %s named '%s', expected a name without '/'", i,
                              dp_topo_kind_name(t->nodes[i].kind), name);
        }
    if (!err)
        qsort(names, count, sizeof(*names), compare_texts);
    for (size_t i = 1; i < count && !err; i++)
        if (!strcmp(names[i - 1], names[i]))
            err = dp_fail(DP_EINVAL, "two nodes are named '%s', expected a name of its own for each "
                          "host, rail and spine", names[i]);
    free(names);
    return err;
}

/* ---- links ---------------------------------------------------------------------------------- */

static bool is_pair(const struct dp_topology *t, const struct dp_topo_link *l, enum dp_topo_kind x,
                    enum dp_topo_kind y)
{
    enum dp_topo_kind a = t->nodes[l->a].kind, b = t->nodes[l->b].kind;

    return (a == x && b == y) || (a == y && b == x);
}

static bool may_join(const struct dp_topology *t, const struct dp_topo_link *l)
{
    bool is_tree = t->nodes[l->b].parent == l->a;

    switch (l->kind) {
    case DP_TOPO_MESH:
        return is_tree && t->nodes[l->a].kind == DP_TOPO_NUMA;
    case DP_TOPO_PCI:
        return is_tree && t->nodes[l->a].kind != DP_TOPO_HOST && t->nodes[l->b].kind != DP_TOPO_ROOT;
    case DP_TOPO_CPU:
        return is_pair(t, l, DP_TOPO_NUMA, DP_TOPO_NUMA) &&
               t->nodes[l->a].host == t->nodes[l->b].host;
    case DP_TOPO_NVLINK:
    case DP_TOPO_XGMI:
        return is_pair(t, l, DP_TOPO_GPU, DP_TOPO_GPU) || is_pair(t, l, DP_TOPO_GPU, DP_TOPO_NVSWITCH);
    case DP_TOPO_C2C:
        return is_pair(t, l, DP_TOPO_GPU, DP_TOPO_NUMA);
    case DP_TOPO_NET:
        return is_pair(t, l, DP_TOPO_NIC, DP_TOPO_RAIL) || is_pair(t, l, DP_TOPO_RAIL, DP_TOPO_SPINE);
    default:
        return false;
    }
}

static int check_link(const struct dp_topology *t, int32_t i)
{
    const struct dp_topo_link *l = &t->links[i], *last = i ? l - 1 : NULL;
    char a[DP_TOPO_LABEL_LEN], b[DP_TOPO_LABEL_LEN]; /* made where a sentence needs them */

    if (!may_join(t, l))
        return dp_fail(DP_EINVAL, "link %d: a %s link cannot join %s and %s", i,
                       dp_topo_link_kind_name(l->kind), dp_topology_label(t, l->a, a),
                       dp_topology_label(t, l->b, b));
    if (last && l->a == last->a && l->b == last->b && l->kind == last->kind && l->port == last->port)
        return dp_fail(DP_EINVAL, "link %d: %s and %s are joined twice, expected one link that counts "
                       "both", i, dp_topology_label(t, l->a, a), dp_topology_label(t, l->b, b));
    if (!isfinite(l->bytes_per_ns) || l->bytes_per_ns < 0 || !isfinite(l->latency_ns) ||
        l->latency_ns < 0)
        return dp_fail(DP_EINVAL, "link %d: %s to %s: %g GB/s and %g ns, expected numbers that are not "
                       "negative", i, dp_topology_label(t, l->a, a), dp_topology_label(t, l->b, b),
                       l->bytes_per_ns, l->latency_ns);
    if (l->count < 1 || l->gen < 0 || l->width < 0 || l->gen_max < 0 || l->width_max < 0)
        return dp_fail(DP_EINVAL, "link %d: %s to %s: a count below 1, or a negative generation or "
                       "width", i, dp_topology_label(t, l->a, a), dp_topology_label(t, l->b, b));
    if (l->kind == DP_TOPO_NET && t->nodes[l->a].kind == DP_TOPO_NIC &&
        (l->port < 0 || l->port >= t->port_count || t->ports[l->port].nic != l->a))
        return dp_fail(DP_EINVAL, "link %d: %s to %s: port %d, expected one of the NIC's", i,
                       dp_topology_label(t, l->a, a), dp_topology_label(t, l->b, b), l->port);
    return 0;
}

/* Each node joined to its parent, but NUMA nodes to their host: that is no device. */
static int check_uplinks(const struct dp_topology *t)
{
    bool *joined = calloc((size_t)t->node_count, sizeof(*joined));
    int err = joined ? 0 : dp_fail(DP_ENOMEM, "no memory to check %d nodes", t->node_count);

    for (int32_t i = 0; i < t->link_count && !err; i++)
        if (t->nodes[t->links[i].b].parent == t->links[i].a)
            joined[t->links[i].b] = true;
    for (int32_t i = 0; i < t->node_count && !err; i++) {
        enum dp_topo_kind kind = t->nodes[i].kind;
        char label[DP_TOPO_LABEL_LEN];
        if (t->nodes[i].parent >= 0 && kind != DP_TOPO_NUMA && kind != DP_TOPO_NVSWITCH && !joined[i])
            err = dp_fail(DP_EINVAL, "%s (node %d) has no link to the %s that it stands in",
                          dp_topology_label(t, i, label), i,
                          dp_topo_kind_name(t->nodes[t->nodes[i].parent].kind));
    }
    free(joined);
    return err;
}

static int check_links(const struct dp_topology *t)
{
    int err = 0;

    for (int32_t i = 0; i < t->link_count && !err; i++)
        err = check_link(t, i);
    return err ? err : check_uplinks(t);
}

/* The NUMA nodes of a host reach one another: each but the first has a CPU link to an earlier one. */
static int check_cpus(const struct dp_topology *t)
{
    for (int32_t i = 0; i < t->node_count; i++) {
        bool reached = t->nodes[i].kind != DP_TOPO_NUMA || t->nodes[i].index == 0;
        char label[DP_TOPO_LABEL_LEN];
        for (int32_t k = t->first_around[i]; k < t->first_around[i + 1] && !reached; k++)
            reached = t->links[t->around[k]].kind == DP_TOPO_CPU && t->links[t->around[k]].b == i;
        if (!reached)
            return dp_fail(DP_EINVAL, "%s (node %d) has no link to an earlier NUMA node of its host",
                           dp_topology_label(t, i, label), i);
    }
    return 0;
}

/* ---- ports ---------------------------------------------------------------------------------- */

/* Two devices of a NIC may have a port of one number each, and need not have names. */
static bool is_behind(const struct dp_topo_port *p, const struct dp_topo_port *last)
{
    if (p->nic != last->nic)
        return p->nic > last->nic;
    return p->number > last->number ||
           (p->number == last->number &&
            (p->rdma != last->rdma || p->net != last->net || (!p->rdma && !p->net)));
}

static int check_port(const struct dp_topology *t, int32_t i)
{
    const struct dp_topo_port *p = &t->ports[i];

    if (p->nic < 0 || p->nic >= t->node_count || t->nodes[p->nic].kind != DP_TOPO_NIC)
        return dp_fail(DP_EINVAL, "port %d: node %d, expected a NIC", i, p->nic);
    if (p->rail < -1 || p->rail >= t->node_count ||
        (p->rail >= 0 && t->nodes[p->rail].kind != DP_TOPO_RAIL))
        return dp_fail(DP_EINVAL, "port %d: rail %d, expected a rail's node or -1", i, p->rail);
    if (i && !is_behind(p, p - 1))
        return dp_fail(DP_EINVAL, "port %d: number %d of node %d, expected ports by NIC and number, "
                       "each once", i, p->number, p->nic);
    if (!isfinite(p->bytes_per_ns) || p->bytes_per_ns < 0 || p->mtu_bytes < 0)
        return dp_fail(DP_EINVAL, "port %d: %g GB/s, MTU %d, expected numbers that are not negative", i,
                       p->bytes_per_ns, p->mtu_bytes);
    return 0;
}

static int check_ports(const struct dp_topology *t)
{
    int err = 0;

    for (int32_t i = 0; i < t->port_count && !err; i++)
        err = check_port(t, i);
    return err;
}

int dp_topo_check(const struct dp_topology *t)
{
    int err = check_nodes(t);

    if (!err)
        err = check_names(t);
    if (!err)
        err = check_ports(t);
    if (!err)
        err = check_links(t);
    return err ? err : check_cpus(t);
}
