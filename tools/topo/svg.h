/* SPDX-License-Identifier: Apache-2.0
 *
 * svg.h - a topology being drawn: where everything stands (svg_layout.c), and the drawing (svg.c).
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
 */
#ifndef DP_TOOLS_TOPO_SVG_H
#define DP_TOOLS_TOPO_SVG_H

#include "topo/topo.h"

#include <math.h>

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

/* Fill in boxes, width and height for v->hosts. */
void topo_svg_lay_out(struct topo_svg *v);

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

#endif
