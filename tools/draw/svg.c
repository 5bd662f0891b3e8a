/* SPDX-License-Identifier: Apache-2.0
 *
 * svg.c - a timeline as a stand-alone SVG: one file for a paper, a browser, a README.
 *
 *      title                              what it adds up to
 *      [] forward  [] backward  ...       the legend: only what occurs
 *      rank 0  |0|1|2|   |0 |...
 *      rank 1     |0|1|...                bars with micro-batch numbers; a pair is a split bar
 *              0    10    20
 *      rank 0  |7|6|   ...                what is wider than a page is cut into panels
 *              30   40    50   time, ms
 *
 * The bars are written once, on one line as long as the timeline; every panel is a window on them.
 *
 * Colours are chosen so that one dark text colour is readable on all of them, on light and dark
 * grounds alike.
 */
#include "draw/svg.h"

#include "command.h"
#include "text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the legend: only what occurs, in as many lines as it takes ------------------------------ */

enum { SWATCH = 14, WIDE_SWATCH = 22, LINE_PX = 22, GAP_PX = 20 };
#define CHAR_PX 6.2 /* of the legend's text, about */

static int width_of(const struct svg_entry *e)
{
    return e->swatch + (e->swatch ? 6 : 0) + (int)(CHAR_PX * (double)strlen(e->text)) + GAP_PX;
}

/* ---- which entries, and where --------------------------------------------------------------- */

static void add(struct svg *v, struct svg_entry entry)
{
    v->entries[v->entry_count++] = entry;
}

static void choose_entries(struct svg *v)
{
    int swatch = v->census.back ? 2 * SWATCH : SWATCH;

    for (int kind = 0; kind < DRAW_PAIR; kind++)
        if (v->census.kinds[kind])
            add(v, (struct svg_entry){SVG_KIND, (enum draw_kind)kind,
                                      draw_kind_text((enum draw_kind)kind), swatch, 0, 0});
    if (v->census.kinds[DRAW_PAIR])
        add(v, (struct svg_entry){SVG_PAIR, DRAW_PAIR, draw_kind_text(DRAW_PAIR), WIDE_SWATCH, 0,
                                  0});
    if (v->o->critical_count)
        add(v, (struct svg_entry){SVG_CRITICAL, 0, "critical path", WIDE_SWATCH, 0, 0});
    if (v->census.waits)
        add(v, (struct svg_entry){SVG_WAIT, 0, "waiting", WIDE_SWATCH, 0, 0});
    if (v->census.back)
        add(v, (struct svg_entry){SVG_NOTE, 0, "(pale: the other direction)", 0, 0, 0});
}

static int place_legend(struct svg *v, int y)
{
    int x = v->left;

    choose_entries(v);
    for (int i = 0; i < v->entry_count; i++) {
        struct svg_entry *e = &v->entries[i];
        if (x > v->left && x + width_of(e) - GAP_PX > v->left + v->plot) {
            x = v->left;
            y += LINE_PX;
        }
        e->x = x;
        e->y = y;
        x += width_of(e);
    }
    return y + LINE_PX;
}

/* ---- writing them --------------------------------------------------------------------------- */

static void put_swatch(const struct svg *v, const char *class, int x, int y, int width, int height)
{
    fprintf(v->to, "<path class=\"%s\" d=\"", class);
    svg_box(v, x, y, width, height);
    fputs("\"/>", v->to);
}

static void put_entry_swatch(const struct svg *v, const struct svg_entry *e)
{
    int x = e->x, y = e->y;

    switch (e->what) {
    case SVG_KIND:
        put_swatch(v, svg_class((struct draw_look){e->kind, false}), x, y, SWATCH, SWATCH);
        if (v->census.back)
            put_swatch(v, svg_class((struct draw_look){e->kind, true}), x + SWATCH, y, SWATCH,
                       SWATCH);
        return;
    case SVG_PAIR:
        put_swatch(v, "f0", x, y, WIDE_SWATCH, SWATCH / 2);
        put_swatch(v, v->census.back ? "b1" : "b0", x, y + SWATCH / 2, WIDE_SWATCH, SWATCH / 2);
        put_swatch(v, "p", x, y, WIDE_SWATCH, SWATCH);
        return;
    case SVG_CRITICAL:
        put_swatch(v, "c", x + 1, y + 1, WIDE_SWATCH - 2, SWATCH - 2);
        return;
    case SVG_WAIT:
        fprintf(v->to, "<path class=\"wait\" d=\"M%d %dh%d\"/>", x, y + SWATCH / 2, WIDE_SWATCH);
        return;
    case SVG_NOTE:
        return;
    }
}

static void put_legend(const struct svg *v)
{
    for (int i = 0; i < v->entry_count; i++) {
        const struct svg_entry *e = &v->entries[i];
        put_entry_swatch(v, e);
        fprintf(v->to, "<text class=\"k\" x=\"%d\" y=\"%d\">%s</text>\n",
                e->x + (e->swatch ? e->swatch + 6 : 0), e->y + 12, e->text);
    }
}

