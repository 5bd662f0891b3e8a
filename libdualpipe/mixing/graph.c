/* SPDX-License-Identifier: Apache-2.0
 *
 * graph.c - the built-in graphs; find a graph's name, build it, check it; and equality.
 */
#include "mixing/graph.h"

#include "base/fail.h"
#include "base/sized.h"
#include "base/options.h"
#include "base/text.h"
#include <dualpipe/random.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ---- the built-in graphs ----------------------------------------------------------------------- */

/* A function each. n workers, L of them on a node, Q = n / L nodes. */

static bool is_power_of_two(int n)
{
    return n > 0 && !(n & (n - 1));
}

static int ceil_log2(int n)
{
    int bits = 0;

    while (1 << bits < n)
        bits++;
    return bits;
}

static void add_pair(struct dp_graph_builder *b, int32_t one, int32_t other)
{
    dp_graph_add_group(b, (int32_t[]){one, other}, 2, -1);
}

static void add_alone(struct dp_graph_builder *b, int32_t rank)
{
    dp_graph_add_group(b, &rank, 1, 1);
}

/* Ranks first, first + step, ...; `count` of them. */
static int add_sequence(struct dp_graph_builder *b, int32_t first, int32_t step, int32_t count)
{
    int32_t *ranks = malloc((size_t)count * sizeof(*ranks));

    if (!ranks)
        return dp_fail(DP_ENOMEM, "no memory for a group of %d workers", count);
    for (int32_t i = 0; i < count; i++)
        ranks[i] = first + i * step;
    dp_graph_add_group(b, ranks, count, -1);
    free(ranks);
    return 0;
}

/* ---- groups and pairs ------------------------------------------------------------------------ */

static int build_complete(const struct dp_graph_spec *spec, struct dp_graph_builder *b)
{
    dp_graph_add_round(b);
    return add_sequence(b, 0, 1, spec->workers);
}

static int build_ring(const struct dp_graph_spec *spec, struct dp_graph_builder *b)
{
    const int n = spec->workers;

    if (n % 2)
        return dp_fail(DP_EINVAL, "ring: %d workers, expected an even number", n);
    for (int t = 0; t < 2; t++) {
        dp_graph_add_round(b);
        for (int i = 0; i < n; i += 2)
            add_pair(b, i, t ? (i + n - 1) % n : i + 1);
    }
    return 0;
}

static int build_one_peer_exp(const struct dp_graph_spec *spec, struct dp_graph_builder *b)
{
    const int n = spec->workers;

    if (!is_power_of_two(n))
        return dp_fail(DP_EINVAL, "one-peer-exp: %d workers, expected a power of two (hypercube takes "
                       "any number)", n);
    dp_graph_add_round(b);
    if (n == 1)
        add_alone(b, 0);
    for (int bit = 1; bit < n; bit *= 2) {
        if (bit > 1)
            dp_graph_add_round(b);
        for (int j = 0; j < n; j++)
            if (!(j & bit))
                add_pair(b, j, j ^ bit);
    }
    return 0;
}

/* Both nodes by themselves, or their union. */
static int add_nodes(struct dp_graph_builder *b, int local, int one, int other, bool together)
{
    int32_t *ranks = malloc(2 * (size_t)local * sizeof(*ranks));

    if (!ranks)
        return dp_fail(DP_ENOMEM, "no memory for a group of %d workers", 2 * local);
    for (int i = 0; i < local; i++) {
        ranks[i] = one * local + i;
        ranks[local + i] = other * local + i;
    }
    if (together) {
        dp_graph_add_group(b, ranks, 2 * local, -1);
    } else {
        dp_graph_add_group(b, ranks, local, -1);
        dp_graph_add_group(b, ranks + local, local, -1);
    }
    free(ranks);
    return 0;
}

/* Pairs of nodes along one bit of the node number: in rounds 2k and 2k + 1 a pair averages by node
 * and then together, or the other way round, in turns from pair to pair. */
static int build_alternating(const struct dp_graph_spec *spec, struct dp_graph_builder *b)
{
    const int local = spec->local, nodes = spec->workers / local;
    int turn = 0, err = 0;

    if (!is_power_of_two(nodes) || nodes < 2)
        return dp_fail(DP_EINVAL, "alternating-exp-ring: %d nodes of %d workers, expected a power of "
                       "two, at least 2 nodes", nodes, local);
    for (int bit = 1; bit < nodes; bit *= 2) {
        const int first_turn = turn;
        for (int half = 0; half < 2; half++) {
            turn = first_turn;
            dp_graph_add_round(b);
            for (int q = 0; q < nodes && !err; q++)
                if (!(q & bit))
                    err = add_nodes(b, local, q, q ^ bit, (turn++ + half) % 2);
        }
    }
    return err;
}

