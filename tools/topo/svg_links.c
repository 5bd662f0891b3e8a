/* SPDX-License-Identifier: Apache-2.0
 *
 * svg_links.c - text and lines of a drawn topology.
 */
#include "topo/svg.h"

#include "text.h"

#include <math.h>
#include <string.h>

/* ---- text ----------------------------------------------------------------------------------- */

void topo_svg_text(const struct topo_svg *v, const char *class_, double x, double y, const char *s,
                     int most)
{
    fprintf(v->to, "<text%s%s%s x=\"%.1f\" y=\"%.1f\">", *class_ ? " class=\"" : "", class_,
            *class_ ? "\"" : "", x, y);
    text_put_xml(v->to, s, most);
    fputs("</text>\n", v->to);
}

/* ---- lines ---------------------------------------------------------------------------------- */

/* px; 16 GB/s are 2, 63 about 3, 450 about 6. */
double topo_svg_width(const struct dp_topo_link *l)
{
    return l->bytes_per_ns > 0 ? fmin(10, 1 + sqrt(l->bytes_per_ns) / 4) : 1.5;
}

double topo_svg_middle(const struct topo_box *b)
{
    return b->x + b->width / 2;
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

/* Its control points lie lower by a third. */
double topo_svg_dip(const struct topo_box *a, const struct topo_box *b)
{
    return 9 + fabs(topo_svg_middle(b) - topo_svg_middle(a)) / 12;
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

bool topo_svg_is_drawn(const struct topo_svg *v, const struct dp_topo_link *l)
{
    return v->boxes[l->a].width > 0 && lower_box(v, l);
}

static void put_link(const struct topo_svg *v, const struct dp_topo_link *l)
{
    const char *look = l->flags & DP_TOPO_DEGRADED ? " bad"
                       : l->flags & DP_TOPO_RATE_UNKNOWN ? " unsure" : "";
    char word[TOPO_WORD], rate[TOPO_WORD];

    fprintf(v->to, "<path class=\"link %s%s\" stroke-width=\"%.1f\" d=\"",
            dp_topo_link_kind_name(l->kind), look, topo_svg_width(l));
    put_line(v->to, l, &v->boxes[l->a], lower_box(v, l));
    fputs("\"><title>", v->to);
    text_put_xml(v->to, topo_link(l, word), -1);
    fputs(", ", v->to);
    text_put_xml(v->to, topo_rate(l, rate), -1);
    fputs("</title></path>\n", v->to);
}

void topo_svg_put_links(const struct topo_svg *v)
{
    for (int32_t i = 0; i < v->t->link_count; i++)
        if (topo_svg_is_drawn(v, &v->t->links[i]))
            put_link(v, &v->t->links[i]);
}
