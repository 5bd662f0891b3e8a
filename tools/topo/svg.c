/* SPDX-License-Identifier: Apache-2.0
 *
 * svg.c - `dualpipe topo svg`: a topology as a stand-alone picture for a report. Lines are as wide as
 * their links are fast.
 *
 *      title
 *      +- host ---------------------------------------------+
 *      | [ numa0            ]~~~~~~~~[ numa1              ] |
 *      |   (root0)   (root1)           (root2)   (root3)    |
 *      |    [sw]       [sw]              [sw]      [sw]     |
 *      |  [gpu][nic] [gpu][nic]        ...                  |   devices in one row
 *      |        rail0      rail1                            |   what each NIC is cabled to
 *      |  [ nvswitch                                      ] |   also one that hosts share
 *      +----------------------------------------------------+
 *      legend
 *
 * A column for every device, or for what holds none; everything else in the middle above what it
 * holds.
 */
#include "config.h" /* open_memstream */

#include "command.h"
#include "commands.h"
#include "draw/draw.h"
#include "text.h"
#include "topo/topo.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct topo_box {
    double x, y, width, height; /* px; width 0: not drawn */
};

enum { TOPO_SVG_HOSTS_MAX = 16 };

struct topo_svg {
    const struct dp_topology *t;
    FILE *to;
    const char *title;
    struct topo_box *boxes; /* [nodes] */
    int host_count;         /* drawn */
    int32_t hosts[TOPO_SVG_HOSTS_MAX];
    int32_t hubs[TOPO_SVG_HOSTS_MAX];         /* the NVSwitch that it shares with others; -1 */
    struct topo_box bars[TOPO_SVG_HOSTS_MAX]; /* what stands for that in each */
    double width, height;
};

/* ---- pieces ------------------------------------------------------------------------------- */

static inline double topo_svg_middle(const struct topo_box *b)
{
    return b->x + b->width / 2;
}

/* How far an arc between two boxes of a row hangs down. Its control points lie lower by a third. */
static inline double topo_svg_dip(const struct topo_box *a, const struct topo_box *b)
{
    return 9 + fabs(topo_svg_middle(b) - topo_svg_middle(a)) / 12;
}

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

/* Fill in boxes, width and height for v->hosts. */
static void topo_svg_lay_out(struct topo_svg *v)
{
    double y = TOP;

    v->width = fmax(480, 2 * MARGIN + 10 * (double)strlen(v->title)); /* for the legend, too */
    for (int i = 0; i < v->host_count; i++)
        y = place_host(v, i, y);
    v->height = y + LEGEND;
}

/* ---- text ----------------------------------------------------------------------------------- */

/* At most so many characters of s; -1: all. */
static void put_text(const struct topo_svg *v, const char *class_, double x, double y, const char *s,
                     int most)
{
    fprintf(v->to, "<text%s%s%s x=\"%.1f\" y=\"%.1f\">", *class_ ? " class=\"" : "", class_,
            *class_ ? "\"" : "", x, y);
    text_put_xml(v->to, s, most);
    fputs("</text>\n", v->to);
}

static void put_rect(const struct topo_svg *v, const char *class_, const struct topo_box *b, int radius)
{
    fprintf(v->to, "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" "
            "rx=\"%d\"/>\n", class_, b->x, b->y, b->width, b->height, radius);
}

/* ---- lines ---------------------------------------------------------------------------------- */

/* px; 16 GB/s are 2, 63 about 3, 450 about 6. */
static double find_width(const struct dp_topo_link *l)
{
    return l->bytes_per_ns > 0 ? fmin(10, 1 + sqrt(l->bytes_per_ns) / 4) : 1.5;
}

/* Where a link leaves the upper box: of a wide one, above the lower. */
static double start_of(const struct topo_box *upper, const struct topo_box *lower)
{
    return fmin(fmax(topo_svg_middle(lower), upper->x + 8), upper->x + upper->width - 8);
}

