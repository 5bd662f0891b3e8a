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
 * They are paths, not rects: a third of the bytes. Each has a <title>, which browsers show when the
 * mouse rests on it.
 *
 * Colours are chosen so that one dark text colour is readable on all of them, on light and dark
 * grounds alike.
 */
#include "command.h"
#include "draw/parts.h"
#include "text.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

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

/* ---- small pieces ---------------------------------------------------------------------------- */

/* In v->panel; y is of the bars' upper edge. */
static double svg_x(const struct svg *v, int64_t ns)
{
    return v->left + (double)(ns - v->panel * v->panel_ns) * v->scale;
}

static double svg_y(const struct svg *v, int rank)
{
    return v->top + v->panel * v->panel_px + rank * v->row;
}

/* Text in which # stands for a coordinate: "12.5", "12", in tenths of a pixel. */
static void put(const struct svg *v, const char *text, ...)
{
    va_list args;

    va_start(args, text);
    for (; *text; text++) {
        const double tenths = *text == '#' ? round(10 * va_arg(args, double)) : 0;
        if (*text == '#')
            fprintf(v->to, fmod(tenths, 10) == 0 ? "%.0f" : "%.1f", tenths / 10);
        else
            putc(*text, v->to);
    }
    va_end(args);
}

/* A rectangle as the data of a path. */
static void svg_box(const struct svg *v, double x, double y, double width, double height)
{
    put(v, "M# #h#v#h-#z", x, y, width, height, width);
}

/* "f0" .. "r1": the class of a look. */
static const char *svg_class(struct draw_look look)
{
    static const char *const names[DRAW_PAIR][2] = {
        [DRAW_F] = {"f0", "f1"}, [DRAW_B] = {"b0", "b1"}, [DRAW_I] = {"i0", "i1"},
        [DRAW_W] = {"w0", "w1"}, [DRAW_A] = {"a0", "a1"}, [DRAW_R] = {"r0", "r1"},
    };

    return names[look.kind][look.back];
}

/* The box of a span, `height` high from `y`. */
static void svg_span_box(const struct svg *v, const struct dp_span *span, double y, double height)
{
    svg_box(v, svg_x(v, span->start_ns), y, (double)(span->end_ns - span->start_ns) * v->scale,
            height);
}

static void put_op_text(const struct svg *v, struct dp_op op, int rank)
{
    const struct dp_slot *slot = dp_schedule_slot(v->s, rank, (int)op.slot);
    struct draw_look look;

    if (!draw_look_of(op, &look))
        return;
    if (look.kind == DRAW_R)
        fprintf(v->to, "gradient sum, stage %d", slot->stage);
    else
        fprintf(v->to, "%c%d, stage %d", "FBIWA"[look.kind], (int)op.mb, slot->stage);
}

/* What a browser shows for the bar: "rank 1: F3, stage 2 & B1, stage 0; 4-7 ms, 3 ms". */
static void put_bar_title(const struct svg *v, const struct dp_span *span)
{
    char start[32], length[32], waited[32];

    fprintf(v->to, "<title>rank %d: ", span->rank);
    put_op_text(v, span->op, span->rank);
    if (span->pair.kind != DP_OP_NONE) {
        fputs(" with ", v->to);
        put_op_text(v, span->pair, span->rank);
    }
    fprintf(v->to, "; at %s for %s", draw_time(span->start_ns, start, sizeof(start)),
            draw_time(span->end_ns - span->start_ns, length, sizeof(length)));
    if (span->waited_ns > 0 && span->waited_for >= 0)
        fprintf(v->to, "; waited %s for rank %d",
                draw_time(span->waited_ns, waited, sizeof(waited)), span->waited_for);
    fputs("</title>", v->to);
}

static void put_half(const struct svg *v, const struct dp_span *span, struct draw_look look, double y,
                     int height)
{
    fprintf(v->to, "<path class=\"%s\" d=\"", svg_class(look));
    svg_span_box(v, span, y, height);
    putc('"', v->to);
}

static void put_bar(const struct svg *v, const struct dp_span *span)
{
    const double y = svg_y(v, span->rank);
    struct draw_look look, pair;

    if (!draw_look_of(span->op, &look))
        return;
    if (!draw_look_of(span->pair, &pair)) {
        put_half(v, span, look, y, v->bar);
        putc('>', v->to);
        put_bar_title(v, span);
        fputs("</path>\n", v->to);
        return;
    }
    fputs("<g>", v->to);
    put_bar_title(v, span);
    put_half(v, span, look, y, v->bar / 2);
    fputs("/>", v->to);
    put_half(v, span, pair, y + v->bar / 2, v->bar - v->bar / 2);
    fputs("/></g>\n", v->to);
}

/* The frames of overlapped pairs, all in one path. */
static void put_frames(const struct svg *v)
{
    fputs("<path class=\"p\" d=\"", v->to);
    for (size_t i = 0; i < v->t->count; i++) {
        const struct dp_span *span = &v->t->spans[i];
        if (span->pair.kind != DP_OP_NONE)
            svg_span_box(v, span, svg_y(v, span->rank), v->bar);
    }
    fputs("\"/>\n", v->to);
}

