/* SPDX-License-Identifier: Apache-2.0
 *
 * simulate.h - what a run on paper consists of, for its files:
 *
 *      simulate.c          rounds, staleness, the whole run; what it computes
 *      simulate_time.c     random numbers, computing times and what messages cost
 *      simulate_problem.c  what workers learn
 */
#ifndef DP_MIXING_SIMULATE_H
#define DP_MIXING_SIMULATE_H

#include <dualpipe/mixing.h>

enum {
    DATA = 16,        /* data of a worker, of the logistic problem */
    QUANTILES = 1024, /* of a step's time */
    TAIL = 8,
    LANES = 4         /* values are padded to a multiple */
};

struct simulation {
    const struct dp_graph *g;
    struct dp_mixing_scenario s;
    int32_t n, d, alive;
    double sigma_shift, quantiles[QUANTILES];
    uint64_t time_key; /* of this step's computing times */
    bool *dead;             /* [n] */
    double *ends, *next;    /* [n] T of the step before, and of this one */
    double *x, *mixed;      /* [n * d] */
    double *mass, *mixed_mass; /* [n] push-sum */
    double *kept;           /* [n] and what of its own a worker does not give to the dead */
    double *curve;          /* [d] curvature */
    double *target;         /* [n * d] minima, or [n * DATA * d] features */
    signed char *label;     /* [n * DATA] */
    double *before, *grads; /* [d] sums, to watch the mean */
    bool watch;
    double waited, computed;
    /* With staleness, of each worker: the round of its exchange under way, when that is over, and
     * what is then added. */
    int64_t *round, passed;      /* [n] -1: none */
    double *due, *late;          /* [n], [n * d] */
    struct dp_neighbor *neighbors; /* of neighbors.h */
};

/* Random numbers: a hash of what they are for. */
enum { OF_TIME, OF_LINK, OF_TARGET, OF_LABEL };

uint64_t dp_simulation_scramble(uint64_t z);
double dp_simulation_uniform(uint64_t seed, uint64_t what, uint64_t index); /* inside (0, 1) */
double dp_simulation_normal(double p); /* the inverse of the normal distribution */

/* Of a step's computing time; and that of worker i in this step. */
double dp_simulation_quantile(const struct simulation *v, double p);
double dp_simulation_compute_time(const struct simulation *v, int32_t i);
/* A factor, of the link between two workers. */
double dp_simulation_slowness(const struct simulation *v, int32_t i, int32_t j);
double dp_simulation_transfer_ns(const struct simulation *v, double bytes);
double dp_simulation_group_cost(const struct simulation *v, const int32_t *members, int32_t count);

void dp_simulation_make_problem(struct simulation *v);
/* out -= rate * gradient of worker i at x, which is its value divided by its mass. */
void dp_simulation_descend(struct simulation *v, int64_t t, int32_t i, const double *x, double *out);
/* Loss of x for one worker's data. */
double dp_simulation_loss(const struct simulation *v, int32_t i, const double *x);

#endif
