/* SPDX-License-Identifier: Apache-2.0
 *
 * merge.c - several topologies into one cluster, one host out of a cluster, a machine as a guest on it
 * sees it.
 */
#include "base/array.h"
#include "base/fail.h"
#include "topology/build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int32_t *new_places(struct dp_topo_builder *b, const struct dp_topology *t, int32_t value)
{
    int32_t *place = malloc((size_t)t->node_count * sizeof(*place));

    b->failed |= !place;
    for (int32_t i = 0; place && i < t->node_count; i++)
        place[i] = value;
    return place;
}

/* ---- one host ------------------------------------------------------------------------------- */

/* Its GPUs lead to their domain's NVSwitches, which are the host's own from now on. */
static void take_switches(const struct dp_topology *t, int32_t host, int32_t *place)
{
    for (int32_t gpu = host; (gpu = dp_topology_next(t, DP_TOPO_GPU, host, gpu + 1)) >= 0;)
        for (int32_t k = t->first_around[gpu]; k < t->first_around[gpu + 1]; k++) {
            int32_t hub = dp_topology_across(t, t->around[k], gpu);
            if (t->nodes[hub].kind == DP_TOPO_NVSWITCH)
                place[hub] = DP_TOPO_COPY;
        }
}

int dp_topology_take_host(const struct dp_topology *t, int32_t host, struct dp_topology **out)
{
    struct dp_topo_builder b = {0};
    int32_t *place;

    if (host < 0 || host >= t->node_count || t->nodes[host].kind != DP_TOPO_HOST)
        return dp_fail(DP_EINVAL, "node %d, expected a host", host);
    place = new_places(&b, t, DP_TOPO_LEAVE);
    for (int32_t i = host; place && i < t->nodes[host].end; i++)
        place[i] = DP_TOPO_COPY;
    if (place) {
        take_switches(t, host, place);
        dp_topo_copy(&b, t, 0, place); /* the host comes first */
    }
    free(place);
    return dp_topo_finish(&b, out);
}

/* ---- NVLink domains ------------------------------------------------------------------------- */

/* NVSwitches of several hosts that have one name are one node, which belongs to none of them. */
struct domain {
    uint32_t name;
    int32_t hosts, node; /* node: -1 as long as it was not needed */
};

struct domains {
    struct domain *list;
    int32_t count;
    size_t room;
};

/* NULL: not there. */
static struct domain *find_domain(const struct domains *d, uint32_t name)
{
    for (int32_t i = 0; i < d->count; i++)
        if (d->list[i].name == name)
            return &d->list[i];
    return NULL;
}

static void count_domain(struct dp_topo_builder *b, struct domains *d, const char *name)
{
    uint32_t text = dp_topo_add_text(b, name);
    struct domain *known = find_domain(d, text);

    if (known) {
        known->hosts++;
        return;
    }
    struct domain *more = dp_array_grow(d->list, &d->room, (size_t)d->count + 1, sizeof(*more));
    b->failed |= !more;
    if (!more)
        return;
    d->list = more;
    d->list[d->count++] = (struct domain){.name = text, .hosts = 1, .node = -1};
}

static void count_domains(struct dp_topo_builder *b, const struct dp_topology *const *parts,
                          size_t count, struct domains *d)
{
    for (size_t i = 0; i < count; i++)
        for (int32_t n = -1; (n = dp_topology_next(parts[i], DP_TOPO_NVSWITCH, -1, n + 1)) >= 0;)
            if (parts[i]->nodes[n].name && !b->failed)
                count_domain(b, d, dp_topology_text(parts[i], parts[i]->nodes[n].name));
}

static void share_switches(struct dp_topo_builder *b, const struct dp_topology *t,
                           const struct domains *d, int32_t *place)
{
    for (int32_t n = -1; (n = dp_topology_next(t, DP_TOPO_NVSWITCH, -1, n + 1)) >= 0;) {
        const char *name = dp_topology_text(t, t->nodes[n].name);
        struct domain *domain = *name ? find_domain(d, dp_topo_add_text(b, name)) : NULL;
        if (!domain || domain->hosts < 2)
            continue;
        if (domain->node < 0) {
            domain->node = dp_topo_add_node(b, DP_TOPO_NVSWITCH, -1);
            dp_topo_node(b, domain->node)->name = domain->name;
        }
        place[n] = domain->node;
    }
}

/* ---- a cluster ------------------------------------------------------------------------------ */