/* A round a prime factor p of `count`: groups of p along one digit of the mixed-radix number of a
 * position; positions are `stride` ranks apart. Exact consensus of the positions after all rounds. */
static int add_digits(struct dp_graph_builder *b, int count, int stride)
{
    int err = 0;

    for (int digit = 1, rest = count; rest > 1 && !err;) {
        int p = 2;
        while (rest % p && p * p <= rest)
            p++;
        p = rest % p ? rest : p;
        dp_graph_add_round(b);
        for (int i = 0; i < count; i++)
            for (int k = 0; i / digit % p == 0 && k < stride && !err; k++)
                err = add_sequence(b, i * stride + k, digit * stride, p);
        digit *= p;
        rest /= p;
    }
    return err;
}

static int build_hypercube(const struct dp_graph_spec *spec, struct dp_graph_builder *b)
{
    if (spec->workers > 1)
        return add_digits(b, spec->workers, 1);
    dp_graph_add_round(b);
    add_alone(b, 0);
    return 0;
}

static int build_hierarchical(const struct dp_graph_spec *spec, struct dp_graph_builder *b)
{
    const int local = spec->local, nodes = spec->workers / local;
    int err = 0;

    dp_graph_add_round(b);
    for (int q = 0; q < nodes && !err; q++)
        err = add_sequence(b, q * local, 1, local);
    return err ? err : add_digits(b, nodes, local);
}

/* ---- random matching ------------------------------------------------------------------------- */

static uint32_t draw(struct dp_random_key key, uint64_t *at, uint32_t below)
{
    uint32_t block[4];

    dp_random_block(key, (*at)++, block);
    return (uint32_t)((uint64_t)block[0] * below >> 32);
}

static void shuffle(int32_t *ranks, int n, struct dp_random_key key, uint64_t *at)
{
    for (int i = n - 1; i > 0; i--) {
        int j = (int)draw(key, at, (uint32_t)i + 1);
        int32_t swapped = ranks[i];
        ranks[i] = ranks[j];
        ranks[j] = swapped;
    }
}

/* A walk round the ring in a random order has neighbours 2i, 2i + 1 in even and 2i + 1, 2i + 2 in odd
 * rounds. So two rounds of one order reach all workers (one worker stays alone where n is odd, another
 * one each time), and the graph is connected whatever the seed. */
static int build_random_matching(const struct dp_graph_spec *spec, struct dp_graph_builder *b)
{
    const int n = spec->workers, usual = 2 * ceil_log2(n);
    const int rounds = spec->rounds ? spec->rounds : usual > 4 ? usual : 4;
    const struct dp_random_key key = dp_random_key(spec->seed, 0, 0, 0);
    int32_t *ranks = malloc((size_t)n * sizeof(*ranks));
    uint64_t at = 0;

    if (!ranks)
        return dp_fail(DP_ENOMEM, "no memory for %d workers", n);
    for (int i = 0; i < n; i++)
        ranks[i] = i;
    for (int t = 0; t < rounds; t++) {
        if (t != 1)
            shuffle(ranks, n, key, &at);
        dp_graph_add_round(b);
        int first = t == 1;
        for (int i = first; i + 1 < n; i += 2)
            add_pair(b, ranks[i], ranks[i + 1]);
        if (n % 2)
            add_alone(b, first ? ranks[0] : ranks[n - 1]);
        else if (first && n > 2)
            add_pair(b, ranks[n - 1], ranks[0]);
        else if (first)
            add_pair(b, ranks[0], ranks[1]);
    }
    free(ranks);
    return 0;
}

/* ---- links ----------------------------------------------------------------------------------- */

/* The most square grid of n: rows <= columns. */
static int grid_rows(int n)
{
    int rows = 1;

    for (int r = 2; r * r <= n; r++)
        if (n % r == 0)
            rows = r;
    return rows;
}

/* Row-major; the neighbours to the left and right, above and below, each once, and equal shares. All
 * workers have as many neighbours. */
