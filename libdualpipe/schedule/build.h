/* SPDX-License-Identifier: Apache-2.0
 *
 * build.h - what a builder is, and the passes that finish what it wrote.
 *
 * A builder knows two things: which stages a rank holds (place), and in which order it computes
 * (write). All else, messages, frees, reduces, is added by passes over the list of one rank.
 */
#ifndef DP_SCHEDULE_BUILD_H
#define DP_SCHEDULE_BUILD_H

#include <dualpipe/schedule.h>

/* ---- parts of dp_schedule_new ------------------------------------------------------------------ */

/* Add the messages and commit points to lists that hold computes only: a receive right before the
 * compute that consumes it, a send right after the one that produces it, a commit before the next
 * compute. Where ranks would then wait for each other, receives stand earlier, in an order of
 * messages that both ends of every link keep. Replaces the schedule's lists. DP_ESTATE if it has
 * messages already. */
int dp_schedule_add_messages(struct dp_schedule *s);
/* Add a FREE after every COMMIT for the outputs it sent (none with return_outputs). */
int dp_schedule_add_frees(struct dp_schedule *s);

/* ---- lists of ops ---------------------------------------------------------------------------- */

/* A list of ops that grows. Zeroed memory is an empty one. A failed allocation is remembered: a
 * builder writes without looking, and its caller asks once, at the end. */
struct dp_op_list {
    struct dp_op *ops;
    size_t count, capacity;
    bool borrowed; /* ops is not the list's own: grow elsewhere, do not free */
    bool failed;
};

bool dp_op_list_grow(struct dp_op_list *list, size_t more);
void dp_op_list_append(struct dp_op_list *list, const struct dp_op *ops, size_t count);
void dp_op_list_fini(struct dp_op_list *list);

/* Make room for `more` ops, so that as many dp_op_list_put may follow. False: no memory. */
static inline bool dp_op_list_reserve(struct dp_op_list *list, size_t more)
{
    return (more <= list->capacity - list->count && !list->failed) || dp_op_list_grow(list, more);
}

/* Write into room that was reserved. */
static inline void dp_op_list_put(struct dp_op_list *list, struct dp_op op)
{
    list->ops[list->count++] = op;
}

static inline void dp_op_list_add(struct dp_op_list *list, struct dp_op op)
{
    if (dp_op_list_reserve(list, 1))
        dp_op_list_put(list, op);
}

/* A compute of a builder. */
static inline void dp_op_list_compute(struct dp_op_list *list, enum dp_op_kind kind, uint32_t unit,
                                      int slot, int mb)
{
    dp_op_list_add(list, (struct dp_op){.kind = (uint8_t)kind, .flags = dp_op_flags(unit, 0),
                                        .slot = (uint8_t)slot, .mb = (uint32_t)mb});
}

/* ---- builders -------------------------------------------------------------------------------- */
/* One rank, as builders and passes see it. Of `s` they read what concerns all ranks; its slots and
 * ops may not be there yet. */
struct dp_rank_view {
    const struct dp_schedule *s;
    int rank;
    const struct dp_slot *slots; /* [slot_count], of this rank */
    int slot_count;
    const void *arg; /* of the pass */
    bool frees;      /* a builder that posts messages adds what dp_add_frees would, too */
};

static inline struct dp_rank_view dp_schedule_view(const struct dp_schedule *s, int rank)
{
    return (struct dp_rank_view){s, rank, dp_schedule_slot(s, rank, 0),
                                 dp_schedule_slot_count(s, rank), NULL, false};
}

struct dp_builder {
    const char *name;
    int slots_per_rank;  /* where `slots` is NULL */
    int stages_per_rank; /* S = this * P, where `stages` is NULL */
    int streams;
    bool posts_messages; /* write posts its own messages; else dp_add_messages does */
    bool placed_by_file; /* a file says which stages the ranks hold */
    bool has_slack;      /* dp_schedule_spec.slack; with it, write posts no messages */

