/* SPDX-License-Identifier: Apache-2.0 */
#include "microbatch_case.h"

enum { RESULTS = 8 };

static void merge_case(void **state)
{
    static const char *const defaults[] = {"chunk", "by leaf", NULL};
    static const char *const rules[] = {"tensor_split", "chunk", NULL};
    const json_t *json = *state, *texts = json_object_get(json, "results");
    struct case_data d;
    struct dp_tree results[RESULTS], *merged = NULL;
    struct dp_merge_options options = {
        .spec = case_spec(json, "spec"),
        .default_spec = (enum dp_default_spec)case_choice(json, "default", defaults),
        .mask = case_flag(json, "mask"), .rule = (enum dp_cut_rule)case_choice(json, "rule", rules),
    };

    case_init(&d, json);
    assert_in_range(json_array_size(texts), 0, RESULTS);
    for (size_t i = 0; i < json_array_size(texts); i++)
        results[i] = case_value(&d, json_string_value(json_array_get(texts, i)));
    int err = dp_merge(results, (int32_t)json_array_size(texts), &options, &merged);
    if (json_object_get(json, "error")) {
        case_expect_error(json, err);
        assert_null(merged);
    } else {
        struct dp_text t = {0};
        if (err)
            fail_msg("%s", dp_last_error());
        case_print(&t, merged);
        assert_string_equal(t.data, case_string(json, "is"));
        dp_text_fini(&t);
    }
    dp_tree_free(merged);
    dp_tree_free((struct dp_tree *)(uintptr_t)options.spec);
    case_fini(&d);
}

/* ---- reducers of one's own ------------------------------------------------------------------ */

/* One number of a dtype, as a leaf. */
struct scalar {
    union {
        double f64;
        float f32;
    };
    DLTensor t;
};

static struct dp_tree scalar(struct scalar *s, double value)
{
    s->f64 = value;
    s->t = (DLTensor){&s->f64, {kDLCPU, 0}, 0, {kDLFloat, 64, 1}, NULL, NULL, 0};
    return dp_tensor(&s->t);
}

static double number(const struct dp_tree *t)
{
    return *(const double *)dp_tensor_address(t->tensor);
}

/* 10 acc + value: another order, or a fold from the right, gives another number. */
static int fold_digits(void *user, struct dp_tree *acc, const struct dp_tree *value, int32_t mb,
                       int32_t count)
{
    double *a = (double *)dp_tensor_address(acc->tensor);

    assert_int_equal(mb, (*(int32_t *)user)++);
    assert_int_equal(count, 3);
    *a = 10 * *a + number(value);
    return 0;
}

CASE(a_fold_goes_from_the_left_and_starts_with_init)
{
    struct scalar s[3], init;
    struct dp_tree results[] = {scalar(&s[0], 1), scalar(&s[1], 2), scalar(&s[2], 3)}, *merged;
    int32_t calls = 0;
    struct dp_reducer digits = {"digits", scalar(&init, 9), fold_digits, &calls};
    struct dp_tree spec = dp_reduce(&digits);

    assert_int_equal(dp_merge(results, 3, &(struct dp_merge_options){.spec = &spec}, &merged), 0);
    assert_int_equal(calls, 3);
    assert_true(number(merged) == 9123);
    assert_true(init.f64 == 9);
    dp_tree_free(merged);

    calls = 0;
    digits.init = dp_absent();
    assert_int_equal(dp_merge(results, 3, &(struct dp_merge_options){.spec = &spec}, &merged), 0);
    assert_true(number(merged) == 123);
    dp_tree_free(merged);
}

/* The accumulator is whatever the callback makes of it: here the longest of strings. */
static int fold_longest(void *user, struct dp_tree *acc, const struct dp_tree *value, int32_t mb,
                        int32_t count)
{
    if (strlen(value->opaque) > strlen(acc->opaque))
        *acc = *value;
    return 0;
}

CASE(opaque_values_can_be_folded)
{
    struct dp_tree results[] = {dp_opaque("left"), dp_opaque("middle"), dp_opaque("right")};
    struct dp_reducer longest = {"longest", dp_opaque(""), fold_longest, NULL};
    struct dp_tree spec = dp_reduce(&longest), *merged;

    assert_int_equal(dp_merge(results, 3, &(struct dp_merge_options){.spec = &spec}, &merged), 0);
    assert_string_equal(merged->opaque, "middle");
    dp_tree_free(merged);
}

