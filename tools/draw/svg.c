/* SPDX-License-Identifier: Apache-2.0
 *
 * svg.c - a timeline as a stand-alone SVG: one file for a paper, a browser, a README.
 *
 *      title                              what it adds up to
 *      [] forward  [] backward  ...       the legend: only what occurs
 *      rank 0  |0|1|2|   |0 |...
 *      rank 1     |0|1|...                bars with micro-batch numbers; a pair is a split bar
 *              0    10    20   time, ms
 *
 * Bars are paths, not rects: a third of the bytes. Each has a <title>, which browsers show when the
 * mouse rests on it. Colours are chosen so that one dark text colour is readable on all of them, on
 * light and dark grounds alike.
 */
#include "draw/parts.h"

#include "command.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_BARS = 200000,
    MIN_PLOT = 620, MAX_PLOT = 2400, /* px, where the width is ours to choose */
    BAR_PX = 22,                     /* what a short bar should get */
    RIGHT = 24, TOP = 84, BOTTOM = 46,
    CHAR_PX = 7                      /* of a label, about */
};

struct svg {
    FILE *to;
    const struct dp_timeline *t;
    const struct dp_schedule *s;
    const struct draw_options *o;
    struct draw_census census;
    double scale;   /* px per ns */
    int left, plot; /* px before the plot, px of the plot */
    int lane, bar;  /* px from rank to rank, px of a bar's height */
};

/* ---- small pieces -------------------------------------------------------------------------- */

static double x_of(const struct svg *v, int64_t ns)
{
    return v->left + (double)ns * v->scale;
}

static int y_of(const struct svg *v, int rank)
{
    return TOP + rank * v->lane;
}

/* "12.5", "12": a coordinate in a tenth of a pixel, without a needless ".0". */
static void put_px(const struct svg *v, double px)
{
    double tenths = round(px * 10);

    if (fmod(tenths, 10) == 0)
        fprintf(v->to, "%.0f", tenths / 10);
    else
        fprintf(v->to, "%.1f", tenths / 10);
}

static void put_escaped(const struct svg *v, const char *text)
{
    for (; *text; text++)
        switch (*text) {
        case '&':
            fputs("&amp;", v->to);
            break;
        case '<':
            fputs("&lt;", v->to);
            break;
        case '>':
            fputs("&gt;", v->to);
            break;
        default:
            if ((unsigned char)*text >= ' ')
                putc(*text, v->to);
        }
}

/* A rectangle as the data of a path. */
static void put_box(const struct svg *v, double x, double y, double width, double height)
{
    putc('M', v->to);
    put_px(v, x);
    putc(' ', v->to);
    put_px(v, y);
    putc('h', v->to);
    put_px(v, width);
    putc('v', v->to);
    put_px(v, height);
    fputs("h-", v->to);
    put_px(v, width);
    putc('z', v->to);
}

/* "f0" .. "r1": the class of a look. */
static const char *class_of(struct draw_look look)
{
    static const char *const names[][2] = {
        {"f0", "f1"}, {"b0", "b1"}, {"i0", "i1"}, {"w0", "w1"}, {"r0", "r1"},
    };

    return names[look.kind][look.back];
}

/* ---- head ---------------------------------------------------------------------------------- */

static const char style[] =
    "<style>\n"
    "text{fill:#1f2430}.t{font-size:16px;font-weight:bold}.s,.x{font-size:12px;fill:#5b6472}\n"
    ".x,.n,.m{text-anchor:middle}.k{font-size:12px}.r{font-size:13px;text-anchor:end}\n"
    ".n{font-size:12px}.m{font-size:9.5px}.n,.m{fill:#14171c;pointer-events:none}\n"
    ".bg{fill:#fff}.g{stroke:#e4e7ec;fill:none}.l{fill:#f4f5f7}\n"
    ".wait{stroke:#b8bec9;stroke-width:1.5;stroke-dasharray:2 3;fill:none}\n"
    ".f0{fill:#f6b84b}.f1{fill:#fbdf9f}.b0{fill:#57b894}.b1{fill:#b4e0cc}\n"
    ".i0{fill:#68a7e3}.i1{fill:#bcdaf5}.w0{fill:#b190da}.w1{fill:#ddcdf1}\n"
    ".r0{fill:#a9b0bb}.r1{fill:#d0d5dc}\n"
    ".f0,.f1,.b0,.b1,.i0,.i1,.w0,.w1,.r0,.r1{stroke:#fff;stroke-width:.8}\n"
    ".c{stroke:#d6245d;stroke-width:2;fill:none;stroke-linejoin:round}\n"
    ".p{stroke:#14171c;stroke-width:1.1;fill:none;pointer-events:none}\n"
    ".a{stroke:#5b6472;stroke-width:.8;fill:none;opacity:.75}.h{fill:#5b6472}\n"
    "@media (prefers-color-scheme:dark){\n"
    "text{fill:#e6e9ef}.s,.x{fill:#9aa4b2}.bg{fill:#14171c}.g{stroke:#2a303a}.l{fill:#1b2028}\n"
    ".f0,.f1,.b0,.b1,.i0,.i1,.w0,.w1,.r0,.r1{stroke:#14171c}.n,.m{fill:#14171c}\n"
    ".wait{stroke:#566072}.p{stroke:#e6e9ef}.c{stroke:#ff5c8d}.a{stroke:#9aa4b2}.h{fill:#9aa4b2}\n"
    "}\n"
    "</style>\n";

