/* SPDX-License-Identifier: Apache-2.0 */
#include "mix/curve.h"

#include "draw/draw.h"
#include "draw/parts.h"

#include <math.h>

enum { LEFT = 70, TOP = 50, WIDTH = 640, HEIGHT = 300, GAP = 60, TIME_LEN = 24 };

static const char style[] =
    "<style>text{fill:#1f2430;font:12px sans-serif}.t{font-size:17px;font-weight:bold}"
    ".e{text-anchor:end}.m{text-anchor:middle}.bg{fill:#fff}.f{fill:none;stroke:#a9b0bb}"
    ".a{fill:none;stroke:#2868b8;stroke-width:2}.b{fill:none;stroke:#d65a24;stroke-width:2;"
    "stroke-dasharray:6 4}"
    "@media (prefers-color-scheme:dark){.bg{fill:#14171c}text{fill:#e6e9ef}}</style>\n";

/* A picture of one figure: its range is on a logarithmic scale. */
struct plot {
    FILE *to;
    int top;
    double longest_ns, least, most;
};

static double figure(const struct dp_mixing_sample *p, bool consensus)
{
    return consensus ? p->consensus : p->loss;
}

static void find_range(struct plot *v, const struct dp_mixing_run *run, bool consensus)
{
    for (int32_t i = 0; i < run->sample_count; i++) {
        const double value = figure(&run->samples[i], consensus);
        v->longest_ns = fmax(v->longest_ns, run->samples[i].time_ns);
        if (value > 1e-9) {
            v->least = fmin(v->least, value);
            v->most = fmax(v->most, value);
        }
    }
}

static double x_of(const struct plot *v, double ns)
{
    return LEFT + WIDTH * ns / fmax(v->longest_ns, 1);
}

static double y_of(const struct plot *v, double value)
{
    const double span = log(v->most / v->least);
    const double share = span > 0 ? log(fmax(value, v->least) / v->least) / span : 0.5;

    return v->top + HEIGHT * (1 - share);
}

static void put_curve(const struct plot *v, const struct dp_mixing_run *run, bool consensus,
                      const char *class)
{
    fprintf(v->to, "<path class=\"%s\" d=\"", class);
    for (int32_t i = consensus; i < run->sample_count; i++)
        fprintf(v->to, "%c%.1f %.1f", i == (int32_t)consensus ? 'M' : 'L',
                x_of(v, run->samples[i].time_ns), y_of(v, figure(&run->samples[i], consensus)));
    fprintf(v->to, "\"/>\n");
}

static void put_frame(const struct plot *v, const char *name)
{
    char text[TIME_LEN];

    fprintf(v->to, "<rect class=\"f\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n", LEFT, v->top,
            WIDTH, HEIGHT);
    fprintf(v->to, "<text x=\"%d\" y=\"%d\">%s</text>\n", LEFT + 8, v->top + 18, name);
    fprintf(v->to, "<text class=\"e\" x=\"%d\" y=\"%d\">%.3g</text>\n", LEFT - 6, v->top + 10, v->most);
    fprintf(v->to, "<text class=\"e\" x=\"%d\" y=\"%d\">%.3g</text>\n", LEFT - 6, v->top + HEIGHT,
            v->least);
    fprintf(v->to, "<text x=\"%d\" y=\"%d\">0</text>\n", LEFT, v->top + HEIGHT + 16);
    fprintf(v->to, "<text class=\"e\" x=\"%d\" y=\"%d\">%s</text>\n", LEFT + WIDTH,
            v->top + HEIGHT + 16, draw_time((int64_t)v->longest_ns, text, sizeof(text)));
}

static void put_plot(FILE *to, int top, const struct dp_mixing_run runs[2], bool consensus)
{
    struct plot v = {.to = to, .top = top, .least = INFINITY, .most = 0};

    find_range(&v, &runs[0], consensus);
    if (!consensus)
        find_range(&v, &runs[1], consensus);
    if (!(v.most > 0))
        v.least = v.most = 1;
    put_frame(&v, consensus ? "distance to the mean of all workers" : "loss of the mean of all workers");
    put_curve(&v, &runs[0], consensus, "a");
    if (!consensus)
        put_curve(&v, &runs[1], false, "b");
}

void mix_draw_curves(FILE *to, const struct dp_graph *g, const struct dp_mixing_run runs[2])
{
    const int height = TOP + 2 * (HEIGHT + GAP);

    fprintf(to, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\">\n%s",
            LEFT + WIDTH + 30, height, style);
    fprintf(to, "<rect class=\"bg\" width=\"100%%\" height=\"100%%\"/>\n"
                "<text class=\"t\" x=\"%d\" y=\"26\">", LEFT);
    draw_escaped(to, g->name);
    fprintf(to, ", %d workers (line); all-reduce (dashes)</text>\n", g->workers);
    put_plot(to, TOP, runs, false);
    put_plot(to, TOP + HEIGHT + GAP, runs, true);
    fprintf(to, "</svg>\n");
}
