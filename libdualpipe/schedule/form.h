/* SPDX-License-Identifier: Apache-2.0
 *
 * form.h - the written forms of a schedule: a writer and a reader each. Text and CSV are the same
 * words with different separators (see README.md).
 */
#ifndef DP_SCHEDULE_FORM_H
#define DP_SCHEDULE_FORM_H

#include "base/text.h"
#include "schedule/op_list.h"

void dp_write_words(const struct dp_schedule *s, char separator, struct dp_text *t);
void dp_write_json(const struct dp_schedule *s, struct dp_text *t);

/* What a reader has understood so far. */
struct dp_draft {
    struct dp_schedule_spec spec;
    int *rank_map;         /* malloc'ed; spec.rank_map points here. NULL: as they are */
    int streams;           /* of a user's schedule; else its builder knows */
    int slots_per_rank;    /* of a user's schedule */
    struct dp_slot *slots; /* malloc'ed: of a user's schedule, by rank */
    struct dp_schedule *s; /* from dp_draft_place on */
    struct dp_op_list ops;
};

/* Group ranks by pipeline rank, group_rank[spec.ranks], become the rank map. */
int dp_draft_map(struct dp_draft *draft, const int *group_rank);
/* All but the ops has been read: make the schedule. A user's without slots holds a stage a rank.
 * Errors are not logged. */
int dp_draft_place(struct dp_draft *draft);
/* All ops of `rank` have been added to draft->ops. */
void dp_draft_end_rank(struct dp_draft *draft, int rank);
/* All ranks have been ended: hand the schedule out, with messages and frees if it has none. */
int dp_draft_finish(struct dp_draft *draft, struct dp_schedule **out);
void dp_draft_fini(struct dp_draft *draft);

/* Fill in the draft, or say what is wrong and where. */
int dp_read_words(const char *text, size_t len, struct dp_draft *draft);
int dp_read_json(const char *text, size_t len, struct dp_draft *draft);

#endif
