/* SPDX-License-Identifier: Apache-2.0
 *
 * path.c - the route between two nodes. On a host in two searches: how wide can it be, and which of the
 * routes as wide as that is the nearest. Between hosts over the best pair of NICs.
 */

#include "base/fail.h"
#include "topology/build.h"

#include <dualpipe/topology.h>

#include <math.h>
#include <stdlib.h>

/* ---- searching one host --------------------------------------------------------------------- */

enum { FEW_NODES = 256 };

/* What a search knows of the nodes from `base` on; `count` of them, those of a host. */
struct search {
    const struct dp_topology *t;
    int32_t base, count;
    double *best;  /* the widest route so far, or the shortest */
    int32_t *link; /* by which it arrives; -1: none */
    int32_t *open; /* where it goes on from: reached, and not done */
    int32_t open_count;
    bool *done;
    void *memory;  /* where `few` is too small */
    struct {
        double best[FEW_NODES];
        int32_t link[FEW_NODES], open[FEW_NODES];
        bool done[FEW_NODES];
    } few;
};

static int search_init(struct search *s, const struct dp_topology *t, int32_t host)
{
    s->t = t;
    s->base = host;
    s->count = t->nodes[host].end - host;
    s->best = s->few.best;
    s->link = s->few.link;
    s->open = s->few.open;
    s->done = s->few.done;
    s->memory = NULL;
    if (s->count <= FEW_NODES)
        return 0;
    size_t n = (size_t)s->count;
    s->memory = malloc(n * (sizeof(*s->best) + 2 * sizeof(int32_t) + sizeof(*s->done)));
    if (!s->memory)
        return dp_fail(DP_ENOMEM, "no memory for a route among %d nodes", s->count);
    s->best = s->memory;
    s->link = (int32_t *)(s->best + n);
    s->open = s->link + n;
    s->done = (bool *)(s->open + n);
    return 0;
}

static void search_fini(struct search *s)
{
    free(s->memory);
}

static double least_of(double a, double b)
{
    return a < b ? a : b;
}

static double width_of(const struct dp_topo_link *l)
{
    return l->bytes_per_ns > 0 ? l->bytes_per_ns : INFINITY;
}

/* Data goes through these; GPUs and NICs forward nothing for others. */
static bool forwards(const struct dp_topology *t, int32_t node)
{
    enum dp_topo_kind kind = t->nodes[node].kind;

    return kind == DP_TOPO_NUMA || kind == DP_TOPO_ROOT || kind == DP_TOPO_SWITCH;
}

/* How good the route to a node becomes over link l: larger is better. With least 0 the width of its
 * narrowest link; else the nearness (minus the latency) over links that are at least so wide. */
static double extend(double best, const struct dp_topo_link *l, double least)
{
    if (least <= 0)
        return least_of(best, width_of(l));
    return width_of(l) >= least ? best - l->latency_ns : -INFINITY;
}

/* Take the best of the open nodes, of several the first. */
static int32_t take_best(struct search *s)
{
    int32_t at = 0;

    for (int32_t i = 1; i < s->open_count; i++) {
        const double best = s->best[s->open[i]], than = s->best[s->open[at]];
        if (best > than || (best == than && s->open[i] < s->open[at]))
            at = i;
    }
    const int32_t found = s->open[at];
    s->open[at] = s->open[--s->open_count];
    return found;
}

/* Over the links of a node to others of the host. */
static void extend_from(struct search *s, int32_t at, int32_t to, double least)
{
    const struct dp_topology *t = s->t;
    const int32_t node = at + s->base;

    for (int32_t k = t->first_around[node]; k < t->first_around[node + 1]; k++) {
        const int32_t link = t->around[k], next = dp_topology_across(t, link, node) - s->base;
        if (next < 0 || next >= s->count || s->done[next])
            continue;
        const double width = extend(s->best[at], &t->links[link], least);
        if (width <= s->best[next])
            continue;
        if (s->link[next] < 0 && (forwards(t, next + s->base) || next + s->base == to))
            s->open[s->open_count++] = next;
        s->best[next] = width;
        s->link[next] = link;
    }
}

