/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_mixing.c - any bytes read as a mixing graph. What can be read comes back the same as text, and is
 * checked; what passes can lose a worker.
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

static void write_and_read_back(const struct dp_graph *g)
{
    struct dp_graph *back;
    char *text;
    size_t len;

    must(!dp_graph_write(g, &text, &len));
    must(len == strlen(text));
    must(!dp_graph_read(text, len, &back));
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dp_graph *g;

    if (dp_graph_read((const char *)data, size, &g)) {
        must(*dp_last_error());
        return 0;
    }
    write_and_read_back(g);
    if (g->workers <= MOST_WORKERS && g->period <= MOST_ROUNDS && !dp_graph_check(g, NULL))
        lose_one(g);
    dp_graph_free(g);
    return 0;
}