static int fold_fails(void *user, struct dp_tree *acc, const struct dp_tree *value, int32_t mb,
                      int32_t count)
{
    return mb == *(int32_t *)user ? -77 : 0;
}

CASE(a_reducer_that_fails_is_named)
{
    struct dp_tree results[] = {dp_opaque(""), dp_opaque("")}, *merged = NULL;
    int32_t when = 1;
    struct dp_reducer fails = {NULL, dp_absent(), fold_fails, &when};
    struct dp_tree spec = dp_reduce(&fails);

    assert_int_equal(dp_merge(results, 2, &(struct dp_merge_options){.spec = &spec}, &merged),
                     DP_ECALLBACK);
    assert_string_equal(dp_last_error(), "result: reducer '?' failed with -77 at micro-batch 1");
    assert_null(merged);
}

/* ---- losses --------------------------------------------------------------------------------- */

/* Micro-batches of 3 and 1 tokens with mean losses 2 and 6: over all 4 tokens the mean is 3. */
CASE(a_token_weighted_mean_is_the_mean_over_all_tokens)
{
    struct scalar s[2];
    struct dp_tree results[] = {scalar(&s[0], 2), scalar(&s[1], 6)}, *merged;
    struct dp_weights tokens = {(const double[]){3, 1}, 2};
    struct dp_reducer mean = dp_reducer_weighted_mean(&tokens);
    struct dp_tree spec = dp_reduce(&mean);

    assert_int_equal(dp_merge(results, 2, &(struct dp_merge_options){.spec = &spec}, &merged), 0);
    assert_true(number(merged) == 3);
    dp_tree_free(merged);
}

static void expect_weights_refused(const struct dp_weights *weights, const char *sentence)
{
    struct scalar s[2];
    struct dp_tree results[] = {scalar(&s[0], 2), scalar(&s[1], 6)}, *merged = NULL;
    struct dp_reducer mean = dp_reducer_weighted_mean(weights);
    struct dp_tree spec = dp_reduce(&mean);

    assert_int_equal(dp_merge(results, 2, &(struct dp_merge_options){.spec = &spec}, &merged),
                     DP_EINVAL);
    assert_string_equal(dp_last_error(), sentence);
    assert_null(merged);
}

CASE(weights_that_do_not_fit_are_refused)
{
    expect_weights_refused(&(struct dp_weights){(const double[]){3, 1, 1}, 3},
                           "weighted mean: 3 weights for 2 micro-batches");
    expect_weights_refused(NULL, "weighted mean: 0 weights for 2 micro-batches");
    expect_weights_refused(&(struct dp_weights){(const double[]){1, -1}, 2},
                           "weighted mean: the weights sum up to 0, expected a finite number other "
                           "than 0");
    expect_weights_refused(&(struct dp_weights){(const double[]){1, INFINITY}, 2},
                           "weighted mean: the weights sum up to inf, expected a finite number "
                           "other than 0");
}

/* ---- halves --------------------------------------------------------------------------------- */

CASE(every_float16_and_bfloat16_survives_float)
{
    for (uint32_t i = 0; i <= UINT16_MAX; i++) {
        uint16_t h = (uint16_t)i;
        if (isnan(dp_float16_load(h)))
            assert_true(isnan(dp_float16_load(dp_float16_store(dp_float16_load(h)))));
        else
            assert_int_equal(dp_float16_store(dp_float16_load(h)), h);
        if (isnan(dp_bfloat16_load(h)))
            assert_true(isnan(dp_bfloat16_load(dp_bfloat16_store(dp_bfloat16_load(h)))));
        else
            assert_int_equal(dp_bfloat16_store(dp_bfloat16_load(h)), h);
    }
}

