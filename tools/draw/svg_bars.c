/* SPDX-License-Identifier: Apache-2.0
 *
 * svg_bars.c - the bars of an SVG. They are paths, not rects: a third of the bytes. Each has a
 * <title>, which browsers show when the mouse rests on it.
 */
#include "draw/svg.h"

#include <math.h>

/* ---- small pieces ---------------------------------------------------------------------------- */

double svg_x(const struct svg *v, int64_t ns)
{
    return v->left + (double)(ns - v->panel * v->panel_ns) * v->scale;
}

int svg_y(const struct svg *v, int rank)
{
    return v->top + v->panel * v->panel_px + rank * v->row;
}

void svg_px(const struct svg *v, double px)
{
    double tenths = round(px * 10);

    if (fmod(tenths, 10) == 0)
        fprintf(v->to, "%.0f", tenths / 10);
    else
        fprintf(v->to, "%.1f", tenths / 10);
}

void svg_box(const struct svg *v, double x, double y, double width, double height)
{
    putc('M', v->to);
    svg_px(v, x);
    putc(' ', v->to);
    svg_px(v, y);
    putc('h', v->to);
    svg_px(v, width);
    putc('v', v->to);
    svg_px(v, height);
    fputs("h-", v->to);
    svg_px(v, width);
    putc('z', v->to);
}

const char *svg_class(struct draw_look look)
{
    static const char *const names[DRAW_PAIR][2] = {
        [DRAW_F] = {"f0", "f1"}, [DRAW_B] = {"b0", "b1"}, [DRAW_I] = {"i0", "i1"},
        [DRAW_W] = {"w0", "w1"}, [DRAW_A] = {"a0", "a1"}, [DRAW_R] = {"r0", "r1"},
    };

    return names[look.kind][look.back];
}

void svg_span_box(const struct svg *v, const struct dp_span *span, double y, double height)
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

static void put_half(const struct svg *v, const struct dp_span *span, struct draw_look look, int y,
                     int height)
{
    fprintf(v->to, "<path class=\"%s\" d=\"", svg_class(look));
    svg_span_box(v, span, y, height);
    putc('"', v->to);
}

static void put_bar(const struct svg *v, const struct dp_span *span)
{
    struct draw_look look, pair;
    int y = svg_y(v, span->rank);

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
    fputs("<tspan x=\"", v->to);
    svg_px(v, svg_x(v, (span->start_ns + span->end_ns) / 2));
    fputs("\" y=\"", v->to);
    svg_px(v, y);
    fprintf(v->to, "\">%d</tspan>", (int)op.mb);
}

/* Micro-batch numbers: of whole bars, or of split ones. */
static void put_numbers(const struct svg *v, bool split)
{
    struct draw_look look;

    fprintf(v->to, "<text class=\"%s\">", split ? "m" : "n");
    for (size_t i = 0; i < v->t->count; i++) {
        const struct dp_span *span = &v->t->spans[i];
        int y = svg_y(v, span->rank);
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
        svg_px(v, svg_x(v, span->start_ns - span->waited_ns));
        fprintf(v->to, " %dh", svg_y(v, span->rank) + v->bar / 2);
        svg_px(v, (double)span->waited_ns * v->scale);
    }
    fputs("\"/>\n", v->to);
}

void svg_put_rows(const struct svg *v)
{
    int step = v->row < 12 ? 16 / v->row + 1 : 1;

    fputs("<path class=\"l\" d=\"", v->to);
    for (int rank = 0; rank < v->t->ranks; rank++)
        svg_box(v, v->left, svg_y(v, rank), v->plot, v->bar);
    fputs("\"/>\n", v->to);
    for (int rank = 0; rank < v->t->ranks; rank += step)
        fprintf(v->to, "<text class=\"r\" x=\"%d\" y=\"%d\">rank %d</text>\n", v->left - 10,
                svg_y(v, rank) + v->bar / 2 + 5, rank);
}

void svg_put_bars(const struct svg *v)
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
