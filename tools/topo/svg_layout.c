/* SPDX-License-Identifier: Apache-2.0
 *
 * svg_layout.c - a column for every device, or for what holds none; everything else in the middle above
 * what it holds.
 */
#include "topo/svg.h"

#include <math.h>
#include <string.h>

enum {
    MARGIN = 24, TOP = 60, LEGEND = 58,
    COLUMN = 112, BOX = 102,        /* a device's column and box */
    NUMA_HEIGHT = 40, ROOT_HEIGHT = 20, SWITCH_HEIGHT = 30, DEVICE_HEIGHT = 52, HUB_HEIGHT = 24,
    STEP = 62,                      /* from level to level */
    HOST_HEAD = 30, HOST_GAP = 26,
    CABLES = 40                     /* below devices: rails */
};

static bool is_device(enum dp_topo_kind kind)
{
    return kind == DP_TOPO_GPU || kind == DP_TOPO_NIC;
}

static int levels_of(const struct dp_topology *t, int32_t host)
{
    int levels = 2;

    for (int32_t i = host + 1; i < t->nodes[host].end; i++) {
        int depth = 0;
        for (int32_t k = i; k != host; k = t->nodes[k].parent)
            depth++;
        levels = depth > levels ? depth : levels;
    }
    return levels;
}

/* The boxes of node and of what is below it, from column x on; returns the first column behind. */
static double place(struct topo_svg *v, int32_t node, double x, double y, double device_y)
{
    const struct dp_topo_node *n = &v->t->nodes[node];
    struct topo_box *box = &v->boxes[node];
    double from = x, first = x, last = x;
    bool has_children = false;

    for (int32_t i = node + 1; i < n->end; i = v->t->nodes[i].end) {
        x = place(v, i, x, y + STEP, device_y);
        double middle = v->boxes[i].x + v->boxes[i].width / 2;
        first = has_children ? first : middle;
        last = middle;
        has_children = true;
    }
    if (!has_children) {
        first = last = x + COLUMN / 2.;
        x += COLUMN;
    }
    *box = (struct topo_box){0, y, BOX, n->kind == DP_TOPO_ROOT ? ROOT_HEIGHT : SWITCH_HEIGHT};
    if (is_device(n->kind)) {
        box->y = device_y;
        box->height = DEVICE_HEIGHT;
    } else if (n->kind == DP_TOPO_NUMA) {
        box->height = NUMA_HEIGHT;
        box->width = fmax(x - from - 12, 150);
        x = fmax(x, from + box->width + 12);
        first = last = (from + x) / 2;
    }
    box->x = (first + last) / 2 - box->width / 2;
    return n->kind == DP_TOPO_NUMA ? x + 26 : x;
}

/* NVSwitches lie below all devices of their host. */
static double place_hubs(struct topo_svg *v, int32_t host, double left, double right, double y)
{
    for (int32_t i = host; (i = dp_topology_next(v->t, DP_TOPO_NVSWITCH, host, i + 1)) >= 0;) {
        v->boxes[i] = (struct topo_box){left, y, right - left, HUB_HEIGHT};
        y += HUB_HEIGHT + 10;
    }
    return y;
}

/* The NVSwitch that the host shares with others; -1: none. */
static int32_t shared_hub(const struct dp_topology *t, int32_t host)
{
    for (int32_t gpu = host; (gpu = dp_topology_next(t, DP_TOPO_GPU, host, gpu + 1)) >= 0;)
        for (int32_t k = t->first_around[gpu]; k < t->first_around[gpu + 1]; k++) {
            int32_t hub = dp_topology_across(t, t->around[k], gpu);
            if (t->nodes[hub].kind == DP_TOPO_NVSWITCH && t->nodes[hub].host < 0)
                return hub;
        }
    return -1;
}

/* Room for the arcs between GPUs of the host. */
static double deepest_arc(const struct topo_svg *v, int32_t host)
{
    const struct dp_topology *t = v->t;
    double deepest = 0;

    for (int32_t i = 0; i < t->link_count; i++) {
        const struct dp_topo_link *l = &t->links[i];
        if (dp_topo_is_gpu_link(l->kind) && t->nodes[l->a].host == host &&
            t->nodes[l->b].kind == DP_TOPO_GPU && t->nodes[l->b].host == host)
            deepest = fmax(deepest, topo_svg_dip(&v->boxes[l->a], &v->boxes[l->b]) + 8);
    }
    return deepest;
}

static double place_host(struct topo_svg *v, int number, double y)
{
    const struct dp_topology *t = v->t;
    int32_t host = v->hosts[number];
    double left = MARGIN + 14, x = left, top = y + HOST_HEAD;
    double device_y = top + (levels_of(t, host) - 1) * STEP;

    for (int32_t i = host + 1; i < t->nodes[host].end; i = t->nodes[i].end)
        if (t->nodes[i].kind == DP_TOPO_NUMA)
            x = place(v, i, x, top, device_y);
    double right = x - 26, bottom = device_y + DEVICE_HEIGHT + fmax(CABLES, deepest_arc(v, host));
    bottom = place_hubs(v, host, left, right, bottom);
    v->hubs[number] = shared_hub(t, host);
    if (v->hubs[number] >= 0) {
        v->bars[number] = (struct topo_box){left, bottom, right - left, HUB_HEIGHT};
        bottom += HUB_HEIGHT + 10;
    }
    v->boxes[host] = (struct topo_box){MARGIN, y, right + 14 - MARGIN, bottom + 8 - y};
    v->width = fmax(v->width, right + 14 + MARGIN);
    return bottom + 8 + HOST_GAP;
}

void topo_svg_lay_out(struct topo_svg *v)
{
    double y = TOP;

    v->width = fmax(480, 2 * MARGIN + 10 * (double)strlen(v->title)); /* for the legend, too */
    for (int i = 0; i < v->host_count; i++)
        y = place_host(v, i, y);
    v->height = y + LEGEND;
}
