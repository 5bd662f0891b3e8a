/* SPDX-License-Identifier: Apache-2.0
 *
 * ascii.c - a timeline in a terminal.
 *
 *              0       2       4       6               labels: a bar is its name and as many dashes
 *      rank 0  F0- F1- .................. B0-----      as its time takes; long pictures are cut
 *      rank 1  ....F0- B0----- F1- B1-----             into panels
 *
 *      rank 0  FF....BB..BB                            shape: a letter a column, what the rank does
 *      rank 1  .FBBFBB.....                            most of that time
 */
#include "draw/parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_PANELS = 6,   /* DRAW_AUTO: more are no help on a screen */
    MAX_ROWS = 64,    /* shape: of more ranks, every k-th is drawn */
    MAX_WIDTH = 1 << 20,
    TICK_COLUMNS = 8
};

/* A row being put together: its characters, and for each the look behind it (-1: idle). */
struct row {
    char *text;
    signed char *looks;
    int width;
};

struct ascii {
    FILE *to;
    const struct dp_timeline *t;
    const struct draw_options *o;
    int margin;     /* columns of "rank 12  " */
    int columns;    /* of the plot, in one panel */
    double scale;   /* columns per ns */
    double brief_ns; /* one bar in ten is shorter */
    struct row row;
};

/* ---- rows ----------------------------------------------------------------------------------- */

static signed char look_code(struct draw_look look)
{
    return (signed char)(2 * look.kind + look.back);
}

static void clear_row(struct row *row, int width)
{
    row->width = width;
    memset(row->text, '.', (size_t)width);
    memset(row->looks, -1, (size_t)width);
}

/* 256-colour backgrounds by look_code, light enough for black letters. */
static const unsigned char backgrounds[] = {215, 223, 72, 151, 74, 153, 140, 183, 250, 252};

static void print_row(const struct ascii *a, int rank)
{
    const struct row *row = &a->row;
    int last = -1, width = row->width;

    while (width && row->text[width - 1] == ' ' && row->looks[width - 1] < 0)
        width--;
    fprintf(a->to, "rank %-*d", a->margin - 5, rank);
    for (int i = 0; i < width; i++) {
        if (a->o->colour && row->looks[i] != last) {
            last = row->looks[i];
            if (last < 0)
                fputs("\033[0m", a->to);
            else
                fprintf(a->to, "\033[30;48;5;%dm", backgrounds[last]);
        }
        putc(row->text[i], a->to);
    }
    fputs(last < 0 ? "\n" : "\033[0m\n", a->to);
}

static const struct dp_span *rank_begin(const struct dp_timeline *t, int rank)
{
    size_t low = 0, high = t->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (t->spans[middle].rank < rank)
            low = middle + 1;
        else
            high = middle;
    }
    return t->spans + low;
}

/* ---- labels --------------------------------------------------------------------------------- */

/* Fill columns [from, to) with a bar: its name, dashes (or colour), a gap if there is room. */
static void put_bar(const struct ascii *a, const struct dp_span *span, int from, int to)
{
    char label[DRAW_LABEL_LEN];
    int len = draw_label(span, label), width = to - from;
    int drawn = width > len ? width - 1 : width, middle = (int)strcspn(label, "&");
    struct draw_look first, second;

    draw_look_of(span->op, &first);
    if (!draw_look_of(span->pair, &second))
        second = first;
    for (int i = 0; i < width; i++) {
        bool gap = i >= drawn;
        a->row.text[from + i] = i < len ? label[i] : gap ? ' ' : a->o->colour ? ' ' : '-';
        if (!gap)
            a->row.looks[from + i] = look_code(i <= middle ? first : second);
    }
}

/* The bars of a rank between two times, one of them cut off at either end where it must be. */
static void fill_labels(const struct ascii *a, int rank, int panel)
{
    struct draw_look look;
    const struct dp_span *end = a->t->spans + a->t->count;
    int left = panel * a->columns;

    for (const struct dp_span *s = rank_begin(a->t, rank); s < end && s->rank == rank; s++) {
        int from = (int)lround((double)s->start_ns * a->scale) - left;
        int to = (int)lround((double)s->end_ns * a->scale) - left;
        if (from < 0)
            from = 0;
        if (to > a->row.width)
            to = a->row.width;
        if (from < to && draw_look_of(s->op, &look))
            put_bar(a, s, from, to);
    }
}

/* ---- shape ---------------------------------------------------------------------------------- */

