/* SPDX-License-Identifier: Apache-2.0
 *
 * graph_format.c - write and read mixing graphs as text, JSON, a matrix or a list of edges; the
 * last two are lines of numbers.
 */
#include "base/array.h"
#include "base/fail.h"
#include "base/text.h"
#include "mixing/graph.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- lines of numbers ------------------------------------------------------------------------ */

/* Lines of numbers: a matrix or an edge list. */
struct number_table {
    double *items; /* row after row */
    int *columns;  /* [rows] */
    int *lines;    /* [rows]: where in the file */
    int rows;
    size_t count, capacity;
    int row_capacity;
};

static int no_memory(void)
{
    return dp_fail(DP_ENOMEM, "no memory for a mixing graph");
}

static int add_number(struct number_table *t, double value)
{
    double *items = dp_array_grow(t->items, &t->capacity, t->count + 1, sizeof(*items));

    if (!items)
        return no_memory();
    t->items = items;
    t->items[t->count++] = value;
    return 0;
}

static int add_row(struct number_table *t, int columns, int line)
{
    if (t->rows == t->row_capacity) {
        int capacity = 2 * t->row_capacity + 16;
        int *both = malloc(2 * (size_t)capacity * sizeof(*both));
        if (!both)
            return no_memory();
        if (t->rows) {
            memcpy(both, t->columns, (size_t)t->rows * sizeof(*both));
            memcpy(both + capacity, t->lines, (size_t)t->rows * sizeof(*both));
        }
        free(t->columns);
        t->columns = both;
        t->lines = both + capacity;
        t->row_capacity = capacity;
    }
    t->columns[t->rows] = columns;
    t->lines[t->rows++] = line;
    return 0;
}

static int read_line(struct number_table *t, const char *at, int line)
{
    int columns = 0, err = 0;

    for (at += strspn(at, " \t\r,"); *at && *at != '#' && *at != '\n' && !err;
         at += strspn(at, " \t\r,")) {
        char *end;
        double value = dp_strtod(at, &end);
        if (end == at || (*end && !strchr(" \t\r,\n#", *end)) || !isfinite(value))
            return dp_fail(DP_EINVAL,
                           "line %d: '%.*s', expected a number: a matrix or edges like "
                           "'0 3 0.25'",
                           line, (int)strcspn(at, " \t\r,\n"), at);
        err = add_number(t, value);
        columns++;
        at = end;
    }
    return err || !columns ? err : add_row(t, columns, line);
}

static void table_fini(struct number_table *t)
{
    free(t->items);
    free(t->columns);
    *t = (struct number_table){0};
}

static int read_table(const char *text, size_t len, struct number_table *out)
{
    const char *end = text + len;
    int err = 0;

    *out = (struct number_table){0};
    for (int line = 1; text < end && !err; line++) {
        err = read_line(out, text, line);
        text += strcspn(text, "\n");
        text += text < end;
    }
    if (!err && !out->rows)
        err =
            dp_fail(DP_EINVAL, "no lines, expected a mixing graph: text, JSON, a matrix or edges");
    if (err)
        table_fini(out);
    return err;
}

static bool is_square(const struct number_table *t)
{
    for (int i = 0; i < t->rows; i++)
        if (t->columns[i] != t->rows)
            return false;
    return true;
}

/* ---- a matrix -------------------------------------------------------------------------------- */

/* Neighbours of worker i: where its row or column has another entry than 0. */
static int degree_of(const double *m, int n, int i)
{
    int degree = 0;

    for (int j = 0; j < n; j++)
        degree += j != i && (m[(size_t)i * n + j] != 0 || m[(size_t)j * n + i] != 0);
    return degree;
}

static int find_degrees(const double *m, int n, int *degrees)
{
    int largest = 0;

    for (int i = 0; i < n; i++) {
        degrees[i] = degree_of(m, n, i);
        largest = degrees[i] > largest ? degrees[i] : largest;
    }
    return largest;
}

