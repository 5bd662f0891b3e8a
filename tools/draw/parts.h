/* SPDX-License-Identifier: Apache-2.0
 *
 * parts.h - what the pictures have in common: what a bar is called and how it looks, ticks, titles.
 */
#ifndef DP_TOOLS_DRAW_PARTS_H
#define DP_TOOLS_DRAW_PARTS_H

#include "draw/draw.h"

/* How a bar looks: its kind and its direction. An overlapped pair has two looks. */
enum draw_kind { DRAW_F, DRAW_B, DRAW_I, DRAW_W, DRAW_A, DRAW_R, DRAW_PAIR, DRAW_KINDS };

struct draw_look {
    enum draw_kind kind;
    bool back; /* the other direction: DualPipe's stream 1, DualPipeV's way back, any odd slot */
};

/* false for an op that is no bar (a message, a commit). */
bool draw_look_of(struct dp_op op, struct draw_look *look);

/* "F", "B", "I", "W", "A" (forward again), "R", "X"; in lower case for the other direction. */
char draw_letter(struct draw_look look);
/* "forward", "backward", ... for a legend. */
const char *draw_kind_text(enum draw_kind kind);

/* "F3", "w12", "F3&b1". Returns its length. */
enum { DRAW_LABEL_LEN = 24 };
int draw_label(const struct dp_span *span, char out[DRAW_LABEL_LEN]);

/* "DualPipe, 8 ranks, 20 micro-batches". */
void draw_title(const struct dp_schedule *s, char *out, size_t len);
/* "66 ms, bubble 9.1 %": what the picture adds up to. */
void draw_sum(const struct dp_timeline *t, char *out, size_t len);

/* true if there is nothing to draw, which has been said. */
bool draw_is_empty(const struct dp_timeline *t);
/* The last call of a drawing: what to return after err, or if `to` has failed. */
int draw_finish(FILE *to, int err);

/* Ticks of a time axis: the round step that gives at most `max` of them, and the unit in which to
 * print them. */
struct draw_ticks {
    int64_t step_ns;
    double unit_ns;
    const char *unit; /* "ms" */
};
struct draw_ticks draw_ticks(int64_t length_ns, int max);

/* The value than which `share` (0..1) of values[count] are smaller; count >= 1. Sorts them. */
double draw_percentile(double *values, size_t count, double share);

/* Which kinds occur, and whether both directions do. */
struct draw_census {
    bool kinds[DRAW_KINDS];
    bool back, waits;
};
void draw_census(const struct dp_timeline *t, struct draw_census *census);

#endif
