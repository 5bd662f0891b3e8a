/* SPDX-License-Identifier: Apache-2.0
 *
 * mixing.h - mixing graphs: which workers average their parameters with which others, round by
 * round. Plain data with no pointer to anything live: built, checked, written, simulated, and only
 * then carried out by a mixer (mixer.h).
 *
 * A graph is a cyclic list of rounds; in iteration t the workers use round t modulo the period. A
 * round is given in one of two forms:
 *
 *      groups   a partition of the workers. A member keeps `self` of its own value and takes
 *               (1 - self) / (count - 1) of each other member's. self is 1 / count in all built-in
 *               graphs: the group's mean. A group of one keeps its value.
 *      links    weighted directed links: `to` takes `weight` of `from`'s value. A link from a worker
 *               to itself is the share that it keeps.
 *
 * The mixing matrix W of a round has W[to][from] for its entries. Rows and columns sum to one, so
 * mixing preserves the mean of all workers. With push_sum only columns do: such a round also carries
 * a weight along, by which a mixer divides.
 *
 *      ring, 4 workers          round 0        round 1
 *                               0 - 1          0   1
 *                               2 - 3          |   |        {0 3} {1 2}
 *                                              3   2
 *
 * Sources: Lian et al., "Can decentralized algorithms outperform centralized algorithms?", 2017;
 * Ying et al., "Exponential graph is provably efficient for decentralized deep training", 2021;
 * Nedic and Olshevsky, "Distributed optimization over time-varying directed graphs" (push-sum), 2015.
 *
 * Threads: a graph is read-only once it is built, and any thread may read it. Registering names is
 * locked.
 */
#ifndef DUALPIPE_MIXING_H
#define DUALPIPE_MIXING_H

#include <dualpipe/dualpipe.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { DP_GRAPH_NAME_LEN = 32, DP_GRAPH_MAX_WORKERS = 1 << 20 };

/* Members of a group: members[first] .. members[first + count - 1] of the graph, ascending. */
struct dp_mix_group {
    size_t first;
    int32_t count;
    double self; /* what a member keeps of its own value */
};

/* `to` takes `weight` of the value of `from`. */
struct dp_mix_link {
    int32_t to, from;
    double weight;
};

/* Either groups or links; the other count is 0. */
struct dp_mix_round {
    size_t first_group, group_count;
    size_t first_link, link_count; /* by `to`, then `from` */
};

/* A graph. Read it freely; only builders write. */
struct dp_graph {
    char name[DP_GRAPH_NAME_LEN];
    int32_t workers;
    int32_t local;  /* workers of one node: worker r is on node r / local */
    int32_t period; /* rounds */
    bool push_sum;
    struct dp_mix_round *rounds; /* [period] */
    struct dp_mix_group *groups;
    int32_t *members;
    struct dp_mix_link *links;
    size_t group_count, member_count, link_count;
    int64_t *place; /* [period * workers] of each worker in a round: its group, or its first link */
};

/* ---- building ------------------------------------------------------------------------------- */

/* What to build. name: "complete", "ring", "one-peer-exp", "alternating-exp-ring", "torus", "star",
 * "hierarchical", "random-matching", "hypercube", "directed-exp", or a registered one. The README of
 * libdualpipe/mixing has a table of them. */
struct dp_graph_spec {
    const char *name;
    int workers;   /* >= 1; ring: even; one-peer-exp: a power of two */
    int local;     /* workers of a node, a divisor of workers; 0: LOCAL_WORLD_SIZE, or 1 without it */
    int rounds;    /* random-matching: how many there are; 0: 2 * ceil(log2(workers)), at least 4 */
    uint64_t seed; /* random-matching */
    uint64_t reserved[2];
};

/* A graph being put together. The first error is kept, so that a builder adds without looking. */
struct dp_graph_builder;

/* A graph of a registered name: add rounds to b. 0 or a negative errno; what is built is checked
 * afterwards. spec->local is never 0 here. */
struct dp_graph_kind {
    int (*build)(const struct dp_graph_spec *spec, struct dp_graph_builder *b, void *user);
    void *user;
};