enum {
    MAX_BARS = 200000,
    PAGE_WIDTH = 1000,
    PAGE_HEIGHT = 1400, /* px, unless a width is asked for */
    MAX_PANELS = 6,
    MIN_PLOT = 620, /* px */
    BAR_PX = 22,    /* what a short bar should get */
    NUMBER_PX = 2 * SVG_CHAR_PX + 2,
    MAX_NUMBERED = 12,
    TICK_PX = 60,
    LEGEND = 47, /* px above it */
    EDGE = 4,    /* px that a panel reaches beyond its bars, above and below */
    RIGHT = 24,
    BOTTOM = 46,
    GAP = 36
};

/* ---- head and axis -------------------------------------------------------------------------- */

static const char style[] =
    "<style>\n"
    "text{fill:#1f2430}.t{font-size:16px;font-weight:bold}.s,.x{font-size:12px;fill:#5b6472}\n"
    ".x,.n,.m{text-anchor:middle}.k{font-size:12px}.r{font-size:13px;text-anchor:end}\n"
    ".n{font-size:12px}.m{font-size:9.5px}.n,.m{fill:#14171c;pointer-events:none}\n"
    ".bg{fill:#fff}.g{stroke:#e4e7ec;fill:none}.l{fill:#f4f5f7}\n"
    ".wait{stroke:#b8bec9;stroke-width:1.5;stroke-dasharray:2 3;fill:none}\n"
    ".f0{fill:#f6b84b}.f1{fill:#fbdf9f}.b0{fill:#57b894}.b1{fill:#b4e0cc}\n"
    ".i0{fill:#68a7e3}.i1{fill:#bcdaf5}.w0{fill:#b190da}.w1{fill:#ddcdf1}\n"
    ".a0{fill:#f08a5d}.a1{fill:#f8c9b3}"
    ".r0{fill:#a9b0bb}.r1{fill:#d0d5dc}\n"
    ".f0,.f1,.b0,.b1,.i0,.i1,.w0,.w1,.a0,.a1,.r0,.r1{stroke:#fff;stroke-width:.8}\n"
    ".c{stroke:#d6245d;stroke-width:2;fill:none;stroke-linejoin:round}\n"
    ".p{stroke:#14171c;stroke-width:1.1;fill:none;pointer-events:none}\n"
    ".a{stroke:#5b6472;stroke-width:.8;fill:none;opacity:.75}.h{fill:#5b6472}\n"
    "@media (prefers-color-scheme:dark){\n"
    "text{fill:#e6e9ef}.s,.x{fill:#9aa4b2}.bg{fill:#14171c}.g{stroke:#2a303a}.l{fill:#1b2028}\n"
    ".f0,.f1,.b0,.b1,.i0,.i1,.w0,.w1,.a0,.a1,.r0,.r1{stroke:#14171c}.n,.m{fill:#14171c}\n"
    ".wait{stroke:#566072}.p{stroke:#e6e9ef}.c{stroke:#ff5c8d}.a{stroke:#9aa4b2}.h{fill:#9aa4b2}\n"
    "}\n"
    "</style>\n";

static void put_head(const struct svg *v)
{
    const int width = v->left + v->plot + RIGHT;
    const int height = v->top + (v->panels - 1) * v->panel_px + v->t->ranks * v->row + BOTTOM;
    char title[96], sum[96];

    draw_title(v->s, title, sizeof(title));
    draw_sum(v->t, sum, sizeof(sum));
    fprintf(v->to,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "viewBox=\"0 0 %d %d\" font-family=\"Helvetica,Arial,sans-serif\">\n<title>",
            width, height, width, height);
    text_put_xml(v->to, v->o->title ? v->o->title : title, -1);
    fprintf(v->to, "</title>\n%s", style);
    fprintf(v->to, "<path class=\"bg\" d=\"M0 0h%dv%dH0z\"/>\n", width, height);
    fprintf(v->to, "<text class=\"t\" x=\"%d\" y=\"30\">", v->left);
    text_put_xml(v->to, v->o->title ? v->o->title : title, -1);
    fprintf(v->to, "<tspan class=\"s\" font-weight=\"normal\" dx=\"14\">");
    text_put_xml(v->to, sum, -1);
    fprintf(v->to, "</tspan></text>\n");
}

/* The ticks of v->panel, and in the last one what they mean. */
static void put_axis(const struct svg *v)
{
    const struct draw_ticks ticks = draw_ticks(v->panel_ns, v->plot / TICK_PX);
    const int64_t from = v->panel * v->panel_ns, to = from + v->panel_ns;
    const int64_t first = (from + ticks.step_ns - 1) / ticks.step_ns * ticks.step_ns;
    const int64_t last = to < v->t->makespan_ns ? to : v->t->makespan_ns;
    const int bottom = svg_y(v, v->t->ranks);

    fputs("<path class=\"g\" d=\"", v->to);
    for (int64_t ns = first; ns <= last; ns += ticks.step_ns) {
        putc('M', v->to);
        svg_px(v, svg_x(v, ns));
        fprintf(v->to, " %dV%d", svg_y(v, 0) - EDGE, bottom + EDGE);
    }
    fprintf(v->to, "\"/>\n<text class=\"x\" y=\"%d\">", bottom + 19);
    for (int64_t ns = first; ns <= last; ns += ticks.step_ns) {
        fputs("<tspan x=\"", v->to);
        svg_px(v, svg_x(v, ns));
        fprintf(v->to, "\">%g</tspan>", (double)ns / ticks.unit_ns);
    }
    fputs("</text>\n", v->to);
    if (v->panel == v->panels - 1)
        fprintf(v->to, "<text class=\"x\" x=\"%d\" y=\"%d\">time (%s)</text>\n",
                v->left + v->plot / 2, bottom + 37, ticks.unit);
}

