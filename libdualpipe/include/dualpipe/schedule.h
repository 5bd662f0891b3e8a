/* SPDX-License-Identifier: Apache-2.0
 *
 * schedule.h - pipeline schedules as data: which rank does what, in which order.
 *
 * A schedule is a table of slots (which rank holds which stage, and its neighbours) and,
 * for every rank, a list of operations. Nothing in it points at anything live: it can be built,
 * checked, simulated, printed and drawn on any machine, and only then carried out (pipeline.h).
 *
 * Words. A *stage* is a part of the model. A *slot* is a place for a stage on a rank; slots of a
 * rank are numbered from 0. A *stream* is a direction in which micro-batches flow: one, but two for
 * DualPipe, whose stages exist twice, once for each stream. A *micro-batch* (mb) is numbered inside
 * its stream, from 0. M counts the micro-batches of a step over all streams.
 *
 *      DualPipe, P = 4                          DualPipeV, P = 2
 *      rank     0   1   2   3                   rank     0   1
 *      slot 0   s0  s1  s2  s3   stream 0 ->    slot 0   s0  s1  ->.
 *      slot 1   s3  s2  s1  s0   <- stream 1    slot 1   s3  s2  <-'
 *
 * Source: DeepSeek-V3 technical report (DualPipe); the DualPipeV note of its repository; GPipe
 * (Huang et al., 2019); 1F1B (PipeDream-Flush, Narayanan et al., 2021); ZB1P, and the split of a
 * backward into I and W: zero-bubble pipelines (Qi et al., 2023).
 */
#ifndef DUALPIPE_SCHEDULE_H
#define DUALPIPE_SCHEDULE_H

#include <dualpipe/dualpipe.h>

