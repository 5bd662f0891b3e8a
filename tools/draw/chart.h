/* SPDX-License-Identifier: Apache-2.0
 *
 * chart.h - measured values as an SVG: panels of lines over the same places, on a logarithmic scale.
 */
#ifndef DP_TOOLS_DRAW_CHART_H
#define DP_TOOLS_DRAW_CHART_H

#include <stdbool.h>
#include <stdio.h>

enum { CHART_SERIES_MAX = 16, CHART_PLACES_MAX = 40, CHART_PANELS_MAX = 40 };

/* Something that was measured again and again, the same in every panel. */
struct chart_series {
    char name[128];
    bool is_limit; /* dashed */
};

struct chart_panel {
    char title[48];
    const char *unit; /* of the values */
    int series_count, count;
    char labels[CHART_PLACES_MAX][16];                /* [count], from left to right */
    double values[CHART_SERIES_MAX][CHART_PLACES_MAX]; /* 0: none there */
};

struct chart {
    const char *title;
    int series_count, panel_count;
    struct chart_series series[CHART_SERIES_MAX];
    struct chart_panel panels[CHART_PANELS_MAX];
};

/* DP_EIO if `to` cannot be written, which its owner closes. */
int draw_chart(FILE *to, const struct chart *chart);

#endif