/* ---- the picture ---------------------------------------------------------------------------- */

/* Cut a picture in which a short bar would take BAR_PX, with all of them `bars` bars long, into
 * panels as wide as the page, as few as will do and no more than the page has room for, but as many
 * as numbers of two digits need. They begin at round times, so that few bars are cut in two. */
static void cut(struct svg *v, double bars)
{
    const double wide = BAR_PX * bars;
    const int page = (int)fmax(100, (v->o->width ? v->o->width : PAGE_WIDTH) - v->left - RIGHT);

    v->panel_px = v->t->ranks * v->row + GAP;
    v->plot = v->o->width ? page : (int)fmin(page, fmax(MIN_PLOT, wide));
    v->panels = (int)fmax(1, fmin(fmin(ceil(wide / page), MAX_PANELS), PAGE_HEIGHT / v->panel_px));
    if (v->bar >= SVG_MIN_NUMBERED)
        v->panels = (int)fmax(v->panels, fmin(ceil(NUMBER_PX * bars / page), MAX_NUMBERED));
    v->panel_ns = v->t->makespan_ns;
    if (v->panels > 1) {
        const int64_t part_ns = v->t->makespan_ns / v->panels + 1;
        const int64_t step_ns = draw_ticks(part_ns, v->plot / TICK_PX).step_ns;
        v->panel_ns = (part_ns + step_ns - 1) / step_ns * step_ns;
        v->panels = (int)((v->t->makespan_ns + v->panel_ns - 1) / v->panel_ns);
    }
    v->scale = v->plot / (double)v->panel_ns;
}

static int lay_out(struct svg *v)
{
    double *lengths = malloc(v->t->count * sizeof(*lengths));

    if (!lengths)
        return DP_ENOMEM;
    for (size_t i = 0; i < v->t->count; i++)
        lengths[i] = fmax(1, (double)(v->t->spans[i].end_ns - v->t->spans[i].start_ns));
    double brief = draw_percentile(lengths, v->t->count, 0.25);
    free(lengths);

    v->bar = v->t->ranks <= 32 ? 26 : v->t->ranks <= 128 ? 12 : 4;
    v->row = v->bar + (v->bar > 4 ? v->bar / (v->o->arrows ? 2 : 5) + 1 : 1);
    v->left = 46 + 8 * snprintf(NULL, 0, "%d", v->t->ranks - 1) + 12;
    cut(v, (double)v->t->makespan_ns / brief);
    v->top = place_legend(v, LEGEND) + 14;
    return 0;
}

static int put_lines(const struct svg *v)
{
    svg_put_bars(v);
    if (v->o->critical_count)
        svg_put_critical(v);
    return v->o->arrows ? svg_put_arrows(v) : 0;
}

/* Its axis, and the part of all bars that v->panel shows. */
static void put_panel(const struct svg *v)
{
    put_axis(v);
    svg_put_rows(v);
    fprintf(v->to,
            "<svg x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" viewBox=\"%d %d %d %d\">"
            "<use href=\"#bars\"/></svg>\n",
            v->left, svg_y(v, 0) - EDGE, v->plot, v->t->ranks * v->row + 2 * EDGE,
            v->left + v->panel * v->plot, v->top - EDGE, v->plot, v->t->ranks * v->row + 2 * EDGE);
}

static int put_body(struct svg *v)
{
    put_head(v);
    put_legend(v);
    if (v->panels == 1) {
        put_axis(v);
        svg_put_rows(v);
        return put_lines(v);
    }
    fputs("<defs><g id=\"bars\">\n", v->to);
    const int err = put_lines(v);
    fputs("</g></defs>\n", v->to);
    for (; v->panel < v->panels; v->panel++)
        put_panel(v);
    return err;
}

int draw_svg(FILE *to, const struct dp_timeline *t, const struct dp_schedule *s,
             const struct draw_options *o)
{
    struct svg v = {.to = to, .t = t, .s = s, .o = o};

    if (draw_is_empty(t))
        return DP_EINVAL;
    if (t->count > MAX_BARS) {
        command_misused("%zu bars are too many for an SVG, expected at most %d: take fewer ranks or "
                        "micro-batches", t->count, MAX_BARS);
        return DP_EINVAL;
    }
    draw_census(t, &v.census);
    int err = lay_out(&v);
    if (err)
        return draw_finish(to, err);
    err = put_body(&v);
    fputs("</svg>\n", to);
    return draw_finish(to, err);
}
