/* SPDX-License-Identifier: Apache-2.0
 *
 * color.c - colour the edges of a graph with at most its largest degree + 1 colours (Vizing's
 * theorem; Misra and Gries, 1992), so that a list of edges becomes as many rounds of pairs.
 *
 * For an edge x - f0 without a colour: a fan of x is a list of neighbours f0, f1, ... such that the
 * colour of x - f[i + 1] is free at f[i]. With c free at x and d free at the last of a longest fan:
 * swap c and d along the path of these two colours that begins at x; then there is a prefix of the fan
 * at whose end d is free. Rotate that prefix: each x - f[i] takes the colour of x - f[i + 1], and the
 * last edge takes d.
 */
#include "base/fail.h"
#include "mixing/graph.h"

#include <stdlib.h>

/* at[worker * colors + color]: the edge of that colour there, or -1. */
struct coloring {
    int workers, colors;
    const int32_t *ends;
    int32_t *of; /* colour of each edge, -1: none yet */
    int64_t *at;
    int32_t *fan;   /* edges at x */
    bool *in_fan;   /* [workers] */
    int32_t *path;  /* [workers] edges of two colours in turns */
    int32_t length;
};

static int32_t other_end(const struct coloring *c, int64_t edge, int32_t worker)
{
    return c->ends[2 * edge] == worker ? c->ends[2 * edge + 1] : c->ends[2 * edge];
}

static int64_t *edge_at(const struct coloring *c, int32_t worker, int32_t color)
{
    return &c->at[(size_t)worker * (size_t)c->colors + (size_t)color];
}

static int32_t free_color(const struct coloring *c, int32_t worker)
{
    int32_t color = 0;

    while (*edge_at(c, worker, color) >= 0)
        color++;
    return color;
}

static void set_color(struct coloring *c, int64_t edge, int32_t color)
{
    for (int k = 0; k < 2; k++)
        *edge_at(c, c->ends[2 * edge + k], color) = edge;
    c->of[edge] = color;
}

/* The longest fan of x that begins with this edge. */
static void make_fan(struct coloring *c, int32_t x, int64_t edge)
{
    bool longer = true;

    c->length = 0;
    c->fan[c->length++] = (int32_t)edge;
    c->in_fan[other_end(c, edge, x)] = true;
    while (longer) {
        int32_t last = other_end(c, c->fan[c->length - 1], x);
        longer = false;
        for (int32_t color = 0; color < c->colors && !longer; color++) {
            int64_t next = *edge_at(c, x, color);
            if (*edge_at(c, last, color) >= 0 || next < 0 || c->in_fan[other_end(c, next, x)])
                continue;
            c->fan[c->length++] = (int32_t)next;
            c->in_fan[other_end(c, next, x)] = true;
            longer = true;
        }
    }
    for (int32_t i = 0; i < c->length; i++)
        c->in_fan[other_end(c, c->fan[i], x)] = false;
}

/* Swap the two colours along the path from x that begins with colour d; the other one is free at x. */
static void invert_path(struct coloring *c, int32_t x, int32_t free_at_x, int32_t d)
{
    int32_t worker = x, color = d, length = 0;

    for (int64_t e; (e = *edge_at(c, worker, color)) >= 0; color = color == d ? free_at_x : d) {
        c->path[length++] = (int32_t)e;
        worker = other_end(c, e, worker);
    }
    /* Edges leave the table first: in the middle of the path two would share a place. */
    for (int32_t i = 0; i < length; i++)
        for (int k = 0; k < 2; k++)
            *edge_at(c, c->ends[2 * c->path[i] + k], i % 2 ? free_at_x : d) = -1;
    for (int32_t i = 0; i < length; i++)
        set_color(c, c->path[i], i % 2 ? d : free_at_x);
}

