/* SPDX-License-Identifier: Apache-2.0
 *
 * chart.c - panels of lines, two in a row, under one legend.
 *
 *      title
 *      --- A: ...      - - limit: ...
 *      latency, us                      bandwidth, GB/s
 *      10 |        __/                  10 |      ____
 *       1 |  _____/                      1 |  ___/
 *         8 B  4 KiB  512 KiB              8 B  4 KiB
 */
#include "draw/chart.h"

#include "draw/parts.h"

#include "text.h"

#include <math.h>

enum {
    PANEL_WIDTH = 420, PANEL_HEIGHT = 250, /* px with axes and title */
    LEFT = 56, RIGHT = 18, ABOVE = 34, BELOW = 34,
    PLOT_WIDTH = PANEL_WIDTH - LEFT - RIGHT, PLOT_HEIGHT = PANEL_HEIGHT - ABOVE - BELOW,
    MARGIN = 12, TITLE = 36, LEGEND_LINE = 19, COLOURS = 8,
    LABELS_MAX = 8 /* along an axis */
};

static const char style[] =
    "<style>\n"
    "text{fill:#1f2430;font-size:12px}.t{font-size:16px;font-weight:bold}.p{font-weight:bold}\n"
    ".x{text-anchor:middle;fill:#5b6472}.y{text-anchor:end;fill:#5b6472}\n"
    ".bg{fill:#fff}.g{stroke:#e4e7ec;fill:none}.l{fill:none;stroke-width:2}.d{stroke-dasharray:5 4}\n"
    ".c0{stroke:#2b6cb0}.c1{stroke:#c05621}.c2{stroke:#2f855a}.c3{stroke:#97266d}\n"
    ".c4{stroke:#6b46c1}.c5{stroke:#975a16}.c6{stroke:#4a5568}.c7{stroke:#00838f}\n"
    "@media (prefers-color-scheme:dark){\n"
    "text{fill:#e6e9ef}.x,.y{fill:#9aa4b2}.bg{fill:#14171c}.g{stroke:#2a303a}\n"
    ".c0{stroke:#63b3ed}.c1{stroke:#f6ad55}.c2{stroke:#68d391}.c3{stroke:#f687b3}\n"
    ".c4{stroke:#b794f4}.c5{stroke:#ecc94b}.c6{stroke:#a0aec0}.c7{stroke:#4dd0e1}\n"
    "}\n"
    "</style>\n";

/* ---- scale ----------------------------------------------------------------------------------- */

/* Whole decades around all values. */
struct scale {
    int lowest, highest;
};

static struct scale scale_of(const struct chart_panel *p)
{
    double least = INFINITY, most = 0;

    for (int s = 0; s < p->series_count; s++)
        for (int i = 0; i < p->count; i++) {
            const double v = p->values[s][i];
            least = v > 0 && v < least ? v : least;
            most = v > most ? v : most;
        }
    if (!(most > 0))
        return (struct scale){0, 1};
    struct scale scale = {(int)floor(log10(least)), (int)ceil(log10(most))};
    scale.highest += scale.highest == scale.lowest;
    return scale;
}

static double y_of(struct scale scale, double value)
{
    return ABOVE + PLOT_HEIGHT * (scale.highest - log10(value)) / (scale.highest - scale.lowest);
}

static double x_of(const struct chart_panel *p, int place)
{
    return LEFT + (place + 0.5) * PLOT_WIDTH / p->count;
}

/* ---- a panel --------------------------------------------------------------------------------- */

