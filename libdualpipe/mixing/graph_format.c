/* SPDX-License-Identifier: Apache-2.0
 *
 * graph_format.c - write and read mixing graphs as text, JSON, a matrix or a list of edges.
 */
#include "base/fail.h"
#include "base/utf8.h"
#include "mixing/graph.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

static bool same_pair(const double *one, const double *other)
{
    const double low = fmin(one[0], one[1]) - fmin(other[0], other[1]);
    const double high = fmax(one[0], one[1]) - fmax(other[0], other[1]);

    return !(fabs(low) > 0) && !(fabs(high) > 0);
}

/* The first two numbers of each line are two workers, and no two lines have the same. A matrix has such
 * lines only if it has entries above one. */
static bool begins_with_pairs(const struct dp_number_table *table)
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
static bool looks_like_matrix(const struct dp_number_table *table, int workers)
{
    const bool may_be_edges = table->rows == 2 || table->rows == 3;

    if (!dp_number_table_is_square(table))
        return false;
    return !may_be_edges || !((workers && workers != table->rows) || begins_with_pairs(table));
}

static int read_table(const char *text, size_t len, enum dp_graph_format format,
                      enum dp_graph_weights weights, int workers, struct dp_graph **out)
{
    struct dp_number_table table;
    int err = dp_number_table_read(text, len, &table);

    if (err)
        return err;
    if (format == DP_GRAPH_FORMAT_GUESS)
        format =
            looks_like_matrix(&table, workers) ? DP_GRAPH_FORMAT_MATRIX : DP_GRAPH_FORMAT_EDGES;
    err = format == DP_GRAPH_FORMAT_MATRIX ? dp_graph_of_matrix(&table, weights, out)
                                           : dp_graph_of_edges(&table, weights, workers, out);
    dp_number_table_fini(&table);
    return err;
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
    return read_table(copy, len, format, weights, workers, out);
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