enum { LOOKS = 2 * DRAW_KINDS };

/* Share a bar's time among the columns that it covers. */
static void add_time(const struct ascii *a, const struct dp_span *s, int look,
                     float (*busy)[LOOKS])
{
    double from = (double)s->start_ns * a->scale, to = (double)s->end_ns * a->scale;

    for (int c = (int)from; c < a->row.width && c < to; c++)
        busy[c][look] += (float)(fmin(to, c + 1) - fmax(from, c));
}

static void put_most(const struct row *row, int column, const float *busy)
{
    float idle = 1, most = 0;
    int best = -1;

    for (int look = 0; look < LOOKS; look++) {
        idle -= busy[look];
        if (busy[look] > most) {
            most = busy[look];
            best = look;
        }
    }
    if (best < 0 || idle > most)
        return;
    struct draw_look look = {(enum draw_kind)(best / 2), best % 2};
    row->text[column] = draw_letter(look);
    /* A pair is shown in the colour of its forward. */
    row->looks[column] = (signed char)(look.kind == DRAW_PAIR ? look.back : best);
}

static int fill_shape(const struct ascii *a, int rank)
{
    const struct dp_span *end = a->t->spans + a->t->count;
    float(*busy)[LOOKS] = calloc((size_t)a->row.width, sizeof(*busy));
    struct draw_look look;

    if (!busy)
        return DP_ENOMEM;
    for (const struct dp_span *s = rank_begin(a->t, rank); s < end && s->rank == rank; s++) {
        if (!draw_look_of(s->op, &look))
            continue;
        if (s->pair.kind != DP_OP_NONE)
            look.kind = DRAW_PAIR;
        add_time(a, s, look_code(look), busy);
    }
    for (int c = 0; c < a->row.width; c++)
        put_most(&a->row, c, busy[c]);
    free(busy);
    return 0;
}

/* ---- around the rows ------------------------------------------------------------------------ */

/* "0       2       4 ms" over a panel whose left edge is column `left` of the whole picture. */
static void print_axis(const struct ascii *a, int left)
{
    double length_ns = a->columns / a->scale;
    struct draw_ticks ticks = draw_ticks((int64_t)length_ns, a->columns / TICK_COLUMNS);
    int at = 0;

    fprintf(a->to, "%-*s", a->margin, ticks.unit);
    for (int64_t i = 0;; i++) {
        char text[32];
        double ns = (double)(i * ticks.step_ns);
        int column = (int)lround(ns * a->scale) - left;
        int len = snprintf(text, sizeof(text), "%g", ns / ticks.unit_ns);
        if (column + len > a->columns || ns > (double)a->t->makespan_ns)
            break;
        if (column < at)
            continue;
        fprintf(a->to, "%*s%s", column - at, "", text);
        at = column + len;
    }
    putc('\n', a->to);
}

/* The next entry of the legend, on a new line where the old one is full. */
static int print_entry(const struct ascii *a, const char *name, const char *text, int column)
{
    const int len = (int)(strlen(name) + 1 + strlen(text));
    const bool folds = column && a->o->width && column + 2 + len > a->o->width;

    fprintf(a->to, "%s%s %s", folds ? "\n" : column ? "  " : "", name, text);
    return folds || !column ? len : column + 2 + len;
}

static void print_legend(const struct ascii *a, bool labels)
{
    struct draw_census census;
    int column = 0;

    draw_census(a->t, &census);
    for (int kind = 0; kind < DRAW_KINDS; kind++)
        if (census.kinds[kind]) {
            struct draw_look look = {.kind = (enum draw_kind)kind};
            const char letter[] = {draw_letter(look), 0}, *name = letter;
            if (kind == DRAW_PAIR && labels)
                name = census.back ? "F&b" : "F&B";
            column = print_entry(a, name, draw_kind_text((enum draw_kind)kind), column);
        }
    print_entry(a, ".", "idle", column);
    fprintf(a->to, "\n%s", census.back ? "lower case: the other direction\n" : "");
}

static void print_labels(struct ascii *a, int total)
{
    for (int panel = 0; panel * a->columns < total; panel++) {
        int left = panel * a->columns;
        if (panel)
            putc('\n', a->to);
        print_axis(a, left);
        for (int rank = 0; rank < a->t->ranks; rank++) {
            clear_row(&a->row, total - left < a->columns ? total - left : a->columns);
            fill_labels(a, rank, panel);
            print_row(a, rank);
        }
    }
    print_legend(a, true);
}

