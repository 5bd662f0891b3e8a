/* SPDX-License-Identifier: Apache-2.0
 *
 * merge.c - several topologies into one cluster, one host out of a cluster, a machine as a guest on it
 * sees it.
 */
#include "base/fail.h"
#include "topology/copy.h"

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

int dp_topology_take_host(const struct dp_topology *t, int32_t host, struct dp_topology **out)
{
    struct dp_topo_builder b = {0};
    int32_t *place;

    if (host < 0 || host >= t->node_count || t->nodes[host].kind != DP_TOPO_HOST)
        return dp_fail(DP_EINVAL, "node %d, expected a host", host);
    place = new_places(&b, t, -1);
    for (int32_t i = host; place && i < t->nodes[host].end; i++)
        place[i] = 0;
    if (place)
        dp_topo_copy(&b, t, place);
    free(place);
    return dp_topo_finish(&b, out);
}

/* ---- a cluster ------------------------------------------------------------------------------ */

/* The rail or spine of this name, added where there is none yet. */
static int32_t get_shared(struct dp_topo_builder *b, enum dp_topo_kind kind, const char *name)
{
    for (int32_t i = 0; i < b->t.node_count; i++)
        if (b->t.nodes[i].kind == kind && !strcmp(b->t.text + b->t.nodes[i].name, name))
            return i;
    uint32_t text = dp_topo_add_text(b, name);
    int32_t node = dp_topo_add_node(b, kind, -1);
    dp_topo_node(b, node)->name = text;
    return node;
}

/* The k-th port of the host, over all its NICs, on rail k. */
static void join_ports(struct dp_topo_builder *b)
{
    char name[32];
    int32_t last_host = -1, k = 0;

    for (int32_t i = 0; i < b->t.port_count && !b->failed; i++) {
        int32_t host = b->t.ports[i].nic;
        while (b->t.nodes[host].parent >= 0)
            host = b->t.nodes[host].parent;
        k = host == last_host ? k + 1 : 0;
        last_host = host;
        snprintf(name, sizeof(name), "rail%d", k);
        dp_topo_join_rail(b, i, get_shared(b, DP_TOPO_RAIL, name));
    }
}

/* Several rails to one spine, by as much as the ports of each together. */
static void join_rails(struct dp_topo_builder *b)
{
    int32_t nodes = b->t.node_count, links = b->t.link_count, rails = 0, spine = -1;

    for (int32_t i = 0; i < nodes; i++)
        rails += b->t.nodes[i].kind == DP_TOPO_RAIL;
    for (int32_t i = 0; i < nodes && rails > 1; i++) {
        double rate = 0;
        if (b->t.nodes[i].kind != DP_TOPO_RAIL)
            continue;
        for (int32_t k = 0; k < links; k++)
            rate += b->t.links[k].b == i ? b->t.links[k].bytes_per_ns : 0;
        spine = spine < 0 ? get_shared(b, DP_TOPO_SPINE, "spine0") : spine;
        dp_topo_add_link(b, DP_TOPO_NET, i, spine, rate)->flags = DP_TOPO_RATE_ASSUMED;
    }
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

int dp_topology_merge(const struct dp_topology *const *parts, size_t count, struct dp_topology **out)
{
    struct dp_topo_builder b = {0};
    int err = count ? 0 : dp_fail(DP_EINVAL, "no topologies, expected some to merge");

    for (size_t i = 0; i < count && !err; i++)
        err = check_part(parts[i], i);
    if (err)
        return err;
    for (size_t i = 0; i < count && !b.failed; i++) {
        int32_t *place = new_places(&b, parts[i], 0);
        if (place)
            dp_topo_copy(&b, parts[i], place);
        free(place);
    }
    if (!b.failed)
        join_ports(&b);
    if (!b.failed)
        join_rails(&b);
    return dp_topo_finish(&b, out);
}
