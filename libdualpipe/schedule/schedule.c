/* SPDX-License-Identifier: Apache-2.0
 *
 * schedule.c - from a spec to a schedule: check it, place the stages, let the builder write each
 * rank's list, finish the list by passes.
 */
#include "base/array.h"
#include "base/fail.h"
#include "schedule/build.h"

#include <stdlib.h>
#include <string.h>

enum { RANKS_MAX = 1 << 20 };

/* ---- lists of ops ---------------------------------------------------------------------------- */

bool dp_op_list_grow(struct dp_op_list *list, size_t more)
{
    if (list->failed)
        return false;

    size_t capacity = list->borrowed ? 0 : list->capacity;
    struct dp_op *ops = dp_array_grow(list->borrowed ? NULL : list->ops, &capacity,
                                      list->count + more, sizeof(*ops));
    if (!ops) {
        list->failed = true;
        return false;
    }
    if (list->borrowed)
        memcpy(ops, list->ops, list->count * sizeof(*ops));
    list->borrowed = false;
    list->ops = ops;
    list->capacity = capacity;
    return true;
}

void dp_op_list_append(struct dp_op_list *list, const struct dp_op *ops, size_t count)
{
    if (!count || !dp_op_list_reserve(list, count))
        return;
    memcpy(list->ops + list->count, ops, count * sizeof(*ops));
    list->count += count;
}

void dp_op_list_fini(struct dp_op_list *list)
{
    if (!list->borrowed)
        free(list->ops);
    *list = (struct dp_op_list){0};
}

/* ---- the spec -------------------------------------------------------------------------------- */

static int check_rank_map(const struct dp_schedule_spec *spec)
{
    int bad, err = dp_permutation_check(spec->rank_map, spec->ranks, &bad);

    if (err != DP_EINVAL)
        return err;
    return dp_fail_quietly(DP_EINVAL, "rank_map[%d]: %d, expected each of 0 to %d once", bad,
                           spec->rank_map[bad], spec->ranks - 1);
}

static int check_spec(const struct dp_schedule_spec *spec, int streams)
{
    const struct dp_builder *builder = dp_builder_of(spec->kind);
    int err = 0;

    if (spec->ranks < 1 || spec->ranks > RANKS_MAX)
        return dp_fail_quietly(DP_EINVAL, "ranks: %d, expected 1 to %d", spec->ranks, RANKS_MAX);
    if (spec->microbatches < 1 || spec->microbatches > DP_MAX_MB * streams)
        return dp_fail_quietly(DP_EINVAL, "microbatches: %d, expected 1 to %d", spec->microbatches,
                               DP_MAX_MB * streams);
    if (builder && builder->check)
        err = builder->check(spec);
    return err || !spec->rank_map ? err : check_rank_map(spec);
}

static int check_build_spec(const struct dp_schedule_spec *spec)
{
    const struct dp_builder *builder = dp_builder_of(spec->kind);

    if (!builder)
        return dp_fail_quietly(DP_EINVAL, "kind: %d (%s), expected one that is built; a user's "
                               "schedule is read", spec->kind, dp_schedule_kind_name(spec->kind));
    return check_spec(spec, builder->streams);
}

/* All members except the arrays, whose lengths follow from these. */
static struct dp_schedule describe(const struct dp_schedule_spec *spec, int stages, int streams)
{
    return (struct dp_schedule){
        .kind = spec->kind,
        .ranks = spec->ranks,
        .stages = stages,
        .streams = streams,
        .microbatches = spec->microbatches,
        .mb_per_stream = spec->microbatches / streams,
        .forward_only = spec->forward_only,
        .return_outputs = spec->return_outputs,
        .overlap = !spec->no_overlap,
    };
}

static int slot_count_of(const struct dp_schedule_spec *spec, int rank)
{
    const struct dp_builder *builder = dp_builder_of(spec->kind);
    return builder->slots ? builder->slots(spec, rank) : builder->slots_per_rank;
}

static struct dp_schedule describe_built(const struct dp_schedule_spec *spec)
{
    const struct dp_builder *builder = dp_builder_of(spec->kind);
    int stages = builder->stages ? builder->stages(spec) : spec->ranks * builder->stages_per_rank;
    return describe(spec, stages, builder->streams);
}

