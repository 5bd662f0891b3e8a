/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_mixing.c - any bytes read as a mixing graph, in each format and with each kind of weights. What
 * can be read comes back the same as text, and is checked; what passes comes back as JSON, too, and
 * can lose a worker.
 */
#include "fuzz.h"
#include "mixing/graph.h"

#include <dualpipe/mixing.h>

#include <stdlib.h>
#include <string.h>

enum { MOST_WORKERS = 64, MOST_ROUNDS = 256 }; /* of what is looked at more closely */

static void must_be_same(const struct dp_graph *a, const struct dp_graph *b)
{
    must(a->workers == b->workers && a->local == b->local && a->period == b->period);
    must(a->push_sum == b->push_sum && !strcmp(a->name, b->name));
    must(a->group_count == b->group_count && a->member_count == b->member_count);
    must(a->link_count == b->link_count);
    for (size_t i = 0; i < a->member_count; i++)
        must(a->members[i] == b->members[i]);
    for (size_t i = 0; i < a->link_count; i++)
        must(a->links[i].from == b->links[i].from && a->links[i].to == b->links[i].to);
}

static void write_and_read_back(const struct dp_graph *g, enum dp_graph_format format)
{
    struct dp_graph *back;
    char *text;
    size_t len;

    must(!dp_graph_write(g, format, &text, &len));
    must(len == strlen(text));
    must(!dp_graph_read(text, len, format, DP_GRAPH_WEIGHTS_GIVEN, 0, &back));
    must_be_same(g, back);
    dp_graph_free(back);
    free(text);
}

static void lose_one(const struct dp_graph *g)
{
    bool alive[MOST_WORKERS];
    struct dp_graph *left;

    for (int i = 0; i < g->workers; i++)
        alive[i] = i != g->workers / 2;
    if (dp_graph_without(g, alive, &left)) {
        must(g->workers == 1 && *dp_last_error());
        return;
    }
    must(left->workers == g->workers - 1);
    dp_graph_free(left);
}

static void read_as(const uint8_t *data, size_t size, enum dp_graph_format format,
                    enum dp_graph_weights weights)
{
    struct dp_graph *g;

    if (dp_graph_read((const char *)data, size, format, weights, 0, &g)) {
        must(*dp_last_error());
        return;
    }
    write_and_read_back(g, DP_GRAPH_FORMAT_TEXT);
    if (g->workers <= MOST_WORKERS && g->period <= MOST_ROUNDS && !dp_graph_check(g, NULL)) {
        write_and_read_back(g, DP_GRAPH_FORMAT_JSON); /* which refuses some weights itself */
        lose_one(g);
    }
    dp_graph_free(g);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    for (int format = DP_GRAPH_FORMAT_GUESS; format <= DP_GRAPH_FORMAT_EDGES; format++)
        read_as(data, size, (enum dp_graph_format)format, DP_GRAPH_WEIGHTS_GIVEN);
    read_as(data, size, DP_GRAPH_FORMAT_EDGES, DP_GRAPH_WEIGHTS_UNIFORM);
    read_as(data, size, DP_GRAPH_FORMAT_EDGES, DP_GRAPH_WEIGHTS_METROPOLIS);
    return 0;
}