/* The best route from `from` to every node of the host, or until `to` is reached. */
static void search(struct search *s, int32_t from, int32_t to, double least)
{
    for (int32_t i = 0; i < s->count; i++) {
        s->best[i] = -INFINITY;
        s->link[i] = -1;
        s->done[i] = false;
    }
    s->best[from - s->base] = least <= 0 ? INFINITY : 0;
    s->open[0] = from - s->base;
    s->open_count = 1;
    while (s->open_count) {
        const int32_t at = take_best(s);
        if (at + s->base == to)
            return;
        s->done[at] = true;
        extend_from(s, at, to, least);
    }
}

/* ---- a path that grows ---------------------------------------------------------------------- */

static void path_begin(struct dp_topo_path *p, int32_t from)
{
    *p = (struct dp_topo_path){.class_ = DP_TOPO_NONE, .bottleneck = -1, .nodes = {from}};
}

static bool path_add(const struct dp_topology *t, struct dp_topo_path *p, int32_t link)
{
    if (p->hops == DP_TOPO_HOPS_MAX)
        return false;
    p->links[p->hops] = link;
    p->nodes[p->hops + 1] = dp_topology_across(t, link, p->nodes[p->hops]);
    p->hops++;
    return true;
}

/* Append the found route from the path's end, where the search began, to `to`. */
static bool path_add_found(const struct search *s, struct dp_topo_path *p, int32_t to)
{
    int32_t from = p->nodes[p->hops], back[DP_TOPO_HOPS_MAX], count = 0;

    for (int32_t at = to; at != from; at = dp_topology_across(s->t, back[count - 1], at)) {
        int32_t link = s->link[at - s->base];
        if (link < 0 || count == DP_TOPO_HOPS_MAX)
            return false;
        back[count++] = link;
    }
    while (count)
        if (!path_add(s->t, p, back[--count]))
            return false;
    return true;
}

/* The widest and nearest route within one host. */
static bool path_add_local(struct search *s, struct dp_topo_path *p, int32_t to)
{
    int32_t from = p->nodes[p->hops];

    if (from == to)
        return true;
    search(s, from, to, 0);
    double width = s->best[to - s->base];
    if (width <= 0)
        return false;
    search(s, from, to, width);
    return path_add_found(s, p, to);
}

/* ---- what a path amounts to ----------------------------------------------------------------- */

static enum dp_topo_class class_of(const struct dp_topology *t, const struct dp_topo_path *p)
{
    int links[DP_TOPO_LINK_KINDS] = {0}, nodes[DP_TOPO_KINDS] = {0};

    if (!p->hops)
        return DP_TOPO_SELF;
    for (int32_t i = 0; i < p->hops; i++) {
        links[t->links[p->links[i]].kind]++;
        nodes[t->nodes[p->nodes[i]].kind]++;
    }
    nodes[t->nodes[p->nodes[p->hops]].kind]++;
    if (links[DP_TOPO_NET])
        return nodes[DP_TOPO_SPINE] ? DP_TOPO_SPINED : DP_TOPO_RAILED;
    if (links[DP_TOPO_NVLINK] || links[DP_TOPO_XGMI])
        return links[DP_TOPO_NVLINK] ? DP_TOPO_NV : DP_TOPO_XG;
    if (links[DP_TOPO_CPU])
        return DP_TOPO_SYS;
    if (links[DP_TOPO_C2C] == p->hops)
        return DP_TOPO_CHIP;
    if (nodes[DP_TOPO_NUMA] && nodes[DP_TOPO_ROOT] > 1)
        return DP_TOPO_NODE;
    if (nodes[DP_TOPO_NUMA] || nodes[DP_TOPO_ROOT])
        return DP_TOPO_PHB;
    return nodes[DP_TOPO_SWITCH] > 1 ? DP_TOPO_PXB : DP_TOPO_PIX;
}

static void path_sum_up(const struct dp_topology *t, struct dp_topo_path *p)
{
    double narrowest = INFINITY;

    for (int32_t i = 0; i < p->hops; i++) {
        const struct dp_topo_link *l = &t->links[p->links[i]];
        if (width_of(l) < narrowest) {
            narrowest = width_of(l);
            p->bottleneck = p->links[i];
        }
        if (dp_topo_is_gpu_link(l->kind) && (!p->nvlinks || l->count < p->nvlinks))
            p->nvlinks = l->count;
        p->latency_ns += l->latency_ns;
    }
    p->bytes_per_ns = isfinite(narrowest) ? narrowest : 0;
    p->class_ = class_of(t, p);
}