/* ---- one rank -------------------------------------------------------------------------------- */

/* Two lists in turn: each pass reads one and writes the other. Both begin in one block that is
 * large enough for any of our kinds; the C library keeps one such block at hand, and not two. */
struct workbench {
    struct dp_op *block;
    struct dp_op_list now, other;
};

static int workbench_init(struct workbench *w, const struct dp_schedule *s, int slots)
{
    /* Of (slot, mb): four computes, four messages, a FREE, two commits at the most. A pass may ask
     * for twice as much as it then writes. */
    size_t capacity = 2 * 11 * (size_t)slots * (size_t)s->mb_per_stream + 4 * DP_MAX_SLOTS;

    *w = (struct workbench){.block = malloc(2 * capacity * sizeof(*w->block))};
    if (!w->block)
        return dp_fail_quietly(DP_ENOMEM, "no memory for %zu ops of a rank", capacity);
    w->now = (struct dp_op_list){.ops = w->block, .capacity = capacity, .borrowed = true};
    w->other = w->now;
    w->other.ops += capacity;
    return 0;
}

static void workbench_fini(struct workbench *w)
{
    dp_op_list_fini(&w->now);
    dp_op_list_fini(&w->other);
    free(w->block);
}

static void run_pass(struct workbench *w, dp_pass_fn *pass, const struct dp_rank_view *view)
{
    struct dp_op_list in = w->now;

    w->other.count = 0;
    pass(view, in.ops, in.count, &w->other);
    w->other.failed |= in.failed;
    w->now = w->other;
    w->other = in;
}

/* user: the first micro-batch that is not recomputed. */
static bool is_before(void *user, const struct dp_slot *slot, int32_t mb)
{
    const int32_t *stop = user;

    (void)slot;
    return mb < *stop;
}

static void recompute(const struct dp_schedule_spec *spec, struct dp_rank_view view,
                      struct workbench *w)
{
    int32_t stop = view.s->mb_per_stream - (spec->recompute == DP_RECOMPUTE_EXCEPT_LAST);
    struct dp_recompute_rule rule = {is_before, &stop};

    view.arg = &rule;
    if (spec->recompute && !spec->forward_only)
        run_pass(w, dp_add_recomputes, &view);
}

/* Are messages added to all ranks together, when their computes are known? */
static bool is_built_whole(const struct dp_builder *builder)
{
    return !builder->posts_messages && (builder->slots || builder->slots_per_rank > 1);
}

/* Leave the rank's finished list in w->now; of kinds that are built whole, its computes. */
static int build(const struct dp_schedule_spec *spec, const struct dp_rank_view *view,
                 struct workbench *w)
{
    const struct dp_builder *builder = dp_builder_of(spec->kind);

    w->now.count = 0;
    builder->write(view, &w->now);
    recompute(spec, *view, w);
    if (is_built_whole(builder))
        return w->now.failed ? DP_ENOMEM : 0;
    if (!builder->posts_messages)
        run_pass(w, dp_add_messages, view);
    if (!spec->return_outputs)
        run_pass(w, dp_add_frees, view);
    if (spec->mirror_reduce || spec->reduce_all)
        run_pass(w, spec->reduce_all ? dp_add_all_reduces : dp_add_reduces, view);
    return w->now.failed ? DP_ENOMEM : 0;
}

static int copy_out(const struct dp_op_list *list, int rank, struct dp_op *ops, size_t capacity,
                    size_t *count)
{
    *count = list->count;
    if (list->count > capacity)
        return dp_fail_quietly(DP_ENOMEM, "capacity: %zu ops, expected at least %zu for rank %d",
                               capacity, list->count, rank);
    memcpy(ops, list->ops, list->count * sizeof(*ops));
    return 0;
}

static int copy_rank_of_whole(const struct dp_schedule_spec *spec, int rank, struct dp_op *ops,
                              size_t capacity, size_t *count)
{
    struct dp_schedule *s;
    int err = dp_schedule_new(spec, &s);

    if (err)
        return err;
    struct dp_op_list list = {.ops = s->ops + s->first[rank],
                              .count = dp_schedule_count(s, rank)};
    err = copy_out(&list, rank, ops, capacity, count);
    dp_schedule_free(s);
    return err;
}

