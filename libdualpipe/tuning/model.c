/* SPDX-License-Identifier: Apache-2.0
 *
 * model.c - the cost of every combination. n ranks on m nodes, g on each; S bytes.
 *
 *      ring        a chunk goes round: n - 1 hops, in an all-reduce twice; m of them between nodes
 *      tree        a chain within a node, a tree across nodes, up and down again
 *      NVLS        the switch adds up and spreads: one hop, and an all-reduce sends each byte once
 *      NVLS tree   that within a node, the tree across nodes
 *      CollNet     the network's switches add up: one hop between nodes
 *      PAT         as many rounds as n has binary digits, one GPU a node
 *
 * Only plain arithmetic: functions of libm may differ in the last bit from one processor to the next,
 * and all ranks must find the same.
 */
#include "tuning/model.h"

#include "base/fail.h"
#include "base/text.h"
#include <dualpipe/options.h>
#include <dualpipe/tuning.h>

#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* us, as NCCL 2.28 hands them to a tuner. */
static const struct dp_tuning_latencies usual = {
    .base_us = {
        [DP_TUNING_TREE] = {6.8, 14, 8.4},
        [DP_TUNING_RING] = {6.6, 14, 8.4},
        [DP_TUNING_PAT] = {8, 8, 8},
    },
    .hop_us = {
        [DP_TUNING_NVLINK] = {
            {.6, 1.25, 4}, {.6, 1.9, 3.4}, {0, 0, 3.7}, {0, 0, 2.8}, {0, 0, 25}, {0, 0, 25}, {0, 0, 4},
        },
        [DP_TUNING_PCI] = {
            {1, 1.9, 4}, {1, 2.5, 5.7}, {0, 0, 3.7}, {0, 0, 2.8}, {0, 0, 0}, {0, 0, 0}, {0, 0, 4},
        },
        [DP_TUNING_NET] = {
            {5, 8.5, 14}, {2.7, 4, 14}, {0, 0, 31}, {0, 0, 30}, {0, 0, 18}, {0, 0, 20.9}, {0, 0, 14},
        },
    },
};

/* The share of a link's rate that carries data. LL has a flag beside every word, and across nodes a
 * network that takes its small pieces badly; LL128 a flag in every line. */
#define LINK_SHARE  0.82
#define NVLS_SHARE  0.70
#define PAT_SHARE   0.75
#define TREE_SHARE  0.92
static const double protocol_share[2][DP_TUNING_PROTOCOLS] = {{.5, .9375, 1}, {.25, .9375, 1}};

/* Above the rate of PCIe 5.0 x16 it is NVLink. */
#define NVLINK_RATE 70

struct place {
    const struct dp_tuning_links *links;
    const struct dp_tuning_latencies *latencies;
    double ranks, nodes, per_node;
    int digits_of_nodes, digits_of_ranks; /* of their number less one: rounds of halving */
};

/* ---- hops ----------------------------------------------------------------------------------- */

static double inner_hop(const struct place *at, int algorithm, int protocol)
{
    int link = at->links->intra_gbs >= NVLINK_RATE ? DP_TUNING_NVLINK : DP_TUNING_PCI;

    return at->latencies->hop_us[link][algorithm][protocol] + at->links->intra_us;
}

/* Simple asks before it sends: there and back. */
static double outer_hop(const struct place *at, int algorithm, int protocol)
{
    return at->latencies->hop_us[DP_TUNING_NET][algorithm][protocol] +
           at->links->inter_us * (protocol == DP_TUNING_SIMPLE ? 2 : 1);
}

static double hops(const struct place *at, int algorithm, int protocol, double inner, double outer)
{
    return inner * inner_hop(at, algorithm, protocol) + outer * outer_hop(at, algorithm, protocol);
}

static double ring_hops(const struct place *at, int function, int protocol)
{
    double all = at->ranks - 1, outer = at->nodes == 1 ? 0 : at->nodes < all ? at->nodes : all;
    double rounds = function == DP_TUNING_ALLREDUCE ? 2 : 1;

    return hops(at, DP_TUNING_RING, protocol, rounds * (all - outer), rounds * outer);
}