static int build_torus(const struct dp_graph_spec *spec, struct dp_graph_builder *b)
{
    const int n = spec->workers, rows = grid_rows(n), columns = n / rows;

    dp_graph_add_round(b);
    for (int i = 0; i < n; i++) {
        const int r = i / columns, c = i % columns;
        const int32_t around[] = {
            i, r * columns + (c + 1) % columns, r * columns + (c + columns - 1) % columns,
            (r + 1) % rows * columns + c, (r + rows - 1) % rows * columns + c,
        };
        int count = 0;
        int32_t distinct[5];
        for (int k = 0; k < 5; k++) {
            bool known = false;
            for (int m = 0; m < count; m++)
                known = known || distinct[m] == around[k];
            if (!known)
                distinct[count++] = around[k];
        }
        for (int k = 0; k < count; k++)
            dp_graph_add_link(b, distinct[k], i, 1.0 / count);
    }
    return 0;
}

/* Worker 0 and all others, with Metropolis weights. */
static int build_star(const struct dp_graph_spec *spec, struct dp_graph_builder *b)
{
    const int n = spec->workers;
    const double share = 1.0 / n;

    dp_graph_add_round(b);
    dp_graph_add_link(b, 0, 0, n == 1 ? 1 : share);
    for (int i = 1; i < n; i++) {
        dp_graph_add_link(b, 0, i, share);
        dp_graph_add_link(b, i, 0, share);
        dp_graph_add_link(b, i, i, 1 - share);
    }
    return 0;
}

/* Each worker keeps half and sends half to the one 2^k further on. */
static int build_directed_exp(const struct dp_graph_spec *spec, struct dp_graph_builder *b)
{
    const int n = spec->workers;

    dp_graph_set_push_sum(b);
    for (int hop = 1; hop == 1 || hop < n; hop *= 2) {
        dp_graph_add_round(b);
        for (int i = 0; i < n; i++) {
            dp_graph_add_link(b, i, i, n == 1 ? 1 : 0.5);
            if (n > 1)
                dp_graph_add_link(b, i, (i + hop) % n, 0.5);
        }
    }
    return 0;
}

/* Workers are 1 at least here, and local divides them. */
static const struct {
    const char *name;
    int (*build)(const struct dp_graph_spec *spec, struct dp_graph_builder *b);
} builtins[] = {
    {"complete", build_complete},
    {"ring", build_ring},
    {"one-peer-exp", build_one_peer_exp},
    {"alternating-exp-ring", build_alternating},
    {"torus", build_torus},
    {"star", build_star},
    {"hierarchical", build_hierarchical},
    {"random-matching", build_random_matching},
    {"hypercube", build_hypercube},
    {"directed-exp", build_directed_exp},
};

/* ---- names ---------------------------------------------------------------------------------- */

struct registered {
    char name[DP_GRAPH_NAME_LEN];
    struct dp_graph_kind kind;
};

enum { REGISTERED_MAX = 256, BUILTINS = sizeof(builtins) / sizeof(builtins[0]) };
static struct registered registered[REGISTERED_MAX];
static int registered_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static const char *name_of(int i)
{
    if (i < 0 || i >= BUILTINS + registered_count)
        return NULL;
    return i < BUILTINS ? builtins[i].name : registered[i - BUILTINS].name;
}

/* The number of a name, -1 if there is none. */
static int find_name(const char *name)
{
    for (int i = 0; name_of(i); i++)
        if (!strcmp(name_of(i), name))
            return i;
    return -1;
}

const char *dp_graph_name(int i)
{
    pthread_mutex_lock(&lock);
    const char *name = name_of(i);
    pthread_mutex_unlock(&lock);
    return name;
}

static int check_name(const char *name)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789-";
    size_t len = name ? strlen(name) : 0;

    if (!len || len >= DP_GRAPH_NAME_LEN || strspn(name, letters) != len)
        return dp_fail(DP_EINVAL, "name of a mixing graph: '%s', expected 1 to %d of a-z, 0-9 and -",
                       name ? name : "", DP_GRAPH_NAME_LEN - 1);
    return 0;
}

static int add_name(const char *name, const struct dp_graph_kind *kind)
{
    if (find_name(name) >= 0)
        return dp_fail(DP_EINVAL, "mixing graph '%s' is registered already, expected a new name",
                       name);
    if (registered_count == REGISTERED_MAX)
        return dp_fail(DP_ENOMEM, "mixing graph '%s': %d names are registered already", name,
                       REGISTERED_MAX);
    strcpy(registered[registered_count].name, name);
    registered[registered_count++].kind = *kind;
    return 0;
}

int dp_graph_register(const char *name, const struct dp_graph_kind *kind)
{
    int err = check_name(name);

    if (!err && (!kind || !kind->build))
        err = dp_fail(DP_EINVAL, "mixing graph '%s': no build function, expected one", name);
    if (err)
        return err;
    pthread_mutex_lock(&lock);
    err = add_name(name, kind);
    pthread_mutex_unlock(&lock);
    return err;
}

