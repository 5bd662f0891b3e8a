/* SPDX-License-Identifier: Apache-2.0
 *
 * format.c - write and read schedules; what all formats have in common.
 */
#include "schedule/format.h"

#include "base/fail.h"
#include "base/utf8.h"
#include "schedule/build.h"

#include <stdlib.h>
#include <string.h>

int dp_schedule_write(const struct dp_schedule *s, enum dp_format format, char **out, size_t *len)
{
    struct dp_text t = {0};

    switch (format) {
    case DP_FORMAT_TEXT:
        dp_write_text(s, ' ', &t);
        break;
    case DP_FORMAT_JSON:
        dp_write_json(s, &t);
        break;
    case DP_FORMAT_CSV:
        dp_write_text(s, ',', &t);
        break;
    default:
        return dp_fail(DP_EINVAL, "format: %d, expected DP_FORMAT_TEXT, _JSON or _CSV", format);
    }
    return dp_text_take(&t, out, len);
}

/* ---- drafts ---------------------------------------------------------------------------------- */

int dp_draft_map(struct dp_draft *draft, const int *group_rank)
{
    int ranks = draft->spec.ranks;

    draft->rank_map = malloc((size_t)ranks * sizeof(*draft->rank_map));
    if (!draft->rank_map)
        return dp_fail_quietly(DP_ENOMEM, "no memory for %d ranks", ranks);
    draft->spec.rank_map = draft->rank_map;
    for (int i = 0; i < ranks; i++)
        draft->rank_map[i] = -1;
    for (int rank = 0; rank < ranks; rank++) {
        int group = group_rank[rank];
        if (group < 0 || group >= ranks || draft->rank_map[group] >= 0)
            return dp_fail_quietly(DP_EINVAL,
                                   "group rank %d of rank %d, expected each of 0 to %d once",
                                   group, rank, ranks - 1);
        draft->rank_map[group] = rank;
    }
    return 0;
}

bool dp_placed_by_file(enum dp_schedule_kind kind)
{
    const struct dp_builder *builder = dp_builder_of(kind);
    return !builder || builder->placed_by_file;
}

static int place_line(struct dp_draft *draft)
{
    int ranks = draft->spec.ranks > 0 ? draft->spec.ranks : 0;

    draft->first_slot = calloc((size_t)ranks + 1, sizeof(*draft->first_slot));
    draft->slots = calloc((size_t)ranks + 1, sizeof(*draft->slots));
    if (!draft->slots || !draft->first_slot)
        return dp_fail_quietly(DP_ENOMEM, "no memory for %d ranks", draft->spec.ranks);
    for (int rank = 0; rank < ranks; rank++) {
        draft->slots[rank].stage = rank;
        draft->first_slot[rank + 1] = (size_t)rank + 1;
    }
    return 0;
}

int dp_draft_place(struct dp_draft *draft)
{
    int err = 0;

    if (!dp_placed_by_file(draft->spec.kind))
        return dp_schedule_new_empty(&draft->spec, &draft->s);
    if (!draft->first_slot)
        err = place_line(draft);
    return err ? err : dp_schedule_new_placed(&draft->spec, draft->streams, draft->first_slot,
                                              draft->slots, &draft->s);
}

void dp_draft_end_rank(struct dp_draft *draft, int rank)
{
    draft->s->first[rank + 1] = draft->ops.count;
}

static bool has_messages(const struct dp_schedule *s)
{
    for (size_t i = 0; i < s->first[s->ranks]; i++)
        if (dp_op_is_message((enum dp_op_kind)s->ops[i].kind) || s->ops[i].kind == DP_OP_COMMIT)
            return true;
    return false;
}

static bool has_kind(const struct dp_schedule *s, enum dp_op_kind kind)
{
    for (size_t i = 0; i < s->first[s->ranks]; i++)
        if (s->ops[i].kind == kind)
            return true;
    return false;
}

int dp_draft_finish(struct dp_draft *draft, struct dp_schedule **out)
{
    int err = dp_schedule_take_ops(draft->s, &draft->ops, draft->s->first);

    if (!err)
        err = dp_schedule_mark_recomputed(draft->s);
    if (!err && has_kind(draft->s, DP_OP_REDUCE) && !has_kind(draft->s, DP_OP_REDUCE_WAIT))
        err = dp_schedule_rewrite(draft->s, dp_add_reduce_waits);
    if (!err && !has_messages(draft->s)) {
        err = dp_schedule_add_messages(draft->s);
        if (!err)
            err = dp_schedule_add_frees(draft->s);
    }
    if (err)
        return err;
    *out = draft->s;
    draft->s = NULL;
    return 0;
}

void dp_draft_fini(struct dp_draft *draft)
{
    free(draft->rank_map);
    free(draft->first_slot);
    free(draft->slots);
    dp_op_list_fini(&draft->ops);
    dp_schedule_free(draft->s);
}

int dp_schedule_read(const char *text, size_t len, enum dp_format format,
                     struct dp_schedule **out)
{
    struct dp_draft draft = {.streams = 1};
    int err = dp_utf8_begin(&text, &len, NULL);

    if (err)
        return err;
    switch (format) {
    case DP_FORMAT_TEXT:
    case DP_FORMAT_CSV:
        err = dp_read_text(text, len, &draft);
        break;
    case DP_FORMAT_JSON:
        err = dp_read_json(text, len, &draft);
        break;
    default:
        return dp_fail(DP_EINVAL, "format: %d, expected DP_FORMAT_TEXT, _JSON or _CSV", format);
    }
    if (!err)
        err = dp_draft_finish(&draft, out);
    dp_draft_fini(&draft);
    return err;
}

/* ---- equality -------------------------------------------------------------------------------- */

static bool same_header(const struct dp_schedule *a, const struct dp_schedule *b)
{
    return a->kind == b->kind && a->ranks == b->ranks && a->stages == b->stages &&
           a->streams == b->streams && a->max_slots == b->max_slots &&
           a->microbatches == b->microbatches && a->mb_per_stream == b->mb_per_stream &&
           a->forward_only == b->forward_only && a->return_outputs == b->return_outputs &&
           a->overlap == b->overlap;
}

bool dp_schedule_equal(const struct dp_schedule *a, const struct dp_schedule *b)
{
    size_t ranks = (size_t)a->ranks;

    if (!same_header(a, b))
        return false;
    if (memcmp(a->first_slot, b->first_slot, (ranks + 1) * sizeof(*a->first_slot)))
        return false;
    for (size_t i = 0; i < a->first_slot[ranks]; i++)
        if (!dp_slots_equal(&a->slots[i], &b->slots[i]))
            return false;
    return !memcmp(a->group_rank, b->group_rank, ranks * sizeof(*a->group_rank)) &&
           !memcmp(a->first, b->first, (ranks + 1) * sizeof(*a->first)) &&
           (!a->first[ranks] || !memcmp(a->ops, b->ops, a->first[ranks] * sizeof(*a->ops)));
}
