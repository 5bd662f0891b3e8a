/* SPDX-License-Identifier: Apache-2.0 */
#include "microbatch_case.h"

static struct dp_split_options case_options(const json_t *json)
{
    static const char *const shrinks[] = {"never", "first", "min", NULL};
    static const char *const defaults[] = {"chunk", "by leaf", NULL};
    static const char *const rules[] = {"tensor_split", "chunk", NULL};

    return (struct dp_split_options){
        .count = (int32_t)json_integer_value(json_object_get(json, "count")),
        .rule = (enum dp_cut_rule)case_choice(json, "rule", rules),
        .args_spec = case_spec(json, "args_spec"), .kwargs_spec = case_spec(json, "kwargs_spec"),
        .shrink = (enum dp_shrink)case_choice(json, "shrink", shrinks),
        .default_spec = (enum dp_default_spec)case_choice(json, "default", defaults),
        .mask = case_flag(json, "mask"), .contiguous = case_flag(json, "contiguous"),
        .strict = case_flag(json, "strict"),
    };
}

static void assert_compact(const struct dp_tree *t)
{
    for (int32_t i = 0; i < t->count; i++)
        assert_compact(&t->items[i]);
    if (t->kind == DP_TREE_TENSOR)
        assert_null(t->tensor->strides);
}

static void expect_microbatches(const json_t *json, const struct dp_microbatches *mbs)
{
    const json_t *is = json_object_get(json, "is");

    assert_int_equal(mbs->count, json_array_size(is));
    for (int32_t mb = 0; mb < mbs->count; mb++) {
        struct dp_text t = {0};
        case_print(&t, &mbs->args[mb]);
        dp_text_adds(&t, " ");
        case_print(&t, &mbs->kwargs[mb]);
        assert_string_equal(t.data, json_string_value(json_array_get(is, (size_t)mb)));
        dp_text_fini(&t);
        if (case_flag(json, "compact"))
            assert_compact(&mbs->args[mb]);
    }
}

static void split_case(void **state)
{
    const json_t *json = *state;
    struct case_data d;
    struct dp_microbatches *mbs = NULL;
    struct dp_tree args, kwargs;
    const char *args_text = case_string(json, "args"), *kwargs_text = case_string(json, "kwargs");

    case_init(&d, json);
    struct dp_split_options options = case_options(json);
    args = args_text ? case_value(&d, args_text) : dp_absent();
    kwargs = kwargs_text ? case_value(&d, kwargs_text) : dp_absent();
    int err = dp_split(args_text ? &args : NULL, kwargs_text ? &kwargs : NULL, &options, &mbs);
    if (json_object_get(json, "error")) {
        case_expect_error(json, err);
        assert_null(mbs);
    } else {
        if (err)
            fail_msg("%s", dp_last_error());
        expect_microbatches(json, mbs);
    }
    dp_microbatches_free(mbs);
    dp_tree_free((struct dp_tree *)(uintptr_t)options.args_spec);
    dp_tree_free((struct dp_tree *)(uintptr_t)options.kwargs_spec);
    case_fini(&d);
}

/* ---- what text cannot show ------------------------------------------------------------------ */

CASE(pieces_are_views_that_write_through)
{
    int32_t data[6] = {0};
    int64_t shape[] = {3, 2};
    DLTensor t = {data, {kDLCPU, 0}, 2, {kDLInt, 32, 1}, shape, NULL, 0};
    struct dp_tree arg = dp_tensor(&t), args = dp_tuple(1, &arg);
    struct dp_tree along_1 = dp_chunk(1), spec = dp_tuple(1, &along_1);
    struct dp_microbatches *mbs;

    assert_int_equal(dp_split(&args, NULL, &(struct dp_split_options){.count = 3}, &mbs), 0);
    for (int32_t mb = 0; mb < 3; mb++) {
        const DLTensor *piece = mbs->args[mb].items[0].tensor;
        assert_ptr_equal(dp_tensor_address(piece), &data[2 * mb]);
        assert_null(piece->strides);
        *(int32_t *)dp_tensor_address(piece) = 7 + mb;
        assert_int_equal(data[2 * mb], 7 + mb);
    }
    dp_microbatches_free(mbs);

    struct dp_split_options options = {.count = 2, .args_spec = &spec};
    assert_int_equal(dp_split(&args, NULL, &options, &mbs), 0);
    const DLTensor *piece = mbs->args[1].items[0].tensor;
    assert_ptr_equal(dp_tensor_address(piece), &data[1]);
    assert_int_equal(piece->strides[0], 2);
    dp_microbatches_free(mbs);
}

