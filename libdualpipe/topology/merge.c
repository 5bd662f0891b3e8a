/* SPDX-License-Identifier: Apache-2.0
 *
 * merge.c - several topologies into one cluster, one host out of a cluster, a machine as a guest on it
 * sees it.
 */
#include "base/array.h"
#include "base/fail.h"
#include "base/text.h"
#include "topology/build.h"
#include "topology/internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- a part of a topology into a builder ------------------------------------------------------ */

/* What place[i] says of node i of t on entry; else the node of the builder that stands for it. */
enum { LEAVE = -1, COPY = -2 };

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
    if (c->place[i] == LEAVE || (n.parent >= 0 && c->place[n.parent] < 0)) {
        c->place[i] = LEAVE;
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

/* Add the nodes of t that are to be copied, with the links, ports and notes among all that are not left
 * out; a node without its parent is left out, too. What belongs to no host of t stands in `home`, a
 * node of the builder by then; -1: in none. place[i] becomes the node's number in the builder, -1 for
 * those left out. A port whose rail is left out has none. */
static void copy_part(struct dp_topo_builder *b, const struct dp_topology *t, int32_t home,
                      int32_t *place)
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
                place[hub] = COPY;
        }
}

int dp_topology_take_host(const struct dp_topology *t, int32_t host, struct dp_topology **out)
{
    struct dp_topo_builder b = {0};
    int32_t *place;

    if (host < 0 || host >= t->node_count || t->nodes[host].kind != DP_TOPO_HOST)
        return dp_fail(DP_EINVAL, "node %d, expected a host", host);
    place = new_places(&b, t, LEAVE);
    for (int32_t i = host; place && i < t->nodes[host].end; i++)
        place[i] = COPY;
    if (place) {
        take_switches(t, host, place);
        copy_part(&b, t, 0, place); /* the host comes first */
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
        j.hosts[i] = dp_topology_above(&b->t, b->t.ports[i].nic, DP_TOPO_HOST);
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
        int32_t *place = new_places(&b, parts[i], COPY);
        if (place) {
            share_switches(&b, parts[i], &domains, place);
            copy_part(&b, parts[i], -1, place);
        }
        free(place);
    }
    free(domains.list);
    if (!b.failed)
        dp_topo_join_hosts(&b);
    return dp_topo_finish(&b, out);
}

/* ---- a guest -------------------------------------------------------------------------------- */

/* The devices that were passed on, under the guest's addresses, in the tree that they really hang in and
 * that the guest is not shown. */
struct remap {
    const struct dp_topology *t;
    struct dp_topo_pci *pci; /* [nodes] as the guest knows them; not known: not passed on */
    const char **cpus;       /* [nodes] of NUMA nodes in the guest; NULL: as on the host */
    char *text;              /* of the map, cut into words */
};

static bool is_device(enum dp_topo_kind kind)
{
    return kind == DP_TOPO_GPU || kind == DP_TOPO_NIC;
}

/* The device that has this address in the guest already; -1: none. */
static int32_t find_taken(const struct remap *r, const struct dp_topo_pci *pci)
{
    for (int32_t i = 0; i < r->t->node_count; i++)
        if (r->pci[i].known && dp_topo_same_pci(&r->pci[i], pci))
            return i;
    return -1;
}

static int read_pair(struct remap *r, int line, const char *what, const char *becomes)
{
    struct dp_topo_pci pci = {0};
    int32_t node;
    int err = dp_topology_find(r->t, what, &node);

    if (err)
        return err;
    if (r->t->nodes[node].kind == DP_TOPO_NUMA) {
        if (!*becomes || strspn(becomes, "0123456789,-") != strlen(becomes))
            return dp_fail(DP_EINVAL, "line %d of the map: '%s', expected CPUs such as 0-31", line,
                           becomes);
        r->cpus[node] = becomes;
        return 0;
    }
    if (!is_device(r->t->nodes[node].kind))
        return dp_fail(DP_EINVAL, "line %d of the map: %s is a %s, expected a GPU, a NIC or a NUMA node",
                       line, what, dp_topo_kind_name(r->t->nodes[node].kind));
    if (!dp_topo_parse_pci(becomes, &pci))
        return dp_fail(DP_EINVAL, "line %d of the map: '%s', expected an address such as 0001:00:00.0",
                       line, becomes);
    if (r->pci[node].known || find_taken(r, &pci) >= 0)
        return dp_fail(DP_EINVAL, "line %d of the map: %s or %s is there twice, expected each once",
                       line, what, becomes);
    r->pci[node] = pci;
    return 0;
}