static double latency_of(const struct place *at, int function, int a, int p)
{
    switch (a) {
    case DP_TUNING_RING:
        return ring_hops(at, function, p);
    case DP_TUNING_TREE:
        return 2 * hops(at, a, p, at->per_node - 1, at->digits_of_nodes);
    case DP_TUNING_COLLNET_DIRECT:
        return hops(at, a, p, 2, 1);
    case DP_TUNING_COLLNET_CHAIN:
        return hops(at, a, p, 2 * (at->per_node - 1), 1);
    case DP_TUNING_NVLS:
        return hops(at, a, p, 1, 0);
    case DP_TUNING_NVLS_TREE:
        return hops(at, a, p, 1, 2 * at->digits_of_nodes);
    default: /* PAT */
        return hops(at, a, p, 0, at->digits_of_ranks);
    }
}

/* ---- bytes ---------------------------------------------------------------------------------- */

/* How often a byte of S crosses the links of a GPU, and of a node, one way. */
struct crossing {
    double inner, outer, share;
};

static struct crossing ring_crossing(const struct place *at, int function)
{
    double part = (at->ranks - 1) / at->ranks;
    double times = function == DP_TUNING_ALLREDUCE                                       ? 2 * part
                   : function == DP_TUNING_ALLGATHER || function == DP_TUNING_REDUCESCATTER ? part
                                                                                         : 1;

    return (struct crossing){times, times, LINK_SHARE};
}

/* Between two nodes a tree sends all of it once each way; between more, up to two children and a
 * parent share a node's links, in two trees that take half of it each. */
static double tree_crossing(const struct place *at)
{
    return at->nodes == 2 ? 1 : 2;
}

static struct crossing crossing_of(const struct place *at, int function, int algorithm)
{
    double part = (at->per_node - 1) / at->per_node;

    switch (algorithm) {
    case DP_TUNING_RING:
        return ring_crossing(at, function);
    case DP_TUNING_TREE:
        return (struct crossing){2, tree_crossing(at), LINK_SHARE * TREE_SHARE};
    case DP_TUNING_COLLNET_DIRECT:
        return (struct crossing){2 * part, 1, LINK_SHARE};
    case DP_TUNING_COLLNET_CHAIN:
        return (struct crossing){2, 1, LINK_SHARE};
    case DP_TUNING_NVLS:
        return function == DP_TUNING_ALLREDUCE
                   ? (struct crossing){1 + 1 / at->per_node, 0, NVLS_SHARE}
                   : (struct crossing){part, 0, NVLS_SHARE};
    case DP_TUNING_NVLS_TREE:
        return (struct crossing){1 + 1 / at->per_node, tree_crossing(at), NVLS_SHARE};
    default: /* PAT */
        return (struct crossing){0, (at->ranks - 1) / at->ranks, PAT_SHARE};
    }
}

/* us for a byte: by the narrowest link. 1 GB/s is 1000 bytes a us. */
static double slope_of(const struct place *at, int function, int algorithm, int protocol)
{
    struct crossing c = crossing_of(at, function, algorithm);
    const double share = protocol_share[at->nodes > 1][protocol] * c.share;
    double inner = at->per_node > 1 ? c.inner / at->links->intra_gbs : 0;
    double outer = at->nodes > 1 ? c.outer / at->links->inter_gbs : 0;

    return (inner > outer ? inner : outer) / (1000 * share);
}

/* ---- which there are ------------------------------------------------------------------------- */

static bool is_possible(const struct place *at, int function, int a, int p)
{
    const bool all_reduce = function == DP_TUNING_ALLREDUCE;
    const bool in_parts = function == DP_TUNING_ALLGATHER || function == DP_TUNING_REDUCESCATTER;

    if (a == DP_TUNING_RING)
        return true;
    if (a == DP_TUNING_TREE)
        return all_reduce;
    if (p != DP_TUNING_SIMPLE)
        return false;
    switch (a) {
    case DP_TUNING_NVLS:
        return (all_reduce || in_parts) && at->nodes == 1;
    case DP_TUNING_NVLS_TREE:
        return all_reduce && at->nodes > 1;
    case DP_TUNING_PAT:
        return in_parts && at->per_node == 1;
    default: /* CollNet */
        return all_reduce && at->nodes > 1;
    }
}

