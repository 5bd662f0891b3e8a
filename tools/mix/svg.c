/* SPDX-License-Identifier: Apache-2.0
 *
 * svg.c - `dualpipe mix svg`: a circle of workers for every round, and lines between those that average.
 */
#include "command.h"
#include "commands.h"
#include "draw/parts.h"
#include "mix/mix.h"
#include "output.h"

#include <math.h>

struct svg_args {
    struct mix_args common;
    const char *output;
};

enum { WORKERS_MAX = 256, ROUNDS_MAX = 64, ACROSS = 4, RADIUS = 110, CELL = 2 * RADIUS + 60, TOP = 50 };

static const char style[] =
    "<style>text{fill:#1f2430;font:11px sans-serif;text-anchor:middle}.t{font-size:17px;"
    "font-weight:bold;text-anchor:start}.bg{fill:#fff}.w{fill:#dfe6f2;stroke:#6f8ab8}"
    ".g{fill:#b4e0cc;stroke:#3d9a76;stroke-width:2;fill-opacity:.45}.l{stroke:#d65a24;"
    "fill:none;marker-end:url(#a)}.a{fill:#d65a24}"
    "@media (prefers-color-scheme:dark){.bg{fill:#14171c}.t,.k{fill:#e6e9ef}}</style>\n";

struct place {
    double x, y;
};

static struct place place_of(const struct dp_graph *g, int32_t t, int32_t worker)
{
    const double angle = 2 * 3.14159265358979 * worker / g->workers - 3.14159265358979 / 2;

    return (struct place){CELL * (t % ACROSS + 0.5) + RADIUS * cos(angle),
                          TOP + CELL * (t / ACROSS + 0.5) + 10 + RADIUS * sin(angle)};
}

static void put_group(FILE *to, const struct dp_graph *g, int32_t t, const struct dp_mix_group *group)
{
    if (group->count < 2)
        return;
    fprintf(to, "<path class=\"g\" d=\"");
    for (int32_t k = 0; k < group->count; k++) {
        struct place p = place_of(g, t, g->members[group->first + (size_t)k]);
        fprintf(to, "%c%.1f %.1f", k ? 'L' : 'M', p.x, p.y);
    }
    fprintf(to, "Z\"><title>keeps %.6g</title></path>\n", group->self);
}

static void put_link(FILE *to, const struct dp_graph *g, int32_t t, const struct dp_mix_link *l)
{
    struct place from = place_of(g, t, l->from), end = place_of(g, t, l->to);
    const double length = hypot(end.x - from.x, end.y - from.y), share = 12 / fmax(length, 12);

    if (l->from == l->to)
        return;
    fprintf(to, "<path class=\"l\" d=\"M%.1f %.1fL%.1f %.1f\"><title>%d to %d: %.6g</title></path>\n",
            from.x + (end.x - from.x) * share, from.y + (end.y - from.y) * share,
            end.x - (end.x - from.x) * share, end.y - (end.y - from.y) * share, l->from, l->to,
            l->weight);
}

static void put_workers(FILE *to, const struct dp_graph *g, int32_t t)
{
    const double radius = g->workers > 64 ? 3 : 10;

    for (int32_t w = 0; w < g->workers; w++) {
        struct place p = place_of(g, t, w);
        fprintf(to, "<circle class=\"w\" cx=\"%.1f\" cy=\"%.1f\" r=\"%g\"/>\n", p.x, p.y, radius);
        if (g->workers <= 64)
            fprintf(to, "<text x=\"%.1f\" y=\"%.1f\">%d</text>\n", p.x, p.y + 4, w);
    }
}

static void put_round(FILE *to, const struct dp_graph *g, int32_t t)
{
    const struct dp_mix_round *r = &g->rounds[t];

    for (size_t i = 0; i < r->group_count; i++)
        put_group(to, g, t, &g->groups[r->first_group + i]);
    for (size_t i = 0; i < r->link_count; i++)
        put_link(to, g, t, &g->links[r->first_link + i]);
    put_workers(to, g, t);
    fprintf(to, "<text class=\"k\" x=\"%.1f\" y=\"%.1f\">round %d</text>\n", CELL * (t % ACROSS + 0.5),
            TOP + CELL * (t / ACROSS + 0.5) + 14, t);
}

static void draw(FILE *to, const struct dp_graph *g)
{
    const int across = g->period < ACROSS ? g->period : ACROSS;

    fprintf(to, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\">\n%s",
            CELL * across, TOP + CELL * ((g->period + ACROSS - 1) / ACROSS) + 10, style);
    fprintf(to, "<defs><marker id=\"a\" markerWidth=\"8\" markerHeight=\"8\" refX=\"7\" refY=\"3\" "
                "orient=\"auto\"><path class=\"a\" d=\"M0 0L7 3L0 6Z\"/></marker></defs>\n");
    fprintf(to, "<rect class=\"bg\" width=\"100%%\" height=\"100%%\"/>\n"
                "<text class=\"t\" x=\"12\" y=\"26\">");
    draw_escaped(to, g->name);
    fprintf(to, ", %d workers</text>\n", g->workers);
    for (int32_t t = 0; t < g->period; t++)
        put_round(to, g, t);
    fprintf(to, "</svg>\n");
}

static int svg(const void *values, const struct dp_graph *g)
{
    const struct svg_args *a = values;
    struct output out;

    if (g->workers > WORKERS_MAX || g->period > ROUNDS_MAX)
        return command_misused("%d workers and %d rounds are too much for a picture, expected up to %d "
                               "and %d", g->workers, g->period, WORKERS_MAX, ROUNDS_MAX);
    int status = output_open(a->output, &out);
    if (status)
        return status;
    draw(out.file, g);
    return output_close(&out, 0);
}

static const struct arg args[] = {
    {"output", 'o', "FILE", "where to (default standard output)", ARG_STRING,
     .offset = offsetof(struct svg_args, output), .written = true},
};

int run_mix_svg(int argc, char **argv)
{
    const struct arg_group groups[] = {
        mix_graph_group, mix_file_group, {"output", args, sizeof(args) / sizeof(args[0])}, {0},
    };
    const struct usage usage = {
        .command = "dualpipe mix svg",
        .operands = "[KIND]",
        .operand_choices = mix_kinds(),
        .max_operands = 1,
        .about = "Draw a mixing graph as SVG: a circle of workers for every round. Filled shapes are\n"
                 "groups whose members average, arrows are links.",
        .groups = groups,
        .examples = "  dualpipe mix svg one-peer-exp -N 16 -o graph.svg\n"
                    "  dualpipe mix svg --file edges.txt >graph.svg\n",
    };
    struct svg_args a = {0};

    return mix_run(&usage, argc, argv, &a, false, svg);
}
