/* SPDX-License-Identifier: Apache-2.0
 *
 * format.h - the formats of a schedule: a writer and a reader each. Text and CSV are the same
 * tokens with different separators (see README.md).
 */
#ifndef DP_SCHEDULE_FORMAT_H
#define DP_SCHEDULE_FORMAT_H

#include "base/text.h"
#include "schedule/build.h"

void dp_write_text(const struct dp_schedule *s, char separator, struct dp_text *t);
void dp_write_json(const struct dp_schedule *s, struct dp_text *t);
int dp_write_pytorch(const struct dp_schedule *s, struct dp_text *t); /* DP_EUNSUPPORTED */

/* ---- drafts (draft.c) ------------------------------------------------------------------------ */

/* What a reader has understood so far. */
struct dp_draft {
    struct dp_schedule_spec spec;
    int *rank_map;         /* malloc'ed; spec.rank_map points here. NULL: as they are */
    int streams;           /* of a user's schedule; otherwise its builder knows */
    size_t *first_slot;    /* malloc'ed, [ranks + 1]; of a user's schedule, with slots */
    struct dp_slot *slots; /* malloc'ed: of a user's schedule, by rank */
    struct dp_skip *skips; /* malloc'ed, [skip_count] */
    int skip_count;
    struct dp_schedule *s; /* from dp_draft_place on */
    struct dp_op_list ops;
};

/* Group ranks by pipeline rank, group_rank[spec.ranks], become the rank map. */
int dp_draft_map(struct dp_draft *draft, const int *group_rank);
/* One more skip. DP_EINVAL for more than there may be, DP_ENOMEM. Logged. */
int dp_draft_add_skip(struct dp_draft *draft, const struct dp_skip *skip);
/* All but the ops has been read: make the schedule. A user's without slots holds a stage a rank.
 * Errors are not logged. */
int dp_draft_place(struct dp_draft *draft);
/* All ops of `rank` have been added to draft->ops. */
void dp_draft_end_rank(struct dp_draft *draft, int rank);
/* All ranks have been ended: hand the schedule out, with messages and frees if it has none, and
 * with REDUCE_WAITs if it has REDUCEs only. */
int dp_draft_finish(struct dp_draft *draft, struct dp_schedule **out);
void dp_draft_fini(struct dp_draft *draft);

/* Fill in the draft, or report what is wrong and where. */
int dp_read_text(const char *text, size_t len, struct dp_draft *draft);
int dp_read_json(const char *text, size_t len, struct dp_draft *draft);
int dp_read_pytorch(const char *text, size_t len, struct dp_draft *draft);

#endif