/* ---- NVLink and xGMI ------------------------------------------------------------------------ */

/* The GPUs' link between two nodes that are neighbours; -1: none. */
static int32_t link_between(const struct dp_topology *t, int32_t a, int32_t b)
{
    for (int32_t k = t->first_around[a]; k < t->first_around[a + 1]; k++)
        if (dp_topo_is_gpu_link(t->links[t->around[k]].kind) &&
            dp_topology_across(t, t->around[k], a) == b)
            return t->around[k];
    return -1;
}

/* A link of two GPUs, or an NVSwitch that both have one to. */
static bool path_over_nvlink(const struct dp_topology *t, struct dp_topo_path *p, int32_t b)
{
    int32_t a = p->nodes[0], direct = link_between(t, a, b);

    if (direct >= 0)
        return path_add(t, p, direct);
    for (int32_t k = t->first_around[a]; k < t->first_around[a + 1]; k++) {
        int32_t up = t->around[k], down, middle = dp_topology_across(t, up, a);
        if (dp_topo_is_gpu_link(t->links[up].kind) && t->nodes[middle].kind == DP_TOPO_NVSWITCH &&
            (down = link_between(t, b, middle)) >= 0)
            return path_add(t, p, up) && path_add(t, p, down);
    }
    return false;
}

/* ---- between hosts -------------------------------------------------------------------------- */

/* The route from a node to a NIC of its host, or from the NIC to it. */
struct leg {
    bool is_known;
    int32_t hops, links[DP_TOPO_HOPS_MAX];
};

/* A route out of a host: a NIC's link to a rail, with the route to the NIC. */
struct exit {
    int32_t nic, link, rail;
    int32_t up; /* the rail's last link to a spine; -1: none */
    double width, nearness;
    int32_t turn; /* how far the NIC's turn is from the node's: see dp_topology_nics */
    bool is_wireless;
    struct leg there, back;
};

struct exits {
    struct exit *list; /* NULL: not looked for yet */
    int32_t count;
};

static bool leads_to_rail(const struct dp_topology *t, int32_t link)
{
    const struct dp_topo_link *l = &t->links[link];

    return l->kind == DP_TOPO_NET && t->nodes[l->b].kind == DP_TOPO_RAIL && t->ports[l->port].up;
}

/* A rail's links to spines are its last ones, behind those to perhaps thousands of NICs. */
static int32_t uplink(const struct dp_topology *t, int32_t rail, int32_t spine)
{
    for (int32_t k = t->first_around[rail + 1] - 1; k >= t->first_around[rail]; k--) {
        const struct dp_topo_link *l = &t->links[t->around[k]];
        if (l->a != rail)
            break;
        if (spine < 0 || l->b == spine)
            return t->around[k];
    }
    return -1;
}

static void collect_exits(const struct search *wide, const struct search *near, int32_t from,
                          struct exits *out)
{
    const struct dp_topology *t = wide->t;
    int32_t host = t->nodes[from].host, nics = dp_topology_count(t, DP_TOPO_NIC, host);
    bool is_nic = t->nodes[from].kind == DP_TOPO_NIC;

    for (int32_t nic = host; (nic = dp_topology_next(t, DP_TOPO_NIC, host, nic + 1)) >= 0;)
        for (int32_t k = t->first_around[nic]; k < t->first_around[nic + 1]; k++) {
            int32_t link = t->around[k];
            double width = wide->best[nic - host];
            if (!leads_to_rail(t, link) || width <= 0 || (is_nic && nic != from))
                continue;
            out->list[out->count++] = (struct exit){
                .nic = nic,
                .link = link,
                .rail = t->links[link].b,
                .up = uplink(t, t->links[link].b, -1),
                .width = least_of(width, dp_topo_port_rate(&t->ports[t->links[link].port])),
                .is_wireless = dp_topo_is_wireless(t, &t->ports[t->links[link].port]),
                .nearness = near->best[nic - host],
                .turn = (t->nodes[nic].index - t->nodes[from].index % nics + nics) % nics,
            };
        }
}

