/* SPDX-License-Identifier: Apache-2.0
 *
 * schedule.c - a schedule without ops from a spec, which is checked: its stages in their places; and
 * its ops, handed over or rewritten.
 */
#include "base/fail.h"
#include "base/sized.h"
#include "base/text.h"
#include "schedule/build.h"
#include "schedule/internal.h"

#include <stdlib.h>
#include <string.h>

enum { RANKS_MAX = 1 << 20 };

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

    DP_RESERVED(spec, "spec");
    if (spec->ranks < 1 || spec->ranks > RANKS_MAX)
        return dp_fail_quietly(DP_EINVAL, "ranks: %d, expected 1 to %d", spec->ranks, RANKS_MAX);
    if (spec->microbatches < 1 || spec->microbatches > DP_MAX_MB * streams)
        return dp_fail_quietly(DP_EINVAL, "microbatches: %d, expected 1 to %d", spec->microbatches,
                               DP_MAX_MB * streams);
    if (spec->slack < 0 || spec->slack > (builder && builder->has_slack))
        return dp_fail_quietly(DP_EINVAL, "slack: %d, expected 0%s", spec->slack,
                               builder && builder->has_slack ? " or 1"
                                                             : "; dualpipe and dualpipev have it");
    if (spec->partition && spec->kind != DP_SCHEDULE_ASYNC)
        return dp_fail_quietly(DP_EINVAL, "partition: given, expected NULL; async has one, stages of "
                               "other kinds hold layers of their own");
    if (spec->virtual_stages && spec->kind != DP_SCHEDULE_INTERLEAVED)
        return dp_fail_quietly(DP_EINVAL, "virtual_stages: %d, expected 0; interleaved has them",
                               spec->virtual_stages);
    if (builder && builder->check)
        err = builder->check(spec);
    return err || !spec->rank_map ? err : check_rank_map(spec);
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
        .slack = spec->slack,
    };
}

static int slot_count_of(const struct dp_schedule_spec *spec, int rank)
{
    const struct dp_builder *builder = dp_builder_of(spec->kind);
    return builder->slots ? builder->slots(spec, rank) : builder->slots_per_rank;
}

int dp_schedule_describe(const struct dp_schedule_spec *spec, struct dp_schedule *out)
{
    const struct dp_builder *builder = dp_builder_of(spec->kind);

    if (!builder)
        return dp_fail_quietly(DP_EINVAL, "kind: %d (%s), expected one that is built; a user's "
                               "schedule is read", spec->kind, dp_schedule_kind_name(spec->kind));
    int err = check_spec(spec, builder->streams);
    if (err)
        return err;
    int stages = builder->stages ? builder->stages(spec) : spec->ranks * builder->stages_per_rank;
    *out = describe(spec, stages, builder->streams);
    return 0;
}

/* ---- stages in their places ------------------------------------------------------------------ */

void dp_schedule_free(struct dp_schedule *s)
{
    if (!s)
        return;
    free(s->group_rank);
    free(s->skips);
    free(s->skip_ends);
    free(s->first_slot);
    free(s->slots);
    free(s->first);
    free(s->ops);
    free(s);
}

static bool copy_array(void *to, const void *from, size_t bytes)
{
    void *copy = malloc(bytes + 1);

    if (copy)
        memcpy(copy, from, bytes);
    memcpy(to, &copy, sizeof(copy));
    return copy;
}