int dp_schedule_build_rank(const struct dp_schedule_spec *spec, int rank, struct dp_op *ops,
                           size_t capacity, size_t *count)
{
    struct dp_slot slots[DP_MAX_SLOTS];
    struct dp_schedule s;
    struct workbench w;
    int err = check_build_spec(spec);

    if (!err && (rank < 0 || rank >= spec->ranks))
        err = dp_fail_quietly(DP_EINVAL, "rank: %d, expected 0 to %d", rank, spec->ranks - 1);
    if (err)
        return dp_fail(err, "%s", dp_last_error());
    const struct dp_builder *builder = dp_builder_of(spec->kind);
    if (is_built_whole(builder))
        return copy_rank_of_whole(spec, rank, ops, capacity, count);
    s = describe_built(spec);
    err = workbench_init(&w, &s, builder->slots_per_rank);
    if (err)
        return dp_fail(err, "%s", dp_last_error());
    builder->place(spec, rank, slots);
    err = build(spec, &(struct dp_rank_view){&s, rank, slots, builder->slots_per_rank, NULL}, &w);
    if (err)
        dp_fail(err, "no memory for the ops of rank %d", rank);
    else
        err = copy_out(&w.now, rank, ops, capacity, count);
    workbench_fini(&w);
    return err;
}

/* ---- all ranks ------------------------------------------------------------------------------- */

void dp_schedule_free(struct dp_schedule *s)
{
    if (!s)
        return;
    free(s->group_rank);
    free(s->first_slot);
    free(s->slots);
    free(s->first);
    free(s->ops);
    free(s);
}

static struct dp_rank_view view_of(const struct dp_schedule *s, int rank)
{
    return (struct dp_rank_view){s, rank, dp_schedule_slot(s, rank, 0),
                                 dp_schedule_slot_count(s, rank), NULL};
}

/* slots: of all ranks. */
static int allocate(const struct dp_schedule *described, size_t slots, struct dp_schedule **out)
{
    size_t ranks = (size_t)described->ranks;
    struct dp_schedule *s = malloc(sizeof(*s));

    if (!s)
        return dp_fail_quietly(DP_ENOMEM, "no memory for a schedule");
    *s = *described;
    s->group_rank = calloc(ranks, sizeof(*s->group_rank));
    s->first_slot = calloc(ranks + 1, sizeof(*s->first_slot));
    s->slots = calloc(slots + 1, sizeof(*s->slots));
    s->first = calloc(ranks + 1, sizeof(*s->first));
    if (!s->group_rank || !s->first_slot || !s->slots || !s->first) {
        dp_schedule_free(s);
        return dp_fail_quietly(DP_ENOMEM, "no memory for a schedule of %zu ranks", ranks);
    }
    *out = s;
    return 0;
}

/* Rank r has the slots first_slot[r] .. first_slot[r + 1] - 1. */
static void set_slot_counts(struct dp_schedule *s, const size_t *first_slot)
{
    memcpy(s->first_slot, first_slot, ((size_t)s->ranks + 1) * sizeof(*first_slot));
    for (int rank = 0; rank < s->ranks; rank++)
        if (dp_schedule_slot_count(s, rank) > s->max_slots)
            s->max_slots = dp_schedule_slot_count(s, rank);
}

static void set_group_ranks(struct dp_schedule *s, const int *rank_map)
{
    for (int i = 0; i < s->ranks; i++)
        s->group_rank[rank_map ? rank_map[i] : i] = i;
}

int dp_schedule_new_empty(const struct dp_schedule_spec *spec, struct dp_schedule **out)
{
    int err = check_build_spec(spec);

    if (err)
        return err;
    const struct dp_builder *builder = dp_builder_of(spec->kind);
    struct dp_schedule described = describe_built(spec), *s;
    size_t slots = 0;
    for (int rank = 0; rank < spec->ranks; rank++)
        slots += (size_t)slot_count_of(spec, rank);
    err = allocate(&described, slots, &s);
    if (err)
        return err;
    set_group_ranks(s, spec->rank_map);
    for (int rank = 0; rank < s->ranks; rank++) {
        int count = slot_count_of(spec, rank);
        s->max_slots = count > s->max_slots ? count : s->max_slots;
        s->first_slot[rank + 1] = s->first_slot[rank] + (size_t)count;
        if (count)
            builder->place(spec, rank, s->slots + s->first_slot[rank]);
    }
    *out = s;
    return 0;
}