/* Two NUMA nodes: an arc between neighbours' sides. */
static void put_bridge(FILE *to, const struct topo_box *a, const struct topo_box *b)
{
    double from = a->x + a->width, y = a->y + a->height / 2, rise = b->x - from > 40 ? 46 : 0;

    fprintf(to, "M%.1f %.1fC%.1f %.1f %.1f %.1f %.1f %.1f", from, y, from + 20, y - rise, b->x - 20,
            y - rise, b->x, y);
}

/* Two GPUs: an arc below them. */
static void put_arc(FILE *to, const struct topo_box *a, const struct topo_box *b)
{
    double from = topo_svg_middle(a), end = topo_svg_middle(b), y = a->y + a->height;
    double dip = y + topo_svg_dip(a, b) * 4 / 3;

    fprintf(to, "M%.1f %.1fC%.1f %.1f %.1f %.1f %.1f %.1f", from, y, from, dip, end, dip, end, y);
}

/* The data of a path from the upper box a to the lower b, or between neighbours. */
static void put_line(FILE *to, const struct dp_topo_link *l, const struct topo_box *a,
                     const struct topo_box *b)
{
    double bottom = a->y + a->height;

    if (l->kind == DP_TOPO_CPU)
        put_bridge(to, a, b);
    else if (dp_topo_is_gpu_link(l->kind) && fabs(a->y - b->y) < 1)
        put_arc(to, a, b);
    else if (dp_topo_is_gpu_link(l->kind)) /* a GPU and the bar below it */
        fprintf(to, "M%.1f %.1fV%.1f", topo_svg_middle(a), bottom, b->y);
    else if (l->kind == DP_TOPO_C2C) /* beside the route over PCI */
        fprintf(to, "M%.1f %.1fV%.1f", b->x + 12, bottom, b->y);
    else
        fprintf(to, "M%.1f %.1fL%.1f %.1f", start_of(a, b), bottom, topo_svg_middle(b), b->y);
}

/* Which of the drawn hosts a node is in; -1: none. */
static int host_number(const struct topo_svg *v, int32_t node)
{
    for (int i = 0; i < v->host_count; i++)
        if (v->hosts[i] == v->t->nodes[node].host)
            return i;
    return -1;
}

/* The lower end of a link: what hosts share has a box in each. NULL: not drawn. */
static const struct topo_box *lower_box(const struct topo_svg *v, const struct dp_topo_link *l)
{
    int host = host_number(v, l->a);

    if (host >= 0 && v->hubs[host] == l->b)
        return &v->bars[host];
    return v->boxes[l->b].width > 0 ? &v->boxes[l->b] : NULL;
}

static bool is_drawn(const struct topo_svg *v, const struct dp_topo_link *l)
{
    return v->boxes[l->a].width > 0 && lower_box(v, l);
}

static void put_link(const struct topo_svg *v, const struct dp_topo_link *l)
{
    const char *look = l->flags & DP_TOPO_DEGRADED ? " bad"
                       : l->flags & DP_TOPO_RATE_UNKNOWN ? " unsure" : "";
    char word[TOPO_WORD], rate[TOPO_WORD];

    fprintf(v->to, "<path class=\"link %s%s\" stroke-width=\"%.1f\" d=\"",
            dp_name(DP_NAMES_LINK, l->kind), look, find_width(l));
    put_line(v->to, l, &v->boxes[l->a], lower_box(v, l));
    fputs("\"><title>", v->to);
    text_put_xml(v->to, topo_link(l, word), -1);
    fputs(", ", v->to);
    text_put_xml(v->to, topo_rate(l, rate), -1);
    fputs("</title></path>\n", v->to);
}

static void put_links(const struct topo_svg *v)
{
    for (int32_t i = 0; i < v->t->link_count; i++)
        if (is_drawn(v, &v->t->links[i]))
            put_link(v, &v->t->links[i]);
}

