/* SPDX-License-Identifier: Apache-2.0
 *
 * build.c - from a spec to a schedule: the builder writes each rank's list, passes finish it. And from a
 * schedule to another one: with skip connections, and the evaluation that goes with it.
 */
#include "config.h" /* madvise */
#include "schedule/internal.h"

#include "base/fail.h"
#include "schedule/build.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

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

static bool posts_messages(const struct dp_schedule_spec *spec)
{
    return dp_builder_of(spec->kind)->posts_messages && (!spec->slack || spec->forward_only);
}

/* Are messages added to all ranks together, when their computes are known? */
static bool is_built_whole(const struct dp_schedule_spec *spec)
{
    const struct dp_builder *builder = dp_builder_of(spec->kind);

    return !posts_messages(spec) && (builder->slots || builder->slots_per_rank > 1);
}

/* Leave the rank's finished list in w->now; of kinds that are built whole, its computes. */
static int build(const struct dp_schedule_spec *spec, const struct dp_rank_view *view,
                 struct workbench *w)
{
    const struct dp_builder *builder = dp_builder_of(spec->kind);
    const bool frees = !spec->return_outputs;
    struct dp_rank_view writing = *view;

    w->now.count = 0;
    writing.frees = frees && builder->posts_messages && !spec->recompute;
    builder->write(&writing, &w->now);
    recompute(spec, *view, w);
    if (is_built_whole(spec))
        return w->now.failed ? DP_ENOMEM : 0;
    if (!posts_messages(spec))
        run_pass(w, dp_add_messages, view);
    if (frees && !writing.frees)
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
    int err = dp_schedule_describe(spec, &s);

    if (!err && (rank < 0 || rank >= spec->ranks))
        err = dp_fail_quietly(DP_EINVAL, "rank: %d, expected 0 to %d", rank, spec->ranks - 1);
    if (err)
        return dp_fail(err, "%s", dp_last_error());
    const struct dp_builder *builder = dp_builder_of(spec->kind);
    if (is_built_whole(spec) || spec->skip_count)
        return copy_rank_of_whole(spec, rank, ops, capacity, count);
    err = workbench_init(&w, &s, builder->slots_per_rank);
    if (err)
        return dp_fail(err, "%s", dp_last_error());
    builder->place(spec, rank, slots);
    err = build(spec, &(struct dp_rank_view){&s, rank, slots, builder->slots_per_rank, NULL,
                                              false}, &w);
    if (err)
        dp_fail(err, "no memory for the ops of rank %d", rank);
    else
        err = copy_out(&w.now, rank, ops, capacity, count);
    workbench_fini(&w);
    return err;
}

/* ---- skip connections ------------------------------------------------------------------------ */

/* Into a schedule that has messages: what passes have added to the computes is dropped, and added
 * again with the messages of the skips. */

/* What passes have added to computes, evictions aside. */
static bool is_added(enum dp_op_kind kind)
{
    return dp_op_is_message(kind) || kind == DP_OP_COMMIT || kind == DP_OP_FREE ||
           kind == DP_OP_REDUCE || kind == DP_OP_REDUCE_WAIT;
}

static void drop_added(const struct dp_rank_view *view, const struct dp_op *in, size_t count,
                       struct dp_op_list *out)
{
    (void)view;
    for (size_t i = 0; i < count; i++)
        if (!is_added((enum dp_op_kind)in[i].kind))
            dp_op_list_add(out, in[i]);
}

/* What the schedule has, to be added again. */
struct additions {
    bool frees, reduces, all_reduces;
};

static struct additions find_additions(const struct dp_schedule *s)
{
    struct additions has = {0};

    for (int rank = 0; rank < s->ranks; rank++)
        for (size_t i = s->first[rank]; i < s->first[rank + 1]; i++) {
            const struct dp_op op = s->ops[i];
            has.frees |= op.kind == DP_OP_FREE;
            if (op.kind != DP_OP_REDUCE)
                continue;
            has.reduces = true;
            has.all_reduces |= !dp_slot_has_remote_mirror(
                dp_schedule_slot(s, rank, (int)op.slot), rank);
        }
    return has;
}

int dp_schedule_add_skips(struct dp_schedule *s, const struct dp_skip *skips, int count)
{
    if (s->skip_count)
        return dp_fail(DP_ESTATE, "add skips: the schedule has %d already", s->skip_count);
    const struct additions has = count ? find_additions(s) : (struct additions){0};
    int err = dp_schedule_take_skips(s, skips, count);
    if (err)
        return dp_fail(err, "%s", dp_last_error());
    if (!count)
        return 0;
    err = dp_schedule_rewrite(s, drop_added);
    if (!err)
        err = dp_schedule_add_messages(s);
    if (!err && has.frees)
        err = dp_schedule_add_frees(s);
    if (!err && has.reduces)
        err = has.all_reduces ? dp_schedule_add_all_reduces(s) : dp_schedule_add_reduces(s);
    return err;
}

