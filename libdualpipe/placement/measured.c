/* SPDX-License-Identifier: Apache-2.0
 *
 * measured.c - the traffic of a job as its ranks have written it (DUALPIPE_PROFILER_TRAFFIC): a
 * line of JSON for every rank of every communicator. The largest communicator is the job; the ranks
 * of the others are found in it by host and process.
 *
 *      {"dualpipe_traffic": 1, "comm": "92ab...", "ranks": 3, "rank": 0, "host": "a", "process": 7,
 *       "sent": [[1, 4096]], "functions": {"AllReduce": [2, 8192]}}
 *
 * Of a collective NCCL tells the size, and not to which peers it goes; it is taken for a ring in
 * the order of the ranks: all-reduce sends 2 (N-1)/N of its bytes to the next rank, all-gather and
 * reduce-scatter N-1 times those of a rank, broadcast and reduce all of them.
 */
#include "base/array.h"
#include "base/fail.h"
#include "base/json.h"
#include "base/text.h"
#include <dualpipe/placement.h>

#include <stdlib.h>
#include <string.h>

enum { RANKS_MAX = 1 << 20 };

/* A line. Strings live as long as its root. */
struct line {
    json_t *root;
    const char *comm, *host;
    int ranks, rank, process;
    int world; /* rank in the job; -1: its process is not in it */
};

struct lines {
    int count;
    size_t room;
    struct line *items;
    const char *world; /* the job's communicator */
    int ranks;         /* of it */
};

/* ---- lines ----------------------------------------------------------------------------------- */

static int read_line(struct line *l, const char *name, int number)
{
    char where[512];
    int version = 0;

    snprintf(where, sizeof(where), "%s:%d", name, number);
    const struct dp_json top = {0}, file = {l->root, &top, where, 0};
    int err = dp_json_get_int(&file, "dualpipe_traffic", 1, 1, &version);
    if (!err)
        err = dp_json_take_string(&file, "comm", &l->comm);
    if (!err)
        err = dp_json_take_string(&file, "host", &l->host);
    if (!err)
        err = dp_json_get_int(&file, "ranks", 1, RANKS_MAX, &l->ranks);
    if (!err)
        err = dp_json_get_int(&file, "rank", 0, l->ranks - 1, &l->rank);
    if (!err)
        err = dp_json_take_int(&file, "process", 0, INT32_MAX, &l->process);
    if (!err && (!l->comm || !l->host))
        err = dp_fail(DP_EINVAL, "%s: no %s, expected one", where, l->comm ? "host" : "comm");
    return err;
}

static struct line *add_line(struct lines *all)
{
    struct line *items =
        dp_array_grow(all->items, &all->room, (size_t)all->count + 1, sizeof(*items));

    if (!items)
        return NULL;
    all->items = items;
    struct line *l = &all->items[all->count++];
    *l = (struct line){.world = -1};
    return l;
}

/* The text of a line is JSON's line 1, whichever it is of the file. */
static int parse_line(const char *text, size_t bytes, const char *name, int number, json_t **root)
{
    json_error_t error;

    *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    return *root ? 0 : dp_fail(DP_EINVAL, "%s:%d: column %d: %s; expected JSON", name, number,
                               error.column, error.text);
}

static int read_lines(const char *text, size_t len, const char *name, struct lines *all)
{
    const char *end = text + len;
    int err = 0;

    for (int number = 1; !err && text < end; number++) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        const size_t bytes = (size_t)((newline ? newline : end) - text);
        if (bytes) {
            struct line *l = add_line(all);
            err = l ? parse_line(text, bytes, name, number, &l->root)
                    : dp_fail(DP_ENOMEM, "%s: no memory for line %d", name, number);
            if (!err)
                err = read_line(l, name, number);
        }
        text += bytes + 1;
    }
    if (!err && !all->count)
        err = dp_fail(DP_EINVAL, "%s: no line, expected those that DUALPIPE_PROFILER_TRAFFIC adds",
                      name);
    return err;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static int compare_lines(const void *a, const void *b)
{
    const struct line *x = a, *y = b;
    const int comm = strcmp(x->comm, y->comm);

    return comm ? comm : (x->rank > y->rank) - (x->rank < y->rank);
}

static const struct line *find_line(const struct lines *all, const char *comm, int rank)
{
    const struct line key = {.comm = comm, .rank = rank};

    return bsearch(&key, all->items, (size_t)all->count, sizeof(key), compare_lines);
}

static int compare_processes(const void *a, const void *b)
{
    const struct line *x = *(const struct line *const *)a, *y = *(const struct line *const *)b;
    const int host = strcmp(x->host, y->host);

    return host ? host : (x->process > y->process) - (x->process < y->process);
}

/* The largest communicator; of several runs in one file, the first by its hash. */
static void choose_world(struct lines *all)
{
    for (int i = 0; i < all->count; i++)
        if (all->items[i].ranks > all->ranks) {
            all->ranks = all->items[i].ranks;
            all->world = all->items[i].comm;
        }
}

static int find_world(struct lines *all)
{
    struct line **world = malloc((size_t)all->count * sizeof(*world));
    size_t count = 0;

    if (!world)
        return dp_fail(DP_ENOMEM, "no memory for %d lines of traffic", all->count);
    choose_world(all);
    for (int i = 0; i < all->count; i++)
        if (!strcmp(all->items[i].comm, all->world))
            world[count++] = &all->items[i];
    qsort(world, count, sizeof(*world), compare_processes);
    for (int i = 0; i < all->count; i++) {
        const struct line *l = &all->items[i];
        struct line *const *found = bsearch(&l, world, count, sizeof(l), compare_processes);
        all->items[i].world = found ? (*found)->rank : -1;
    }
    free(world);
    return 0;
}