static const char style[] =
    "<style>\n"
    "text{fill:#1f2430;font-size:12px;text-anchor:middle}\n"
    ".t{font-size:17px;font-weight:bold;text-anchor:start}.h{font-size:13px;font-weight:bold;"
    "text-anchor:start}\n"
    ".c{paint-order:stroke;stroke:#f4f5f7;stroke-width:3px}"
    ".k{text-anchor:start;fill:#5b6472}.n{font-weight:bold}.d{font-size:10px;fill:#404854}\n"
    ".bg{fill:#fff}.host{fill:#f4f5f7;stroke:#c9ced6}\n"
    ".numa{fill:#dfe6f2;stroke:#8fa3c4}.root{fill:#eceff4;stroke:#a9b0bb}\n"
    ".switch{fill:#d9cdee;stroke:#9277bd}.gpu{fill:#b4e0cc;stroke:#3d9a76}\n"
    ".nic{fill:#fbdf9f;stroke:#c98f1f}.nvswitch{fill:#8fd0b4;stroke:#2f8564}\n"
    ".pci,.mesh{stroke:#8a93a1}.cpu{stroke:#6f8ab8}.nvlink,.xgmi{stroke:#3d9a76}"
    ".c2c{stroke:#2f8564}\n"
    ".net{stroke:#c98f1f}.link{fill:none;stroke-linecap:round}\n"
    ".unsure{stroke-dasharray:5 4}.bad{stroke:#d65a24;stroke-dasharray:5 4}\n"
    ".rail{fill:#fff3d6;stroke:#c98f1f}\n"
    "@media (prefers-color-scheme:dark){.bg{fill:#14171c}.t,.k{fill:#e6e9ef}}\n"
    "</style>\n";

/* "NVIDIA GeForce RTX 4070 Laptop" is "RTX 4070 Laptop" in a narrow box: whole words, if they fit. */
static void short_model(const char *model, char text[TOPO_WORD])
{
    enum { MOST = 17 };
    static const char *const makers[] = {"NVIDIA ", "GeForce ", "Tesla "};

    for (size_t i = 0; i < sizeof(makers) / sizeof(makers[0]); i++)
        if (!strncmp(model, makers[i], strlen(makers[i])))
            model += strlen(makers[i]);
    snprintf(text, TOPO_WORD, "%.*s", MOST, model);
    char *blank = strrchr(text, ' ');
    if (strlen(model) > MOST && model[MOST] != ' ' && blank)
        *blank = '\0';
}

/* ---- boxes ---------------------------------------------------------------------------------- */

/* "5.0 x16"; "5.0 x8 of x16" where it could be more. */
static void pcie_text(const struct dp_topo_link *l, char text[TOPO_WORD])
{
    text[0] = '\0';
    if (l && l->gen && l->flags & DP_TOPO_DEGRADED)
        snprintf(text, TOPO_WORD, "%d.0 x%d of %d.0 x%d", l->gen, l->width, l->gen_max, l->width_max);
    else if (l && l->gen)
        snprintf(text, TOPO_WORD, "PCIe %d.0 x%d", l->gen, l->width);
}

static void put_device_text(const struct topo_svg *v, int32_t node, const struct topo_box *b)
{
    const struct dp_topo_node *n = &v->t->nodes[node];
    char text[TOPO_WORD];

    short_model(dp_topology_text(v->t, n->kind == DP_TOPO_GPU ? n->model : n->name), text);
    put_text(v, "d", topo_svg_middle(b), b->y + 29, text, -1);
    pcie_text(dp_topology_uplink(v->t, node), text);
    put_text(v, "d", topo_svg_middle(b), b->y + 43, text, 22);
}

static void put_numa_text(const struct topo_svg *v, const struct dp_topo_node *n,
                          const struct topo_box *b)
{
    char text[2 * TOPO_WORD], size[TOPO_WORD];
    const char *cpus = dp_topology_text(v->t, n->cpus);

    snprintf(text, sizeof(text), "%s%s%s%s", *cpus ? "CPUs " : n->memory_bytes ? "no CPUs" : "",
             cpus, n->memory_bytes ? ", " : "",
             n->memory_bytes ? topo_size(n->memory_bytes, size) : "");
    put_text(v, "d", topo_svg_middle(b), b->y + 31, text, (int)(b->width / 5.4));
}

