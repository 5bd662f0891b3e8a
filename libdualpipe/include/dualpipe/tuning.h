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
    struct dp_tuning_range ranks, nodes, pipe_ops; /* {0, INT64_MAX}: any */
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

/* Read a table from a text (which needs no NUL), or from a file: a rule a line, values between
 * commas, "#" begins a comment. A line of names says which columns there are, and in which order:
 *
 *      collective,min_bytes,max_bytes,algorithm,protocol,channels,nodes,ranks,pipe_ops,registered,
 *      chunk_bytes,time_us,default_us
 *
 * Without it they are these, from eight to ten of them: files of NCCL's example tuner are read as
 * they are. Sizes may end in KiB, MiB or GiB; nodes, ranks and pipe_ops are a number or a range as
 * in 2-16; "any", -1 or nothing leaves a column open. JSON, which a table once could be, is
 * refused. DP_EINVAL with "NAME:LINE: what was wrong", DP_ENOENT, DP_EIO, DP_ENOMEM. */
DP_PUBLIC int dp_tuning_table_read(const char *text, size_t len, const char *name,
                                   struct dp_tuning_table **out);
DP_PUBLIC int dp_tuning_table_load(const char *path, struct dp_tuning_table **out);

/* Text that can be read again, malloc'ed and NUL-terminated. DP_ENOMEM. */
DP_PUBLIC int dp_tuning_table_write(const struct dp_tuning_table *table, char **out, size_t *len);

DP_PUBLIC void dp_tuning_table_free(struct dp_tuning_table *table);

/* ---- the cost model ------------------------------------------------------------------------- */

/* What joins the ranks of a communicator, one way; 0: not known. */
struct dp_tuning_links {
    double intra_gbs; /* of one GPU to the others of its node, GB/s; above 70 it is taken for NVLink */
    double inter_gbs; /* of one node to the others, all its NICs together, GB/s */
    double intra_us, inter_us; /* what a hop takes beyond what NCCL counts with, us */
};

/* "intra=450,inter=50,inter_us=3"; what is left out is not known. DP_EINVAL. */
DP_PUBLIC int dp_tuning_links_parse(const char *text, struct dp_tuning_links *out);
/* The same, to be parsed again. Returns text. */
enum { DP_TUNING_LINKS_LEN = 128 };
DP_PUBLIC const char *dp_tuning_links_text(const struct dp_tuning_links *links,
                                           char text[DP_TUNING_LINKS_LEN]);

enum dp_tuning_link { DP_TUNING_NVLINK, DP_TUNING_PCI, DP_TUNING_NET, DP_TUNING_LINKS };

/* What NCCL counts with, us: to begin, and for a hop. */
struct dp_tuning_latencies {
    double base_us[DP_TUNING_ALGORITHMS][DP_TUNING_PROTOCOLS];
    double hop_us[DP_TUNING_LINKS][DP_TUNING_ALGORITHMS][DP_TUNING_PROTOCOLS];
};

/* ---- answers -------------------------------------------------------------------------------- */

struct dp_tuner_config {
    /* May be NULL. It is copied. */
    const struct dp_tuning_table *table;
    /* Of the communicator. Both 0: not known, and only rules for any number of them apply. */
    int64_t ranks, nodes;
    /* Whether a rank finds buffers registered is its own observation. Only if all ranks register
     * alike may answers depend on it; else every buffer counts as not registered. */
    bool trusts_registration;
    uint8_t reserved[7];
    /* For the model, which has a say where no rule applies; both may be NULL. Without links, or where
     * they do not say enough for these ranks and nodes, there is no model. */
    const struct dp_tuning_links *links;
    const struct dp_tuning_latencies *latencies; /* NULL: those of NCCL 2.28 */
};

struct dp_tuning_question {
    int function;
    int64_t bytes;
    bool is_registered;
    /* Collectives of one group that a channel runs one after the other, as NCCL estimates it; 0:
     * not known, and only rules for any number of them apply. */
    int64_t pipe_ops;
    /* us, cost[algorithm * protocols + protocol]; a negative cell may not be chosen. */
    const float *costs;
    int algorithms, protocols;
};

enum dp_tuning_source { DP_TUNING_FROM_NCCL, DP_TUNING_FROM_TABLE, DP_TUNING_FROM_MODEL };

struct dp_tuning_answer {
    enum dp_tuning_source source;
    int algorithm, protocol;           /* DP_TUNING_DEFAULT: what NCCL would take */
    int channels;                      /* 0: as many as NCCL likes */
    const struct dp_tuning_rule *rule; /* the first that applies, even if its cell may not be chosen
                                          and NCCL is left alone; NULL: none */
    double time_us, default_us; /* of this choice and of NCCL's own: measured, as the rule says, or by
                                   the model; 0: not known */
};

/* What was decided up front for one communicator. Any number of threads may ask it at once. */
struct dp_tuner;
/* DP_EINVAL for negative numbers, DP_ENOMEM. */
DP_SIZED(dp_tuner_new, (config, out, sizeof(struct dp_tuner_config)),
         const struct dp_tuner_config *config, struct dp_tuner **out);
DP_PUBLIC void dp_tuner_free(struct dp_tuner *tuner);

/* First the table; where it has no rule, the model, if by it another choice takes 10 % less than
 * NCCL's own (that of the least cost); else NCCL. Allocates nothing, cannot fail; tens of ns at ten
 * thousand rules, and a few ns for each rule that is passed over because of its pipe_ops. */
DP_PUBLIC void dp_tuner_ask(const struct dp_tuner *tuner, const struct dp_tuning_question *question,
                            struct dp_tuning_answer *answer);

/* The chunk for an operation that runs with this algorithm and protocol; 0: as NCCL likes. */
DP_PUBLIC int64_t dp_tuner_chunk_bytes(const struct dp_tuner *tuner, int function, int64_t bytes,
                                       int algorithm, int protocol);

/* By the model: the us that it takes, -1 for what does not exist or is not known. */
DP_PUBLIC double dp_tuner_time_us(const struct dp_tuner *tuner, int function, int algorithm,
                                  int protocol, int64_t bytes);

/* From `bytes` on, up to the next one, this combination is the fastest by the model. */
struct dp_tuning_crossing {
    int64_t bytes;
    int algorithm, protocol;
};
enum { DP_TUNING_CROSSINGS_MAX = +DP_TUNING_ALGORITHMS * +DP_TUNING_PROTOCOLS };
/* The first is at 0. costs as in a question, for all algorithms and protocols: only cells that may be
 * chosen take part. Returns their number; 0 without a model. */
DP_PUBLIC int dp_tuner_crossings(const struct dp_tuner *tuner, int function, const float *costs,
                                 struct dp_tuning_crossing out[DP_TUNING_CROSSINGS_MAX]);

#ifdef __cplusplus
}
#endif
#endif