static struct dp_tuning_line line_of(const struct place *at, int function, int a, int p)
{
    if (!is_possible(at, function, a, p))
        return (struct dp_tuning_line){-1, 0};
    return (struct dp_tuning_line){at->latencies->base_us[a][p] + latency_of(at, function, a, p),
                                   slope_of(at, function, a, p)};
}

static int digits(int64_t number)
{
    int count = 0;

    for (; number; number >>= 1)
        count++;
    return count;
}

void dp_tuning_model_init(struct dp_tuning_model *m, const struct dp_tuning_links *links,
                          const struct dp_tuning_latencies *latencies, int64_t ranks, int64_t nodes)
{
    *m = (struct dp_tuning_model){0};
    if (!links || nodes < 1 || ranks < 2 || ranks < nodes)
        return;
    if ((ranks > nodes && links->intra_gbs <= 0) || (nodes > 1 && links->inter_gbs <= 0))
        return;
    const struct place at = {
        .links = links, .latencies = latencies ? latencies : &usual, .ranks = (double)ranks,
        .nodes = (double)nodes, .per_node = (double)((ranks + nodes - 1) / nodes),
        .digits_of_nodes = digits(nodes - 1), .digits_of_ranks = digits(ranks - 1),
    };
    m->is_known = true;
    for (int f = 0; f < DP_TUNING_FUNCTIONS; f++)
        for (int a = 0; a < DP_TUNING_ALGORITHMS; a++)
            for (int p = 0; p < DP_TUNING_PROTOCOLS; p++)
                m->lines[f][a][p] = line_of(&at, f, a, p);
}

/* ---- links ----------------------------------------------------------------------------------- */

/* "intra=450,inter=50,inter_us=3" and back. */

enum { NUMBER_LEN = 32 };

static const char *const names[] = {"intra", "inter", "intra_us", "inter_us"};
enum { NAMES = sizeof(names) / sizeof(names[0]) };

static double *member(struct dp_tuning_links *links, int name)
{
    double *const members[] = {&links->intra_gbs, &links->inter_gbs, &links->intra_us,
                               &links->inter_us};

    return members[name];
}

static int find_name(const char *text, size_t len)
{
    int name = 0;

    while (name < NAMES && (strlen(names[name]) != len || strncmp(text, names[name], len)))
        name++;
    return name;
}

static int unknown_name(const char *text, size_t len)
{
    char word[NUMBER_LEN];

    snprintf(word, sizeof(word), "%.*s", (int)len, text);
    const char *near = dp_nearest(word, names, NAMES);
    return dp_fail(DP_EINVAL, "links: '%s', expected intra, inter, intra_us or inter_us%s%s%s", word,
                   near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

/* One NAME=NUMBER; *text moves behind it. */
static int parse_one(const char **text, struct dp_tuning_links *links)
{
    size_t len = strcspn(*text, "=,");
    int name = find_name(*text, len);
    char *end;

    if (name == NAMES)
        return unknown_name(*text, len);
    const char *number = *text + len + ((*text)[len] == '=');
    double value = dp_strtod(number, &end);
    if ((*text)[len] != '=' || end == number || (*end && *end != ',') || !(value >= 0) || value > 1e6)
        return dp_fail(DP_EINVAL, "links: '%s', expected %s=NUMBER in %s", *text, names[name],
                       name < 2 ? "GB/s" : "us");
    *member(links, name) = value;
    *text = end + (*end == ',');
    return 0;
}

int dp_tuning_links_parse(const char *text, struct dp_tuning_links *out)
{
    struct dp_tuning_links links = {0};
    int err = 0;

    while (*text && !err)
        err = parse_one(&text, &links);
    if (!err)
        *out = links;
    return err;
}

const char *dp_tuning_links_text(const struct dp_tuning_links *links,
                                 char text[DP_TUNING_LINKS_LEN])
{
    struct dp_tuning_links copy = *links;
    size_t used = 0;

    *text = '\0';
    for (int i = 0; i < NAMES; i++)
        if (*member(&copy, i) > 0)
            used += (size_t)dp_snprintf(text + used, DP_TUNING_LINKS_LEN - used, "%s%s=%.6g",
                                        used ? "," : "", names[i], *member(&copy, i));
    return text;
}