/* Between two adjacent values the nearer one is chosen, in the middle the even one. */
CASE(halves_are_rounded_to_the_nearest_even)
{
    for (uint16_t h = 0; h < 0x7bff; h++) {
        float low = dp_float16_load(h), high = dp_float16_load((uint16_t)(h + 1));
        float middle = (low + high) / 2;
        assert_int_equal(dp_float16_store(middle), h + (h & 1));
        assert_int_equal(dp_float16_store(nextafterf(middle, 0)), h);
        assert_int_equal(dp_float16_store(nextafterf(middle, INFINITY)), h + 1);
    }
    assert_int_equal(dp_float16_store(65519.996f), 0x7bff);
    assert_int_equal(dp_float16_store(65520), 0x7c00);
    assert_int_equal(dp_float16_store(-65520), 0xfc00);
    assert_int_equal(dp_bfloat16_store(1.00390625f), 0x3f80);
    assert_int_equal(dp_bfloat16_store(1.01171875f), 0x3f82);
}

/* ---- ownership and equality ----------------------------------------------------------------- */

CASE(replicated_results_are_those_of_the_first_microbatch)
{
    struct scalar s[2];
    struct dp_tree results[] = {scalar(&s[0], 4), scalar(&s[1], 4)}, spec = dp_replicate(), *merged;

    assert_int_equal(dp_merge(results, 2, &(struct dp_merge_options){.spec = &spec}, &merged), 0);
    assert_ptr_equal(merged->tensor, &s[0].t);
    dp_tree_free(merged);
}

CASE(a_merged_tree_outlives_its_spec)
{
    struct scalar s;
    struct dp_tree leaf = scalar(&s, 4), results[] = {dp_dict(1, (const char *[]){"loss"}, &leaf)};
    struct dp_tree *spec, *merged;

    spec = case_parse("{loss: mean}");
    assert_int_equal(dp_merge(results, 1, &(struct dp_merge_options){.spec = spec}, &merged), 0);
    dp_tree_free(spec);
    assert_string_equal(merged->names[0], "loss");
    assert_true(number(&merged->items[0]) == 4);
    dp_tree_free(merged);
}

CASE(merged_tensors_are_aligned_and_their_own)
{
    int32_t data[] = {1, 2, 3};
    int64_t shape = 3;
    DLTensor t = {data, {kDLCPU, 0}, 1, {kDLInt, 32, 1}, &shape, NULL, 0};
    struct dp_tree results[] = {dp_tensor(&t), dp_tensor(&t)}, *merged;

    assert_int_equal(dp_merge(results, 2, NULL, &merged), 0);
    assert_int_equal((uintptr_t)merged->tensor->data % 256, 0);
    assert_null(merged->tensor->strides);
    assert_int_equal(merged->tensor->byte_offset, 0);
    data[0] = 7;
    assert_int_equal(((int32_t *)merged->tensor->data)[0], 1);
    dp_tree_free(merged);
}

static bool same_text(void *user, const void *a, const void *b)
{
    (*(int *)user)++;
    return !strcmp(a, b);
}

CASE(equal_views_of_one_device_memory_are_equal)
{
    char there;
    int64_t shape[] = {2, 3}, strides[] = {3, 1}, other[] = {1, 2};
    DLTensor a = {&there, {kDLCUDA, 0}, 2, {kDLFloat, 32, 1}, shape, NULL, 0}, b = a;
    struct dp_tree results[] = {dp_tensor(&a), dp_tensor(&b)}, spec = dp_replicate(), *merged;
    struct dp_merge_options options = {.spec = &spec};

    b.strides = strides;
    assert_int_equal(dp_merge(results, 2, &options, &merged), 0);
    dp_tree_free(merged);
    b.strides = other;
    assert_int_equal(dp_merge(results, 2, &options, &merged), DP_EUNSUPPORTED);
}

CASE(opaque_values_are_compared_by_the_users_function)
{
    char one[] = "same", other[] = "same", third[] = "else";
    struct dp_tree results[] = {dp_opaque(one), dp_opaque(other), dp_opaque(third)}, *merged = NULL;
    struct dp_tree spec = dp_replicate();
    int calls = 0;
    struct dp_merge_options options = {.spec = &spec, .equal = same_text, .user = &calls};

    assert_int_equal(dp_merge(results, 2, &options, &merged), 0);
    assert_ptr_equal(merged->opaque, one);
    assert_int_equal(calls, 1);
    dp_tree_free(merged);
    assert_int_equal(dp_merge(results, 3, &options, &merged), DP_EMISMATCH);
    options.equal = NULL;
    assert_int_equal(dp_merge(results, 2, &options, &merged), DP_EMISMATCH);
}