/* Its GPUs mostly have as many links each. */
static void describe_hub(const struct dp_topology *t, int32_t hub, char text[TOPO_WORD])
{
    char link[TOPO_WORD], rate[TOPO_WORD];

    if (t->first_around[hub] == t->first_around[hub + 1])
        return;
    const struct dp_topo_link *l = &t->links[t->around[t->first_around[hub]]];
    snprintf(text, TOPO_WORD, "nvswitch%d: %.30s, %.30s for a GPU", t->nodes[hub].index,
             topo_link(l, link), topo_rate(l, rate));
}

/* How many hosts have GPUs at an NVSwitch; its links stand in their order. */
static int32_t count_hosts(const struct dp_topology *t, int32_t hub)
{
    int32_t count = 0, last = -1;

    for (int32_t k = t->first_around[hub]; k < t->first_around[hub + 1]; k++) {
        int32_t host = t->nodes[dp_topology_across(t, t->around[k], hub)].host;
        count += host != last;
        last = host;
    }
    return count;
}

static void put_bars(const struct topo_svg *v)
{
    char text[TOPO_WORD], all[2 * TOPO_WORD];

    for (int i = 0; i < v->host_count; i++) {
        const struct topo_box *b = &v->bars[i];
        if (v->hubs[i] < 0)
            continue;
        put_rect(v, "nvswitch", b, 5);
        describe_hub(v->t, v->hubs[i], text);
        snprintf(all, sizeof(all), "%s, of %d hosts", text, count_hosts(v->t, v->hubs[i]));
        put_text(v, "n", topo_svg_middle(b), b->y + 16, all, -1);
    }
}

static void put_inside(const struct topo_svg *v, int32_t node, const struct topo_box *b)
{
    const struct dp_topo_node *n = &v->t->nodes[node];
    char text[TOPO_WORD];

    snprintf(text, sizeof(text), "%s%d", dp_name(DP_NAMES_NODE, n->kind), n->index);
    if (n->kind == DP_TOPO_NVSWITCH)
        describe_hub(v->t, node, text);
    put_text(v, n->kind == DP_TOPO_ROOT ? "d" : "n", topo_svg_middle(b),
             b->y + (n->kind == DP_TOPO_NVSWITCH ? 16 : n->kind == DP_TOPO_SWITCH ? 13 : 15), text, -1);
    if (n->kind == DP_TOPO_NUMA)
        put_numa_text(v, n, b);
    else if (n->kind == DP_TOPO_GPU || n->kind == DP_TOPO_NIC)
        put_device_text(v, node, b);
    else if (n->kind == DP_TOPO_SWITCH) {
        pcie_text(dp_topology_uplink(v->t, node), text);
        put_text(v, "d", topo_svg_middle(b), b->y + 25, text, 22);
    }
}

static void put_box(const struct topo_svg *v, int32_t node)
{
    const struct dp_topo_node *n = &v->t->nodes[node];
    const struct topo_box *b = &v->boxes[node];

    fprintf(v->to, "<g><title>");
    text_put_xml(v->to, dp_topology_text(v->t, n->model), -1);
    fputs("</title>", v->to);
    put_rect(v, dp_name(DP_NAMES_NODE, n->kind), b, n->kind == DP_TOPO_ROOT ? 10 : 5);
    put_inside(v, node, b);
    fputs("</g>\n", v->to);
}

/* What a NIC's ports are cabled to, and how fast. */
static void put_cables(const struct topo_svg *v, int32_t nic)
{
    const struct dp_topology *t = v->t;
    const struct topo_box *b = &v->boxes[nic];
    int32_t first, count = dp_topology_ports(t, nic, &first);
    char text[TOPO_WORD];

    for (int32_t i = first; i < first + count && i < first + 2; i++) {
        const struct dp_topo_port *p = &t->ports[i];
        int len = p->bytes_per_ns > 0
                      ? snprintf(text, sizeof(text), "%.4g Gb/s", 8 * p->bytes_per_ns)
                      : snprintf(text, sizeof(text), "unknown rate");
        if (!p->up)
            snprintf(text + len, sizeof(text) - (size_t)len, " down");
        put_text(v, "d c", topo_svg_middle(b), b->y + b->height + 12 + 13 * (i - first), text,
                      18);
        if (p->rail >= 0 && count == 1)
            put_text(v, "d c", topo_svg_middle(b), b->y + b->height + 25,
                     dp_topology_text(t, t->nodes[p->rail].name), 14);
    }
}