static void put_head(const struct svg *v)
{
    int width = v->left + v->plot + RIGHT, height = y_of(v, v->t->ranks) + BOTTOM;
    char title[96], sum[96];

    draw_title(v->s, title, sizeof(title));
    draw_sum(v->t, sum, sizeof(sum));
    fprintf(v->to,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "viewBox=\"0 0 %d %d\" font-family=\"Helvetica,Arial,sans-serif\">\n<title>",
            width, height, width, height);
    put_escaped(v, v->o->title ? v->o->title : title);
    fprintf(v->to, "</title>\n%s", style);
    fprintf(v->to, "<path class=\"bg\" d=\"M0 0h%dv%dH0z\"/>\n", width, height);
    fprintf(v->to, "<text class=\"t\" x=\"%d\" y=\"30\">", v->left);
    put_escaped(v, v->o->title ? v->o->title : title);
    fprintf(v->to, "<tspan class=\"s\" font-weight=\"normal\" dx=\"14\">");
    put_escaped(v, sum);
    fprintf(v->to, "</tspan></text>\n");
}

/* ---- legend -------------------------------------------------------------------------------- */

enum { SWATCH = 14, SWATCH_Y = 47 };

/* Swatches in a row; each entry returns the x of the next. */
static int put_entry(const struct svg *v, int x, const char *text)
{
    fprintf(v->to, "<text class=\"k\" x=\"%d\" y=\"%d\">", x, SWATCH_Y + 12);
    put_escaped(v, text);
    fprintf(v->to, "</text>\n");
    return x + (int)(6.1 * (double)strlen(text)) + 20;
}

static void put_swatch(const struct svg *v, const char *class, int x, int y, int width, int height)
{
    fprintf(v->to, "<path class=\"%s\" d=\"", class);
    put_box(v, x, y, width, height);
    fputs("\"/>", v->to);
}

static int put_kind_entry(const struct svg *v, int x, enum draw_kind kind)
{
    int count = v->census.back ? 2 : 1;

    for (int back = 0; back < count; back++)
        put_swatch(v, class_of((struct draw_look){kind, back}), x + back * SWATCH, SWATCH_Y, SWATCH,
                   SWATCH);
    return put_entry(v, x + count * SWATCH + 6, draw_kind_text(kind));
}

static int put_pair_entry(const struct svg *v, int x)
{
    put_swatch(v, "f0", x, SWATCH_Y, 22, SWATCH / 2);
    put_swatch(v, v->census.back ? "b1" : "b0", x, SWATCH_Y + SWATCH / 2, 22, SWATCH / 2);
    put_swatch(v, "p", x, SWATCH_Y, 22, SWATCH);
    return put_entry(v, x + 28, draw_kind_text(DRAW_PAIR));
}

static void put_legend(const struct svg *v)
{
    int x = v->left;

    for (int kind = 0; kind < DRAW_PAIR; kind++)
        if (v->census.kinds[kind])
            x = put_kind_entry(v, x, (enum draw_kind)kind);
    if (v->census.kinds[DRAW_PAIR])
        x = put_pair_entry(v, x);
    if (v->o->critical_count) {
        put_swatch(v, "c", x + 1, SWATCH_Y + 1, 20, SWATCH - 2);
        x = put_entry(v, x + 28, "critical path");
    }
    if (v->census.waits) {
        fprintf(v->to, "<path class=\"wait\" d=\"M%d %dh22\"/>\n", x, SWATCH_Y + SWATCH / 2);
        x = put_entry(v, x + 28, "waiting");
    }
    if (v->census.back)
        put_entry(v, x, "(pale: the other direction)");
}

/* ---- axis ---------------------------------------------------------------------------------- */