static void put_number(const struct svg *v, const struct dp_span *span, struct dp_op op, double y)
{
    double width = (double)(span->end_ns - span->start_ns) * v->scale;
    int len = snprintf(NULL, 0, "%d", (int)op.mb);

    if (op.kind == DP_OP_REDUCE || op.kind == DP_OP_REDUCE_WAIT || width < len * SVG_CHAR_PX + 1)
        return;
    put(v, "<tspan x=\"#\" y=\"#\">", svg_x(v, (span->start_ns + span->end_ns) / 2), y);
    fprintf(v->to, "%d</tspan>", (int)op.mb);
}

/* Micro-batch numbers: of whole bars, or of split ones. */
static void put_numbers(const struct svg *v, bool split)
{
    struct draw_look look;

    fprintf(v->to, "<text class=\"%s\">", split ? "m" : "n");
    for (size_t i = 0; i < v->t->count; i++) {
        const struct dp_span *span = &v->t->spans[i];
        const double y = svg_y(v, span->rank);
        if (!draw_look_of(span->op, &look) || split != (span->pair.kind != DP_OP_NONE))
            continue;
        if (!split) {
            put_number(v, span, span->op, y + v->bar / 2.0 + 4.3);
            continue;
        }
        put_number(v, span, span->op, y + v->bar / 4.0 + 3.6);
        put_number(v, span, span->pair, y + v->bar * 3 / 4.0 + 3.2);
    }
    fputs("</text>\n", v->to);
}

/* The time before a bar that went into waiting for a message. */
static void put_waits(const struct svg *v)
{
    fputs("<path class=\"wait\" d=\"", v->to);
    for (size_t i = 0; i < v->t->count; i++) {
        const struct dp_span *span = &v->t->spans[i];
        if ((double)span->waited_ns * v->scale >= 1)
            put(v, "M# #h#", svg_x(v, span->start_ns - span->waited_ns),
                svg_y(v, span->rank) + v->bar / 2, (double)span->waited_ns * v->scale);
    }
    fputs("\"/>\n", v->to);
}

/* The ranks' names and grounds; bars and what is written on them (svg_bars.c). */
static void svg_put_rows(const struct svg *v)
{
    int step = v->row < 12 ? 16 / v->row + 1 : 1;

    fputs("<path class=\"l\" d=\"", v->to);
    for (int rank = 0; rank < v->t->ranks; rank++)
        svg_box(v, v->left, svg_y(v, rank), v->plot, v->bar);
    fputs("\"/>\n", v->to);
    for (int rank = 0; rank < v->t->ranks; rank += step)
        fprintf(v->to, "<text class=\"r\" x=\"%d\" y=\"%.0f\">rank %d</text>\n", v->left - 10,
                svg_y(v, rank) + v->bar / 2 + 5, rank);
}

static void svg_put_bars(const struct svg *v)
{
    if (v->census.waits)
        put_waits(v);
    for (size_t i = 0; i < v->t->count; i++)
        put_bar(v, &v->t->spans[i]);
    if (v->census.kinds[DRAW_PAIR])
        put_frames(v);
    if (v->bar < SVG_MIN_NUMBERED)
        return;
    put_numbers(v, false);
    put_numbers(v, true);
}

/* ---- the critical path ---------------------------------------------------------------------- */

/* A line from the end of one stay on a rank to the start of the next. */
static void put_hop(const struct svg *v, const struct dp_span *from, const struct dp_span *to)
{
    const bool down = from->rank < to->rank;

    put(v, "M# #L# #", svg_x(v, from->end_ns), svg_y(v, from->rank) + (down ? v->bar : 0),
        svg_x(v, to->start_ns), svg_y(v, to->rank) + (down ? 0 : v->bar));
}

/* A frame around each stay on a rank, and lines between them. */
static void svg_put_critical(const struct svg *v)
{
    const struct dp_span *span = v->o->critical, *end = span + v->o->critical_count;

    fputs("<path class=\"c\" d=\"", v->to);
    while (span < end) {
        const struct dp_span *last = span;
        while (last + 1 < end && last[1].rank == span->rank && last[1].start_ns == last->end_ns)
            last++;
        svg_box(v, svg_x(v, span->start_ns), svg_y(v, span->rank),
                (double)(last->end_ns - span->start_ns) * v->scale, v->bar);
        span = last + 1;
        if (span < end)
            put_hop(v, last, span);
    }
    fputs("\"/>\n", v->to);
}

/* ---- arrows --------------------------------------------------------------------------------- */

/* Where (forward or backward, rank, slot, mb) was done: an index into the spans, -1 nowhere. */
struct places {
    const struct dp_schedule *s;
    int32_t *at;
};