/* The last of the longest prefix that is still a fan and at whose end d is free. */
static int32_t find_rotation(const struct coloring *c, int32_t x, int32_t d)
{
    for (int32_t i = 0; i < c->length; i++) {
        int32_t end = other_end(c, c->fan[i], x);
        if (i > 0 &&
            *edge_at(c, other_end(c, c->fan[i - 1], x), c->of[c->fan[i]]) >= 0)
            break;
        if (*edge_at(c, end, d) < 0)
            return i;
    }
    return 0;
}

static void rotate(struct coloring *c, int32_t x, int32_t last, int32_t d)
{
    for (int32_t i = 0; i < last; i++) {
        int32_t color = c->of[c->fan[i + 1]], end = other_end(c, c->fan[i + 1], x);
        *edge_at(c, x, color) = -1;
        *edge_at(c, end, color) = -1;
        c->of[c->fan[i + 1]] = -1;
        set_color(c, c->fan[i], color);
    }
    set_color(c, c->fan[last], d);
}

/* The first colour that is free at both ends, -1 if there is none. */
static int32_t common_color(const struct coloring *c, int32_t x, int32_t y)
{
    for (int32_t color = 0; color < c->colors; color++)
        if (*edge_at(c, x, color) < 0 && *edge_at(c, y, color) < 0)
            return color;
    return -1;
}

static void color_edge(struct coloring *c, int64_t edge)
{
    int32_t x = c->ends[2 * edge], common = common_color(c, x, c->ends[2 * edge + 1]);

    if (common >= 0) {
        set_color(c, edge, common);
        return;
    }
    make_fan(c, x, edge);
    int32_t at_x = free_color(c, x);
    int32_t d = free_color(c, other_end(c, c->fan[c->length - 1], x));
    if (*edge_at(c, x, d) >= 0)
        invert_path(c, x, at_x, d);
    rotate(c, x, find_rotation(c, x, d), d);
}

static int largest_degree(int workers, size_t edges, const int32_t *ends, int *out)
{
    int *degrees = calloc((size_t)workers, sizeof(*degrees)), largest = 0;

    if (!degrees)
        return dp_fail(DP_ENOMEM, "no memory for %d workers", workers);
    for (size_t i = 0; i < 2 * edges; i++)
        largest = ++degrees[ends[i]] > largest ? degrees[ends[i]] : largest;
    free(degrees);
    *out = largest;
    return 0;
}

/* Colours that came out unused leave no empty round. */
static int32_t close_gaps(size_t edges, int32_t *colors, int32_t count)
{
    int32_t used = 0;

    for (int32_t color = 0; color < count; color++) {
        bool any = false;
        for (size_t i = 0; i < edges; i++)
            if (colors[i] == color) {
                colors[i] = used;
                any = true;
            }
        used += any;
    }
    return used;
}

int dp_color_edges(int workers, size_t edges, const int32_t *ends, int32_t *colors, int32_t *used)
{
    struct coloring c = {.workers = workers, .ends = ends, .of = colors};
    int err = largest_degree(workers, edges, ends, &c.colors);

    if (err)
        return err;
    const size_t places = (size_t)workers * (size_t)++c.colors;
    c.at = malloc(places * sizeof(*c.at));
    c.fan = malloc((size_t)c.colors * sizeof(*c.fan));
    c.in_fan = calloc((size_t)workers, sizeof(*c.in_fan));
    c.path = malloc((size_t)workers * sizeof(*c.path));
    if (c.at && c.fan && c.in_fan && c.path) {
        for (size_t i = 0; i < places; i++)
            c.at[i] = -1;
        for (size_t i = 0; i < edges; i++)
            colors[i] = -1;
        for (size_t i = 0; i < edges; i++)
            color_edge(&c, (int64_t)i);
        *used = close_gaps(edges, colors, c.colors);
    } else {
        err = dp_fail(DP_ENOMEM, "no memory for %d workers", workers);
    }
    free(c.at);
    free(c.fan);
    free(c.in_fan);
    free(c.path);
    return err;
}