/* Replace the entries of a pattern by weights that make it symmetric and doubly stochastic. */
static int weigh_matrix(double *m, int n, enum dp_graph_weights weights)
{
    int *degrees = malloc((size_t)n * sizeof(*degrees));

    if (!degrees)
        return no_memory();
    int largest = find_degrees(m, n, degrees);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++) {
            double *one = &m[(size_t)i * n + j], *other = &m[(size_t)j * n + i];
            int degree = degrees[i] > degrees[j] ? degrees[i] : degrees[j];
            if (*one != 0 || *other != 0)
                *one = *other =
                    1.0 / (1 + (weights == DP_GRAPH_WEIGHTS_UNIFORM ? largest : degree));
        }
    for (int i = 0; i < n; i++) {
        double given = 0;
        for (int j = 0; j < n; j++)
            given += j == i ? 0 : m[(size_t)i * n + j];
        m[(size_t)i * n + i] = 1 - given;
    }
    free(degrees);
    return 0;
}

static int graph_of_matrix(const struct number_table *t, enum dp_graph_weights weights,
                           struct dp_graph **out)
{
    struct dp_graph_builder *b;
    const int n = t->rows;
    int err = 0;

    for (int i = 0; i < n; i++)
        if (t->columns[i] != n)
            return dp_fail(DP_EINVAL, "line %d: %d numbers, expected %d, one for each of the lines",
                           t->lines[i], t->columns[i], n);
    if (weights != DP_GRAPH_WEIGHTS_GIVEN)
        err = weigh_matrix(t->items, n, weights);
    if (!err)
        err = dp_graph_builder_new("matrix", n, 1, &b);
    if (err)
        return err;
    dp_graph_add_round(b);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            if (t->items[(size_t)i * n + j] != 0)
                dp_graph_add_link(b, j, i, t->items[(size_t)i * n + j]);
    return dp_graph_builder_end(b, out);
}

/* ---- edges ----------------------------------------------------------------------------------- */

/* The edges of a table, distinct, without loops. */
struct edges {
    int workers;
    size_t count;
    int32_t *ends, *colors; /* [2 * count], [count] */
    int *degrees;           /* [workers] */
    double *weights;        /* [count]: what each end takes of the other */
};

static int expected_edge(const struct number_table *t, int row, const char *what)
{
    return dp_fail(DP_EINVAL, "line %d: expected %s", t->lines[row], what);
}

static int read_edge(const struct number_table *t, int row, const double *items, struct edges *e)
{
    const double weight = t->columns[row] == 3 ? items[2] : 0.5;

    if (t->columns[row] < 2 || t->columns[row] > 3)
        return expected_edge(t, row, "two workers and perhaps a weight, like '0 3 0.25'");
    for (int k = 0; k < 2; k++)
        if (items[k] < 0 || items[k] >= DP_GRAPH_MAX_WORKERS || items[k] != floor(items[k]))
            return expected_edge(t, row, "workers as whole numbers from 0 on");
    if (items[0] == items[1])
        return expected_edge(t, row, "two different workers");
    if (!(weight > 0 && weight <= 1))
        return expected_edge(t, row, "a weight above 0, up to 1");
    e->ends[2 * row] = (int32_t)items[0];
    e->ends[2 * row + 1] = (int32_t)items[1];
    e->weights[row] = weight;
    return 0;
}

static int count_degrees(struct edges *e, int workers)
{
    int32_t last = 0;

    for (size_t i = 0; i < 2 * e->count; i++)
        last = e->ends[i] > last ? e->ends[i] : last;
    e->workers = workers ? workers : last + 1;
    if (last >= e->workers)
        return dp_fail(DP_EINVAL, "an edge of worker %d, expected 0 to %d", last, e->workers - 1);
    e->degrees = calloc((size_t)e->workers, sizeof(*e->degrees));
    if (!e->degrees)
        return no_memory();
    for (size_t i = 0; i < 2 * e->count; i++)
        e->degrees[e->ends[i]]++;
    return 0;
}

