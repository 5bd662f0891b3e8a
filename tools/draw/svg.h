/* SPDX-License-Identifier: Apache-2.0
 *
 * svg.h - an SVG being written, shared by the files that write its parts.
 */
#ifndef DP_TOOLS_DRAW_SVG_H
#define DP_TOOLS_DRAW_SVG_H

#include "draw/parts.h"

/* An entry of the legend, placed. */
struct svg_entry {
    enum { SVG_KIND, SVG_PAIR, SVG_CRITICAL, SVG_WAIT, SVG_NOTE } what;
    enum draw_kind kind;
    const char *text;
    int swatch; /* px of what stands before the text */
    int x, y;
};
enum {
    SVG_ENTRIES_MAX = 12,
    SVG_CHAR_PX = 7,      /* of a number, about */
    SVG_MIN_NUMBERED = 16 /* px of a bar's height that carries numbers */
};

struct svg {
    FILE *to;
    const struct dp_timeline *t;
    const struct dp_schedule *s;
    const struct draw_options *o;
    struct draw_census census;
    double scale;        /* px per ns */
    int left, top, plot; /* px before and above the first panel, px of a panel's width */
    int panels, panel;   /* how many, and which one is being written */
    int panel_px;        /* from panel to panel */
    int64_t panel_ns;    /* what each shows */
    int row, bar;        /* px from rank to rank, px of a bar's height */
    int entry_count;
    struct svg_entry entries[SVG_ENTRIES_MAX];
};

/* ---- small pieces -------------------------------------------------------------------------- */

/* In v->panel; y is of the bars' upper edge. */
double svg_x(const struct svg *v, int64_t ns);
int svg_y(const struct svg *v, int rank);

/* "12.5", "12": a coordinate in tenths of a pixel. */
void svg_px(const struct svg *v, double px);
/* A rectangle as the data of a path. */
void svg_box(const struct svg *v, double x, double y, double width, double height);
/* The box of a span, `height` high from `y`. */
void svg_span_box(const struct svg *v, const struct dp_span *span, double y, double height);
/* "f0" .. "r1": the class of a look. */
const char *svg_class(struct draw_look look);

/* ---- parts ---------------------------------------------------------------------------------- */

/* The ranks' names and grounds; bars and what is written on them (svg_bars.c). */
void svg_put_rows(const struct svg *v);
void svg_put_bars(const struct svg *v);

/* The critical path; arrows for messages (svg_links.c). DP_ENOMEM. */
void svg_put_critical(const struct svg *v);
int svg_put_arrows(const struct svg *v);

#endif