static void put_axis(const struct svg *v)
{
    struct draw_ticks ticks = draw_ticks(v->t->makespan_ns, v->plot / 60);
    int bottom = y_of(v, v->t->ranks);

    fputs("<path class=\"g\" d=\"", v->to);
    for (int64_t ns = 0; ns <= v->t->makespan_ns; ns += ticks.step_ns) {
        putc('M', v->to);
        put_px(v, x_of(v, ns));
        fprintf(v->to, " %dV%d", TOP - 4, bottom + 4);
    }
    fprintf(v->to, "\"/>\n<text class=\"x\" y=\"%d\">", bottom + 19);
    for (int64_t ns = 0; ns <= v->t->makespan_ns; ns += ticks.step_ns) {
        fputs("<tspan x=\"", v->to);
        put_px(v, x_of(v, ns));
        fprintf(v->to, "\">%g</tspan>", (double)ns / ticks.unit_ns);
    }
    fprintf(v->to, "</text>\n<text class=\"x\" x=\"%d\" y=\"%d\">time (%s)</text>\n",
            v->left + v->plot / 2, bottom + 37, ticks.unit);
}

/* ---- bars ---------------------------------------------------------------------------------- */

static void put_op_text(const struct svg *v, struct dp_op op, int rank)
{
    const struct dp_slot *slot = dp_schedule_slot(v->s, rank, (int)op.slot);
    struct draw_look look;

    if (!draw_look_of(op, &look))
        return;
    if (look.kind == DRAW_R)
        fprintf(v->to, "gradient sum, stage %d", slot->stage);
    else
        fprintf(v->to, "%c%d, stage %d", "FBIW"[look.kind], (int)op.mb, slot->stage);
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

static void put_half(const struct svg *v, const struct dp_span *span, struct draw_look look, int y,
                     int height)
{
    fprintf(v->to, "<path class=\"%s\" d=\"", class_of(look));
    put_box(v, x_of(v, span->start_ns), y, (double)(span->end_ns - span->start_ns) * v->scale,
            height);
    fputs("\"", v->to);
}

static void put_bar(const struct svg *v, const struct dp_span *span)
{
    struct draw_look look, pair;
    int y = y_of(v, span->rank);

    if (!draw_look_of(span->op, &look))
        return;
    bool split = draw_look_of(span->pair, &pair);
    if (split)
        fputs("<g>", v->to);
    else
        pair = look;
    if (split)
        put_bar_title(v, span);
    put_half(v, span, look, y, split ? v->bar / 2 : v->bar);
    if (split) {
        fputs("/>", v->to);
        put_half(v, span, pair, y + v->bar / 2, v->bar - v->bar / 2);
        fputs("/></g>\n", v->to);
        return;
    }
    putc('>', v->to);
    put_bar_title(v, span);
    fputs("</path>\n", v->to);
}

/* The frames of overlapped pairs, all in one path. */
static void put_frames(const struct svg *v)
{
    fputs("<path class=\"p\" d=\"", v->to);
    for (size_t i = 0; i < v->t->count; i++) {
        const struct dp_span *span = &v->t->spans[i];
        if (span->pair.kind != DP_OP_NONE)
            put_box(v, x_of(v, span->start_ns), y_of(v, span->rank),
                    (double)(span->end_ns - span->start_ns) * v->scale, v->bar);
    }
    fputs("\"/>\n", v->to);
}

static void put_number(const struct svg *v, const struct dp_span *span, struct dp_op op, double y)
{
    double width = (double)(span->end_ns - span->start_ns) * v->scale;
    int len = snprintf(NULL, 0, "%d", (int)op.mb);

    if (op.kind == DP_OP_REDUCE || width < len * CHAR_PX + 1)
        return;
    fputs("<tspan x=\"", v->to);
    put_px(v, x_of(v, (span->start_ns + span->end_ns) / 2));
    fputs("\" y=\"", v->to);
    put_px(v, y);
    fprintf(v->to, "\">%d</tspan>", (int)op.mb);
}

/* Micro-batch numbers: of whole bars, or of split ones. */
static void put_numbers(const struct svg *v, bool split)
{
    struct draw_look look;

    fprintf(v->to, "<text class=\"%s\">", split ? "m" : "n");
    for (size_t i = 0; i < v->t->count; i++) {
        const struct dp_span *span = &v->t->spans[i];
        int y = y_of(v, span->rank);
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
        if ((double)span->waited_ns * v->scale < 1)
            continue;
        putc('M', v->to);
        put_px(v, x_of(v, span->start_ns - span->waited_ns));
        fprintf(v->to, " %dh", y_of(v, span->rank) + v->bar / 2);
        put_px(v, (double)span->waited_ns * v->scale);
    }
    fputs("\"/>\n", v->to);
}

static void put_lanes(const struct svg *v)
{
    int step = v->lane < 12 ? 16 / v->lane + 1 : 1;

    fputs("<path class=\"l\" d=\"", v->to);
    for (int rank = 0; rank < v->t->ranks; rank++)
        put_box(v, v->left, y_of(v, rank), v->plot, v->bar);
    fputs("\"/>\n", v->to);
    for (int rank = 0; rank < v->t->ranks; rank += step)
        fprintf(v->to, "<text class=\"r\" x=\"%d\" y=\"%d\">rank %d</text>\n", v->left - 10,
                y_of(v, rank) + v->bar / 2 + 5, rank);
}

/* ---- the critical path ---------------------------------------------------------------------- */

static void put_critical(const struct svg *v)
{
    fputs("<path class=\"c\" d=\"", v->to);
    for (size_t i = 0; i < v->o->critical_count; i++) {
        const struct dp_span *span = &v->o->critical[i], *before = span - 1;
        int y = y_of(v, span->rank);
        put_box(v, x_of(v, span->start_ns), y, (double)(span->end_ns - span->start_ns) * v->scale,
                v->bar);
        if (!i || before->rank == span->rank)
            continue;
        bool down = before->rank < span->rank;
        putc('M', v->to);
        put_px(v, x_of(v, before->end_ns));
        fprintf(v->to, " %dL", y_of(v, before->rank) + (down ? v->bar : 0));
        put_px(v, x_of(v, span->start_ns));
        fprintf(v->to, " %d", y + (down ? 0 : v->bar));
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
    size_t row = (size_t)rank * (size_t)p->s->slots_per_rank + (size_t)slot;

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
    size_t count = (size_t)v->s->ranks * (size_t)v->s->slots_per_rank *
                   (size_t)v->s->mb_per_stream * 2;

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

/* From the op that made what `op` consumes, if another rank made it. */
static void put_arrow(const struct svg *v, const struct places *p, const struct dp_span *span,
                      struct dp_op op)
{
    if (op.kind != DP_OP_F && !is_backward(op))
        return;
    const struct dp_slot *slot = dp_schedule_slot(v->s, span->rank, (int)op.slot);
    bool back = is_backward(op);
    int peer = back ? slot->next : slot->prev, peer_slot = back ? slot->next_slot : slot->prev_slot;
    if (peer < 0 || peer == span->rank)
        return;
    int32_t from = p->at[place(p, back, peer, peer_slot, (int)op.mb)];
    if (from < 0)
        return;
    fputs("<path class=\"a\" marker-end=\"url(#h)\" d=\"M", v->to);
    put_px(v, x_of(v, v->t->spans[from].end_ns));
    fprintf(v->to, " %dL", y_of(v, peer) + (peer < span->rank ? v->bar : 0));
    put_px(v, x_of(v, span->start_ns) + 1);
    fprintf(v->to, " %d\"/>\n", y_of(v, span->rank) + (peer < span->rank ? 0 : v->bar));
}

static int put_arrows(const struct svg *v)
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

/* ---- the picture ---------------------------------------------------------------------------- */

static int lay_out(struct svg *v)
{
    double *lengths = malloc(v->t->count * sizeof(*lengths));

    if (!lengths)
        return DP_ENOMEM;
    for (size_t i = 0; i < v->t->count; i++)
        lengths[i] = fmax(1, (double)(v->t->spans[i].end_ns - v->t->spans[i].start_ns));
    double brief = draw_percentile(lengths, v->t->count, 0.1);
    free(lengths);

    v->bar = v->t->ranks <= 32 ? 26 : v->t->ranks <= 128 ? 12 : 4;
    v->lane = v->bar + (v->bar > 4 ? v->bar / 5 + 1 : 1);
    v->left = 46 + 8 * snprintf(NULL, 0, "%d", v->t->ranks - 1) + 12;
    v->plot = (int)fmin(MAX_PLOT, fmax(MIN_PLOT, BAR_PX * (double)v->t->makespan_ns / brief));
    if (v->o->width)
        v->plot = v->o->width - v->left - RIGHT;
    if (v->plot < 100)
        v->plot = 100;
    v->scale = v->plot / (double)v->t->makespan_ns;
    return 0;
}

static int put_body(const struct svg *v)
{
    put_lanes(v);
    put_axis(v);
    if (v->census.waits)
        put_waits(v);
    for (size_t i = 0; i < v->t->count; i++)
        put_bar(v, &v->t->spans[i]);
    if (v->census.kinds[DRAW_PAIR])
        put_frames(v);
    if (v->bar > 16) {
        put_numbers(v, false);
        put_numbers(v, true);
    }
    if (v->o->critical_count)
        put_critical(v);
    return v->o->arrows ? put_arrows(v) : 0;
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
    put_head(&v);
    put_legend(&v);
    err = put_body(&v);
    fputs("</svg>\n", to);
    return draw_finish(to, err);
}