static int read_edges(const struct number_table *t, int workers, struct edges *e)
{
    const double *items = t->items;
    int err = 0;

    e->count = (size_t)t->rows;
    e->ends = malloc(2 * e->count * sizeof(*e->ends));
    e->colors = malloc(e->count * sizeof(*e->colors));
    e->weights = malloc(e->count * sizeof(*e->weights));
    if (!e->ends || !e->colors || !e->weights)
        return no_memory();
    for (int row = 0; row < t->rows && !err; items += t->columns[row++])
        err = read_edge(t, row, items, e);
    return err ? err : count_degrees(e, workers);
}

struct sorted_edge {
    int32_t low, high;
    int row;
};

static int by_workers(const void *a, const void *b)
{
    const struct sorted_edge *x = a, *y = b;

    if (x->low != y->low)
        return x->low < y->low ? -1 : 1;
    if (x->high != y->high)
        return x->high < y->high ? -1 : 1;
    return (x->row > y->row) - (x->row < y->row);
}

static int check_twice(const struct number_table *t, const struct edges *e)
{
    struct sorted_edge *sorted = malloc(e->count * sizeof(*sorted));
    int err = 0;

    if (!sorted)
        return no_memory();
    for (size_t i = 0; i < e->count; i++) {
        int32_t one = e->ends[2 * i], other = e->ends[2 * i + 1];
        sorted[i] =
            (struct sorted_edge){one < other ? one : other, one < other ? other : one, (int)i};
    }
    qsort(sorted, e->count, sizeof(*sorted), by_workers);
    for (size_t i = 1; i < e->count && !err; i++)
        if (sorted[i].low == sorted[i - 1].low && sorted[i].high == sorted[i - 1].high)
            err =
                dp_fail(DP_EINVAL, "line %d: the edge of workers %d and %d is there since line %d",
                        t->lines[sorted[i].row], sorted[i].low, sorted[i].high,
                        t->lines[sorted[i - 1].row]);
    free(sorted);
    return err;
}

static double pair_weight(const struct edges *e, size_t i, enum dp_graph_weights weights)
{
    int one = e->degrees[e->ends[2 * i]], other = e->degrees[e->ends[2 * i + 1]];

    if (weights == DP_GRAPH_WEIGHTS_METROPOLIS)
        return 1.0 / (1 + (one > other ? one : other));
    return weights == DP_GRAPH_WEIGHTS_UNIFORM ? 0.5 : e->weights[i];
}

static int build_rounds(const struct edges *e, enum dp_graph_weights weights, int32_t rounds,
                        struct dp_graph **out)
{
    struct dp_graph_builder *b;
    int err = dp_graph_builder_new("edges", e->workers, 1, &b);

    if (err)
        return err;
    for (int32_t color = 0; color < rounds; color++) {
        dp_graph_add_round(b);
        for (size_t i = 0; i < e->count; i++)
            if (e->colors[i] == color)
                dp_graph_add_group(b, e->ends + 2 * i, 2, 1 - pair_weight(e, i, weights));
        dp_graph_add_rest_alone(b);
    }
    return dp_graph_builder_end(b, out);
}

static int graph_of_edges(const struct number_table *t, enum dp_graph_weights weights, int workers,
                          struct dp_graph **out)
{
    struct edges e = {0};
    int32_t rounds = 0;
    int err = read_edges(t, workers, &e);

    if (!err)
        err = check_twice(t, &e);
    if (!err)
        err = dp_color_edges(e.workers, e.count, e.ends, e.colors, &rounds);
    if (!err)
        err = build_rounds(&e, weights, rounds, out);
    free(e.ends);
    free(e.colors);
    free(e.weights);
    free(e.degrees);
    return err;
}

/* ---- a written graph ------------------------------------------------------------------------- */

static bool same_pair(const double *one, const double *other)
{
    const double low = fmin(one[0], one[1]) - fmin(other[0], other[1]);
    const double high = fmax(one[0], one[1]) - fmax(other[0], other[1]);

    return !(fabs(low) > 0) && !(fabs(high) > 0);
}

