/* SPDX-License-Identifier: Apache-2.0
 *
 * svg_legend.c - the legend of an SVG: only what occurs, in as many lines as it takes.
 */
#include "draw/svg.h"

#include <string.h>

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

int svg_place_legend(struct svg *v, int y)
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

void svg_put_legend(const struct svg *v)
{
    for (int i = 0; i < v->entry_count; i++) {
        const struct svg_entry *e = &v->entries[i];
        put_entry_swatch(v, e);
        fprintf(v->to, "<text class=\"k\" x=\"%d\" y=\"%d\">%s</text>\n",
                e->x + (e->swatch ? e->swatch + 6 : 0), e->y + 12, e->text);
    }
}