/* ---- building ------------------------------------------------------------------------------- */

/* As launchers of processes say it. */
static int default_local(int *local)
{
    const char *text = dp_foreign_variable("LOCAL_WORLD_SIZE");
    char *end;

    if (*local)
        return 0;
    long value = text ? strtol(text, &end, 10) : 1;
    if (text && (*end || value < 1 || value > DP_GRAPH_MAX_WORKERS))
        return dp_fail(DP_EINVAL, "LOCAL_WORLD_SIZE: '%s', expected the number of workers of a node",
                       text);
    *local = (int)value;
    return 0;
}

static int unknown_name(const char *name)
{
    const char *names[REGISTERED_MAX + 32];
    struct dp_text list = {0};
    size_t count = 0;

    for (const char *known; count < sizeof(names) / sizeof(names[0]) &&
                            (known = dp_graph_name((int)count)) != NULL; count++) {
        names[count] = known;
        dp_text_addf(&list, "%s%s", count ? ", " : "", known);
    }
    const char *near = dp_nearest(name, names, count);
    int err = dp_fail(DP_EINVAL, "mixing graph '%s', expected one of %s%s%s%s", name,
                      list.data ? list.data : "the known ones", near ? "; did you mean " : "",
                      near ? near : "", near ? "?" : "");
    dp_text_fini(&list);
    return err;
}

static int find_kind(const char *name, int *builtin, struct dp_graph_kind *kind)
{
    pthread_mutex_lock(&lock);
    int i = find_name(name);
    *builtin = i < BUILTINS ? i : -1;
    if (i >= BUILTINS)
        *kind = registered[i - BUILTINS].kind;
    pthread_mutex_unlock(&lock);
    return i < 0 ? unknown_name(name) : 0;
}

static int build(const struct dp_graph_spec *spec, int builtin, const struct dp_graph_kind *kind,
                 struct dp_graph **out)
{
    struct dp_graph_builder *b;
    struct dp_graph *unused;
    int err = dp_graph_builder_new(spec->name, spec->workers, spec->local, &b);

    if (err)
        return err;
    err = builtin >= 0 ? builtins[builtin].build(spec, b) : kind->build(spec, b, kind->user);
    if (!err)
        return dp_graph_builder_end(b, out);
    if (!dp_graph_builder_end(b, &unused))
        dp_graph_free(unused);
    return err;
}

int dp_graph_new(const struct dp_graph_spec *spec, struct dp_graph **out)
{
    struct dp_graph_spec s = *spec;
    struct dp_graph_kind kind = {0};
    struct dp_graph *g;
    int builtin, err = default_local(&s.local);

    DP_RESERVED(spec, "spec");
    if (!err && !s.name)
        err = dp_fail(DP_EINVAL, "no name of a mixing graph, expected one like ring");
    if (!err)
        err = find_kind(s.name, &builtin, &kind);
    if (!err)
        err = build(&s, builtin, &kind, &g);
    if (err)
        return err;
    if ((err = dp_graph_check(g, NULL))) {
        dp_graph_free(g);
        return err;
    }
    *out = g;
    return 0;
}

/* ---- equality ------------------------------------------------------------------------------- */

static bool same_groups(const struct dp_graph *a, const struct dp_graph *b)
{
    if (a->group_count != b->group_count || a->member_count != b->member_count)
        return false;
    for (size_t i = 0; i < a->group_count; i++) {
        const struct dp_mix_group *x = &a->groups[i], *y = &b->groups[i];
        if (x->first != y->first || x->count != y->count || x->self != y->self)
            return false;
    }
    return !a->member_count ||
           !memcmp(a->members, b->members, a->member_count * sizeof(*a->members));
}

static bool same_links(const struct dp_graph *a, const struct dp_graph *b)
{
    if (a->link_count != b->link_count)
        return false;
    for (size_t i = 0; i < a->link_count; i++) {
        const struct dp_mix_link *x = &a->links[i], *y = &b->links[i];
        if (x->from != y->from || x->to != y->to || x->weight != y->weight)
            return false;
    }
    return true;
}

bool dp_graph_equal(const struct dp_graph *a, const struct dp_graph *b)
{
    if (a->workers != b->workers || a->local != b->local || a->period != b->period ||
        a->push_sum != b->push_sum)
        return false;
    for (int32_t t = 0; t < a->period; t++)
        if (a->rounds[t].group_count != b->rounds[t].group_count ||
            a->rounds[t].link_count != b->rounds[t].link_count)
            return false;
    return same_groups(a, b) && same_links(a, b);
}