/* The first two numbers of each line are two workers, and no two lines have the same. A matrix has such
 * lines only if it has entries above one. */
static bool begins_with_pairs(const struct number_table *table)
{
    for (int i = 0; i < table->rows; i++) {
        const double *pair = table->items + (size_t)i * (size_t)table->rows;
        if (!(fabs(pair[0] - pair[1]) > 0) || floor(pair[0]) < pair[0] || floor(pair[1]) < pair[1])
            return false;
        for (int k = 0; k < i; k++)
            if (same_pair(pair, table->items + (size_t)k * (size_t)table->rows))
                return false;
    }
    return true;
}

/* Two or three lines of as many numbers may be either. */
static bool looks_like_matrix(const struct number_table *table, int workers)
{
    const bool may_be_edges = table->rows == 2 || table->rows == 3;

    if (!is_square(table))
        return false;
    return !may_be_edges || !((workers && workers != table->rows) || begins_with_pairs(table));
}

static int read_numbers(const char *text, size_t len, enum dp_graph_format format,
                        enum dp_graph_weights weights, int workers, struct dp_graph **out)
{
    struct number_table table;
    int err = read_table(text, len, &table);

    if (err)
        return err;
    if (format == DP_GRAPH_FORMAT_GUESS)
        format =
            looks_like_matrix(&table, workers) ? DP_GRAPH_FORMAT_MATRIX : DP_GRAPH_FORMAT_EDGES;
    err = format == DP_GRAPH_FORMAT_MATRIX ? graph_of_matrix(&table, weights, out)
                                           : graph_of_edges(&table, weights, workers, out);
    table_fini(&table);
    return err;
}

/* The first letters behind blanks and comments. */
static const char *begin_of(const char *text)
{
    for (;;) {
        text += strspn(text, " \t\r\n");
        if (*text != '#')
            return text;
        text += strcspn(text, "\n");
    }
}

static int read_copy(const char *copy, size_t len, enum dp_graph_format format,
                     enum dp_graph_weights weights, int workers, struct dp_graph **out)
{
    const char *begin = begin_of(copy);

    if (format == DP_GRAPH_FORMAT_JSON || (format == DP_GRAPH_FORMAT_GUESS && *begin == '{'))
        return dp_graph_read_json(copy, len, out);
    if (format != DP_GRAPH_FORMAT_JSON && *begin == '{')
        return dp_fail(DP_EINVAL, "JSON, expected text; DP_GRAPH_FORMAT_JSON reads it, as does "
                       "DP_GRAPH_FORMAT_GUESS");
    if (format == DP_GRAPH_FORMAT_TEXT ||
        (format == DP_GRAPH_FORMAT_GUESS && !strncmp(begin, "mixing", 6)))
        return dp_graph_read_words(copy, len, out);
    return read_numbers(copy, len, format, weights, workers, out);
}

int dp_graph_write(const struct dp_graph *g, enum dp_graph_format format, char **out, size_t *len)
{
    struct dp_text t = {0};

    if (format == DP_GRAPH_FORMAT_TEXT)
        dp_graph_write_words(g, &t);
    else if (format == DP_GRAPH_FORMAT_JSON)
        dp_graph_write_json(g, &t);
    else
        return dp_fail(DP_EINVAL, "format of a mixing graph: %d, expected text or JSON", format);
    return dp_text_take(&t, out, len);
}

int dp_graph_read(const char *text, size_t len, enum dp_graph_format format,
                  enum dp_graph_weights weights, int workers, struct dp_graph **out)
{
    int err = dp_utf8_begin(&text, &len, NULL);

    if (err)
        return err;
    char *copy = malloc(len + 1);
    if (!copy)
        return dp_fail(DP_ENOMEM, "no memory for a mixing graph of %zu bytes", len);
    memcpy(copy, text, len);
    copy[len] = '\0';
    err = strlen(copy) == len ? read_copy(copy, len, format, weights, workers, out)
                              : dp_fail(DP_EINVAL, "a NUL at byte %zu, expected text", strlen(copy));
    free(copy);
    return err;
}