/* What a rail is known by, beside its place: the kind of its ports, the subnet that made it (0 for
 * none), and which of the ports of each host in it is on this rail, -1 for all. */
struct rail {
    uint32_t subnet;
    enum dp_topo_fabric fabric;
    bool is_wireless;
    int32_t turn, node;
    double rate; /* of its ports together */
};

struct joiner {
    struct dp_topo_builder *b;
    int32_t *hosts; /* [ports] */
    bool *shared;   /* [ports] ports of another host are in its subnet, too */
    struct rail *rails;
    int32_t rail_count, spine_count;
};

static int32_t host_of(const struct dp_topo_builder *b, int32_t node)
{
    while (b->t.nodes[node].parent >= 0)
        node = b->t.nodes[node].parent;
    return node;
}

/* Equal texts have one place in a builder. */
static bool same_subnet(const struct dp_topo_port *x, const struct dp_topo_port *y)
{
    return x->subnet == y->subnet && x->fabric == y->fabric;
}

struct order {
    uint32_t subnet;
    int32_t fabric, host, port;
};

static int compare_orders(const void *a, const void *b)
{
    const struct order *x = a, *y = b;

    if (x->subnet != y->subnet)
        return x->subnet < y->subnet ? -1 : 1;
    if (x->fabric != y->fabric)
        return x->fabric < y->fabric ? -1 : 1;
    return x->host != y->host ? (x->host < y->host ? -1 : 1) : x->port - y->port;
}

/* Ports of one subnet stand together; it is shared if they are of several hosts. */
static void find_shared(struct joiner *j)
{
    int32_t count = j->b->t.port_count, end;
    struct order *order = malloc(((size_t)count + 1) * sizeof(*order));

    j->b->failed |= !order;
    for (int32_t i = 0; order && i < count; i++)
        order[i] = (struct order){j->b->t.ports[i].subnet, (int32_t)j->b->t.ports[i].fabric,
                                  j->hosts[i], i};
    if (order)
        qsort(order, (size_t)count, sizeof(*order), compare_orders);
    for (int32_t i = 0; order && i < count; i = end) {
        for (end = i + 1; end < count && order[end].subnet == order[i].subnet &&
                          order[end].fabric == order[i].fabric;)
            end++;
        for (int32_t k = i; k < end; k++)
            j->shared[order[k].port] = order[i].subnet && order[i].host != order[end - 1].host;
    }
    free(order);
}

static bool same_kind(const struct dp_topology *t, const struct dp_topo_port *x,
                      const struct dp_topo_port *y)
{
    return x->fabric == y->fabric && dp_topo_is_wireless(t, x) == dp_topo_is_wireless(t, y);
}

/* Which of its host's ports of its kind a port is: of all, or of those in its InfiniBand subnet. */
static int32_t turn_of(const struct joiner *j, int32_t port)
{
    const struct dp_topo_port *ports = j->b->t.ports;
    int32_t turn = 0;

    for (int32_t i = port - 1; i >= 0 && j->hosts[i] == j->hosts[port]; i--)
        turn += same_kind(&j->b->t, &ports[i], &ports[port]) &&
                (!j->shared[port] || (j->shared[i] && same_subnet(&ports[i], &ports[port])));
    return turn;
}

static int32_t add_shared_node(struct joiner *j, enum dp_topo_kind kind, int32_t number)
{
    uint32_t text = dp_topo_add_textf(j->b, "%s%d", dp_topo_kind_name(kind), number);
    int32_t node = dp_topo_add_node(j->b, kind, -1);

    dp_topo_node(j->b, node)->name = text;
    return node;
}

static struct rail *get_rail(struct joiner *j, const struct rail *wanted)
{
    struct rail *r = j->rails;

    for (; r < j->rails + j->rail_count; r++)
        if (r->subnet == wanted->subnet && r->turn == wanted->turn && r->fabric == wanted->fabric &&
            r->is_wireless == wanted->is_wireless)
            return r;
    *r = *wanted;
    r->node = add_shared_node(j, DP_TOPO_RAIL, j->rail_count++);
    return r;
}

/* See topology.h for the rule. */
static void join_ports(struct joiner *j)
{
    for (int32_t i = 0; i < j->b->t.port_count && !j->b->failed; i++) {
        const struct dp_topo_port *p = &j->b->t.ports[i];
        bool is_infiniband = p->fabric == DP_TOPO_INFINIBAND;
        struct rail *r =
            get_rail(j, &(struct rail){
                            .subnet = j->shared[i] || is_infiniband ? p->subnet : 0,
                            .fabric = p->fabric,
                            .is_wireless = dp_topo_is_wireless(&j->b->t, p),
                            .turn = j->shared[i] && !is_infiniband ? -1 : turn_of(j, i),
                        });
        r->rate += p->bytes_per_ns;
        dp_topo_join_rail(j->b, i, r->node);
    }
}