static void put_axes(FILE *to, const struct chart_panel *p, struct scale scale)
{
    fprintf(to, "<text class=\"p\" x=\"%d\" y=\"18\">", LEFT);
    text_put_xml(to, p->title, -1);
    fprintf(to, "</text><text class=\"y\" x=\"%d\" y=\"18\">", PANEL_WIDTH - RIGHT);
    text_put_xml(to, p->unit ? p->unit : "", -1);
    fputs("</text>\n", to);
    for (int decade = scale.lowest; decade <= scale.highest; decade++) {
        const double y = y_of(scale, pow(10, decade));
        fprintf(to, "<path class=\"g\" d=\"M%d %.1fh%d\"/><text class=\"y\" x=\"%d\" y=\"%.1f\">%g"
                    "</text>\n", LEFT, y, PLOT_WIDTH, LEFT - 6, y + 4, pow(10, decade));
    }
    for (int i = 0; i < p->count; i += 1 + (p->count - 1) / LABELS_MAX) {
        fprintf(to, "<text class=\"x\" x=\"%.1f\" y=\"%d\">", x_of(p, i),
                PANEL_HEIGHT - BELOW + 18);
        text_put_xml(to, p->labels[i], -1);
        fputs("</text>\n", to);
    }
}

static const char *dash(const struct chart *c, int series)
{
    return c->series[series].is_limit ? " d" : "";
}

/* A line through the values, with a dot at each: one value alone has no line. */
static void put_series(FILE *to, const struct chart *c, const struct chart_panel *p,
                       struct scale scale, int s)
{
    char step = 'M';

    fprintf(to, "<path class=\"l c%d%s\" d=\"", s % COLOURS, dash(c, s));
    for (int i = 0; i < p->count; i++) {
        if (!(p->values[s][i] > 0))
            continue;
        fprintf(to, "%c%.1f %.1f", step, x_of(p, i), y_of(scale, p->values[s][i]));
        step = 'L';
    }
    fprintf(to, "\"/><path class=\"l c%d\" d=\"", s % COLOURS);
    for (int i = 0; i < p->count; i++)
        if (p->values[s][i] > 0)
            fprintf(to, "M%.1f %.1fm-2 0h4", x_of(p, i), y_of(scale, p->values[s][i]));
    fputs("\"/>\n", to);
}

static void put_panel(FILE *to, const struct chart *c, const struct chart_panel *p, int x, int y)
{
    const struct scale scale = scale_of(p);

    fprintf(to, "<g transform=\"translate(%d %d)\">\n", x, y);
    put_axes(to, p, scale);
    for (int s = 0; s < p->series_count; s++)
        put_series(to, c, p, scale, s);
    fputs("</g>\n", to);
}

/* ---- the whole ------------------------------------------------------------------------------- */

static void put_legend(FILE *to, const struct chart *c)
{
    for (int s = 0; s < c->series_count; s++) {
        const int y = TITLE + LEGEND_LINE * s + 10;
        fprintf(to, "<path class=\"l c%d%s\" d=\"M%d %dh28\"/><text x=\"%d\" y=\"%d\">",
                s % COLOURS, dash(c, s), MARGIN, y, MARGIN + 36, y + 4);
        text_put_xml(to, c->series[s].name, -1);
        fputs("</text>\n", to);
    }
}

int draw_chart(FILE *to, const struct chart *c)
{
    const int top = TITLE + LEGEND_LINE * c->series_count + MARGIN;
    const int width = (c->panel_count > 1 ? 2 : 1) * PANEL_WIDTH + 2 * MARGIN;
    const int height = top + (c->panel_count + 1) / 2 * PANEL_HEIGHT + MARGIN;

    fprintf(to, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                "viewBox=\"0 0 %d %d\" font-family=\"Helvetica,Arial,sans-serif\">\n<title>",
            width, height, width, height);
    text_put_xml(to, c->title, -1);
    fprintf(to, "</title>\n%s<path class=\"bg\" d=\"M0 0h%dv%dH0z\"/>\n<text class=\"t\" x=\"%d\" "
                "y=\"26\">", style, width, height, MARGIN);
    text_put_xml(to, c->title, -1);
    fputs("</text>\n", to);
    put_legend(to, c);
    for (int i = 0; i < c->panel_count; i++)
        put_panel(to, c, &c->panels[i], MARGIN + i % 2 * PANEL_WIDTH, top + i / 2 * PANEL_HEIGHT);
    fputs("</svg>\n", to);
    return draw_finish(to, 0);
}
