/* SPDX-License-Identifier: Apache-2.0
 *
 * build.h - what a builder is, and the passes that finish what it wrote.
 *
 * A builder knows two things: which stages a rank holds (place), and in which order it computes
 * (write). All else, messages, frees, reduces, is added by passes over the list of one rank.
 */
#ifndef DP_SCHEDULE_BUILD_H
#define DP_SCHEDULE_BUILD_H

#include "schedule/op_list.h"

/* One rank, as builders and passes see it. Of `s` they read what concerns all ranks; its slots and
 * ops may not be there yet. */
struct dp_rank_view {
    const struct dp_schedule *s;
    int rank;
    const struct dp_slot *slots; /* [slots_per_rank], of this rank */
};

struct dp_builder {
    const char *name;
    int slots_per_rank;
    int stages_per_rank; /* S = this * P */
    int streams;
    bool posts_messages; /* write posts its own messages; else dp_add_messages does */

    /* Is the number of ranks and micro-batches legal? NULL: any from 1. */
    int (*check)(const struct dp_schedule_spec *spec);
    /* Fill slots[slots_per_rank] of one rank. */
    void (*place)(int ranks, int rank, struct dp_slot *slots);
    /* Append the rank's ops. */
    void (*write)(const struct dp_rank_view *view, struct dp_op_list *out);

    /* The bounds that the schedule keeps when it trains (dp_check_limits). */
    int (*max_activations)(const struct dp_rank_view *view);
    int (*max_weight_queue)(const struct dp_rank_view *view);
};

extern const struct dp_builder dp_build_gpipe, dp_build_1f1b, dp_build_zb1p, dp_build_dualpipe,
    dp_build_dualpipev;

/* The builder of a kind, NULL for a user's. */
const struct dp_builder *dp_builder_of(enum dp_schedule_kind kind);
/* dp_schedule_kind_parse, without a log line. */
int dp_schedule_kind_find(const char *name, enum dp_schedule_kind *kind);

/* place() of schedules with one stage a rank, in the ranks' order. */
void dp_place_line(int ranks, int rank, struct dp_slot *slots);

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

/* A compute is what occupies a rank: F, B, I, W. */
static inline bool dp_op_is_compute(enum dp_op_kind kind)
{
    return kind >= DP_OP_F && kind <= DP_OP_W;
}
static inline bool dp_op_is_message(enum dp_op_kind kind)
{
    return kind >= DP_OP_RECV_F && kind <= DP_OP_SEND_B;
}

/* Passes over one rank: read `in`, append to `out`. */
typedef void dp_pass_fn(const struct dp_rank_view *view, const struct dp_op *in, size_t count,
                        struct dp_op_list *out);
dp_pass_fn dp_add_messages, dp_add_frees, dp_add_reduces;

/* The other way to add messages, to a whole schedule of computes: see lockstep.c. DP_EINVAL, not
 * logged, if the computes themselves can come to no end. */
int dp_add_messages_in_lockstep(struct dp_schedule *s);

/* A schedule of this spec with slots and group ranks, and without ops: first[] is zero. Checks the
 * spec. The caller frees. Errors are not logged. */
int dp_schedule_new_empty(const struct dp_schedule_spec *spec, struct dp_schedule **out);

/* The same for a placement of the user's: slots[ranks * slots_per_rank] with stage, stream and
 * phase, from which the rest follows. streams: 1 or 2; slots_per_rank: 1 to DP_MAX_SLOTS. */
int dp_schedule_new_placed(const struct dp_schedule_spec *spec, int streams, int slots_per_rank,
                           const struct dp_slot *slots, struct dp_schedule **out);

/* Hand all ranks' ops, and where each rank's begin, to the schedule, which frees those it had. If
 * either could not be allocated, both are freed: DP_ENOMEM. */
int dp_schedule_take_ops(struct dp_schedule *s, struct dp_op_list *all, size_t *first);

/* Replace the ops of all ranks by what the pass makes of them. */
int dp_schedule_rewrite(struct dp_schedule *s, dp_pass_fn *pass);

#endif