/* The hosts that this one stands for, too, are in its heading. */
static void put_host(const struct topo_svg *v, const struct topo_hosts *alike, int32_t host)
{
    const struct topo_box *b = &v->boxes[host];
    char label[DP_TOPO_LABEL_LEN];
    int32_t number = 0;

    while (alike->nodes[number] != host)
        number++;
    put_rect(v, "host", b, 8);
    fprintf(v->to, "<text class=\"h\" x=\"%.1f\" y=\"%.1f\">", b->x + 14, b->y + 20);
    char *heading = NULL;
    size_t len;
    FILE *f = open_memstream(&heading, &len);
    if (f) {
        if (alike->first[number] == number)
            topo_hosts_put(v->t, alike, number, f);
        else
            fputs(dp_topology_label(v->t, host, label), f);
        fclose(f);
        text_put_xml(v->to, heading, 100);
    }
    free(heading);
    fputs("</text>\n", v->to);
}

/* ---- the legend ----------------------------------------------------------------------------- */

static bool any_link(const struct topo_svg *v, uint32_t flags)
{
    for (int32_t i = 0; i < v->t->link_count; i++)
        if (v->t->links[i].kind == DP_TOPO_PCI && v->t->links[i].flags & flags &&
            is_drawn(v, &v->t->links[i]))
            return true;
    return false;
}

static void put_entry(const struct topo_svg *v, const char *class_, double width, const char *text,
                      double *x, double y)
{
    fprintf(v->to, "<path class=\"%s\" stroke-width=\"%.1f\" d=\"M%.1f %.1fh30\"/>\n", class_,
            width, *x, y);
    put_text(v, "k", *x + 40, y + 4, text, -1);
    *x += 54 + 7 * (double)strlen(text);
}

/* Each rate that is drawn, once for a kind of link, as far as there is room. */
static void put_rates(const struct topo_svg *v, double y)
{
    static const enum dp_topo_link_kind kinds[] = {DP_TOPO_PCI, DP_TOPO_NVLINK, DP_TOPO_XGMI,
                                                   DP_TOPO_C2C, DP_TOPO_CPU};
    enum { ENTRY = 120, RATES_MAX = 16 };
    double x = 24;

    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        double rates[RATES_MAX] = {0};
        for (int32_t i = 0, n, count = 0; i < v->t->link_count && count < RATES_MAX; i++) {
            const struct dp_topo_link *l = &v->t->links[i];
            char class_[TOPO_WORD], rate[TOPO_WORD];
            for (n = 0; n < count && rates[n] != l->bytes_per_ns;)
                n++;
            if (l->kind != kinds[k] || n < count || l->bytes_per_ns <= 0 || x + ENTRY > v->width ||
                !is_drawn(v, l))
                continue;
            rates[count++] = l->bytes_per_ns;
            snprintf(class_, sizeof(class_), "link %s", dp_name(DP_NAMES_LINK, l->kind));
            put_entry(v, class_, find_width(l), topo_rate(l, rate), &x, y);
        }
    }
}

/* Only what occurs in the picture. */
static void put_legend(const struct topo_svg *v)
{
    const struct {
        bool occurs;
        const char *class_, *text;
    } entries[] = {
        {any_link(v, DP_TOPO_RATE_UNKNOWN), "link pci unsure", "not known"},
        {any_link(v, DP_TOPO_DEGRADED), "link bad", "could be faster"},
    };
    double x = 24;

    put_rates(v, v->height - 38);
    for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++)
        if (entries[i].occurs)
            put_entry(v, entries[i].class_, 3, entries[i].text, &x, v->height - 18);
}