/* Lines of two words; '#' begins a comment. */
static int read_map(struct remap *r)
{
    char *rest = r->text, *line;
    int err = 0;

    for (int number = 1; !err && (line = strsep(&rest, "\n")); number++) {
        char *words[3] = {NULL}, *word, *in_line = line;
        int count = 0;
        line[strcspn(line, "#\r")] = '\0';
        while (count < 3 && (word = strsep(&in_line, " \t")))
            if (*word)
                words[count++] = word;
        if (count == 2)
            err = read_pair(r, number, words[0], words[1]);
        else if (count)
            err = dp_fail(DP_EINVAL, "line %d of the map: expected two words, a device here and its "
                          "address in the guest", number);
    }
    return err;
}

/* What its driver calls a device in the guest, and how it numbers it, is not known. */
static void forget_names(struct dp_topo_builder *b)
{
    for (int32_t i = 0; i < b->t.node_count && !b->failed; i++)
        if (b->t.nodes[i].kind == DP_TOPO_GPU)
            b->t.nodes[i].os_index = b->t.nodes[i].memory_node = -1;
        else if (b->t.nodes[i].kind == DP_TOPO_NIC)
            b->t.nodes[i].name = 0;
    for (int32_t i = 0; i < b->t.port_count; i++)
        b->t.ports[i].rdma = b->t.ports[i].net = 0;
}

/* Bridges get addresses that no guest uses, so that none is taken for a device of it. */
static void name_bridges(struct remap *r)
{
    int32_t count = 0;

    for (int32_t i = 0; i < r->t->node_count; i++)
        if (r->t->nodes[i].kind == DP_TOPO_SWITCH || r->t->nodes[i].kind == DP_TOPO_ROOT) {
            r->pci[i] = (struct dp_topo_pci){.known = true, .domain = 0xffff - (uint32_t)count / 256,
                                             .bus = (uint8_t)(count % 256)};
            count++;
        }
}

static void apply_map(const struct remap *r, struct dp_topo_builder *b, int32_t *place)
{
    for (int32_t i = 0; i < r->t->node_count; i++)
        place[i] = !is_device(r->t->nodes[i].kind) || r->pci[i].known ? COPY : LEAVE;
    copy_part(b, r->t, -1, place);
    forget_names(b);
    for (int32_t i = 0; i < r->t->node_count && !b->failed; i++) {
        if (place[i] < 0)
            continue;
        uint32_t cpus = r->cpus[i] ? dp_topo_add_text(b, r->cpus[i]) : 0;
        struct dp_topo_node *n = dp_topo_node(b, place[i]);
        n->cpus = cpus ? cpus : n->cpus;
        if (r->pci[i].known) {
            n->pci.known = true;
            n->pci.domain = r->pci[i].domain;
            n->pci.bus = r->pci[i].bus;
            n->pci.device = r->pci[i].device;
            n->pci.function = r->pci[i].function;
        }
    }
}

int dp_topology_remap(const struct dp_topology *t, const char *map, struct dp_topology **out)
{
    size_t n = (size_t)t->node_count, len = strlen(map);
    int err = dp_utf8_begin(&map, &len, NULL);

    if (err)
        return err;
    struct remap r = {t, calloc(n, sizeof(*r.pci)), calloc(n, sizeof(*r.cpus)), strdup(map)};
    int32_t *place = calloc(n, sizeof(*place));
    struct dp_topo_builder b = {0};

    if (!r.pci || !r.cpus || !r.text || !place)
        err = dp_fail(DP_ENOMEM, "no memory to remap %zu nodes", n);
    if (!err && t->host_count != 1)
        err = dp_fail(DP_EINVAL, "a topology of %d hosts, expected the one that the guest runs on",
                      t->host_count);
    if (!err)
        err = read_map(&r);
    if (!err) {
        name_bridges(&r);
        apply_map(&r, &b, place);
        err = dp_topo_finish(&b, out);
    }
    free(r.pci);
    free(r.cpus);
    free(r.text);
    free(place);
    return err;
}