/* A fabric of InfiniBand ends where its subnet does; Ethernet is routed. */
static bool same_spine(const struct rail *a, const struct rail *b)
{
    return a->fabric == b->fabric && (a->fabric != DP_TOPO_INFINIBAND || a->subnet == b->subnet);
}

/* One spine for the rails that are like rail `first`, which is the first of them. */
static void join_rails(struct joiner *j, const struct rail *first)
{
    const struct rail *end = j->rails + j->rail_count;
    int32_t spine = -1;

    for (const struct rail *r = j->rails; r < first; r++)
        if (same_spine(r, first))
            return;
    for (const struct rail *r = first + 1; r < end && spine < 0; r++)
        if (same_spine(r, first))
            spine = add_shared_node(j, DP_TOPO_SPINE, j->spine_count++);
    for (const struct rail *r = first; r < end && spine >= 0; r++)
        if (same_spine(r, first))
            dp_topo_add_link(j->b, DP_TOPO_NET, r->node, spine, r->rate)->flags =
                r->rate > 0 ? DP_TOPO_RATE_ASSUMED : DP_TOPO_RATE_UNKNOWN;
}

void dp_topo_join_hosts(struct dp_topo_builder *b)
{
    size_t ports = (size_t)b->t.port_count + 1;
    struct joiner j = {
        .b = b, .hosts = calloc(ports, sizeof(*j.hosts)), .shared = calloc(ports, sizeof(*j.shared)),
        .rails = calloc(ports, sizeof(*j.rails)),
    };

    b->failed |= !j.hosts || !j.shared || !j.rails;
    for (int32_t i = 0; i < b->t.port_count && !b->failed; i++)
        j.hosts[i] = host_of(b, b->t.ports[i].nic);
    if (!b->failed)
        find_shared(&j);
    if (!b->failed)
        join_ports(&j);
    for (int32_t i = 0; i < j.rail_count && !b->failed; i++)
        join_rails(&j, &j.rails[i]);
    free(j.hosts);
    free(j.shared);
    free(j.rails);
}

static int check_part(const struct dp_topology *t, size_t number)
{
    for (int32_t i = 0; i < t->node_count; i++)
        if (t->nodes[i].host < 0)
            return dp_fail(DP_EINVAL, "topology %zu: %s joins its hosts already, expected hosts "
                           "that are joined by nothing yet", number,
                           dp_topology_text(t, t->nodes[i].name));
    return 0;
}

/* NCCL's dumps of several ranks of one host are not several hosts. */
static int check_twice(const struct dp_topology *const *parts, size_t number)
{
    const char *uuid = dp_topology_text(parts[number], parts[number]->nodes[0].uuid);

    for (size_t i = 0; i < number && *uuid; i++)
        for (int32_t n = 0; n < parts[i]->node_count && parts[i]->nodes[n].kind == DP_TOPO_HOST;
             n = parts[i]->nodes[n].end)
            if (!strcmp(uuid, dp_topology_text(parts[i], parts[i]->nodes[n].uuid)))
                return dp_fail(DP_EINVAL,
                               "topology %zu: the host_hash %s is that of topology %zu, expected "
                               "one file of each host",
                               number, uuid, i);
    return 0;
}

int dp_topology_merge(const struct dp_topology *const *parts, size_t count, struct dp_topology **out)
{
    struct dp_topo_builder b = {0};
    struct domains domains = {0};
    int err = count ? 0 : dp_fail(DP_EINVAL, "no topologies, expected some to merge");

    for (size_t i = 0; i < count && !err; i++)
        err = (err = check_part(parts[i], i)) ? err : check_twice(parts, i);
    if (err)
        return err;
    count_domains(&b, parts, count, &domains);
    for (size_t i = 0; i < count && !b.failed; i++) {
        int32_t *place = new_places(&b, parts[i], DP_TOPO_COPY);
        if (place) {
            share_switches(&b, parts[i], &domains, place);
            dp_topo_copy(&b, parts[i], -1, place);
        }
        free(place);
    }
    free(domains.list);
    if (!b.failed)
        dp_topo_join_hosts(&b);
    return dp_topo_finish(&b, out);
}