    /* Is the number of ranks and micro-batches legal? NULL: any from 1. */
    int (*check)(const struct dp_schedule_spec *spec);
    int (*stages)(const struct dp_schedule_spec *spec);
    /* How many slots the rank has. Messages are then added to all ranks together. */
    int (*slots)(const struct dp_schedule_spec *spec, int rank);
    /* Fill the slots of one rank. */
    void (*place)(const struct dp_schedule_spec *spec, int rank, struct dp_slot *slots);
    /* Append the rank's ops. */
    void (*write)(const struct dp_rank_view *view, struct dp_op_list *out);

    /* The bounds that the schedule keeps when it trains (dp_check_limits). */
    int (*max_activations)(const struct dp_rank_view *view);
    int (*max_weight_queue)(const struct dp_rank_view *view); /* NULL: 0, no weights wait */
};

extern const struct dp_builder dp_build_gpipe, dp_build_1f1b, dp_build_zb1p, dp_build_dualpipe,
    dp_build_dualpipev, dp_build_interleaved, dp_build_zbv, dp_build_async;

/* The builder of a kind, NULL for a user's. */
const struct dp_builder *dp_builder_of(enum dp_schedule_kind kind);
/* The bounds that its schedules keep when they train; -1: a user's, which has none. */
void dp_builder_limits(const struct dp_rank_view *view, int *activations, int *weight_queue);
/* Does a file of this kind say which stages the ranks hold? */
bool dp_placed_by_file(enum dp_schedule_kind kind);
/* The letters of an op in text and CSV: "F", "rF". */
const char *dp_op_token(enum dp_op_kind kind);
/* dp_schedule_kind_parse, without a log line. */
int dp_schedule_kind_find(const char *name, enum dp_schedule_kind *kind);

/* place() of schedules with two stages a rank, down the ranks and back up. */
void dp_place_v(const struct dp_schedule_spec *spec, int rank, struct dp_slot *slots);
/* place() of schedules with one stage a rank, in the ranks' order. */
void dp_place_line(const struct dp_schedule_spec *spec, int rank, struct dp_slot *slots);

/* Does this slot's activation come from, or go to, another rank by message? Gradients travel the
 * same way back. */
static inline bool dp_slot_has_remote_prev(const struct dp_slot *slot, int rank)
{
    return slot->prev >= 0 && slot->prev != rank;
}
static inline bool dp_slot_has_remote_next(const struct dp_slot *slot, int rank)
{
    return slot->next >= 0 && slot->next != rank;
}

/* Are the weights of this slot's stage elsewhere too? (Two slots of one rank can share theirs.) */
static inline bool dp_slot_has_remote_mirror(const struct dp_slot *slot, int rank)
{
    return slot->mirror >= 0 && slot->mirror != rank;
}

/* A compute is what occupies a rank: F, B, I, W, RECOMPUTE. */
static inline bool dp_op_is_compute(enum dp_op_kind kind)
{
    return kind >= DP_OP_F && kind <= DP_OP_RECOMPUTE;
}
static inline bool dp_op_is_message(enum dp_op_kind kind)
{
    return kind >= DP_OP_RECV_F && kind <= DP_OP_SEND_SKIP_B;
}
static inline bool dp_op_is_send(enum dp_op_kind kind)
{
    return kind == DP_OP_SEND_F || kind == DP_OP_SEND_B || kind == DP_OP_SEND_SKIP_F ||
           kind == DP_OP_SEND_SKIP_B;
}

/* The schedule's first message or COMMIT; NULL: it has none yet. */
const struct dp_op *dp_schedule_first_message(const struct dp_schedule *s);

/* Does any rank have an op of this kind? */
bool dp_schedule_has(const struct dp_schedule *s, enum dp_op_kind kind);

/* Does the op belong to one micro-batch of its slot? */
static inline bool dp_op_has_mb(enum dp_op_kind kind)
{
    return kind != DP_OP_NONE && kind != DP_OP_COMMIT && kind != DP_OP_REDUCE &&
           kind != DP_OP_REDUCE_WAIT;
}

enum { DP_MAX_ARGUMENT = DP_OP_ARGUMENT >> 7, DP_MAX_UNIT = DP_OP_UNIT >> 2 };