int dp_schedule_copy(const struct dp_schedule *s, struct dp_schedule **out)
{
    size_t ranks = (size_t)s->ranks, slots = s->first_slot[ranks], ops = s->first[ranks];
    struct dp_schedule *copy = malloc(sizeof(*copy));

    if (!copy)
        return dp_fail(DP_ENOMEM, "no memory for a schedule of %zu ops", ops);
    *copy = *s;
    bool all = copy_array(&copy->group_rank, s->group_rank, ranks * sizeof(*s->group_rank));
    all &= copy_array(&copy->first_slot, s->first_slot, (ranks + 1) * sizeof(*s->first_slot));
    all &= copy_array(&copy->slots, s->slots, slots * sizeof(*s->slots));
    all &= copy_array(&copy->first, s->first, (ranks + 1) * sizeof(*s->first));
    all &= copy_array(&copy->ops, s->ops, ops * sizeof(*s->ops));
    if (s->skips) {
        const size_t skips = (size_t)s->skip_count, ends = skips * (size_t)s->streams;
        all &= copy_array(&copy->skips, s->skips, skips * sizeof(*s->skips));
        all &= copy_array(&copy->skip_ends, s->skip_ends, ends * sizeof(*s->skip_ends));
    }
    if (!all) {
        dp_schedule_free(copy);
        return dp_fail(DP_ENOMEM, "no memory for a schedule of %zu ops", ops);
    }
    *out = copy;
    return 0;
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
    struct dp_schedule described, *s;
    size_t slots = 0;
    int err = dp_schedule_describe(spec, &described);

    if (err)
        return err;
    const struct dp_builder *builder = dp_builder_of(spec->kind);
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

/* ---- ops ------------------------------------------------------------------------------------- */

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

int dp_schedule_rewrite(struct dp_schedule *s, dp_pass_fn *pass)
{
    return dp_schedule_rewrite_with(s, pass, NULL);
}

int dp_schedule_rewrite_with(struct dp_schedule *s, dp_pass_fn *pass, const void *arg)
{
    size_t *first = calloc((size_t)s->ranks + 1, sizeof(*first));
    struct dp_op_list all = {0};

    for (int rank = 0; first && rank < s->ranks; rank++) {
        struct dp_rank_view view = dp_schedule_view(s, rank);
        view.arg = arg;
        pass(&view, dp_schedule_ops(s, rank), dp_schedule_count(s, rank), &all);
        first[rank + 1] = all.count;
    }
    return dp_schedule_take_ops(s, &all, first);
}

/* ---- kinds ----------------------------------------------------------------------------------- */

/* The kinds of schedules: their names, and the table of builders. */

static const struct dp_builder *const builders[] = {
    [DP_SCHEDULE_USER] = NULL,
    [DP_SCHEDULE_GPIPE] = &dp_build_gpipe,
    [DP_SCHEDULE_1F1B] = &dp_build_1f1b,
    [DP_SCHEDULE_ZB1P] = &dp_build_zb1p,
    [DP_SCHEDULE_DUALPIPE] = &dp_build_dualpipe,
    [DP_SCHEDULE_DUALPIPEV] = &dp_build_dualpipev,
    [DP_SCHEDULE_INTERLEAVED] = &dp_build_interleaved,
    [DP_SCHEDULE_ZBV] = &dp_build_zbv,
    [DP_SCHEDULE_ASYNC] = &dp_build_async,
};
_Static_assert(sizeof(builders) / sizeof(builders[0]) == DP_SCHEDULE_KINDS, "a builder each");

const struct dp_builder *dp_builder_of(enum dp_schedule_kind kind)
{
    return (unsigned)kind < DP_SCHEDULE_KINDS ? builders[kind] : NULL;
}

bool dp_placed_by_file(enum dp_schedule_kind kind)
{
    const struct dp_builder *builder = dp_builder_of(kind);
    return !builder || builder->placed_by_file;
}

void dp_builder_limits(const struct dp_rank_view *view, int *activations, int *weight_queue)
{
    const struct dp_builder *builder = dp_builder_of(view->s->kind);

    *activations = builder ? builder->max_activations(view) : -1;
    *weight_queue = !builder                    ? -1
                    : builder->max_weight_queue ? builder->max_weight_queue(view)
                                                : 0;
}

const char *dp_schedule_kind_name(enum dp_schedule_kind kind)
{
    const struct dp_builder *builder = dp_builder_of(kind);
    return builder ? builder->name : kind == DP_SCHEDULE_USER ? "user" : "?";
}

int dp_schedule_kind_find(const char *name, enum dp_schedule_kind *kind)
{
    const char *names[DP_SCHEDULE_KINDS];

    for (int k = 0; k < DP_SCHEDULE_KINDS; k++) {
        names[k] = dp_schedule_kind_name((enum dp_schedule_kind)k);
        if (!strcmp(names[k], name)) {
            *kind = (enum dp_schedule_kind)k;
            return 0;
        }
    }
    const char *near = dp_nearest(name, names, DP_SCHEDULE_KINDS);
    return dp_fail_quietly(DP_EINVAL, "schedule '%s', expected one of gpipe, 1f1b, zb1p, dualpipe, "
                           "dualpipev, interleaved, zbv, async, user%s%s%s", name,
                           near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

int dp_schedule_kind_parse(const char *name, enum dp_schedule_kind *kind)
{
    int err = dp_schedule_kind_find(name, kind);
    return err ? dp_fail(err, "%s", dp_last_error()) : 0;
}

static const char *const recomputes[DP_RECOMPUTES] = {"never", "except_last", "always"};

const char *dp_recompute_name(enum dp_recompute recompute)
{
    return (unsigned)recompute < DP_RECOMPUTES ? recomputes[recompute] : "?";
}

int dp_recompute_parse(const char *name, enum dp_recompute *recompute)
{
    for (int i = 0; i < DP_RECOMPUTES; i++)
        if (!strcmp(name, recomputes[i])) {
            *recompute = (enum dp_recompute)i;
            return 0;
        }
    return dp_fail(DP_EINVAL, "recompute: '%s', expected never, except_last or always (A2)", name);
}