/* Build and check a graph. The caller frees. DP_EINVAL for an unknown name (with the nearest), for
 * sizes outside the limits of the kind, and for a registered builder whose graph breaks a rule;
 * DP_ENOMEM. Any thread. */
DP_PUBLIC int dp_graph_new(const struct dp_graph_spec *spec, struct dp_graph **out);
DP_PUBLIC void dp_graph_free(struct dp_graph *g);

/* Make a name known to dp_graph_new, for the rest of the process. DP_EINVAL for a name that is taken,
 * empty, too long or has other letters than a-z, 0-9 and '-', and for a kind without a build
 * function; DP_ENOMEM. Any thread. */
DP_PUBLIC int dp_graph_register(const char *name, const struct dp_graph_kind *kind);
/* Name number i, built-in ones first; NULL beyond the last. */
DP_PUBLIC const char *dp_graph_name(int i);

/* By hand. `name` is what the graph is called, a word without blanks and #; NULL: "user". */
DP_PUBLIC int dp_graph_builder_new(const char *name, int workers, int local,
                                   struct dp_graph_builder **out);
DP_PUBLIC void dp_graph_add_round(struct dp_graph_builder *b);
/* To the last round. self < 0: 1 / count. The ranks are copied. */
DP_PUBLIC void dp_graph_add_group(struct dp_graph_builder *b, const int32_t *ranks, int32_t count,
                                  double self);
DP_PUBLIC void dp_graph_add_link(struct dp_graph_builder *b, int32_t from, int32_t to,
                                 double weight);
/* Groups become links, along which weights travel. */
DP_PUBLIC void dp_graph_set_push_sum(struct dp_graph_builder *b);
/* Frees b, also when it fails. The graph has not been checked. DP_EINVAL: a rank out of range, a
 * round that mixes groups with links; DP_ENOMEM. */
DP_PUBLIC int dp_graph_builder_end(struct dp_graph_builder *b, struct dp_graph **out);

/* ---- as text --------------------------------------------------------------------------------- */

/* Write the graph as text: "mixing ring workers=4 local=1", then a line a round. *out is malloc'ed,
 * NUL-terminated, *len without the NUL; len may be NULL. DP_ENOMEM. */
DP_PUBLIC int dp_graph_write(const struct dp_graph *g, char **out, size_t *len);
/* Read one; '#' begins a comment. DP_EINVAL names the line, what stood there and what was expected. The
 * result has not been checked. */
DP_PUBLIC int dp_graph_read(const char *text, size_t len, struct dp_graph **out);

/* ---- the checker ------------------------------------------------------------------------------ */

enum dp_graph_rule {
    DP_GRAPH_RULE_NONE,
    DP_GRAPH_RULE_SHAPE,     /* workers, local or period that make no sense, an empty group */
    DP_GRAPH_RULE_ONCE,      /* a worker twice in a round, or not at all; a link twice */
    DP_GRAPH_RULE_WEIGHT,    /* a weight outside 0..1, or a lone worker that keeps less than all */
    DP_GRAPH_RULE_ROW,       /* the shares that a worker takes do not sum to one */
    DP_GRAPH_RULE_COLUMN,    /* the shares that a worker gives do not sum to one */
    DP_GRAPH_RULE_CONNECTED, /* over the period, a worker's value never reaches another */
    DP_GRAPH_RULES
};

/* The first thing found wrong. */
struct dp_graph_finding {
    enum dp_graph_rule rule;
    int32_t round;  /* -1: no one round */
    int32_t worker; /* -1: no one worker */
    char text[256];
};

/* Prove that the graph preserves the mean and reaches all workers. DP_EINVAL with *finding filled
 * (finding may be NULL) at the first broken rule. */
DP_PUBLIC int dp_graph_check(const struct dp_graph *g, struct dp_graph_finding *finding);

/* ---- what a round does ------------------------------------------------------------------------ */