static int print_shape(struct ascii *a)
{
    int stride = (a->t->ranks + MAX_ROWS - 1) / MAX_ROWS, err = 0;

    print_axis(a, 0);
    for (int rank = 0; rank < a->t->ranks && !err; rank += stride) {
        clear_row(&a->row, a->columns);
        err = fill_shape(a, rank);
        print_row(a, rank);
    }
    if (stride > 1)
        fprintf(a->to, "(one rank in %d is shown)\n", stride);
    print_legend(a, false);
    return err;
}

/* ---- the picture ---------------------------------------------------------------------------- */

/* Columns per ns so that nearly every bar has room for its name and a gap; how long a short bar
 * is. */
static int find_scale(struct ascii *a)
{
    char label[DRAW_LABEL_LEN];
    size_t count = a->t->count;
    double *needs = malloc(2 * count * sizeof(*needs));

    if (!needs)
        return DP_ENOMEM;
    double *lengths = needs + count;
    for (size_t i = 0; i < count; i++) {
        const struct dp_span *span = &a->t->spans[i];
        lengths[i] = fmax(1, (double)(span->end_ns - span->start_ns));
        needs[i] = (draw_label(span, label) + 1) / lengths[i];
    }
    a->scale = draw_percentile(needs, count, 0.95);
    a->brief_ns = draw_percentile(lengths, count, 0.1);
    free(needs);
    return 0;
}

static int digits(int n)
{
    return snprintf(NULL, 0, "%d", n);
}

/* Labels on panels of the width that there is, or all of it in one line of letters. */
static bool use_labels(const struct draw_options *o, double total, int columns)
{
    if (o->detail != DRAW_AUTO || !o->width)
        return o->detail != DRAW_SHAPE && total <= MAX_WIDTH;
    return total <= (double)MAX_PANELS * columns;
}

/* Panels of about equal width, none wider than `room`, that begin at a round time, so that few bars
 * are cut in two. */
static int panel_columns(const struct ascii *a, int total, int room)
{
    if (!a->o->width || total <= room)
        return total;
    int panels = (total + room - 1) / room, columns = (total + panels - 1) / panels;
    for (int tick = TICK_COLUMNS; tick > 0; tick /= 2) {
        struct draw_ticks ticks = draw_ticks((int64_t)(columns / a->scale), columns / tick);
        double step = (double)ticks.step_ns * a->scale;
        double snapped = ceil(columns / step - 1e-9) * step;
        if (snapped <= room)
            return (int)snapped;
    }
    return columns;
}

/* Columns of a shape: where a short bar has one at least, each has whole ones. */
static int shape_columns(const struct ascii *a, int room)
{
    double briefs = (double)a->t->makespan_ns / a->brief_ns;

    return briefs > room ? room : (int)ceil(briefs * floor(room / briefs));
}

static int alloc_row(struct row *row, int width)
{
    row->text = malloc((size_t)width);
    row->looks = malloc((size_t)width);
    return row->text && row->looks ? 0 : DP_ENOMEM;
}

static int draw_body(struct ascii *a)
{
    int room = (a->o->width ? a->o->width : 100) - a->margin, err;
    double makespan = (double)a->t->makespan_ns;

    if (room < TICK_COLUMNS)
        room = TICK_COLUMNS;
    if ((err = find_scale(a)))
        return err;
    double total = ceil(makespan * a->scale);
    bool labels = use_labels(a->o, total, room);
    a->columns = labels ? panel_columns(a, (int)total, room) : shape_columns(a, room);
    if (!labels)
        a->scale = a->columns / makespan;
    if ((err = alloc_row(&a->row, a->columns + 1)))
        return err;
    if (!labels)
        return print_shape(a);
    print_labels(a, (int)total);
    return 0;
}

int draw_ascii(FILE *to, const struct dp_timeline *t, const struct dp_schedule *s,
               const struct draw_options *o)
{
    struct ascii a = {.to = to, .t = t, .o = o};
    char title[96], sum[96];

    if (draw_is_empty(t))
        return DP_EINVAL;
    draw_title(s, title, sizeof(title));
    draw_sum(t, sum, sizeof(sum));
    fprintf(to, "%s: %s\n\n", o->title ? o->title : title, sum);
    a.margin = digits(t->ranks - 1) + 7;
    int err = draw_body(&a);
    free(a.row.text);
    free(a.row.looks);
    return draw_finish(to, err);
}