static int find_exits(const struct dp_topology *t, int32_t from, struct exits *out)
{
    int32_t host = t->nodes[from].host, room = 1;
    struct search wide, near;
    int err;

    for (int32_t i = host; i < t->nodes[host].end; i++)
        if (t->nodes[i].kind == DP_TOPO_NIC)
            room += t->first_around[i + 1] - t->first_around[i];
    *out = (struct exits){malloc((size_t)room * sizeof(*out->list)), 0};
    if (!out->list)
        return dp_fail(DP_ENOMEM, "no memory for the routes out of a host");
    if ((err = search_init(&wide, t, host)))
        goto free_list;
    if ((err = search_init(&near, t, host)))
        goto fini_wide;
    search(&wide, from, -1, 0);
    search(&near, from, -1, 1e-30);
    collect_exits(&wide, &near, from, out);
    search_fini(&near);
fini_wide:
    search_fini(&wide);
free_list:
    if (err) {
        free(out->list);
        *out = (struct exits){0};
    }
    return err;
}

/* From rail to rail: nothing, or the two links to a spine that both have. */
struct crossing {
    int32_t up, down; /* links; -1: the same rail */
    double width;
};

static bool cross(const struct dp_topology *t, const struct exit *a, const struct exit *b,
                  struct crossing *out)
{
    const int32_t up = a->up;

    *out = (struct crossing){-1, -1, INFINITY};
    if (a->rail == b->rail)
        return true;
    if (up < 0 || b->up < 0)
        return false;
    const int32_t spine = t->links[up].b;
    const int32_t down = t->links[b->up].b == spine ? b->up : uplink(t, b->rail, spine);
    if (down < 0)
        return false;
    *out = (struct crossing){up, down, least_of(width_of(&t->links[up]), width_of(&t->links[down]))};
    return true;
}

struct choice {
    struct exit *out, *in;
    struct crossing crossing;
    double width, nearness;
    int32_t turn;
    int wireless;
};

/* A route over cables is better than one over Wi-Fi, then the wider one, then one that stays on its
 * rail, then the nearer one, then the one that has been taken less often. */
static bool is_better(const struct choice *a, const struct choice *b)
{
    if (b->out && a->wireless != b->wireless)
        return a->wireless < b->wireless;
    if (!b->out || a->width != b->width)
        return !b->out || a->width > b->width;
    if ((a->crossing.up < 0) != (b->crossing.up < 0))
        return a->crossing.up < 0;
    if (a->nearness != b->nearness)
        return a->nearness > b->nearness;
    return a->turn < b->turn;
}

static struct choice choose(const struct dp_topology *t, struct exits *out, struct exits *in)
{
    struct choice best = {0};

    for (int32_t i = 0; i < out->count; i++)
        for (int32_t k = 0; k < in->count; k++) {
            struct choice c = {.out = &out->list[i], .in = &in->list[k]};
            if (!cross(t, c.out, c.in, &c.crossing))
                continue;
            c.width = least_of(least_of(c.out->width, c.in->width), c.crossing.width);
            c.nearness = c.out->nearness + c.in->nearness;
            c.turn = c.out->turn + c.in->turn;
            c.wireless = c.out->is_wireless + c.in->is_wireless;
            if (is_better(&c, &best))
                best = c;
        }
    return best;
}

/* From the path's end to another node of the host. */
static int walk_host(const struct dp_topology *t, struct dp_topo_path *p, int32_t host, int32_t to,
                    bool *found)
{
    struct search s;
    int err = search_init(&s, t, host);

    if (err)
        return err;
    *found = path_add_local(&s, p, to);
    search_fini(&s);
    return 0;
}

static bool add_leg(const struct dp_topology *t, const struct leg *leg, struct dp_topo_path *p)
{
    for (int32_t i = 0; i < leg->hops; i++)
        if (!path_add(t, p, leg->links[i]))
            return false;
    return true;
}

/* The same, between a node and the NIC of one of its exits. */
static int walk_leg(const struct dp_topology *t, struct leg *leg, struct dp_topo_path *p, int32_t to,
                    bool *found)
{
    const int32_t first = p->hops;

    if (leg->is_known) {
        *found = add_leg(t, leg, p);
        return 0;
    }
    int err = walk_host(t, p, t->nodes[to].host, to, found);
    if (!err && *found) {
        leg->is_known = true;
        leg->hops = p->hops - first;
        for (int32_t i = 0; i < leg->hops; i++)
            leg->links[i] = p->links[first + i];
    }
    return err;
}

