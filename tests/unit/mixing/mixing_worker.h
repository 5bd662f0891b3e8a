/* SPDX-License-Identifier: Apache-2.0
 *
 * mixing_worker.h - a worker with a mixer, whose loss is a quadratic of its own, for tests of what mixers
 * send.
 */
#ifndef DP_TESTS_MIXING_WORKER_H
#define DP_TESTS_MIXING_WORKER_H

#include <dualpipe/mixer.h>

#include <string.h>

#define SECONDS(n) ((n)*INT64_C(1000000000))

enum { RANKS = 4, PARAMETERS = 2, ELEMENTS = 320, TOTAL = PARAMETERS * ELEMENTS };

struct job {
    const char *graph;
    enum dp_mixer_compression compression;
    double factor;
    int steps, staleness;
    bool float32;
    enum dp_mixer_algorithm algorithm;
    int local_steps;
    double outer_rate, outer_momentum;
    bool reaches; /* the optimum of all, as far as doubles go: a test's own */
};

struct worker {
    struct dp_comm *comm;
    struct dp_graph *graph;
    struct dp_mixer *mixer;
    struct dp_parameter parameters[PARAMETERS];
    DLTensor values[PARAMETERS], grads[PARAMETERS];
    int64_t shape[1];
    double memory[TOTAL], gradient[TOTAL];
    bool float32;
};

#define WORKER_RATE 0.1

double get_value(const struct worker *w, int i);
/* Of the quadratic of rank r, element i, at x. */
double gradient_of_worker(int r, int i, double x);
/* bits 16: bfloat16 */
void describe_worker(struct worker *w, struct dp_comm *comm, int bits);
struct dp_mixer_config config_of_worker(struct worker *w, const struct job *job);
int open_worker(struct worker *w, struct dp_comm *comm, const struct job *job);
/* An iteration; share: of the worker's own gradient, 0 leaves nothing but mixing. */
int iterate_worker(struct worker *w, double share);
/* The sum of element i over all workers. Collective. */
int sum_over_workers(struct worker *w, int i, double *sum);
/* In a new mixer: go on from the state of another one. */
int copy_worker_state(struct worker *from, struct worker *to);
void close_worker(struct worker *w);

#endif
