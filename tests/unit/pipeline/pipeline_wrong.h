/* SPDX-License-Identifier: Apache-2.0
 *
 * pipeline_wrong.h - invalid inputs that a pipeline must refuse, one after the other: the error of
 * the rank at fault, and the error of the others.
 */
#ifndef TESTS_UNIT_PIPELINE_WRONG_H
#define TESTS_UNIT_PIPELINE_WRONG_H

#include "pipeline_case.h"

enum { RANKS = 2, EVERYWHERE = -1 };
#define WRONG_DEADLINE_NS INT64_C(20000000000)

/* One thing that is wrong. */
struct wrong {
    const char *what;
    int rank; /* the rank at fault, or EVERYWHERE */
    void (*config)(int rank, struct dp_pipeline_config *config); /* what it does to a config ... */
    void (*step)(struct job_rank *r);                        /* ... or to a step's arguments */
    int error;                                               /* of the one at fault */
    const char *sentence;                                    /* part of it */
    int elsewhere;          /* the others' error; 0: DP_EABORTED, if one is at fault */
};

/* Callbacks of that kind which do one thing. */
#define WRONG_CONFIG(name, ...) static void name(int rank, struct dp_pipeline_config *config) { __VA_ARGS__; }
#define WRONG_STEP(name, ...) static void name(struct job_rank *r) { __VA_ARGS__; }

#define COUNT(table) (sizeof(table) / sizeof(*(table)))

/* Schedules, and what they do not support. */
extern const struct dp_schedule_spec training, one_stream, inference;

/* For struct job: user is a struct wrong. */
void edit_config(void *user, int rank, struct dp_pipeline_config *config);
void expect_wrong(const struct wrong *wrong, struct dp_schedule_spec spec);
void expect_all_wrong(const struct wrong *wrong, size_t count, struct dp_schedule_spec spec);

#endif