static int walk(const struct dp_topology *t, const struct choice *c, int32_t b,
                struct dp_topo_path *p, bool *found)
{
    int err = walk_leg(t, &c->out->there, p, c->out->nic, found);

    if (err || !*found)
        return err;
    *found = path_add(t, p, c->out->link);
    if (*found && c->crossing.up >= 0)
        *found = path_add(t, p, c->crossing.up) && path_add(t, p, c->crossing.down);
    *found = *found && path_add(t, p, c->in->link);
    return *found ? walk_leg(t, &c->in->back, p, b, found) : 0;
}

static int path_between(const struct dp_topology *t, struct exits *out, struct exits *in,
                        struct dp_topo_path *p, int32_t b, bool *found)
{
    int err = out->list ? 0 : find_exits(t, p->nodes[0], out);

    if (!err && !in->list)
        err = find_exits(t, b, in);
    if (err)
        return err;
    const struct choice best = choose(t, out, in);
    return best.out ? walk(t, &best, b, p, found) : 0;
}

struct dp_topo_exits {
    const struct dp_topology *t;
    struct exits of[]; /* [node_count] */
};

static int path_between_hosts(const struct dp_topology *t, struct dp_topo_exits *kept,
                              struct dp_topo_path *p, int32_t b, bool *found)
{
    struct exits out = {0}, in = {0};

    if (kept)
        return path_between(t, &kept->of[p->nodes[0]], &kept->of[b], p, b, found);
    int err = path_between(t, &out, &in, p, b, found);
    free(in.list);
    free(out.list);
    return err;
}

struct dp_topo_exits *dp_topo_exits_new(const struct dp_topology *t)
{
    struct dp_topo_exits *kept =
        calloc(1, sizeof(*kept) + (size_t)t->node_count * sizeof(kept->of[0]));

    if (kept)
        kept->t = t;
    return kept;
}

void dp_topo_exits_free(struct dp_topo_exits *kept)
{
    for (int32_t i = 0; kept && i < kept->t->node_count; i++)
        free(kept->of[i].list);
    free(kept);
}

/* ---- all of it ------------------------------------------------------------------------------ */

/* Rails, spines and shared NVSwitches: only to a neighbour. */
static bool path_to_neighbour(const struct dp_topology *t, struct dp_topo_path *p, int32_t b)
{
    int32_t a = p->nodes[0], inside = t->nodes[a].host >= 0 ? a : b;

    for (int32_t k = t->first_around[inside]; k < t->first_around[inside + 1]; k++)
        if (dp_topology_across(t, t->around[k], inside) == (inside == a ? b : a))
            return path_add(t, p, t->around[k]);
    return false;
}

int dp_topo_path_by(const struct dp_topology *t, struct dp_topo_exits *kept, int32_t a, int32_t b,
                    struct dp_topo_path *path)
{
    struct dp_topo_path p;
    bool found = false;
    int err = 0;

    if (a < 0 || b < 0 || a >= t->node_count || b >= t->node_count)
        return dp_fail(DP_EINVAL, "a route from node %d to node %d, expected two of %d nodes", a, b,
                       t->node_count);
    a += t->nodes[a].kind == DP_TOPO_HOST; /* its first NUMA node */
    b += t->nodes[b].kind == DP_TOPO_HOST;
    path_begin(&p, a);
    if (a == b)
        found = true;
    else if (t->nodes[a].host < 0 || t->nodes[b].host < 0)
        found = path_to_neighbour(t, &p, b);
    else if (!(found = path_over_nvlink(t, &p, b)))
        err = t->nodes[a].host == t->nodes[b].host ? walk_host(t, &p, t->nodes[b].host, b, &found)
                                                   : path_between_hosts(t, kept, &p, b, &found);
    if (err)
        return err;
    if (found)
        path_sum_up(t, &p);
    else
        path_begin(&p, a);
    *path = p;
    return 0;
}

int dp_topology_path(const struct dp_topology *t, int32_t a, int32_t b, struct dp_topo_path *path)
{
    return dp_topo_path_by(t, NULL, a, b, path);
}
