/* SPDX-License-Identifier: Apache-2.0
 *
 * group.c - communicators made out of others. All of a family share the transport of the one that
 * was opened, their world; each has ranks and channels of its own.
 */
#include "comm/comm_core.h"
#include "comm/comm_ops.h"
#include "comm/engine.h"
#include "comm/lines.h"

#include "base/fail.h"

#include <stdlib.h>
#include <string.h>

/* ---- making one ------------------------------------------------------------------------------ */

struct group {
    struct dp_comm base;
    int ranks[]; /* of the world */
};

int dp_comm_new_group(struct dp_comm *parent, int rank, int size, const int *world_ranks,
                      int context, struct dp_comm **out)
{
    struct group *g = calloc(1, sizeof(*g) + (size_t)size * sizeof(g->ranks[0]));

    if (!g)
        return dp_fail(DP_ENOMEM, "no memory for a group of %d ranks", size);
    memcpy(g->ranks, world_ranks, (size_t)size * sizeof(g->ranks[0]));
    g->base = (struct dp_comm){.ops = parent->ops,
                               .rank = rank,
                               .size = size,
                               .world = parent->world,
                               .ranks = g->ranks,
                               .first_channel = context * DP_CHANNELS,
                               .deadline_ns = parent->deadline_ns,
                               .spin_ns = parent->spin_ns,
                               .shared_bytes = parent->shared_bytes};
    if (parent->world->hooks)
        parent->world->hooks->take_in(&g->base);
    g->base.next = parent->world->next;
    parent->world->next = &g->base;
    parent->world->users++;
    *out = &g->base;
    return 0;
}

/* ---- split ----------------------------------------------------------------------------------- */

/* What each rank says. The context of the new communicators is the first one that is free on all:
 * those of one split may share it, as no rank is in two of them. */
struct choice {
    int32_t color, key, rank, context;
};

static int by_key(const void *a, const void *b)
{
    const struct choice *x = a, *y = b;

    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return x->rank < y->rank ? -1 : 1;
}

static int choose_members(const struct dp_comm *comm, struct choice *all, int color, int *ranks,
                          int *rank)
{
    int size = 0;

    qsort(all, (size_t)comm->size, sizeof(*all), by_key);
    for (int i = 0; i < comm->size; i++) {
        if (all[i].color != color)
            continue;
        if (all[i].rank == comm->rank)
            *rank = size;
        ranks[size++] = dp_comm_world_rank(comm, all[i].rank);
    }
    return size;
}

static int make_own(struct dp_comm *comm, struct choice *all, int color, struct dp_comm **out)
{
    int *ranks = calloc((size_t)comm->size, sizeof(*ranks));
    int rank = 0, context = 0;

    if (!ranks)
        return dp_fail(DP_ENOMEM, "no memory to split %d ranks", comm->size);
    for (int i = 0; i < comm->size; i++)
        context = all[i].context > context ? all[i].context : context;
    comm->world->contexts = context + 1;
    int err = 0;
    if (color < 0) {
        *out = NULL;
    } else {
        const int size = choose_members(comm, all, color, ranks, &rank);
        err = dp_comm_new_group(comm, rank, size, ranks, context, out);
    }
    free(ranks);
    return err;
}

int dp_comm_split(struct dp_comm *comm, int color, int key, struct dp_comm **out)
{
    if (!comm || !out)
        return dp_fail(DP_EINVAL, "split without a %s", comm ? "place for the comm" : "comm");
    const struct choice mine = {
        .color = color, .key = key, .rank = comm->rank, .context = comm->world->contexts};
    struct choice *all = calloc((size_t)comm->size, sizeof(*all));
    if (!all)
        return dp_fail(DP_ENOMEM, "no memory to split %d ranks", comm->size);
    int err = dp_comm_allgather(comm, &mine, all, sizeof(mine));
    if (!err)
        err = make_own(comm, all, color, out);
    free(all);
    return err;
}

/* ---- grid ------------------------------------------------------------------------------------ */

static int agree_on_axes(struct dp_comm *comm, const struct dp_comm_axis *axes, const int *sizes,
                         int count)
{
    struct dp_text lines = {0};

    dp_text_addf(&lines, "axes of the grid\t%d\n", count);
    for (int i = 0; i < count; i++)
        dp_text_addf(&lines, "axis %d of the grid\t%s of %d ranks\n", i, axes[i].name, sizes[i]);
    return dp_comm_agree_on_lines(comm, "axes of the grid", &lines);
}