/* ---- the picture ---------------------------------------------------------------------------- */

static void put_fabric(const struct topo_svg *v)
{
    const struct dp_topology *t = v->t;
    int32_t rails = 0, spines = 0;
    char text[TOPO_WORD];

    for (int32_t i = 0; i < t->node_count; i++) {
        rails += t->nodes[i].kind == DP_TOPO_RAIL;
        spines += t->nodes[i].kind == DP_TOPO_SPINE;
    }
    if (!rails)
        return;
    snprintf(text, sizeof(text), "%d rail%s%s", rails, rails == 1 ? "" : "s",
             spines ? " joined by a spine" : "");
    put_text(v, "k", 24, 50, text, -1);
}

static void put_picture(const struct topo_svg *v, const struct topo_hosts *alike)
{
    draw_svg_begin(v->to, v->width, v->height, v->title, style);
    put_text(v, "t", 24, 34, v->title, -1);
    for (int i = 0; i < v->host_count; i++)
        put_host(v, alike, v->hosts[i]);
    put_links(v);
    for (int32_t i = 0; i < v->t->node_count; i++)
        if (v->boxes[i].width > 0 && v->t->nodes[i].kind != DP_TOPO_HOST) {
            put_box(v, i);
            if (v->t->nodes[i].kind == DP_TOPO_NIC)
                put_cables(v, i);
        }
    put_bars(v);
    put_legend(v);
    put_fabric(v);
    fputs("</svg>\n", v->to);
}

/* ---- the command ---------------------------------------------------------------------------- */

struct svg_args {
    struct topo_args common;
    const char *title;
};

static int draw(struct topo_svg *v, const struct topo_hosts *alike)
{
    for (int32_t i = 0; i < v->t->host_count && v->host_count < TOPO_SVG_HOSTS_MAX; i++)
        if (alike->first[i] == i)
            v->hosts[v->host_count++] = alike->nodes[i];
    topo_svg_lay_out(v);
    put_picture(v, alike);
    return topo_finish(v->to);
}

static int write_svg(const void *values, const struct operands *operands, const struct dp_topology *t,
                     FILE *to)
{
    const struct svg_args *a = values;
    struct topo_hosts *alike = topo_hosts_compare(t);
    char title[TOPO_WORD], label[DP_TOPO_LABEL_LEN];
    struct topo_svg v = {
        .t = t, .to = to, .title = a->title ? a->title : title,
        .boxes = calloc((size_t)t->node_count, sizeof(*v.boxes)),
    };
    int err = DP_ENOMEM;

    (void)operands;
    if (t->host_count > 1)
        snprintf(title, sizeof(title), "%d hosts", t->host_count);
    else
        snprintf(title, sizeof(title), "%.50s%s%.60s", dp_topology_label(t, 0, label),
                 t->nodes[0].model ? ", " : "", dp_topology_text(t, t->nodes[0].model));
    if (alike && v.boxes)
        err = draw(&v, alike);
    free(v.boxes);
    free(alike);
    return err;
}

#define AT(member) .offset = offsetof(struct svg_args, member)

static const struct arg args[] = {
    {"title", 0, "TEXT", "over the picture", ARG_STRING, AT(title)},
};

int run_topo_svg(int argc, char **argv)
{
    const struct arg_group groups[] = {topo_source_group, ARG_GROUP("output", args), {0}};
    const struct usage usage = {
        .command = "dualpipe topo svg", .groups = groups,
        .about = "Draw hosts as an SVG: NUMA nodes, PCI roots and switches, GPUs, NICs, and lines as\n"
                 "wide as the links are fast. Hosts that are alike are drawn once.",
        .examples = "  dualpipe topo svg -o here.svg\n"
                    "  dualpipe topo svg --synthetic dgx-h100 -o dgx.svg\n",
    };
    struct svg_args a = {.title = NULL};

    return topo_run(&usage, argc, argv, &a, write_svg);
}