/* The group of a worker in round t modulo the period; NULL in a round of links. */
static inline const struct dp_mix_group *dp_graph_group(const struct dp_graph *g, int64_t t,
                                                        int32_t worker)
{
    const int64_t place = g->place[(t % g->period) * g->workers + worker];

    return g->rounds[t % g->period].group_count && place >= 0 ? &g->groups[place] : NULL;
}

/* The links to a worker in round t; *count is 0 in a round of groups. */
static inline const struct dp_mix_link *dp_graph_links(const struct dp_graph *g, int64_t t,
                                                       int32_t worker, size_t *count)
{
    const struct dp_mix_round *r = &g->rounds[t % g->period];
    const int64_t place = g->place[(t % g->period) * g->workers + worker];
    const struct dp_mix_link *first = r->group_count || place < 0 ? NULL : &g->links[place];

    *count = 0;
    while (first && first + *count < g->links + r->first_link + r->link_count &&
           first[*count].to == worker)
        ++*count;
    return first;
}

/* How much the distance to the mean shrinks at least: the spectral norm of
 * W[first + count - 1] ... W[first] (I - 11'/n), by Lanczos's method, to about 1e-9. 0: exact
 * consensus. DP_ENOMEM. */
DP_PUBLIC int dp_graph_contraction(const struct dp_graph *g, int64_t first, int32_t count,
                                   double *out);

/* ---- the simulator ----------------------------------------------------------------------------- */

/* A training run on paper, in which each worker has a quadratic loss with a minimum of its own. Zeroed
 * members mean what is said there. Times in ns. */
struct dp_mixing_scenario {
    int64_t steps;             /* 0: 200 */
    double compute_ns;         /* of a step, on average; 0: 100 ms */
    double sigma;              /* of the logarithm of a step's time: stragglers. 0: all alike */
    double latency_ns, bytes_per_ns, message_bytes; /* of every link; bytes_per_ns 0: without limit */
    int32_t deaths;            /* workers that die, spread evenly over the run */
    bool all_reduce;           /* instead of the graph: gradients are averaged over all workers before
                                * the update, which waits for all of them */
    bool in_turn;              /* an exchange is waited for at once; else it has the next step's time */
    int32_t staleness;         /* above 0: a worker leaves out so many rounds in a row while an exchange
                                * is late, as dp_mixer_config.staleness; graphs with W_ij = W_ji, without
                                * in_turn */
    int32_t dimensions;        /* of the problem; 0: 8 */
    double rate;               /* learning rate; 0: 0.05 */
    double factor;             /* of mixing; 0: 1 */
    uint64_t seed;
    int32_t samples;           /* points of the curve below; 0: 50 */
    uint64_t reserved[2];
};

/* A point of a run. */
struct dp_mixing_sample {
    int64_t step;
    double time_ns;   /* mean over the workers */
    double consensus; /* root mean square distance of the workers to their mean */
    double loss;      /* of the mean of the workers, over all data */
    int32_t alive;
};

struct dp_mixing_run {
    double step_ns;      /* time per step, until the last worker is done */
    double ideal_ns;     /* the average computing time alone */
    double waited;       /* share of all time that workers waited */
    double passed;       /* share of all worker-steps that left their round out */
    double mean_error;   /* largest change of the mean by a mix, relative to its size: rounding */
    int64_t worker_steps;
    int32_t sample_count;
    struct dp_mixing_sample *samples; /* [sample_count], the last one at the end */
};

/* Carry a run out on paper. The graph must pass dp_graph_check. When a worker dies, the others of its
 * group share what it had given and taken, so that their mean stays as it is; with push-sum, where its
 * weight goes with it, they keep what they would give it. DP_EINVAL for a member of the scenario out of
 * range, and where staleness does not go; DP_ENOMEM. Any thread. */
DP_PUBLIC int dp_mixing_simulate(const struct dp_graph *g, const struct dp_mixing_scenario *s,
                                 struct dp_mixing_run *out);
DP_PUBLIC void dp_mixing_run_fini(struct dp_mixing_run *run);

#ifdef __cplusplus
}
#endif
#endif