#ifdef __cplusplus
extern "C" {
#endif

enum dp_schedule_kind {
    DP_SCHEDULE_USER,     /* read from a file, or assembled by hand */
    DP_SCHEDULE_GPIPE,    /* all forwards, then all backwards; P ranks, P stages */
    DP_SCHEDULE_1F1B,     /* one forward, one backward; P ranks, P stages */
    DP_SCHEDULE_ZB1P,     /* 1F1B whose backwards are split (ZB-H1) */
    DP_SCHEDULE_DUALPIPE, /* two streams; P ranks (even), P stages, each held twice */
    DP_SCHEDULE_DUALPIPEV, /* one stream down and back; P ranks, 2P stages */
    DP_SCHEDULE_INTERLEAVED, /* 1F1B with v stages a rank; P ranks, v * P stages */
    DP_SCHEDULE_ZBV,         /* down and back, backwards split (ZB-V); P ranks, 2P stages */
    DP_SCHEDULE_ASYNC,       /* fill and drain over the invocations of a partition (AsyncPipe) */
    DP_SCHEDULE_KINDS
};

/* The kind of a name; DP_EINVAL with the list of names otherwise. */
DP_PUBLIC int dp_schedule_kind_parse(const char *name, enum dp_schedule_kind *kind);

/* What one operation does. The effects in full: spec of each kind in schedule/README, and
 * pipeline.h for how they are carried out. */
enum dp_op_kind {
    DP_OP_NONE,
    DP_OP_F,         /* forward of the slot's stage on mb */
    DP_OP_B,         /* full backward: input gradient and weight gradient */
    DP_OP_I,         /* backward for the input only; its weight part waits for a W */
    DP_OP_W,         /* the weight part of the slot's oldest I that still has one */
    DP_OP_RECOMPUTE, /* the forward of (slot, mb) again: its F kept the input only */
    DP_OP_RECV_F,    /* post the receive of the slot's input activation from the stage before */
    DP_OP_RECV_B,    /* post the receive of the slot's output gradient from the stage after */
    DP_OP_SEND_F,    /* post the send of the slot's output activation to the stage after */
    DP_OP_SEND_B,    /* post the send of the slot's input gradient to the stage before */
    DP_OP_RECV_SKIP_F, /* post the receive of a skip's value (dp_skip) from where it begins */
    DP_OP_RECV_SKIP_B, /* post the receive of its gradient from where it ends */
    DP_OP_SEND_SKIP_F, /* post the send of its value to where it ends */
    DP_OP_SEND_SKIP_B, /* post the send of its gradient to where it begins */
    DP_OP_COMMIT, /* all that was posted since the last COMMIT starts as one batch; mb = how many */
    DP_OP_FREE,   /* the output of (slot, mb), sent by the COMMIT before, is given back */
    DP_OP_EVICT,  /* start to copy what (slot, mb) saved to host memory; it is freed after that */
    DP_OP_FETCH,  /* start to bring it back; the op that needs it waits */
    DP_OP_REDUCE, /* start to sum the slot's weight gradients with those of its mirror, and of
                     replicas */
    DP_OP_REDUCE_WAIT, /* until that sum is there */
    DP_OP_KINDS
};

#define DP_MAX_SLOTS 64           /* slots of one rank */
#define DP_MAX_MB ((1 << 20) - 1) /* micro-batches of one stream */

/* One operation: eight bytes, so that a thousand ranks times thousands of micro-batches fit in
 * memory. Stage and peer follow from the slot. Two neighbours F, B with DP_OP_OVERLAP in the first
 * are an overlapped pair, handed to the stage as one call where it offers that. */
struct dp_op {
    uint8_t kind; /* enum dp_op_kind */
    uint8_t slot;
    uint16_t flags; /* of the below */
    uint32_t mb;    /* micro-batch in its stream; COMMIT: number of messages in the batch */
};
enum {
    DP_OP_OVERLAP = 1,       /* F only: the next op is the B that overlaps it */
    DP_OP_RECOMPUTED = 2,    /* F only: a RECOMPUTE of the same micro-batch follows */
    DP_OP_UNIT = 0x7c,       /* section of the rank's list, 1..8 for DualPipe; 0: none: dp_op_unit */
    DP_OP_ARGUMENT = 0xff80, /* messages of skips: its number; else 0: dp_op_argument */
};
static inline uint32_t dp_op_unit(struct dp_op op)
{
    return (op.flags & DP_OP_UNIT) >> 2;
}
static inline uint32_t dp_op_argument(struct dp_op op)
{
    return op.flags >> 7;
}
static inline uint16_t dp_op_flags(uint32_t unit, uint32_t argument)
{
    return (uint16_t)(unit << 2 | argument << 7);
}

/* The op as a short token, as text, CSV and findings have it, written to text and returned:
 * "F0.3" (slot 0, micro-batch 3), "B0.3", "I0.3", "W0.3", "rF0.3", "rB0.3", "sF0.3", "sB0.3" for
 * messages, "c4" for a commit of four, "x0.3" for a FREE, "re0.3" for a RECOMPUTE, "ev0.3" and
 * "fe0.3" for EVICT and FETCH, "rkF0.3:1", "rkB0.3:1", "skF0.3:1" and
 * "skB0.3:1" for messages of skip 1, "R1" and "Rw1" for the REDUCE and REDUCE_WAIT of slot 1. */
enum { DP_OP_TEXT_LEN = 24 };
DP_PUBLIC const char *dp_op_text(struct dp_op op, char text[DP_OP_TEXT_LEN]);

/* A place for a stage on a rank. Ranks here are pipeline ranks; -1: there is none. prev and next
 * may be the rank itself (DualPipeV turns round on its last rank): then no message is needed. */
struct dp_slot {
    int32_t stage;
    int32_t stream;
    int32_t phase;             /* the slot's name in DualPipe's patterns; else the slot's number */
    int32_t prev, prev_slot;   /* the slot that holds stage - 1 of this stream */
    int32_t next, next_slot;   /* the slot that holds stage + 1 of this stream */
    int32_t location; /* slots of a rank with the same number share their parameters; mostly the
                       * slot's number */
    int32_t mirror, mirror_slot; /* the same stage of the other stream (DualPipe) */
};

/* A skip connection: a tensor that stage `from` puts out for a later stage `to`, beside the border, and
 * whose gradient comes back. It travels as a message of its own from the rank of the one to the rank
 * of the other, past those between, and stays where it is if both are on one rank. Its number is its
 * place in the list. Source: skip connections of torchgpipe and fairscale's pipe. */
enum { DP_MAX_SKIPS = 512, DP_SKIP_NAME_LEN = 48 };
struct dp_skip {
    char name[DP_SKIP_NAME_LEN];  /* letters, digits, '_', '.' and '-'; used once in its namespace */
    char space[DP_SKIP_NAME_LEN]; /* the namespace; "": none */
    int32_t from, to;             /* stages, from < to; -1: none, which is an error */
};

/* Where a skip begins and ends in one stream: pipeline ranks and slots. */
struct dp_skip_ends {
    int32_t from, from_slot, to, to_slot;
};

struct dp_partition; /* partition.h */

/* Skips that layers declare, for a schedule of the partition: from and to of layers[count] are
 * entries of the list of layers, of a layer that is used several times the entry meant. out, with
 * room for count, gets those between different stages (invocations), *out_count their number; what
 * begins and ends in one stage is left to that stage. DP_EINVAL with all violations in one sentence,
 * as dp_schedule_new has them, by layers; and for an entry that a `compat` partition lost. Messages are
 * made where the two stages are on different ranks only. */
DP_PUBLIC int dp_skips_of_layers(const struct dp_partition *p, const struct dp_skip *layers,
                                 int count, struct dp_skip *out, int *out_count);

/* A schedule. Read it freely; only builders and passes write. Ranks are pipeline ranks;
 * group_rank[p] is the rank by which the communicator knows pipeline rank p. */
struct dp_schedule {
    enum dp_schedule_kind kind;
    int32_t ranks;          /* P */
    int32_t stages;         /* S */
    int32_t streams;        /* 1 or 2 */
    int32_t max_slots;      /* the most slots that any rank has */
    int32_t microbatches;   /* M, all streams */
    int32_t mb_per_stream;  /* N = M / streams */
    bool forward_only;
    bool return_outputs;    /* outputs of last stages stay until the end of the step */
    bool overlap;           /* pairs are marked as overlapped; else each is F, then B */
    int32_t slack;          /* of the spec */
    int32_t *group_rank;    /* [ranks] */
    size_t *first_slot;     /* [ranks + 1]: rank r's slots are slots[first_slot[r]] and on */
    struct dp_slot *slots;  /* [first_slot[ranks]]; a rank may have none */
    int32_t skip_count;
    struct dp_skip *skips;  /* [skip_count] */
    struct dp_skip_ends *skip_ends; /* [streams * skip_count]: dp_skip_ends_of */
    size_t *first;          /* [ranks + 1]: rank r's ops are ops[first[r]] .. ops[first[r+1]-1] */
    struct dp_op *ops;
};

/* Which forwards keep only their input and are computed again before their backward. */
enum dp_recompute {
    DP_RECOMPUTE_NEVER,
    DP_RECOMPUTE_EXCEPT_LAST, /* all micro-batches of a stream but the last */
    DP_RECOMPUTE_ALWAYS,
    DP_RECOMPUTES
};

DP_PUBLIC int dp_recompute_parse(const char *name, enum dp_recompute *recompute);

/* What to build. Zeroed memory plus kind, ranks and microbatches is the usual training schedule. */
struct dp_schedule_spec {
    enum dp_schedule_kind kind;
    int ranks;        /* P: >= 1; DualPipe: even */
    int microbatches; /* M: >= 1; DualPipe and DualPipeV >= 2P; DualPipe even; interleaved: a
                       * multiple of P */
    bool forward_only;
    bool return_outputs;
    bool no_overlap;     /* do not mark pairs as overlapped */
    int slack;           /* DualPipe, DualPipeV: 1: one more forward of warm-up at every border
                          * between ranks, so that a message has the time of an overlapped pair to
                          * arrive; 2P + 1 activation sets instead of P + 1, DualPipeV 4P + 1 instead
                          * of 2P + 1. 0: the order of the recorded traces. No effect on
                          * forward_only */
    bool mirror_reduce;  /* add REDUCE ops (DualPipe training; nothing to do elsewhere). Without them a
                          * pipeline sums the copies of a stage after the list (pipeline.h) */
    bool reduce_all;     /* add them for every slot: the pipeline is one of several replicas */
    int virtual_stages;  /* interleaved: stages of a rank; 0: 2 */
    enum dp_recompute recompute;
    const struct dp_partition *partition; /* async alone: what the ranks hold, reused layers
                                           * included; NULL: stage r on rank r */
    /* [skip_count] skip connections, as messages of their own. DP_EINVAL with all violations in one
     * sentence: a stage that is not there, produced and consumed by one stage, consumed before it is
     * produced, produced or consumed twice in a namespace, only produced or only consumed. */
    const struct dp_skip *skips;
    int skip_count;
    const int *rank_map; /* [ranks] rank_map[group rank] = pipeline rank; NULL: the same */
    uint64_t reserved[2];
};

/* Build the schedule of all ranks. Errors: DP_EINVAL for a spec outside the limits noted above,
 * naming the value and what was expected; DP_ENOMEM. The caller frees. Any thread. */
DP_PUBLIC int dp_schedule_new(const struct dp_schedule_spec *spec, struct dp_schedule **out);
DP_PUBLIC void dp_schedule_free(struct dp_schedule *s);

/* Build the list of one pipeline rank only, into ops[capacity]; *count is its length, also
 * with DP_ENOMEM, when it does not fit. Equal to dp_schedule_new's list of that rank. */
DP_PUBLIC int dp_schedule_build_rank(const struct dp_schedule_spec *spec, int rank,
                                     struct dp_op *ops, size_t capacity, size_t *count);

/* The same without ops (s->ops NULL): ranks, slots and micro-batches, which say how many messages there
 * are and between which ranks, as dp_placement_new wants to know. Takes no memory for them, whatever M
 * is. For nothing that reads ops. */
DP_PUBLIC int dp_schedule_new_outline(const struct dp_schedule_spec *spec, struct dp_schedule **out);

/* The evaluation that goes with a training schedule: the same ranks, slots and micro-batches, its
 * forwards in their order. DP_EINVAL if they wait for each other in a circle; DP_ENOMEM. The caller
 * frees. */
DP_PUBLIC int dp_schedule_new_forward(const struct dp_schedule *training, struct dp_schedule **out);

/* Small readers, all inline, none checks its arguments. */
static inline size_t dp_schedule_count(const struct dp_schedule *s, int rank)
{
    return s->first[rank + 1] - s->first[rank];
}
static inline const struct dp_op *dp_schedule_ops(const struct dp_schedule *s, int rank)
{
    return s->ops + s->first[rank];
}
static inline const struct dp_slot *dp_schedule_slot(const struct dp_schedule *s, int rank,
                                                     int slot)
{
    return s->slots + s->first_slot[rank] + slot;
}
/* How many slots the rank has. */
static inline int dp_schedule_slot_count(const struct dp_schedule *s, int rank)
{
    return (int)(s->first_slot[rank + 1] - s->first_slot[rank]);
}
static inline const struct dp_skip_ends *dp_skip_ends_of(const struct dp_schedule *s, int stream,
                                                          int skip)
{
    return &s->skip_ends[stream * s->skip_count + skip];
}
static inline bool dp_op_is_skip(enum dp_op_kind kind)
{
    return kind >= DP_OP_RECV_SKIP_F && kind <= DP_OP_SEND_SKIP_B;
}
/* The stage that a trace names with an op: that of a message is the stage which produced it. */
static inline int dp_op_stage(const struct dp_schedule *s, const struct dp_slot *slot,
                              struct dp_op op)
{
    return op.kind == DP_OP_RECV_F        ? slot->stage - 1
           : op.kind == DP_OP_RECV_B      ? slot->stage + 1
           : op.kind == DP_OP_RECV_SKIP_F ? s->skips[dp_op_argument(op)].from
           : op.kind == DP_OP_RECV_SKIP_B ? s->skips[dp_op_argument(op)].to
                                          : slot->stage;
}
/* The pipeline rank at the other end of a message, a REDUCE or a REDUCE_WAIT; -1: a REDUCE of a
 * slot without a mirror. */
static inline int dp_op_peer(const struct dp_schedule *s, const struct dp_slot *slot,
                             struct dp_op op)
{
    if (op.kind == DP_OP_RECV_SKIP_F || op.kind == DP_OP_SEND_SKIP_B)
        return dp_skip_ends_of(s, slot->stream, (int)dp_op_argument(op))->from;
    if (op.kind == DP_OP_SEND_SKIP_F || op.kind == DP_OP_RECV_SKIP_B)
        return dp_skip_ends_of(s, slot->stream, (int)dp_op_argument(op))->to;
    if (op.kind == DP_OP_REDUCE || op.kind == DP_OP_REDUCE_WAIT)
        return slot->mirror;
    return op.kind == DP_OP_RECV_F || op.kind == DP_OP_SEND_B ? slot->prev : slot->next;
}
static inline bool dp_slot_is_first(const struct dp_slot *slot)
{
    return slot->prev < 0;
}
static inline bool dp_slot_is_last(const struct dp_slot *slot)
{
    return slot->next < 0;
}

/* ---- passes: data in, data out ------------------------------------------------------------- */

/* Add a REDUCE for every slot that has a mirror, before the compute that follows its last weight
 * gradient, and at the end of the list a REDUCE_WAIT for each. Partners that run mirror images of
 * one list agree on the order. */
static inline int dp_schedule_add_reduces(struct dp_schedule *s);

/* The same for every slot, with `all`: its gradients are also summed with those of replicas of the
 * pipeline, which the schedule knows nothing of (pipeline.h: dp_reduce_ops). */
DP_PUBLIC int dp_schedule_add_sums(struct dp_schedule *s, bool all);

static inline int dp_schedule_add_reduces(struct dp_schedule *s)
{
    return dp_schedule_add_sums(s, false);
}

static inline int dp_schedule_add_all_reduces(struct dp_schedule *s)
{
    return dp_schedule_add_sums(s, true);
}
/* Add a RECOMPUTE before the backward of each micro-batch that is wanted: its F then keeps the input
 * only. mb is in the slot's stream. It stands right before the backward or the overlapped pair, so
 * it runs while the gradient is under way. Nothing is added to a schedule without backwards.
 * DP_ESTATE if it has a RECOMPUTE already; DP_ENOMEM. */
DP_PUBLIC int dp_schedule_add_recomputes(struct dp_schedule *s,
                                         bool (*wanted)(void *user, const struct dp_slot *slot,
                                                        int32_t mb),
                                         void *user);
/* Add an EVICT behind the forward of each micro-batch that is wanted, and a FETCH `lead` computes (an
 * overlapped pair is one) before its backward, so that the copy has their time. A micro-batch that is
 * recomputed, or whose FETCH would not be at least two computes behind its forward, stays as it is.
 * rank is a pipeline rank, mb in the slot's stream. Nothing is added to a schedule without backwards.
 * DP_EINVAL for a negative lead; DP_ESTATE if it has an EVICT or FETCH already; DP_ENOMEM. */
DP_PUBLIC int dp_schedule_add_evictions(struct dp_schedule *s, int lead,
                                        bool (*wanted)(void *user, int rank,
                                                       const struct dp_slot *slot, int32_t mb),
                                        void *user);

/* ---- the checker --------------------------------------------------------------------------- */

enum dp_rule {
    DP_RULE_NONE,
    DP_RULE_SHAPE,      /* slots, ranks or counts that make no sense */
    DP_RULE_ONCE,       /* every F, B or I + W, message and reduce exactly once */
    DP_RULE_DEPENDENCY, /* an op before what it needs: locally, or of its own message */
    DP_RULE_FIFO,       /* k-th send on a directed link is not the peer's k-th receive; or k-th
                         * REDUCE with a mirror not the mirror's k-th */
    DP_RULE_DEADLOCK,   /* with strict rendezvous, of messages and of sums at their REDUCE, the
                         * ranks wait for each other in a circle */
    DP_RULE_WEIGHT,     /* a slot's W queue: popped empty, out of order, not empty at the end; the
                         * rank's queues together too deep */
    DP_RULE_ACTIVATION, /* more live activation sets than the bound; a set of which only the input
                         * is kept (recomputed later), or that is evicted, does not count */
    DP_RULE_COMMIT,     /* a batch that is never committed, or whose count is wrong */
    DP_RULES
};

/* The first thing found wrong. */
struct dp_finding {
    enum dp_rule rule;
    int rank;           /* pipeline rank; -1: no one rank */
    size_t index;       /* in that rank's list */
    struct dp_op op;    /* the op there; kind NONE at the end of a list */
    char text[1024];    /* one sentence; for a deadlock the whole circle */
};

/* Bounds that a schedule must keep; 0: the kind's own (DualPipe: P + 1 activation sets and a queue
 * of h + 1, h as in README.md; DualPipeV 2P + 1 and rank + 1; with slack 2P + 1 and 4P + 1 sets; GPipe
 * M; 1F1B P - rank; ZB1P P and rank + 1; ZB-V 2P and 2 rank + 1; interleaved its warm-up and one; async
 * M for each slot; a user's: none). */
struct dp_check_limits {
    int max_activations;
    int max_weight_queue;
};

/* Prove that the schedule can be carried out: every op exactly once, dependencies local and
 * through messages, FIFO on every directed link (so that no transport needs tags), no deadlock
 * under strict rendezvous, weight queue order and depth, activation bound. limits may be NULL.
 * DP_EINVAL with *finding filled (finding may be NULL) at the first violation. */
DP_PUBLIC int dp_schedule_check(const struct dp_schedule *s, const struct dp_check_limits *limits,
                                struct dp_finding *finding);

/* ---- timeline and simulator ---------------------------------------------------------------- */

/* One bar of a timeline, simulated or recorded. Times in ns from the start of the step. */
struct dp_span {
    int64_t start_ns, end_ns;
    int32_t rank;       /* pipeline rank */
    uint32_t index;     /* of the op in the rank's list; an overlapped pair: that of its F */
    struct dp_op op;    /* an overlapped pair: its F ... */
    struct dp_op pair;  /* ... and its B; kind NONE otherwise */
    int64_t waited_ns;  /* time just before start_ns spent waiting for a message */
    int32_t waited_for; /* pipeline rank it came from, -1: did not wait */
};

/* A step as it went, or as it would go: the one format that reports and drawings read. */
struct dp_timeline {
    int32_t ranks;
    size_t count;
    struct dp_span *spans; /* by rank, then start */
    int64_t makespan_ns;
};

DP_PUBLIC void dp_timeline_fini(struct dp_timeline *t);

/* What ops cost, in ns. f, i, w, b, fb are of one stage at speed 1; the two scales, where given,
 * multiply them. */
struct dp_cost {
    double f_ns, i_ns, w_ns;
    double b_ns;               /* 0: i + w */
    double fb_ns;              /* 0: f + b */
    double reduce_ns;
    double recompute_ns;       /* 0: f */
    double evict_ns, fetch_ns; /* of one micro-batch; a rank's copies each way come one by one */
    const double *stage_scale; /* [stages], NULL: 1 */
    const double *rank_scale;  /* [ranks], NULL: 1 */
    double link_latency_ns;    /* from a send's start to the arrival of a first byte */
    double link_bytes_per_ns;  /* 0: without limit */
    double message_bytes;      /* activation or gradient of one micro-batch */
    double skip_bytes;         /* value or gradient of a skip; 0: message_bytes */
    const int64_t *op_ns;      /* [all ops, as in s->ops] what each compute and REDUCE takes,
                                * instead of the costs above; a pair's at its F. NULL: by those */
    uint64_t reserved[2];
};

struct dp_rank_report {
    int64_t busy_ns;    /* computing */
    int64_t bubble_ns;  /* makespan - busy */
    int64_t waiting_ns; /* for messages, within first to last op */
    int32_t peak_activations;
    int32_t peak_weight_queue;
    int32_t peak_inputs; /* sets of which only the input was kept, and evicted sets, at the most */
};

struct dp_simulation {
    int64_t makespan_ns;
    double bubble_ratio;          /* sum of bubbles / (ranks * makespan) */
    struct dp_rank_report *ranks; /* [P] */
    struct dp_timeline timeline;  /* filled if asked for */
    size_t critical_count;        /* the critical path, first op to last, if asked for */
    struct dp_span *critical;
};

enum {
    DP_SIMULATE_TIMELINE = 1, /* fill in timeline */
    DP_SIMULATE_CRITICAL = 2, /* fill in critical */
    DP_SIMULATE_BATCHES = 4   /* a rank waits at a COMMIT for all that the batch receives, as a
                               * stream does in one group call; else at the op that consumes it */
};

/* Carry the schedule out on paper: start and end of every op when a COMMIT starts its sends at
 * once, receives are early and each wait belongs to the op that consumes (as in pipeline.h). flags:
 * DP_SIMULATE_*. Expects a schedule that dp_schedule_check passes. DP_EINVAL for a cost that is
 * negative or no number, for costs whose sum may be 2^62 ns or more, and for a schedule that comes to
 * no end; DP_ENOMEM. */
DP_PUBLIC int dp_schedule_simulate(const struct dp_schedule *s, const struct dp_cost *cost,
                                   unsigned flags, struct dp_simulation *out);
DP_PUBLIC void dp_simulation_fini(struct dp_simulation *sim);

/* ---- text, JSON, CSV: formats that round-trip------------------------------------------------ */

enum dp_format {
    DP_FORMAT_TEXT,
    DP_FORMAT_JSON,
    DP_FORMAT_CSV,
    DP_FORMAT_PYTORCH /* CSV of torch.distributed.pipelining: "0F0,(1F2;2B0)OVERLAP_F_B" a rank */
};

/* Write the schedule: text (a line a rank, a token an op: dp_op_text), JSON (the trace schema of the
 * golden files, with `source`), CSV (a row a rank, a cell an op). PyTorch's CSV has the computes only
 * and is read back as a schedule of kind user; DP_EUNSUPPORTED for two streams, shared parameters,
 * RECOMPUTE, EVICT and FETCH, for which it has no word. schedule/README.md has more.
 * *out is malloc'ed, NUL-terminated, *len without the NUL; len may be NULL. */
DP_PUBLIC int dp_schedule_write(const struct dp_schedule *s, enum dp_format format, char **out,
                                size_t *len);
/* Read any of them back. DP_EINVAL names line or JSON path, what stood there and what was
 * expected. Lists without any message get messages and frees by the passes. The result has not been
 * checked: call dp_schedule_check. */
DP_PUBLIC int dp_schedule_read(const char *text, size_t len, enum dp_format format,
                               struct dp_schedule **out);

#ifdef __cplusplus
}
#endif
#endif
