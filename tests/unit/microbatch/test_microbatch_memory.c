/* SPDX-License-Identifier: Apache-2.0
 *
 * Every allocation of every function fails once.
 */
#include "cmocka_all.h"
#include "unit/base/failing_memory.h"

#include <dualpipe/microbatch.h>

static float data[3000];
static int64_t shape[] = {6, 500}, strides[] = {1, 6};
static const DLTensor tensor = {data, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, shape, NULL, 0};
static const char *const names[] = {"x", "y", "z"};

static int call_split(bool mask)
{
    struct dp_tree items[] = {dp_tensor(&tensor), dp_opaque(data)};
    struct dp_tree named[] = {items[0], items[1], dp_absent()};
    struct dp_tree args = dp_tuple(2, items), kwargs = dp_dict(3, names, named);
    const DLTensor table = {data, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, shape, strides, 0};
    const struct dp_block_mask attention = {.kv_num_blocks = &table, .kv_indices = &table};
    struct dp_tree specs[] = {dp_chunk(1), dp_replicate()}, spec = dp_tuple(2, specs);
    struct dp_split_options options = {.count = 6, .args_spec = &spec, .contiguous = true,
                                       .mask = mask};
    struct dp_microbatches *mbs;

    named[2] = dp_block_mask(&attention);
    int err = dp_split(&args, &kwargs, &options, &mbs);

    if (!err)
        dp_microbatches_free(mbs);
    return err;
}

static int call_split_contiguous(void)
{
    return call_split(false);
}

static int call_split_mask(void)
{
    return call_split(true);
}

static int call_split_given(void)
{
    struct dp_tree kwargs[] = {dp_dict(0, NULL, NULL), dp_dict(0, NULL, NULL)};
    struct dp_microbatches *mbs;
    int err = dp_split_given(NULL, 0, kwargs, 2, &mbs);

    if (!err)
        dp_microbatches_free(mbs);
    return err;
}

static int call_merge(bool mask)
{
    struct dp_tree items[] = {dp_tensor(&tensor), dp_tensor(&tensor), dp_tensor(&tensor)};
    struct dp_tree results[] = {dp_dict(3, names, items), dp_dict(3, names, items)}, *merged;
    struct dp_tree specs[] = {dp_chunk(1), dp_stack(0), dp_reduce(dp_reducer_sum())};
    struct dp_tree spec = dp_dict(3, names, specs);
    struct dp_merge_options options = {.spec = &spec, .mask = mask};
    int err = dp_merge(results, 2, &options, &merged);

    if (!err)
        dp_tree_free(merged);
    return err;
}

static int call_merge_plain(void)
{
    return call_merge(false);
}

static int call_merge_mask(void)
{
    return call_merge(true);
}

CASE(splitting_survives_every_failed_allocation)
{
    expect_every_failure_reported(call_split_contiguous, 10);
    expect_every_failure_reported(call_split_mask, 10);
    expect_every_failure_reported(call_split_given, 2);
}

CASE(merging_survives_every_failed_allocation)
{
    expect_every_failure_reported(call_merge_plain, 7);
    expect_every_failure_reported(call_merge_mask, 7);
}