static size_t place(const struct places *p, bool backward, int rank, int slot, int mb)
{
    size_t row = p->s->first_slot[rank] + (size_t)slot;

    return (row * (size_t)p->s->mb_per_stream + (size_t)mb) * 2 + backward;
}

static bool is_backward(struct dp_op op)
{
    return op.kind == DP_OP_B || op.kind == DP_OP_I;
}

static void remember(struct places *p, const struct dp_span *span, struct dp_op op, size_t i)
{
    if (op.kind == DP_OP_F || is_backward(op))
        p->at[place(p, is_backward(op), span->rank, (int)op.slot, (int)op.mb)] = (int32_t)i;
}

static int find_places(const struct svg *v, struct places *p)
{
    size_t count = v->s->first_slot[v->s->ranks] * (size_t)v->s->mb_per_stream * 2;

    *p = (struct places){v->s, malloc(count * sizeof(*p->at))};
    if (!p->at)
        return DP_ENOMEM;
    memset(p->at, -1, count * sizeof(*p->at));
    for (size_t i = 0; i < v->t->count; i++) {
        remember(p, &v->t->spans[i], v->t->spans[i].op, i);
        remember(p, &v->t->spans[i], v->t->spans[i].pair, i);
    }
    return 0;
}

/* From the op of a slot that made what `op` consumes, if another rank made it. */
static void put_one(const struct svg *v, const struct places *p, const struct dp_span *span,
                    struct dp_op op, int peer, int peer_slot)
{
    const bool back = is_backward(op);

    if (peer < 0 || peer == span->rank)
        return;
    int32_t from = p->at[place(p, back, peer, peer_slot, (int)op.mb)];
    if (from < 0)
        return;
    fputs("<path class=\"a\" marker-end=\"url(#h)\" d=\"", v->to);
    put(v, "M# #L# #\"/>\n", svg_x(v, v->t->spans[from].end_ns),
        svg_y(v, peer) + (peer < span->rank ? v->bar : 0), svg_x(v, span->start_ns) + 1,
        svg_y(v, span->rank) + (peer < span->rank ? 0 : v->bar));
}

static void put_arrow(const struct svg *v, const struct places *p, const struct dp_span *span,
                      struct dp_op op)
{
    const bool back = is_backward(op);

    if (op.kind != DP_OP_F && !back)
        return;
    const struct dp_slot *slot = dp_schedule_slot(v->s, span->rank, (int)op.slot);
    put_one(v, p, span, op, back ? slot->next : slot->prev,
            back ? slot->next_slot : slot->prev_slot);
    for (int k = 0; k < v->s->skip_count; k++) {
        const struct dp_skip_ends *ends = dp_skip_ends_of(v->s, slot->stream, k);
        if ((back ? v->s->skips[k].from : v->s->skips[k].to) == slot->stage)
            put_one(v, p, span, op, back ? ends->to : ends->from,
                    back ? ends->to_slot : ends->from_slot);
    }
}

static int svg_put_arrows(const struct svg *v)
{
    struct places p;
    int err = find_places(v, &p);

    if (err)
        return err;
    fputs("<marker id=\"h\" viewBox=\"0 0 6 6\" refX=\"5\" refY=\"3\" markerWidth=\"5\" "
          "markerHeight=\"5\" orient=\"auto\"><path class=\"h\" d=\"M0 0L6 3L0 6z\"/></marker>\n",
          v->to);
    for (size_t i = 0; i < v->t->count; i++) {
        put_arrow(v, &p, &v->t->spans[i], v->t->spans[i].op);
        put_arrow(v, &p, &v->t->spans[i], v->t->spans[i].pair);
    }
    free(p.at);
    return 0;
}

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
    draw_svg_begin(v->to, width, height, v->o->title ? v->o->title : title, style);
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
    const double bottom = svg_y(v, v->t->ranks);

    fputs("<path class=\"g\" d=\"", v->to);
    for (int64_t ns = first; ns <= last; ns += ticks.step_ns)
        put(v, "M# #V#", svg_x(v, ns), svg_y(v, 0) - EDGE, bottom + EDGE);
    put(v, "\"/>\n<text class=\"x\" y=\"#\">", bottom + 19);
    for (int64_t ns = first; ns <= last; ns += ticks.step_ns) {
        put(v, "<tspan x=\"#\">", svg_x(v, ns));
        fprintf(v->to, "%g</tspan>", (double)ns / ticks.unit_ns);
    }
    fputs("</text>\n", v->to);
    if (v->panel == v->panels - 1)
        fprintf(v->to, "<text class=\"x\" x=\"%d\" y=\"%.0f\">time (%s)</text>\n",
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
    const int height = v->t->ranks * v->row + 2 * EDGE;
    fprintf(v->to,
            "<svg x=\"%d\" y=\"%.0f\" width=\"%d\" height=\"%d\" viewBox=\"%d %d %d %d\">"
            "<use href=\"#bars\"/></svg>\n",
            v->left, svg_y(v, 0) - EDGE, v->plot, height, v->left + v->panel * v->plot,
            v->top - EDGE, v->plot, height);
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
