/* SPDX-License-Identifier: Apache-2.0 */
#include "draw/svg.h"

#include <math.h>

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