CASE(replicated_leaves_are_the_same_object)
{
    int32_t data[2];
    int64_t shape[] = {2};
    DLTensor t = {data, {kDLCPU, 0}, 1, {kDLInt, 32, 1}, shape, NULL, 0};
    struct dp_tree items[] = {dp_tensor(&t), dp_opaque(data)}, args = dp_tuple(2, items);
    struct dp_tree specs[] = {dp_replicate(), dp_replicate()}, spec = dp_tuple(2, specs);
    OWNED(dp_microbatches) *mbs = NULL;

    struct dp_split_options options = {.count = 5, .args_spec = &spec};
    assert_int_equal(dp_split(&args, NULL, &options, &mbs), 0);
    assert_int_equal(mbs->count, 5);
    for (int32_t mb = 0; mb < 5; mb++) {
        assert_ptr_equal(mbs->args[mb].items[0].tensor, &t);
        assert_ptr_equal(mbs->args[mb].items[1].opaque, data);
    }
}

/* 128, 256 and 512 rows, in args and in kwargs, into 2. */
CASE(the_reference_example_gives_64_128_and_256_rows)
{
    static float data[512];
    int64_t rows[] = {128, 256, 512};
    DLTensor t[3];
    struct dp_tree items[3];
    const char *names[] = {"x0", "x1", "x2"};
    OWNED(dp_microbatches) *mbs = NULL;

    for (int i = 0; i < 3; i++) {
        t[i] = (DLTensor){data, {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, &rows[i], NULL, 0};
        items[i] = dp_tensor(&t[i]);
    }
    struct dp_tree args = dp_tuple(3, items), kwargs = dp_dict(3, names, items);
    assert_int_equal(dp_split(&args, &kwargs, &(struct dp_split_options){.count = 2}, &mbs), 0);
    assert_int_equal(mbs->count, 2);
    for (int32_t mb = 0; mb < 2; mb++)
        for (int i = 0; i < 3; i++) {
            assert_int_equal(mbs->args[mb].items[i].tensor->shape[0], rows[i] / 2);
            assert_int_equal(mbs->kwargs[mb].items[i].tensor->shape[0], rows[i] / 2);
            assert_string_equal(mbs->kwargs[mb].names[i], names[i]);
        }
}

CASE(views_can_be_cut_again)
{
    int32_t data[24];
    int64_t shape[] = {4, 6};
    DLTensor t = {data, {kDLCPU, 0}, 2, {kDLInt, 32, 1}, shape, NULL, 0};
    struct dp_tree arg = dp_tensor(&t), args = dp_tuple(1, &arg);
    struct dp_tree along_1 = dp_chunk(1), spec = dp_tuple(1, &along_1);
    OWNED(dp_microbatches) *inner = NULL;
    OWNED(dp_microbatches) *outer = NULL;

    assert_int_equal(dp_split(&args, NULL, &(struct dp_split_options){.count = 2}, &outer), 0);
    struct dp_split_options options = {.count = 3, .args_spec = &spec};
    assert_int_equal(dp_split(&outer->args[1], NULL, &options, &inner), 0);
    const DLTensor *piece = inner->args[2].items[0].tensor;
    assert_ptr_equal(dp_tensor_address(piece), &data[2 * 6 + 4]);
    assert_int_equal(piece->shape[0], 2);
    assert_int_equal(piece->shape[1], 2);
    assert_int_equal(piece->strides[0], 6);
}

CASE(a_handle_is_moved_by_its_byte_offset)
{
    char handle;
    int64_t shape[] = {4, 2};
    DLTensor t = {&handle, {kDLOpenCL, 0}, 2, {kDLFloat, 16, 1}, shape, NULL, 100};
    struct dp_tree arg = dp_tensor(&t), args = dp_tuple(1, &arg);
    OWNED(dp_microbatches) *mbs = NULL;

    assert_int_equal(dp_split(&args, NULL, &(struct dp_split_options){.count = 2}, &mbs), 0);
    assert_ptr_equal(mbs->args[1].items[0].tensor->data, &handle);
    assert_int_equal(mbs->args[1].items[0].tensor->byte_offset, 100 + 2 * 2 * 2);
}

CASE(the_trees_that_went_in_may_go_before_the_result)
{
    int32_t data[4] = {0, 1, 2, 3};
    int64_t *shape = malloc(sizeof(*shape));
    DLTensor *t = malloc(sizeof(*t));
    struct dp_tree *items = malloc(sizeof(*items)), *specs = malloc(sizeof(*specs));
    OWNED(dp_microbatches) *mbs = NULL;

    *shape = 4;
    *t = (DLTensor){data, {kDLCPU, 0}, 1, {kDLInt, 32, 1}, shape, NULL, 0};
    *items = dp_tensor(t);
    *specs = dp_chunk(0);
    char *name = strdup("x");
    const char **names = malloc(sizeof(*names));
    *names = name;
    struct dp_tree args = dp_list(1, items), spec = dp_list(1, specs);
    struct dp_tree kwargs = dp_dict(1, names, items);
    struct dp_split_options options = {.count = 2, .args_spec = &spec};
    assert_int_equal(dp_split(&args, &kwargs, &options, &mbs), 0);
    free(names);
    free(name);
    free(specs);
    free(items);
    free(t);
    free(shape);
    assert_string_equal(mbs->kwargs[1].names[0], "x");
    assert_int_equal(mbs->args[1].kind, DP_TREE_LIST);
    assert_int_equal(mbs->args[1].items[0].tensor->shape[0], 2);
    assert_int_equal(*(int32_t *)dp_tensor_address(mbs->args[1].items[0].tensor), 2);
}

CASE(bad_options_are_refused)
{
    struct dp_microbatches *mbs = NULL;
    struct dp_split_options options = {.count = 65537};

    assert_int_equal(dp_split(NULL, NULL, NULL, &mbs), DP_EINVAL);
    assert_int_equal(dp_split(NULL, NULL, &options, &mbs), DP_EINVAL);
    options = (struct dp_split_options){.count = 1, .shrink = (enum dp_shrink)3};
    assert_int_equal(dp_split(NULL, NULL, &options, &mbs), DP_EINVAL);
    assert_string_equal(dp_last_error(), "shrink: 3, expected a DP_SHRINK_ policy");
    options = (struct dp_split_options){.count = 1, .default_spec = (enum dp_default_spec)2};
    assert_int_equal(dp_split(NULL, NULL, &options, &mbs), DP_EINVAL);
    assert_null(mbs);
}

CASE(a_value_is_no_spec_for_a_tensor)
{
    int64_t shape[] = {2};
    DLTensor t = {shape, {kDLCPU, 0}, 1, {kDLInt, 64, 1}, shape, NULL, 0};
    struct dp_tree tensor = dp_tensor(&t), value = dp_opaque(&t), args = dp_tuple(1, &tensor);
    struct dp_tree spec = dp_tuple(1, &value), other = dp_tuple(1, &tensor);
    struct dp_microbatches *mbs = NULL;
    struct dp_split_options options = {.count = 2, .args_spec = &spec};

    assert_int_equal(dp_split(&args, NULL, &options, &mbs), DP_EINVAL);
    assert_string_equal(dp_last_error(),
                        "args[0]: the spec of a tensor is a value, expected Chunk or Replicate");
    options.args_spec = &other;
    assert_int_equal(dp_split(&args, NULL, &options, &mbs), DP_EINVAL);
    assert_null(mbs);
}

/* ---- given micro-batches -------------------------------------------------------------------- */

CASE(given_microbatches_are_passed_on)
{
    struct case_data d;
    struct dp_microbatches *mbs;
    json_t *json = json_pack("{s:[[i],[i,i]]}", "tensors", 3, 2, 2);

    case_init(&d, json);
    struct dp_tree args[] = {case_value(&d, "(0, [*])"), case_value(&d, "(1, [-])")};
    struct dp_tree kwargs[] = {case_value(&d, "{x: 0}"), case_value(&d, "{x: *}")};
    assert_int_equal(dp_split_given(args, 2, kwargs, 2, &mbs), 0);
    assert_int_equal(mbs->count, 2);
    assert_ptr_equal(mbs->args, args);
    assert_ptr_equal(mbs->kwargs, kwargs);
    dp_microbatches_free(mbs);

    assert_int_equal(dp_split_given(NULL, 0, kwargs, 2, &mbs), 0);
    assert_int_equal(mbs->args[1].kind, DP_TREE_TUPLE);
    assert_int_equal(mbs->args[1].count, 0);
    dp_microbatches_free(mbs);
    assert_int_equal(dp_split_given(args, 1, NULL, 0, &mbs), 0);
    assert_int_equal(mbs->kwargs[0].kind, DP_TREE_DICT);
    dp_microbatches_free(mbs);
    case_fini(&d);
    json_decref(json);
}

static void expect_refused(int err, int expected, const char *sentence)
{
    assert_int_equal(err, expected);
    assert_string_equal(dp_last_error(), sentence);
}

CASE(given_microbatches_that_do_not_fit_are_refused)
{
    struct case_data d;
    struct dp_microbatches *mbs = NULL;
    json_t *json = json_pack("{s:[[i]]}", "tensors", 3);

    case_init(&d, json);
    struct dp_tree args[] = {case_value(&d, "(0, [*])"), case_value(&d, "(0, (*))"),
                             case_value(&d, "(0)"), case_value(&d, "{}")};
    struct dp_tree kwargs[] = {case_value(&d, "{x: 0}"), case_value(&d, "{y: 0}"),
                               case_value(&d, "()")};
    expect_refused(dp_split_given(args, 2, kwargs, 1, &mbs), DP_EINVAL,
                   "2 micro-batches of args and 1 of kwargs, expected as many of both"); /* E7 */
    expect_refused(dp_split_given(args, 2, NULL, 0, &mbs), DP_EMISMATCH,
                   "args of micro-batch 1: another tree than that of micro-batch 0");
    expect_refused(dp_split_given(&args[1], 2, NULL, 0, &mbs), DP_EMISMATCH,
                   "args of micro-batch 1: another tree than that of micro-batch 0");
    expect_refused(dp_split_given(&args[2], 2, NULL, 0, &mbs), DP_EINVAL,
                   "args of micro-batch 1: expected a tuple or list of arguments");
    expect_refused(dp_split_given(NULL, 0, kwargs, 2, &mbs), DP_EMISMATCH,
                   "kwargs of micro-batch 1: another tree than that of micro-batch 0");
    expect_refused(dp_split_given(NULL, 0, &kwargs[2], 1, &mbs), DP_EINVAL,
                   "kwargs of micro-batch 0: expected a dict of arguments");
    expect_refused(dp_split_given(NULL, 3, NULL, 0, &mbs), DP_EINVAL,
                   "args: NULL with 3 micro-batches");
    expect_refused(dp_split_given(args, -1, NULL, 0, &mbs), DP_EINVAL,
                   "-1 and 0 micro-batches, expected 0 to 65536");
    assert_null(mbs);
    case_fini(&d);
    json_decref(json);
}

/* ---- masks of attention ---------------------------------------------------------------------- */

static bool upper(void *user, int64_t sample, int64_t head, int64_t q, int64_t k)
{
    return k >= q + sample;
}

struct attention {
    int32_t data[5][2];
    int64_t shapes[2][2];
    DLTensor tables[2];
    struct dp_block_mask mask;
    struct dp_tree leaf, args;
};

static void attention_init(struct attention *a, int64_t samples)
{
    for (int i = 0; i < 5; i++)
        a->data[i][0] = a->data[i][1] = i;
    for (int i = 0; i < 2; i++) {
        a->shapes[i][0] = samples;
        a->shapes[i][1] = 2;
        a->tables[i] =
            (DLTensor){a->data, {kDLCPU, 0}, 2, {kDLInt, 32, 1}, a->shapes[i], NULL, 0};
    }
    a->mask = (struct dp_block_mask){.kv_num_blocks = &a->tables[0], .kv_indices = &a->tables[1],
                                     .query_block = 128, .looks_at = upper};
    a->leaf = dp_block_mask(&a->mask);
    a->args = dp_tuple(1, &a->leaf);
}

CASE(masks_of_attention_are_cut_along_their_samples)
{
    const struct dp_split_options options = {.count = 2};
    OWNED(dp_microbatches) *mbs = NULL;
    struct attention a;

    attention_init(&a, 5);
    assert_int_equal(dp_split(&a.args, NULL, &options, &mbs), 0);
    const struct dp_block_mask *second = mbs->args[1].items[0].block_mask;
    assert_int_equal(mbs->args[0].items[0].block_mask->kv_indices->shape[0], 3);
    assert_int_equal(second->kv_num_blocks->shape[0], 2);
    assert_ptr_equal(second->kv_num_blocks->data, a.data[3]);
    assert_null(second->full_kv_indices);
    assert_int_equal(second->query_block, 128);
    assert_int_equal(second->first_sample, 3);
    assert_true(dp_block_mask_looks_at(second, 1, 0, 0, 4)); /* sample 4 of the batch */
    assert_false(dp_block_mask_looks_at(second, 1, 0, 0, 3));
}

CASE(a_mask_that_all_samples_share_is_the_same_everywhere)
{
    struct dp_split_options options = {.count = 3};
    struct dp_microbatches *mbs;
    struct attention a;

    attention_init(&a, 1);
    assert_int_equal(dp_split(&a.args, NULL, &options, &mbs), 0);
    assert_int_equal(mbs->count, 3);
    assert_ptr_equal(mbs->args[2].items[0].block_mask, &a.mask);
    dp_microbatches_free(mbs);
    attention_init(&a, 5);
    options.mask = true;
    assert_int_equal(dp_split(&a.args, NULL, &options, &mbs), 0);
    assert_ptr_equal(mbs->args[2].items[0].block_mask, &a.mask);
    dp_microbatches_free(mbs);
}

CASE(masks_of_attention_count_rows_as_tensors_do)
{
    struct dp_split_options options = {.count = 8, .shrink = DP_SHRINK_MIN};
    OWNED(dp_microbatches) *mbs = NULL;
    struct attention a;

    attention_init(&a, 5);
    assert_int_equal(dp_split(&a.args, NULL, &options, &mbs), 0);
    assert_int_equal(mbs->count, 5);
}

CASE(wrong_masks_of_attention_are_refused)
{
    struct dp_tree leaf = dp_chunk(1), spec = dp_tuple(1, &leaf);
    struct dp_split_options options = {.count = 2, .args_spec = &spec};
    struct dp_microbatches *mbs = NULL;
    struct attention a;

    attention_init(&a, 5);
    expect_refused(dp_split(&a.args, NULL, &options, &mbs), DP_EINVAL,
                   "args[0]: Chunk(1) of a mask of attention, expected Chunk(0), its samples");
    leaf = dp_stack(0);
    expect_refused(dp_split(&a.args, NULL, &options, &mbs), DP_EINVAL,
                   "args[0]: the spec of a mask of attention is Stack, which says how to merge, "
                   "expected Chunk(0) or Replicate");
    leaf = dp_chunk(0);
    a.shapes[1][0] = 4;
    expect_refused(dp_split(&a.args, NULL, &options, &mbs), DP_EINVAL,
                   "args[0]: the mask of attention has tables of different numbers of samples");
    a.shapes[1][0] = 5;
    a.mask.full_kv_indices = &a.tables[1];
    expect_refused(dp_split(&a.args, NULL, &options, &mbs), DP_EINVAL,
                   "args[0]: the mask of attention has one of full_kv_num_blocks and "
                   "full_kv_indices, expected both or none");
    a.mask.kv_indices = NULL;
    expect_refused(dp_split(&a.args, NULL, &options, &mbs), DP_EINVAL,
                   "args[0]: the mask of attention has no kv_num_blocks or no kv_indices");
    a.leaf.block_mask = NULL;
    expect_refused(dp_split(&a.args, NULL, &options, &mbs), DP_EINVAL,
                   "args[0]: a mask of attention without a dp_block_mask");
    assert_null(mbs);
}

int main(void)
{
    return case_run("split.json", split_case);
}
