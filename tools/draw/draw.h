/* SPDX-License-Identifier: Apache-2.0
 *
 * draw.h - pictures of a timeline, simulated or recorded: ranks down, time across.
 *
 *      struct dp_simulation sim;
 *      dp_schedule_simulate(s, &cost, DP_SIMULATE_TIMELINE | DP_SIMULATE_CRITICAL, &sim);
 *      draw_svg(file, &sim.timeline, s, &(struct draw_options){.title = "DualPipe"});
 */
#ifndef DP_TOOLS_DRAW_DRAW_H
#define DP_TOOLS_DRAW_DRAW_H

#include <dualpipe/schedule.h>

#include <stdio.h>

enum draw_detail {
    DRAW_AUTO,   /* labels where they fit on a screen, else shape */
    DRAW_LABELS, /* every bar with its name */
    DRAW_SHAPE   /* one line a rank, one letter a column: what it does most of that time */
};

/* Zeroed memory is a good picture. */
struct draw_options {
    const char *title;      /* NULL: kind, ranks and micro-batches of the schedule */
    int width; /* terminal: columns, 0: as many as it takes; SVG: pixels, 0: at most 1000.
                * What is wider is cut into panels */
    enum draw_detail detail; /* terminal only */
    bool colour;            /* terminal only: ANSI colours */
    bool arrows;            /* SVG only: messages, from the op that made one to the op that used it */
    const struct dp_span *critical; /* SVG: this path is outlined; may be NULL */
    size_t critical_count;
};

/* Letters and numbers for a terminal. F3: forward of micro-batch 3. B: backward, I: its input part,
 * W: its weight part. Lower case: the other direction (DualPipe's second stream, DualPipeV's way
 * back). F3&b1: an overlapped pair. Dots: idle. DP_EINVAL for an empty timeline and DP_ENOMEM, which
 * are written to standard error; DP_EIO if `to` cannot be written, which its owner closes. */
int draw_ascii(FILE *to, const struct dp_timeline *t, const struct dp_schedule *s,
               const struct draw_options *options);

/* A stand-alone SVG, for papers and browsers, on light and dark grounds. Errors as above; DP_EINVAL
 * also for more bars than a browser can show. */
int draw_svg(FILE *to, const struct dp_timeline *t, const struct dp_schedule *s,
             const struct draw_options *options);

/* The beginning of any SVG: its size in px, its title, the <style>, and the ground, of class "bg". */
void draw_svg_begin(FILE *to, double width, double height, const char *title, const char *style);

/* "4.2 ms": a time for people, three digits. Returns out. */
char *draw_time(int64_t ns, char *out, size_t len);

#endif