/* ---- all ranks ------------------------------------------------------------------------------- */

/* Room for all ranks from the first one's count. An end of the pipeline has the fewest messages, other
 * ranks up to twice as many ops; what is not filled costs no memory. In huge pages, as page faults
 * would be half of the time it takes to fill it; where there are none, small ones do. */
static void reserve_all(struct dp_op_list *all, size_t count)
{
    static const size_t huge_page = (size_t)2 << 20;

    if (!dp_op_list_reserve(all, 2 * count))
        return;
    const uintptr_t begin = ((uintptr_t)all->ops + huge_page - 1) & ~(huge_page - 1);
    const uintptr_t end = (uintptr_t)(all->ops + all->capacity) & ~(huge_page - 1);
    if (begin < end)
        madvise((void *)begin, end - begin, MADV_HUGEPAGE);
}

static int build_all(const struct dp_schedule_spec *spec, struct dp_schedule *s)
{
    size_t *first = calloc((size_t)s->ranks + 1, sizeof(*first));
    struct dp_op_list all = {0};
    struct workbench w;
    int err = workbench_init(&w, s, s->max_slots);

    for (int rank = 0; first && rank < s->ranks && !err; rank++) {
        struct dp_rank_view view = dp_schedule_view(s, rank);
        err = build(spec, &view, &w);
        if (!rank)
            reserve_all(&all, w.now.count * (size_t)s->ranks);
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
    if (!err && is_built_whole(spec))
        err = finish_whole(spec, s);
    if (!err)
        err = dp_schedule_add_skips(s, spec->skips, spec->skip_count);
    if (err)
        dp_schedule_free(s);
    else
        *out = s;
    return err;
}

int dp_schedule_new_outline(const struct dp_schedule_spec *spec, struct dp_schedule **out)
{
    int err = dp_schedule_new_empty(spec, out);

    return err ? dp_fail(err, "%s", dp_last_error()) : 0;
}

/* ---- the evaluation of a training schedule ---------------------------------------------------- */

/* rank_map[group rank] = pipeline rank, the inverse of group_rank. */
static int *rank_map_of(const struct dp_schedule *s)
{
    int *map = malloc((size_t)s->ranks * sizeof(*map));

    for (int rank = 0; map && rank < s->ranks; rank++)
        map[s->group_rank[rank]] = rank;
    return map;
}

static int add_forwards(const struct dp_schedule *training, struct dp_schedule *s)
{
    struct dp_op_list all = {0};

    for (int rank = 0; rank < s->ranks; rank++) {
        const struct dp_op *ops = dp_schedule_ops(training, rank);
        for (size_t i = 0; i < dp_schedule_count(training, rank); i++)
            if (ops[i].kind == DP_OP_F)
                dp_op_list_add(&all, (struct dp_op){
                                         .kind = DP_OP_F, .slot = ops[i].slot, .mb = ops[i].mb});
        s->first[rank + 1] = all.count;
    }
    return dp_schedule_take_ops(s, &all, s->first);
}

int dp_schedule_new_forward(const struct dp_schedule *training, struct dp_schedule **out)
{
    int *map = rank_map_of(training);
    const struct dp_schedule_spec spec = {.kind = DP_SCHEDULE_USER,
                                          .ranks = training->ranks,
                                          .microbatches = training->microbatches,
                                          .forward_only = true,
                                          .rank_map = map};
    struct dp_schedule *s = NULL;
    int err = map ? dp_schedule_new_placed(&spec, training->streams, training->first_slot,
                                           training->slots, &s)
                  : dp_fail_quietly(DP_ENOMEM, "no memory for a schedule");

    free(map);
    if (err)
        return dp_fail(err, "%s", dp_last_error());
    /* As they are, down to the slot numbers of neighbours that are not there. */
    memcpy(s->slots, training->slots, training->first_slot[s->ranks] * sizeof(*s->slots));
    err = add_forwards(training, s);
    if (!err)
        err = dp_schedule_add_messages(s);
    if (!err)
        err = dp_schedule_add_frees(s);
    if (!err && training->skip_count)
        err = dp_schedule_add_skips(s, training->skips, training->skip_count);
    if (err)
        dp_schedule_free(s);
    else
        *out = s;
    return err;
}