/* Passes over one rank: read `in`, append to `out`. */
typedef void dp_pass_fn(const struct dp_rank_view *view, const struct dp_op *in, size_t count,
                        struct dp_op_list *out);
dp_pass_fn dp_add_messages, dp_add_frees, dp_add_reduces, dp_add_all_reduces, dp_add_reduce_waits;
/* arg: struct dp_recompute_rule. */
dp_pass_fn dp_add_recomputes;

struct dp_recompute_rule {
    bool (*wanted)(void *user, const struct dp_slot *slot, int32_t mb);
    void *user;
};

/* The other way to add messages, to a whole schedule of computes: see lockstep.c. DP_EINVAL, not
 * logged, if the computes themselves can come to no end. */
int dp_add_messages_in_lockstep(struct dp_schedule *s);

/* All members of a schedule of this spec except its arrays. Checks the spec. Errors are not logged. */
int dp_schedule_describe(const struct dp_schedule_spec *spec, struct dp_schedule *out);

/* A schedule of this spec with slots and group ranks, and without ops: first[] is zero. Checks the
 * spec. The caller frees. Errors are not logged. */
int dp_schedule_new_empty(const struct dp_schedule_spec *spec, struct dp_schedule **out);

/* The same for a placement of the user's: slots[first_slot[spec->ranks]] with stage, stream and
 * phase, from which the rest follows. streams: 1 or 2. A rank has at most DP_MAX_SLOTS. */
int dp_schedule_new_placed(const struct dp_schedule_spec *spec, int streams,
                           const size_t *first_slot, const struct dp_slot *slots,
                           struct dp_schedule **out);

/* A copy, freed with dp_schedule_free. DP_ENOMEM. */
int dp_schedule_copy(const struct dp_schedule *s, struct dp_schedule **out);

/* Hand all ranks' ops, and where each rank's begin, to the schedule, which frees those it had. If
 * either could not be allocated, both are freed: DP_ENOMEM. */
int dp_schedule_take_ops(struct dp_schedule *s, struct dp_op_list *all, size_t *first);

/* Replace the ops of all ranks by what the pass makes of them. */
int dp_schedule_rewrite(struct dp_schedule *s, dp_pass_fn *pass);
int dp_schedule_rewrite_with(struct dp_schedule *s, dp_pass_fn *pass, const void *arg);

/* Set or clear `recomputed` of every F: does the rank have a RECOMPUTE for it? DP_ENOMEM. */
int dp_schedule_mark_recomputed(struct dp_schedule *s);

/* The rank whose slot stands at `at` of s->slots. */
static inline int dp_schedule_rank_of(const struct dp_schedule *s, size_t at)
{
    int low = 0, high = s->ranks;

    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (s->first_slot[middle] <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* ---- skip connections (skips.c) --------------------------------------------------------------- */

/* May the text be the name of a skip, or of a namespace? */
bool dp_skip_word(const char *word, size_t len, bool may_be_empty);
/* Skips of a schedule that has slots and, as yet, no messages. Errors are not logged. */
int dp_schedule_take_skips(struct dp_schedule *s, const struct dp_skip *skips, int count);
/* Are they right, and where the slots say? Not logged. */
int dp_skips_check_ends(const struct dp_schedule *s);
bool dp_skips_equal(const struct dp_schedule *a, const struct dp_schedule *b);

/* ---- placement: which slot holds which stage, and its neighbours ----------------------------- */

/* From stage and stream of every slot, fill in prev, next and mirror. DP_EINVAL, not logged, if a
 * stage of a stream is held twice or nowhere. */
int dp_placement_link(struct dp_schedule *s);

/* Is every stage of every stream held once, and are the neighbours right? DP_EINVAL, not logged. */
int dp_placement_check(const struct dp_schedule *s);

/* Is each of 0 .. count - 1 in map[count] once? DP_EINVAL, not logged: *bad is the first index
 * where it is not; DP_ENOMEM. */
int dp_permutation_check(const int *map, int count, int *bad);

/* Slot numbers of neighbours that are not there do not count. */
bool dp_slots_equal(const struct dp_slot *a, const struct dp_slot *b);

#endif