static int count_missing(const struct lines *all)
{
    int missing = 0;

    for (int r = 0; r < all->ranks; r++)
        missing += !find_line(all, all->world, r);
    return missing;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

struct growing {
    struct dp_traffic_matrix *m;
    size_t room;
};

static int add(struct growing *g, int from, int to, double bytes)
{
    struct dp_traffic_matrix *m = g->m;

    if (from < 0 || to < 0 || from == to || bytes <= 0)
        return 0;
    struct dp_measured_flow *flows =
        dp_array_grow(m->flows, &g->room, (size_t)m->flow_count + 1, sizeof(*flows));
    if (!flows)
        return dp_fail(DP_ENOMEM, "no memory for %d flows", m->flow_count + 1);
    m->flows = flows;
    m->flows[m->flow_count++] = (struct dp_measured_flow){from, to, bytes};
    return 0;
}

static int compare_flows(const void *a, const void *b)
{
    const struct dp_measured_flow *x = a, *y = b;

    return x->from != y->from ? (x->from > y->from) - (x->from < y->from)
                              : (x->to > y->to) - (x->to < y->to);
}

/* One flow from a rank to another. */
static void merge(struct dp_traffic_matrix *m)
{
    int32_t count = 0;

    if (m->flow_count)
        qsort(m->flows, (size_t)m->flow_count, sizeof(*m->flows), compare_flows);
    for (int32_t i = 0; i < m->flow_count; i++)
        if (count && !compare_flows(&m->flows[count - 1], &m->flows[i]))
            m->flows[count - 1].bytes += m->flows[i].bytes;
        else
            m->flows[count++] = m->flows[i];
    m->flow_count = count;
}

/* Of the peer; the job's rank of a peer that wrote no line is not known, except in the job itself.
 */
static int world_of(const struct lines *all, const struct line *l, int peer)
{
    const struct line *p = find_line(all, l->comm, peer);

    return p ? p->world : strcmp(l->comm, all->world) ? -1 : peer;
}

static int add_sent(const struct lines *all, const struct line *l, struct growing *g)
{
    const json_t *sent = json_object_get(l->root, "sent");
    int err = 0;

    for (size_t i = 0; !err && i < json_array_size(sent); i++) {
        const json_t *pair = json_array_get(sent, i);
        const json_int_t peer = json_integer_value(json_array_get(pair, 0));
        if (json_array_size(pair) != 2 || peer < 0 || peer >= l->ranks)
            return dp_fail(DP_EINVAL,
                           "sent[%zu] of rank %d: expected [peer, bytes], a peer below %d", i,
                           l->rank, l->ranks);
        err = add(g, l->world, world_of(all, l, (int)peer),
                  json_number_value(json_array_get(pair, 1)));
    }
    return err;
}

/* To the next rank of a ring, of the bytes that NCCL reports. */
static double share_of(const char *function, int ranks)
{
    const double n = ranks;

    if (!strcmp(function, "AllReduce"))
        return 2 * (n - 1) / n;
    if (!strcmp(function, "AllGather") || !strcmp(function, "ReduceScatter"))
        return n - 1;
    return !strcmp(function, "Broadcast") || !strcmp(function, "Reduce");
}

static int add_collectives(const struct lines *all, const struct line *l, struct growing *g)
{
    const int next = world_of(all, l, (l->rank + 1) % l->ranks);
    json_t *functions = json_object_get(l->root, "functions");
    double bytes = 0;

    for (void *i = json_object_iter(functions); i; i = json_object_iter_next(functions, i))
        bytes += share_of(json_object_iter_key(i), l->ranks) *
                 json_number_value(json_array_get(json_object_iter_value(i), 1));
    return add(g, l->world, next, bytes);
}

/* ---- reading --------------------------------------------------------------------------------- */

static int add_up(struct lines *all, struct dp_traffic_matrix *m)
{
    qsort(all->items, (size_t)all->count, sizeof(*all->items), compare_lines);
    int err = find_world(all);
    if (err)
        return err;
    m->ranks = all->ranks;
    m->missing = count_missing(all);
    struct growing g = {m, 0};
    for (int i = 0; !err && i < all->count; i++) {
        err = add_sent(all, &all->items[i], &g);
        if (!err)
            err = add_collectives(all, &all->items[i], &g);
    }
    merge(m);
    return err;
}

int dp_traffic_read(const char *text, size_t len, const char *name, struct dp_traffic_matrix **out)
{
    struct dp_traffic_matrix *m = calloc(1, sizeof(*m));
    struct lines all = {0};
    int err = m ? dp_utf8_begin(&text, &len, name) : dp_fail(DP_ENOMEM, "%s: no memory", name);

    if (!err)
        err = read_lines(text, len, name, &all);
    if (!err)
        err = add_up(&all, m);
    for (int i = 0; i < all.count; i++)
        json_decref(all.items[i].root);
    free(all.items);
    if (err)
        dp_traffic_free(m);
    else
        *out = m;
    return err;
}

void dp_traffic_free(struct dp_traffic_matrix *m)
{
    if (m)
        free(m->flows);
    free(m);
}