static int check_axis(const struct dp_comm_axis *axes, int i)
{
    if (!axes[i].name || !axes[i].name[0])
        return dp_fail(DP_EINVAL, "axis %d of the grid has no name", i);
    if (axes[i].size < 0)
        return dp_fail(DP_EINVAL, "axis %s: size %d, expected 0 or more", axes[i].name,
                       axes[i].size);
    for (int j = 0; j < i; j++)
        if (!strcmp(axes[i].name, axes[j].name))
            return dp_fail(DP_EINVAL, "axis %s is there twice", axes[i].name);
    return 0;
}

/* The sizes with what is left filled in. */
static int find_sizes(const struct dp_comm *comm, const struct dp_comm_axis *axes, int count,
                      int *sizes)
{
    int64_t product = 1;
    int open = -1, err = 0;

    for (int i = 0; i < count && !err; i++) {
        err = check_axis(axes, i);
        sizes[i] = err ? 0 : axes[i].size;
        if (!err && !sizes[i] && open >= 0)
            err = dp_fail(DP_EINVAL, "axes %s and %s: only one may have size 0", axes[open].name,
                          axes[i].name);
        open = sizes[i] ? open : i;
        product *= sizes[i] ? sizes[i] : 1;
        product = product > INT32_MAX ? INT32_MAX : product;
    }
    if (!err && open >= 0 && comm->size % product == 0)
        sizes[open] = (int)(comm->size / product);
    else if (!err && product != comm->size)
        err = dp_fail(DP_EINVAL, "grid of %lld ranks%s%s: the communicator has %d",
                      (long long)product, open < 0 ? "" : " without axis ",
                      open < 0 ? "" : axes[open].name, comm->size);
    return err;
}

/* The ranks of an axis differ in nothing else: what is left of the rank without its coordinate. */
static int split_along(struct dp_comm *comm, const int *sizes, int count, int axis,
                       struct dp_comm **out)
{
    int stride = 1;

    for (int i = axis + 1; i < count; i++)
        stride *= sizes[i];
    const int coordinate = comm->rank / stride % sizes[axis];
    return dp_comm_split(comm, comm->rank - coordinate * stride, coordinate, out);
}

int dp_comm_grid(struct dp_comm *comm, const struct dp_comm_axis *axes, int count,
                 struct dp_comm **out)
{
    enum { MOST = 16 };
    int sizes[MOST], made = 0;

    if (!comm || !axes || !out || count < 1 || count > MOST)
        return dp_fail(DP_EINVAL, "grid of %d axes: expected a comm and 1 to %d axes", count, MOST);
    int err = find_sizes(comm, axes, count, sizes);
    if (!err)
        err = agree_on_axes(comm, axes, sizes, count);
    while (!err && made < count) {
        err = split_along(comm, sizes, count, made, &out[made]);
        made += !err;
    }
    while (err && made > 0)
        dp_comm_close(out[--made]);
    return err;
}

/* ---- closing --------------------------------------------------------------------------------- */

static void unlink_group(struct dp_comm *group)
{
    struct dp_comm **at = &group->world->next;

    while (*at != group)
        at = &(*at)->next;
    *at = group->next;
}

static void close_group(struct dp_comm *group)
{
    struct dp_comm *world = group->world;

    if (world->engine)
        dp_engine_drop(world->engine, group, DP_EABORTED);
    world->ops->close_channels(world, group->first_channel, DP_CHANNELS);
    unlink_group(group);
    free(group);
}

/* The transport is closed with the last communicator of the family. */
void dp_comm_close(struct dp_comm *comm)
{
    if (!comm)
        return;
    struct dp_comm *world = comm->world;
    dp_comm_progress_stop(comm);
    if (comm != world)
        close_group(comm);
    if (--world->users)
        return;
    struct dp_engine *engine = world->engine;
    void (*free_survival)(struct dp_survival *) = world->hooks ? world->hooks->free : NULL;
    struct dp_survival *survival = world->survival;
    world->ops->close(world);
    dp_engine_free(engine);
    if (free_survival)
        free_survival(survival);
}
