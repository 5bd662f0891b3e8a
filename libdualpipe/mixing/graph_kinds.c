/* SPDX-License-Identifier: Apache-2.0
 *
 * graph_kinds.c - the built-in graphs, a function each. n workers, L of them on a node, Q = n / L
 * nodes.
 */
#include "base/fail.h"
#include "mixing/graph.h"
#include <dualpipe/random.h>

#include <stdlib.h>

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

const struct dp_graph_builtin dp_graph_builtins[] = {
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
    {NULL, NULL},
};
