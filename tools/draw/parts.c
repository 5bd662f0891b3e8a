/* SPDX-License-Identifier: Apache-2.0 */
#include "draw/parts.h"

#include "command.h"
#include "text.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- looks ---------------------------------------------------------------------------------- */

bool draw_look_of(struct dp_op op, struct draw_look *look)
{
    static const enum draw_kind kinds[DP_OP_KINDS] = {
        [DP_OP_F] = DRAW_F, [DP_OP_B] = DRAW_B,      [DP_OP_I] = DRAW_I,
        [DP_OP_W] = DRAW_W, [DP_OP_REDUCE] = DRAW_R, [DP_OP_REDUCE_WAIT] = DRAW_R,
        [DP_OP_RECOMPUTE] = DRAW_A,
    };

    if (op.kind != DP_OP_F && (op.kind >= DP_OP_KINDS || kinds[op.kind] == DRAW_F))
        return false;
    *look = (struct draw_look){kinds[op.kind], op.slot % 2};
    return true;
}

char draw_letter(struct draw_look look)
{
    char letter = "FBIWARX"[look.kind];

    return look.back ? (char)tolower(letter) : letter;
}

const char *draw_kind_text(enum draw_kind kind)
{
    static const char *const texts[DRAW_KINDS] = {
        "forward", "backward", "backward: input", "backward: weights", "recompute",
        "gradient sum", "overlapped",
    };

    return texts[kind];
}

static int label_op(struct dp_op op, char *out, size_t len)
{
    struct draw_look look;

    if (!draw_look_of(op, &look))
        return snprintf(out, len, "?");
    if (look.kind == DRAW_R)
        return snprintf(out, len, "%c", draw_letter(look));
    return snprintf(out, len, "%c%d", draw_letter(look), (int)op.mb);
}

int draw_label(const struct dp_span *span, char out[DRAW_LABEL_LEN])
{
    int n = label_op(span->op, out, DRAW_LABEL_LEN);

    if (span->pair.kind == DP_OP_NONE)
        return n;
    out[n++] = '&';
    return n + label_op(span->pair, out + n, (size_t)(DRAW_LABEL_LEN - n));
}

void draw_census(const struct dp_timeline *t, struct draw_census *census)
{
    struct draw_look look;

    *census = (struct draw_census){0};
    for (size_t i = 0; i < t->count; i++) {
        const struct dp_span *span = &t->spans[i];
        if (!draw_look_of(span->op, &look))
            continue;
        census->kinds[look.kind] = true;
        census->back |= look.back;
        census->waits |= span->waited_ns > 0;
        if (draw_look_of(span->pair, &look)) {
            census->kinds[look.kind] = census->kinds[DRAW_PAIR] = true;
            census->back |= look.back;
        }
    }
}

/* ---- texts ---------------------------------------------------------------------------------- */

char *draw_time(int64_t ns, char *out, size_t len)
{
    double value = (double)ns, size = value < 0 ? -value : value;

    if (!ns)
        snprintf(out, len, "0");
    else if (size >= 1e9)
        snprintf(out, len, "%.4g s", value / 1e9);
    else if (size >= 1e6)
        snprintf(out, len, "%.4g ms", value / 1e6);
    else if (size >= 1e3)
        snprintf(out, len, "%.4g us", value / 1e3);
    else
        snprintf(out, len, "%.4g ns", value);
    return out;
}

void draw_title(const struct dp_schedule *s, char *out, size_t len)
{
    static const char *const names[] = {
        [DP_SCHEDULE_USER] = "Schedule",      [DP_SCHEDULE_GPIPE] = "GPipe",
        [DP_SCHEDULE_1F1B] = "1F1B",          [DP_SCHEDULE_DUALPIPE] = "DualPipe",
        [DP_SCHEDULE_DUALPIPEV] = "DualPipeV", [DP_SCHEDULE_ZBV] = "ZB-V",
        [DP_SCHEDULE_INTERLEAVED] = "Interleaved 1F1B", [DP_SCHEDULE_ASYNC] = "AsyncPipe",
    };
    bool known = (size_t)s->kind < sizeof(names) / sizeof(names[0]) && names[s->kind];

    snprintf(out, len, "%s, %d rank%s, %d micro-batch%s%s",
             known ? names[s->kind] : dp_name(DP_NAMES_SCHEDULE, s->kind), s->ranks,
             s->ranks == 1 ? "" : "s", s->microbatches, s->microbatches == 1 ? "" : "es",
             s->forward_only ? ", forward only" : "");
}

void draw_sum(const struct dp_timeline *t, char *out, size_t len)
{
    char time[32];
    double busy = 0, all = (double)t->ranks * (double)t->makespan_ns;

    for (size_t i = 0; i < t->count; i++)
        busy += (double)(t->spans[i].end_ns - t->spans[i].start_ns);
    snprintf(out, len, "%s, bubble %.1f %%", draw_time(t->makespan_ns, time, sizeof(time)),
             all > 0 ? 100 * (1 - busy / all) : 0);
}

void draw_svg_begin(FILE *to, double width, double height, const char *title, const char *style)
{
    fprintf(to,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
            "viewBox=\"0 0 %.0f %.0f\" font-family=\"Helvetica,Arial,sans-serif\">\n<title>",
            width, height, width, height);
    text_put_xml(to, title, -1);
    fprintf(to, "</title>\n%s<path class=\"bg\" d=\"M0 0h%.0fv%.0fH0z\"/>\n", style, width, height);
}

/* ---- errors --------------------------------------------------------------------------------- */

bool draw_is_empty(const struct dp_timeline *t)
{
    if (t->count && t->makespan_ns > 0)
        return false;
    command_misused("nothing to draw: no op takes any time");
    return true;
}

int draw_finish(FILE *to, int err)
{
    if (err == DP_ENOMEM)
        command_broke("no memory for a picture");
    if (err)
        return err;
    return fflush(to) || ferror(to) ? DP_EIO : 0;
}

/* ---- scale ---------------------------------------------------------------------------------- */

struct draw_ticks draw_ticks(int64_t length_ns, int max)
{
    static const struct draw_ticks units[] = {{0, 1e9, "s"}, {0, 1e6, "ms"}, {0, 1e3, "us"},
                                              {0, 1, "ns"}};
    struct draw_ticks ticks = units[3];
    static const int steps[] = {1, 2, 5};

    for (int i = 3; i >= 0; i--)
        if ((double)length_ns >= units[i].unit_ns)
            ticks = units[i];
    for (int64_t power = 1;; power *= 10)
        for (int i = 0; i < 3; i++) {
            ticks.step_ns = steps[i] * power;
            if (length_ns / ticks.step_ns <= max)
                return ticks;
        }
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double draw_percentile(double *values, size_t count, double share)
{
    qsort(values, count, sizeof(*values), compare_doubles);
    return values[lround(share * (double)(count - 1))];
}
