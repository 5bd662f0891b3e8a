/* SPDX-License-Identifier: Apache-2.0
 *
 * tuning.h - which algorithm, protocol and number of channels a collective of NCCL should use. The
 * tuner plugin answers NCCL with it, `dualpipe tune` explains and makes tables. Pure functions: the
 * answer follows from the question and from what the tuner was made of, and from nothing else, so
 * that ranks with the same table agree.
 *
 * Numbers of functions, algorithms and protocols are NCCL's.
 */
#ifndef DUALPIPE_TUNING_H
#define DUALPIPE_TUNING_H

#include <dualpipe/dualpipe.h>

#ifdef __cplusplus
extern "C" {
#endif

enum dp_tuning_function {
    DP_TUNING_BROADCAST,
    DP_TUNING_REDUCE,
    DP_TUNING_ALLGATHER,
    DP_TUNING_REDUCESCATTER,
    DP_TUNING_ALLREDUCE,
    DP_TUNING_FUNCTIONS
};

enum dp_tuning_algorithm {
    DP_TUNING_TREE,
    DP_TUNING_RING,
    DP_TUNING_COLLNET_DIRECT,
    DP_TUNING_COLLNET_CHAIN,
    DP_TUNING_NVLS,
    DP_TUNING_NVLS_TREE,
    DP_TUNING_PAT,
    DP_TUNING_ALGORITHMS
};

enum dp_tuning_protocol { DP_TUNING_LL, DP_TUNING_LL128, DP_TUNING_SIMPLE, DP_TUNING_PROTOCOLS };

/* In place of an algorithm and a protocol: whatever NCCL would take. */
enum { DP_TUNING_DEFAULT = -1 };

/* "allreduce", "nvls_tree", "ll128"; "default" for DP_TUNING_DEFAULT. Never NULL. */
DP_PUBLIC const char *dp_tuning_function_name(int function);
DP_PUBLIC const char *dp_tuning_algorithm_name(int algorithm);
DP_PUBLIC const char *dp_tuning_protocol_name(int protocol);

/* ---- tables --------------------------------------------------------------------------------- */

/* From least to most, both included. */
struct dp_tuning_range {
    int64_t least, most;
};

enum dp_tuning_registered { DP_TUNING_UNREGISTERED, DP_TUNING_REGISTERED, DP_TUNING_EITHER };

/* Where it applies, and what to take there. */
struct dp_tuning_rule {
    int function;                 /* enum dp_tuning_function */
    struct dp_tuning_range bytes; /* of the whole operation, as nccl-tests counts; INT64_MAX: any */
    struct dp_tuning_range ranks, nodes; /* {0, INT64_MAX}: any */
    enum dp_tuning_registered registered; /* buffers are known to NCCL's registration */
    int algorithm, protocol; /* both DP_TUNING_DEFAULT, or neither */
    int channels;            /* 0: as many as NCCL likes */
    int64_t chunk_bytes;     /* 0: as NCCL likes */
    double time_us;          /* measured, and what NCCL's own choice took; 0: not known */
    double default_us;
    int line; /* of the file */
};

/* The first rule that applies counts. */
struct dp_tuning_table {
    char *name; /* for messages: the path */
    size_t count;
    struct dp_tuning_rule *rules;
};

/* Read a table from a text (which needs no NUL), or from a file. JSON, if it begins with a bracket:
 * {"dualpipe_tuning": 1, "rules": [{"collective": "allreduce", "ranks": "2-16", ...}]}, with the
 * names below. Else CSV, a rule a line, "#" begins a comment. A line of names says which columns
 * there are, and in which order:
 *
 *      collective,min_bytes,max_bytes,algorithm,protocol,channels,nodes,ranks,pipe_ops,registered,
 *      chunk_bytes,time_us,default_us
 *
 * Without it they are these, from eight to ten of them: files of NCCL's example tuner are read as
 * they are. Sizes may end in KiB, MiB or GiB; nodes and ranks are a number or a range as in 2-16;
 * "any", -1 or nothing leaves a column open. DP_EINVAL with "NAME:LINE: what was wrong", DP_ENOENT,
 * DP_EIO, DP_ENOMEM. */
DP_PUBLIC int dp_tuning_table_read(const char *text, size_t len, const char *name,
                                   struct dp_tuning_table **out);
DP_PUBLIC int dp_tuning_table_load(const char *path, struct dp_tuning_table **out);

/* Text that can be read again, malloc'ed and NUL-terminated. DP_ENOMEM. */
enum dp_tuning_format { DP_TUNING_CSV, DP_TUNING_JSON };
DP_PUBLIC int dp_tuning_table_write(const struct dp_tuning_table *table,
                                    enum dp_tuning_format format, char **out, size_t *len);

DP_PUBLIC void dp_tuning_table_free(struct dp_tuning_table *table);

/* ---- answers -------------------------------------------------------------------------------- */

struct dp_tuner_config {
    /* May be NULL. It is copied. */
    const struct dp_tuning_table *table;
    /* Of the communicator. Both 0: not known, and only rules for any number of them apply. */
    int64_t ranks, nodes;
    /* Whether a rank finds buffers registered is its own observation. Only if all ranks register
     * alike may answers depend on it; else every buffer counts as not registered. */
    bool trusts_registration;
};

struct dp_tuning_question {
    int function;
    int64_t bytes;
    bool is_registered;
    /* us, cost[algorithm * protocols + protocol]; a negative cell may not be chosen. */
    const float *costs;
    int algorithms, protocols;
};

enum dp_tuning_source { DP_TUNING_FROM_NCCL, DP_TUNING_FROM_TABLE };

struct dp_tuning_answer {
    enum dp_tuning_source source;
    int algorithm, protocol;           /* DP_TUNING_DEFAULT: what NCCL would take */
    int channels;                      /* 0: as many as NCCL likes */
    const struct dp_tuning_rule *rule; /* the first that applies, even if its cell may not be chosen
                                          and NCCL is left alone; NULL: none */
};

/* What was decided up front for one communicator. Any number of threads may ask it at once. */
struct dp_tuner;
/* DP_EINVAL for negative numbers, DP_ENOMEM. */
DP_PUBLIC int dp_tuner_new(const struct dp_tuner_config *config, struct dp_tuner **out);
DP_PUBLIC void dp_tuner_free(struct dp_tuner *tuner);

/* Allocates nothing, cannot fail; tens of ns at ten thousand rules. */
DP_PUBLIC void dp_tuner_ask(const struct dp_tuner *tuner, const struct dp_tuning_question *question,
                            struct dp_tuning_answer *answer);

/* The chunk for an operation that runs with this algorithm and protocol; 0: as NCCL likes. */
DP_PUBLIC int64_t dp_tuner_chunk_bytes(const struct dp_tuner *tuner, int function, int64_t bytes,
                                       int algorithm, int protocol);

#ifdef __cplusplus
}
#endif
#endif
