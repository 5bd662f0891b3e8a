/* SPDX-License-Identifier: Apache-2.0
 *
 * finish.c - bring what a builder holds into the order that topology.h promises: nodes in preorder with
 * the hosts first, links sorted, ports by NIC; then count, index and check it.
 */
#include "base/fail.h"
#include "topology/build.h"

#include <stdlib.h>
#include <string.h>

/* ---- nodes in preorder ---------------------------------------------------------------------- */

/* Children of every node in the order of adding, as lists; those without a parent hang below node
 * `count`. */
struct family {
    int32_t *first, *last, *next;
};

static void add_child(struct family *f, int32_t parent, int32_t child)
{
    f->next[child] = -1;
    if (f->first[parent] < 0)
        f->first[parent] = child;
    else
        f->next[f->last[parent]] = child;
    f->last[parent] = child;
}

/* What has no parent, kind by kind: hosts come first. */
static void gather(const struct dp_topology *t, struct family *f)
{
    for (int32_t i = 0; i <= t->node_count; i++)
        f->first[i] = -1;
    for (int kind = 0; kind < DP_TOPO_KINDS; kind++)
        for (int32_t i = 0; i < t->node_count; i++)
            if (t->nodes[i].parent < 0 && (int)t->nodes[i].kind == kind)
                add_child(f, t->node_count, i);
    for (int32_t i = 0; i < t->node_count; i++)
        if (t->nodes[i].parent >= 0)
            add_child(f, t->nodes[i].parent, i);
}

/* place[old] = new; end[new] is set as each subtree is left. A parent was added before its children, so
 * there are no circles. */
static void walk(const struct dp_topology *t, const struct family *f, int32_t *place, int32_t *end)
{
    int32_t at = f->first[t->node_count], count = 0;

    while (at >= 0) {
        place[at] = count++;
        if (f->first[at] >= 0) {
            at = f->first[at];
            continue;
        }
        for (;;) {
            end[place[at]] = count;
            int32_t parent = t->nodes[at].parent;
            if (f->next[at] >= 0 || parent < 0) {
                at = f->next[at];
                break;
            }
            at = parent;
        }
    }
}

static int32_t moved(const int32_t *place, int32_t node)
{
    return node < 0 ? -1 : place[node];
}

static int order_nodes(struct dp_topology *t, int32_t *place)
{
    size_t n = (size_t)t->node_count + 1;
    int32_t *memory = malloc(4 * n * sizeof(*memory));
    struct dp_topo_node *nodes = malloc(n * sizeof(*nodes));

    if (!memory || !nodes) {
        free(memory);
        free(nodes);
        return DP_ENOMEM;
    }
    struct family f = {memory, memory + n, memory + 2 * n};
    int32_t *end = memory + 3 * n;
    gather(t, &f);
    walk(t, &f, place, end);
    for (int32_t i = 0; i < t->node_count; i++) {
        nodes[place[i]] = t->nodes[i];
        nodes[place[i]].parent = moved(place, t->nodes[i].parent);
    }
    for (int32_t i = 0; i < t->node_count; i++)
        nodes[i].end = end[i];
    free(t->nodes);
    free(memory);
    t->nodes = nodes;
    return 0;
}

/* host and index of every node. */
static void number_nodes(struct dp_topology *t)
{
    int32_t inside[DP_TOPO_KINDS] = {0}, outside[DP_TOPO_KINDS] = {0}, host = -1;

    for (int32_t i = 0; i < t->node_count; i++) {
        struct dp_topo_node *n = &t->nodes[i];
        if (n->kind == DP_TOPO_HOST) {
            host = i;
            memset(inside, 0, sizeof(inside));
        }
        n->host = n->parent < 0 && n->kind != DP_TOPO_HOST ? -1 : host;
        n->index = (n->parent < 0 ? outside : inside)[n->kind]++;
    }
    t->host_count = outside[DP_TOPO_HOST];
}

/* ---- ports and links ------------------------------------------------------------------------ */

struct port_order {
    struct dp_topo_port port;
    int32_t was;
};

static int compare_ports(const void *a, const void *b)
{
    const struct port_order *x = a, *y = b;

    if (x->port.nic != y->port.nic)
        return x->port.nic < y->port.nic ? -1 : 1;
    if (x->port.number != y->port.number)
        return x->port.number < y->port.number ? -1 : 1;
    return x->was < y->was ? -1 : 1;
}

/* Sort the ports, their GIDs with them; port_place[old] = new. */
static int order_ports(struct dp_topology *t, const int32_t *place, int32_t *port_place)
{
    struct port_order *order = malloc(((size_t)t->port_count + 1) * sizeof(*order));
    struct dp_topo_gid *gids = malloc(((size_t)t->gid_count + 1) * sizeof(*gids));
    int32_t gid_count = 0;

    if (!order || !gids) {
        free(order);
        free(gids);
        return DP_ENOMEM;
    }
    for (int32_t i = 0; i < t->port_count; i++) {
        order[i] = (struct port_order){t->ports[i], i};
        order[i].port.nic = place[t->ports[i].nic];
        order[i].port.rail = moved(place, t->ports[i].rail);
    }
    qsort(order, (size_t)t->port_count, sizeof(*order), compare_ports);
    for (int32_t i = 0; i < t->port_count; i++) {
        struct dp_topo_port *p = &order[i].port;
        if (p->gid_count)
            memcpy(gids + gid_count, t->gids + p->first_gid, (size_t)p->gid_count * sizeof(*gids));
        p->first_gid = gid_count;
        gid_count += p->gid_count;
        t->ports[i] = *p;
        port_place[order[i].was] = i;
    }
    free(order);
    free(t->gids);
    t->gids = gids;
    return 0;
}