int dp_schedule_new_placed(const struct dp_schedule_spec *spec, int streams,
                           const size_t *first_slot, const struct dp_slot *slots,
                           struct dp_schedule **out)
{
    int err = check_spec(spec, streams);

    if (!err && spec->microbatches % streams)
        err = dp_fail_quietly(DP_EINVAL, "microbatches: %d, expected an even number for %d streams",
                              spec->microbatches, streams);
    if (err)
        return err;
    size_t count = first_slot[spec->ranks];
    struct dp_schedule described = describe(spec, (int)count / streams, streams), *s;
    err = allocate(&described, count, &s);
    if (err)
        return err;
    set_group_ranks(s, spec->rank_map);
    set_slot_counts(s, first_slot);
    if (count)
        memcpy(s->slots, slots, count * sizeof(*slots));
    err = dp_placement_link(s);
    if (err)
        dp_schedule_free(s);
    else
        *out = s;
    return err;
}

/* ops is not NULL even if there are none: the place of a rank's first op is added to it. */
int dp_schedule_take_ops(struct dp_schedule *s, struct dp_op_list *all, size_t *first)
{
    if (!dp_op_list_reserve(all, all->count ? 0 : 1) || !first) {
        dp_op_list_fini(all);
        if (first != s->first)
            free(first);
        return dp_fail(DP_ENOMEM, "no memory for the ops of %d ranks", s->ranks);
    }
    if (s->first != first)
        free(s->first);
    free(s->ops);
    s->first = first;
    s->ops = all->ops;
    *all = (struct dp_op_list){0};
    return 0;
}

static int build_all(const struct dp_schedule_spec *spec, struct dp_schedule *s)
{
    size_t *first = calloc((size_t)s->ranks + 1, sizeof(*first));
    struct dp_op_list all = {0};
    struct workbench w;
    int err = workbench_init(&w, s, s->max_slots);

    for (int rank = 0; first && rank < s->ranks && !err; rank++) {
        struct dp_rank_view view = view_of(s, rank);
        err = build(spec, &view, &w);
        dp_op_list_append(&all, w.now.ops, w.now.count);
        first[rank + 1] = all.count;
    }
    workbench_fini(&w);
    all.failed |= err;
    return dp_schedule_take_ops(s, &all, first);
}

/* What follows from the computes of all ranks. */
static int finish_whole(const struct dp_schedule_spec *spec, struct dp_schedule *s)
{
    int err = dp_schedule_add_messages(s);

    if (!err)
        err = dp_schedule_add_frees(s);
    if (!err && (spec->mirror_reduce || spec->reduce_all))
        err = spec->reduce_all ? dp_schedule_add_all_reduces(s) : dp_schedule_add_reduces(s);
    return err;
}

int dp_schedule_new(const struct dp_schedule_spec *spec, struct dp_schedule **out)
{
    struct dp_schedule *s;
    int err = dp_schedule_new_empty(spec, &s);

    if (err)
        return dp_fail(err, "%s", dp_last_error());
    err = build_all(spec, s);
    if (!err && is_built_whole(dp_builder_of(spec->kind)))
        err = finish_whole(spec, s);
    if (err)
        dp_schedule_free(s);
    else
        *out = s;
    return err;
}

int dp_schedule_rewrite(struct dp_schedule *s, dp_pass_fn *pass)
{
    return dp_schedule_rewrite_with(s, pass, NULL);
}

int dp_schedule_rewrite_with(struct dp_schedule *s, dp_pass_fn *pass, const void *arg)
{
    size_t *first = calloc((size_t)s->ranks + 1, sizeof(*first));
    struct dp_op_list all = {0};

    for (int rank = 0; first && rank < s->ranks; rank++) {
        struct dp_rank_view view = view_of(s, rank);
        view.arg = arg;
        pass(&view, dp_schedule_ops(s, rank), dp_schedule_count(s, rank), &all);
        first[rank + 1] = all.count;
    }
    return dp_schedule_take_ops(s, &all, first);
}
