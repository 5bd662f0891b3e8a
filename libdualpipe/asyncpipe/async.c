/* SPDX-License-Identifier: Apache-2.0
 *
 * async.c - AsyncPipe out of a list of layers. Each thing that a rank does by itself is followed by an
 * exchange of errors, so that all ranks go on, or none does.
 */
#include <dualpipe/asyncpipe.h>

#include "base/fail.h"
#include "base/internal.h"
#include "base/sized.h"
#include "comm/lines.h"
#include "pipeline/setup.h"
#include "schedule/internal.h"

#include <stdlib.h>
#include <string.h>

static int ranks_of(const struct dp_async_spec *spec)
{
    return spec->comm ? dp_comm_size(spec->comm) : 1;
}

/* ---- by itself ------------------------------------------------------------------------------- */

static int find_mode(const struct dp_async_spec *spec, enum dp_recompute *mode)
{
    if (spec->chunks < 1)
        return dp_fail(DP_EINVAL, "chunks: %d, expected at least 1 (A1)", spec->chunks);
    return dp_recompute_parse(spec->checkpoint ? spec->checkpoint : "except_last", mode);
}

static void find_groups(struct dp_async *async)
{
    const struct dp_partition *p = async->partition;

    for (int32_t i = p->group_count - 1; i >= 0; i--)
        if (p->groups[i].at.stage == async->rank) {
            async->groups = &p->groups[i];
            async->group_count++;
        }
}

/* What can be read of it afterwards. */
static int note(const struct dp_async_spec *spec, enum dp_recompute mode, struct dp_async *async)
{
    const size_t bytes = (size_t)spec->stages * sizeof(*spec->balance);

    async->comm = spec->comm;
    async->stages = spec->stages;
    async->chunks = spec->chunks;
    async->checkpoint = mode;
    async->final_stage = async->rank == spec->stages - 1;
    find_groups(async);
    async->balance = malloc(bytes + 1);
    if (!async->balance)
        return dp_fail(DP_ENOMEM, "no memory for a balance of %d stages", spec->stages);
    if (bytes)
        memcpy(async->balance, spec->balance, bytes);
    return 0;
}

static int cut(const struct dp_async_spec *spec, enum dp_recompute mode, struct dp_async *async)
{
    if (!spec->comm && spec->stages > 1)
        return dp_fail(DP_ESTATE, "comm: NULL, expected one of %d ranks (A13)", spec->stages);
    async->rank = spec->comm ? dp_comm_rank(spec->comm) : 0;
    async->unused = async->rank >= spec->stages;
    int err = dp_partition_new(&(struct dp_partition_spec){.layers = spec->layers,
                                                           .layer_count = spec->layer_count,
                                                           .balance = spec->balance,
                                                           .stages = spec->stages,
                                                           .ranks = ranks_of(spec)},
                               &async->partition);
    return err ? err : note(spec, mode, async);
}

static int build_schedules(const struct dp_async_spec *spec, enum dp_recompute mode,
                           struct dp_async *async)
{
    struct dp_skip *skips = calloc((size_t)spec->skip_count + 1, sizeof(*skips));
    struct dp_schedule_spec training = {.kind = DP_SCHEDULE_ASYNC,
                                        .ranks = ranks_of(spec),
                                        .microbatches = spec->chunks,
                                        .return_outputs = spec->return_outputs,
                                        .recompute = mode,
                                        .partition = async->partition,
                                        .skips = skips};
    struct dp_schedule *evaluation;

    if (!skips)
        return dp_fail(DP_ENOMEM, "no memory for %d skips", spec->skip_count);
    int err = spec->skip_count ? dp_skips_of_layers(async->partition, spec->skips, spec->skip_count,
                                                    skips, &training.skip_count)
                               : 0;
    if (!err)
        err = dp_schedule_new(&training, &async->schedule);
    training.forward_only = true;
    training.recompute = DP_RECOMPUTE_NEVER;
    if (!err)
        err = dp_schedule_new(&training, &evaluation);
    if (!err)
        async->evaluation = evaluation;
    free(skips);
    return err;
}

static int build_layer(const struct dp_async_spec *spec, int32_t position)
{
    const int err =
        spec->build(spec->user, position, spec->layers ? spec->layers[position] : position);

    if (!err)
        return 0;
    const char *why = dp_callback_reason(err);
    return dp_fail(DP_ECALLBACK, "layer %d of the list was not made: %d (%s)%s%s", position, err,
                   dp_strerror(err), *why ? ": " : "", why);
}

static int build_own_layers(const struct dp_async_spec *spec, const struct dp_async *async)
{
    int32_t position;
    int err = 0;

    for (int32_t i = 0; i < dp_async_len(async) && spec->build && !err; i++) {
        err = dp_async_layer(async, i, &position);
        if (!err)
            err = build_layer(spec, position);
    }
    return err;
}

/* ---- together -------------------------------------------------------------------------------- */

static void add_numbers(struct dp_text *lines, const char *what, const int32_t *numbers, int32_t count)
{
    dp_text_addf(lines, "number of %s\t%d\n", what, count);
    for (int32_t i = 0; i < count; i++)
        dp_text_addf(lines, "%s[%d]\t%d\n", what, i, numbers ? numbers[i] : i);
}

static int agree(const struct dp_async_spec *spec, enum dp_recompute mode)
{
    struct dp_text lines = {0};

    if (!spec->comm)
        return 0;
    dp_text_addf(&lines, "chunks\t%d\ncheckpoint\t%s\nreturn_outputs\t%d\n", spec->chunks,
                 dp_recompute_name(mode), spec->return_outputs);
    add_numbers(&lines, "layers", spec->layers, spec->layer_count);
    add_numbers(&lines, "balance", spec->balance, spec->stages);
    dp_text_addf(&lines, "number of skips\t%d\n", spec->skip_count);
    for (int32_t i = 0; i < spec->skip_count; i++)
        dp_text_addf(&lines, "skips[%d]\t'%s' of namespace '%s', from %d to %d\n", i,
                     spec->skips[i].name, spec->skips[i].space, spec->skips[i].from,
                     spec->skips[i].to);
    return dp_comm_agree_on_lines(spec->comm, "layers, balance and skips", &lines);
}

int dp_async_new_sized(const struct dp_async_spec *spec, struct dp_async **out, size_t size)
{
    DP_TAKE_KNOWN(dp_async_spec, spec, size);
    struct dp_async *async = calloc(1, sizeof(*async));
    enum dp_recompute mode = DP_RECOMPUTE_NEVER;
    int err = spec_err;

    if (!err)
        err = async ? find_mode(spec, &mode) : dp_fail(DP_ENOMEM, "no memory for a pipeline");
    if (!err)
        err = cut(spec, mode, async);
    if (!err)
        err = build_schedules(spec, mode, async);
    err = dp_comm_share_error(spec->comm, err);
    if (!err)
        err = agree(spec, mode);
    if (!err)
        err = dp_comm_share_error(spec->comm, build_own_layers(spec, async));
    if (err)
        dp_async_free(async);
    else
        *out = async;
    return err;
}

void dp_async_free(struct dp_async *async)
{
    if (!async)
        return;
    dp_schedule_free((struct dp_schedule *)(uintptr_t)async->evaluation);
    dp_schedule_free(async->schedule);
    dp_partition_free(async->partition);
    free(async->balance);
    free(async);
}
