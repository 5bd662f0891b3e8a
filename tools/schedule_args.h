/* SPDX-License-Identifier: Apache-2.0
 *
 * schedule_args.h - the options that the commands of `dualpipe schedule` share, and what they stand
 * for: which schedule, and what its ops cost.
 */
#ifndef DP_TOOLS_SCHEDULE_ARGS_H
#define DP_TOOLS_SCHEDULE_ARGS_H

#include "args.h"
#include <dualpipe/schedule.h>

enum { NUMBERS_MAX = 1024, SKIPS_MAX = 64 };

/* "0:3,1:2": skip connections, from stage to stage. */
struct skips {
    int count;
    struct dp_skip items[SKIPS_MAX];
};

/* "1,0,2": a list of numbers. */
struct numbers {
    size_t count;
    double items[NUMBERS_MAX];
};

/* Times of ops, in ns. */
struct op_times {
    double f, i, w, b, fb, reduce;
};

/* What the groups below fill. A command's values begin with it; zero them before args_parse. */
struct schedule_args {
    int64_t ranks, microbatches, virtual_stages; /* 0: not given */
    int64_t slack;
    const char *recompute;
    bool forward_only, return_outputs, no_overlap, mirror_reduce;
    bool outline; /* of a kind: no lists of operations are needed */
    struct numbers rank_map;
    struct skips skips;
    const char *file;
    struct op_times times;
    double latency_ns, bandwidth, message_bytes;
    struct numbers stage_scale, rank_scale;
};

extern const struct arg_group schedule_size_group;  /* ranks, micro-batches, variants */
extern const struct arg_group schedule_file_group;  /* --file */
extern const struct arg_group schedule_cost_group;  /* --cost, --latency, ... */
extern const struct arg_group schedule_scale_group; /* slower stages and ranks */

/* "gpipe|1f1b|...": every kind that can be built, for --help. */
const char *schedule_kinds(void);

/* ARG_PARSE of "f=1,fb=2.4ms" into a struct op_times; what is not named stays as it is. */
bool schedule_parse_times(const char *text, void *member, char *why, size_t why_len);
/* Those times as costs, links aside. */
struct dp_cost schedule_times_cost(const struct op_times *times);

/* Refuse a schedule that this machine's memory cannot hold, and a rank map of another number of ranks.
 * 0, else EXIT_USAGE. */
int schedule_fits(const struct schedule_args *a, const struct dp_schedule_spec *spec);

/* The spec that the options and a kind ask for. rank_map[NUMBERS_MAX] holds its map. */
struct dp_schedule_spec schedule_spec(const struct schedule_args *a, enum dp_schedule_kind kind,
                                      int *rank_map);

/* A command about one schedule, whose usage says nothing of operands: parse the command line into
 * *values, which begins with a struct schedule_args and is zero; take the schedule of --file, or of the
 * kind that is the operand, which has not been checked; and let act do something with it. Returns what
 * act returns, or what to exit with. */
int schedule_run(const struct usage *usage, int argc, char **argv, void *values,
                 int (*act)(const void *values, const struct dp_schedule *s));

/* The schedule of --file, or of the kind that is the operand. 0, else an EXIT_ value, the sentence has
 * been printed. The caller frees. */
int schedule_load(const struct schedule_args *a, const struct operands *operands,
                  struct dp_schedule **out);

/* The kind that is the operand, if there is one, else *kind stays. 0, else EXIT_USAGE. Not user: a
 * schedule of that kind is read from a file. */
int schedule_operand(const struct operands *operands, enum dp_schedule_kind *kind);

/* The costs that were asked for. They point into a. 0, else EXIT_USAGE. */
int schedule_cost(const struct schedule_args *a, const struct dp_schedule *s, struct dp_cost *cost);

/* ---- schedule file --------------------------------------------------------------------------- */

/* A schedule from a file, whatever its format. */

/* Read text, JSON, CSV or PyTorch's CSV; "-" is standard input. It has not been checked. 0, else an
 * EXIT_ value after one line. The caller frees. */
int schedule_file_read(const char *path, struct dp_schedule **out);

#endif