static int compare_links(const void *a, const void *b)
{
    const struct dp_topo_link *x = a, *y = b;

    if (x->a != y->a)
        return x->a < y->a ? -1 : 1;
    if (x->b != y->b)
        return x->b < y->b ? -1 : 1;
    if (x->kind != y->kind)
        return x->kind < y->kind ? -1 : 1;
    return x->port < y->port ? -1 : x->port > y->port;
}

static void order_links(struct dp_topology *t, const int32_t *place, const int32_t *port_place)
{
    for (int32_t i = 0; i < t->link_count; i++) {
        struct dp_topo_link *l = &t->links[i];
        int32_t from = place[l->a], to = place[l->b];
        l->a = from < to ? from : to;
        l->b = from < to ? to : from;
        l->port = moved(port_place, l->port);
    }
    if (t->link_count)
        qsort(t->links, (size_t)t->link_count, sizeof(*t->links), compare_links);
}

/* Which links each node has, by counting. */
static int index_links(struct dp_topology *t)
{
    t->first_around = calloc((size_t)t->node_count + 2, sizeof(*t->first_around));
    t->around = malloc((2 * (size_t)t->link_count + 1) * sizeof(*t->around));
    if (!t->first_around || !t->around)
        return DP_ENOMEM;

    int32_t *next = t->first_around + 1; /* in the end next[n] is where n + 1 begins */
    for (int32_t i = 0; i < t->link_count; i++) {
        next[t->links[i].a]++;
        next[t->links[i].b]++;
    }
    int32_t sum = 0;
    for (int32_t n = 0; n < t->node_count; n++) {
        int32_t own = next[n];
        next[n] = sum;
        sum += own;
    }
    for (int32_t i = 0; i < t->link_count; i++) {
        t->around[next[t->links[i].a]++] = i;
        t->around[next[t->links[i].b]++] = i;
    }
    return 0;
}

/* ---- all of it ------------------------------------------------------------------------------ */

static int order(struct dp_topology *t)
{
    int32_t *place = malloc(((size_t)t->node_count + 1) * sizeof(*place));
    int32_t *port_place = malloc(((size_t)t->port_count + 1) * sizeof(*port_place));
    int err = place && port_place ? order_nodes(t, place) : DP_ENOMEM;

    if (!err) {
        number_nodes(t);
        err = order_ports(t, place, port_place);
    }
    if (!err) {
        order_links(t, place, port_place);
        for (int32_t i = 0; i < t->note_count; i++)
            t->notes[i].node = moved(place, t->notes[i].node);
        err = index_links(t);
    }
    free(place);
    free(port_place);
    return err;
}

void dp_topology_free(struct dp_topology *t)
{
    if (!t)
        return;
    free(t->nodes);
    free(t->links);
    free(t->ports);
    free(t->gids);
    free(t->notes);
    free(t->first_around);
    free(t->around);
    free(t->text);
    free(t);
}

/* Members that a reader took from a file and that lead nowhere would lead the sorting astray. */
static int check_numbers(const struct dp_topology *t)
{
    for (int32_t i = 0; i < t->node_count; i++)
        if (t->nodes[i].parent >= i)
            return dp_fail(DP_EINVAL, "node %d: parent %d, expected one that stands before it", i,
                           t->nodes[i].parent);
    for (int32_t i = 0; i < t->link_count; i++) {
        const struct dp_topo_link *l = &t->links[i];
        if (l->a < 0 || l->b < 0 || l->a >= t->node_count || l->b >= t->node_count || l->a == l->b)
            return dp_fail(DP_EINVAL, "link %d: from node %d to node %d, expected two of %d nodes", i,
                           l->a, l->b, t->node_count);
    }
    return 0;
}

int dp_topo_finish(struct dp_topo_builder *b, struct dp_topology **out)
{
    struct dp_topology *t = malloc(sizeof(*t));
    int err;

    if (!t || b->failed) {
        const bool is_too_wide = b->is_too_wide;
        free(t);
        dp_topo_builder_fini(b);
        return is_too_wide ? dp_fail(DP_EINVAL, "a host of more than %d NUMA nodes: expected as many "
                                                "as there are", DP_TOPO_NUMAS_MAX)
                           : dp_fail(DP_ENOMEM, "no memory for a topology");
    }
    *t = b->t;
    b->t = (struct dp_topology){0};
    dp_topo_builder_fini(b);

    err = check_numbers(t);
    if (!err && (err = order(t)))
        err = dp_fail(err, "no memory for a topology of %d nodes", t->node_count);
    if (!err)
        err = dp_topo_check(t);
    if (err)
        dp_topology_free(t);
    else
        *out = t;
    return err;
}

void dp_topo_builder_fini(struct dp_topo_builder *b)
{
    free(b->t.nodes);
    free(b->t.links);
    free(b->t.ports);
    free(b->t.gids);
    free(b->t.notes);
    free(b->t.text);
    free(b->texts);
    *b = (struct dp_topo_builder){0};
}