CASE(bad_options_are_refused)
{
    struct dp_tree results[] = {dp_absent()}, *merged = NULL;
    struct dp_merge_options options = {.default_spec = (enum dp_default_spec)7};

    assert_int_equal(dp_merge(results, 1, &options, &merged), DP_EINVAL);
    assert_string_equal(dp_last_error(),
                        "default_spec: 7, expected DP_DEFAULT_CHUNK or DP_DEFAULT_BY_LEAF");
    assert_int_equal(dp_merge(NULL, 1, NULL, &merged), DP_EINVAL);
    assert_null(merged);
}

CASE(a_reducer_must_begin_with_a_readable_tensor)
{
    struct scalar s, init;
    struct dp_tree results[] = {scalar(&s, 1)}, *merged = NULL;
    struct dp_reducer sum = *dp_reducer_sum();
    struct dp_tree spec = dp_reduce(&sum);
    struct dp_merge_options options = {.spec = &spec};

    sum.init = scalar(&init, 0);
    init.t.data = NULL;
    assert_int_equal(dp_merge(results, 1, &options, &merged), DP_EINVAL);
    assert_string_equal(dp_last_error(), "result: the tensor that reducer 'sum' begins with has "
                                         "elements but no data");
    init.t.data = &init.f64;
    init.t.device.device_type = kDLCUDA;
    assert_int_equal(dp_merge(results, 1, &options, &merged), DP_EUNSUPPORTED);
    assert_null(merged);
}

CASE(a_stack_has_no_more_dimensions_than_a_tensor_may_have)
{
    int32_t one = 1;
    int64_t shape[DP_TREE_MAX_NDIM];
    DLTensor t = {&one, {kDLCPU, 0}, DP_TREE_MAX_NDIM, {kDLInt, 32, 1}, shape, NULL, 0};
    struct dp_tree results[] = {dp_tensor(&t), dp_tensor(&t)}, *merged = NULL;
    struct dp_tree spec = dp_stack(64);
    struct dp_merge_options options = {.spec = &spec};

    for (int i = 0; i < DP_TREE_MAX_NDIM; i++)
        shape[i] = 1;
    assert_int_equal(dp_merge(results, 2, &options, &merged), DP_EINVAL);
    assert_string_equal(dp_last_error(),
                        "result: Stack(64) of 64 dimensions, expected fewer than 64");
    t.ndim--;
    spec.dim = -1;
    assert_int_equal(dp_merge(results, 2, &options, &merged), 0);
    assert_int_equal(merged->tensor->ndim, 64);
    assert_int_equal(merged->tensor->shape[63], 2);
    dp_tree_free(merged);
}

CASE(malformed_trees_are_refused)
{
    struct dp_tree bad = dp_list(1, NULL), good = dp_absent(), *merged = NULL;
    struct dp_tree results[] = {good, bad};
    struct dp_merge_options options = {.spec = &bad};

    assert_int_equal(dp_merge(&good, 1, &options, &merged), DP_EINVAL);
    assert_string_equal(dp_last_error(), "spec: a node with 1 items and no array of them");
    assert_int_equal(dp_merge(&bad, 1, NULL, &merged), DP_EINVAL);
    assert_int_equal(dp_merge(results, 2, NULL, &merged), DP_EINVAL);
    assert_string_equal(dp_last_error(), "micro-batch 1: a node with 1 items and no array of them");
    assert_null(merged);
}

/* Rows of no elements: no memory is needed, but there is an end to counting. */
CASE(more_rows_than_can_be_counted_are_refused)
{
    int64_t shape[] = {INT64_MAX / 16, 0};
    DLTensor t = {NULL, {kDLCPU, 0}, 2, {kDLInt, 8, 1}, shape, NULL, 0};
    struct dp_tree results[20], *merged = NULL;

    for (int i = 0; i < 20; i++)
        results[i] = dp_tensor(&t);
    assert_int_equal(dp_merge(results, 3, NULL, &merged), DP_EINVAL);
    assert_string_equal(dp_last_error(), "result: the merged tensor has extents or strides beyond "
                                         "what memory can hold");
    assert_int_equal(dp_merge(results, 20, NULL, &merged), DP_EINVAL);
    assert_string_equal(dp_last_error(), "result: more rows than can be counted");
    assert_null(merged);
}

int main(void)
{
    return case_run("merge.json", merge_case);
}
