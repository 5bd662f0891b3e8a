/* SPDX-License-Identifier: Apache-2.0 */
#include "cmocka_all.h"

#include "microbatch/tree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void expect_printed(const struct dp_tree *t, const char *text)
{
    char *printed;

    assert_int_equal(dp_tree_print(t, &printed), 0);
    assert_string_equal(printed, text);
    free(printed);
}

static void expect_round_trip(const char *text, const char *printed)
{
    struct dp_tree *t;

    if (dp_spec_parse(text, &t))
        fail_msg("%s: %s", text, dp_last_error());
    expect_printed(t, printed);
    dp_tree_free(t);
}

static void specs_are_read_and_written(void **state)
{
    (void)state;
    static const char *const same[] = {
        "0", "-1", "*", "-", "sum", "mean", "stack(-2)", "()", "[]", "{}", "(0)", "(0, 1, -)",
        "([*, sum], {a: 0, b_2: (mean), 3: stack(0)})", "{\"two words\": 0, \"\": 1}",
        "{\"a \\\"quoted\\\" \\\\ name\": *}",
    };

    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++)
        expect_round_trip(same[i], same[i]);
    expect_round_trip(" ( 0 ,1,\n[ ] , ) ", "(0, 1, [])");
    expect_round_trip("{\"a\" : stack, sum:sum,}", "{a: stack(0), sum: sum}");
    expect_round_trip("stack ( 1 )", "stack(1)");
    expect_round_trip("[0,1,2,3,4,5,6,7,8,9]", "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]");
}

static void bad_specs_are_refused_with_the_place(void **state)
{
    (void)state;
    static const struct {
        const char *text, *sentence;
    } bad[] = {
        {"", "ends after character 0, expected a dimension, *, -, sum, mean, stack, (, [ or {"},
        {"(0", "ends after character 2, expected a , or )"},
        {"[0)", "')' at character 2, expected a , or ]"},
        {"(0 1)", "'1)' at character 3, expected a , or )"},
        {"(,)", "',)' at character 1, expected a dimension, *, -, sum, mean, stack, (, [ or {"},
        {"(0))", "')' at character 3, expected the end"},
        {"less", "'less' at character 0, expected a dimension, *, -, sum, mean, stack, (, [ or {"},
        {"(summit)", "'summit)' at character 1, expected a dimension, *, -, sum, mean, stack, (, "
                     "[ or {"},
        {"99999999999", "'99999999999' at character 0, expected the number of a dimension"},
        {"stack(x)", "'x)' at character 6, expected the number of a dimension"},
        {"stack(1", "ends after character 7, expected a ) after the dimension of stack"},
        {"{a 0}", "'0}' at character 3, expected a : after the name"},
        {"{: 0}", "': 0}' at character 1, expected a name"},
        {"{\"a: 0}", "ends after character 7, expected a closing quote"},
        {"{\"a\\", "ends after character 4, expected a closing quote"},
        {"{a: 0", "ends after character 5, expected a , or }"},
    };
    struct dp_tree *t = NULL;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(dp_spec_parse(bad[i].text, &t), DP_EINVAL);
        assert_memory_equal(dp_last_error(), "spec: ", 6);
        assert_string_equal(dp_last_error() + 6, bad[i].sentence);
    }
    assert_int_equal(dp_spec_parse("{a: 0, a: 1}", &t), DP_EINVAL);
    assert_string_equal(dp_last_error(), "spec: a dict with the name \"a\" twice");
    assert_int_equal(dp_spec_parse(NULL, &t), DP_EINVAL);
    assert_null(t);
}

static void deep_and_wide_text_ends_at_a_limit(void **state)
{
    (void)state;
    enum { LEN = 400000 };
    char *text = malloc(LEN + 1);
    struct dp_tree *t = NULL;

    memset(text, '(', LEN);
    text[LEN] = '\0';
    assert_int_equal(dp_spec_parse(text, &t), DP_EINVAL);
    assert_string_equal(dp_last_error(), "spec: more than 64 levels or 65536 nodes");
    for (int i = 1; i < LEN; i++)
        text[i] = i % 2 ? '0' : ',';
    assert_int_equal(dp_spec_parse(text, &t), DP_EINVAL);
    assert_string_equal(dp_last_error(), "spec: more than 64 levels or 65536 nodes");
    memset(text, '(', 64);
    memset(text + 64, ')', 64);
    text[128] = '\0';
    assert_int_equal(dp_spec_parse(text, &t), 0);
    expect_printed(t, text);
    dp_tree_free(t);
    free(text);
}

static void numbers_and_names_make_specs(void **state)
{
    (void)state;
    static const int dims[] = {0, 1, -1};
    static const char *const names[] = {"a", "b", "c"};
    struct dp_tree items[3], named[3], tuple, dict;

    tuple = dp_spec_from_dims(3, dims, items);
    expect_printed(&tuple, "(0, 1, -1)");
    dict = dp_spec_from_names(3, names, dims, named);
    expect_printed(&dict, "{a: 0, b: 1, c: -1}");
    named[1] = tuple;
    expect_printed(&dict, "{a: 0, b: (0, 1, -1), c: -1}");
}

static void values_are_written_by_their_types(void **state)
{
    (void)state;
    int64_t shape[] = {4, 8}, negative[] = {-1};
    DLTensor t = {&t, {kDLCPU, 0}, 2, {kDLBfloat, 16, 1}, shape, NULL, 0}, bad = t;
    const struct dp_reducer nameless = {.fold = dp_reducer_sum()->fold};
    struct dp_tree items[] = {dp_tensor(&t), dp_opaque(&t), dp_absent(), dp_tensor(&bad),
                              dp_reduce(&nameless)};
    struct dp_tree list = dp_list(5, items);

    bad.shape = negative;
    expect_printed(&list, "[bfloat16[4, 8], opaque, -, malformed tensor, reducer]");
}

/* ---- hostile trees -------------------------------------------------------------------------- */

static void expect_refused(const struct dp_tree *t, const char *sentence)
{
    int32_t leaves = -7;

    assert_int_equal(dp_tree_check(t, "args", true, &leaves), DP_EINVAL);
    assert_string_equal(dp_last_error(), sentence);
    assert_int_equal(leaves, -7);
}

static void malformed_trees_are_refused_by_their_path(void **state)
{
    (void)state;
    struct dp_tree items[] = {dp_absent(), dp_absent()}, tuple = dp_tuple(2, items);
    const char *names[] = {"x", "y"};
    struct dp_tree outer = dp_dict(1, names, &tuple);

    items[1].kind = (enum dp_tree_kind)99;
    expect_refused(&outer, "args[\"x\"][1]: a node of the unknown kind 99");
    items[1].kind = (enum dp_tree_kind)-1;
    expect_refused(&outer, "args[\"x\"][1]: a node of the unknown kind -1");
    items[1] = dp_tensor(NULL);
    expect_refused(&outer, "args[\"x\"][1]: a tensor without a DLTensor");
    items[1] = dp_chunk(0);
    expect_refused(&outer, "args[\"x\"][1]: a leaf of a spec, expected a tensor, an opaque value "
                           "or nothing");
    items[1] = dp_reduce(NULL);
    expect_refused(&outer, "args[\"x\"][1]: a reducer without a fold function");
    items[1] = dp_list(-1, items);
    expect_refused(&outer, "args[\"x\"][1]: a node with -1 items");
    items[1] = dp_list(2, NULL);
    expect_refused(&outer, "args[\"x\"][1]: a node with 2 items and no array of them");
    items[1] = dp_dict(1, NULL, items);
    expect_refused(&outer, "args[\"x\"][1]: a dict without a name for item 0");
    items[1] = dp_dict(2, (const char *[]){"a", NULL}, items);
    expect_refused(&outer, "args[\"x\"][1]: a dict without a name for item 1");
    items[1] = dp_dict(2, (const char *[]){"twin", "twin"}, items);
    expect_refused(&outer, "args[\"x\"][1]: a dict with the name \"twin\" twice");
}

static void a_tree_that_contains_itself_ends_at_a_limit(void **state)
{
    (void)state;
    struct dp_tree deep = {0}, wide[3];

    deep = dp_list(1, &deep);
    assert_int_equal(dp_tree_check(&deep, "args", true, &(int32_t){0}), DP_EINVAL);
    assert_non_null(strstr(dp_last_error(), "the tree is deeper than 64 levels"));

    /* Every branch ends at the depth limit, but there would be 3^64 of them. */
    for (int i = 0; i < 3; i++)
        wide[i] = dp_tuple(3, wide);
    wide[0] = dp_absent();
    assert_int_equal(dp_tree_check(&wide[1], "args", true, &(int32_t){0}), DP_EINVAL);
}

static void a_tree_with_too_many_nodes_is_refused(void **state)
{
    (void)state;
    struct dp_tree *items = calloc(DP_TREE_MAX_NODES, sizeof(*items));
    struct dp_tree t = dp_list(DP_TREE_MAX_NODES - 1, items);
    int32_t leaves;

    assert_int_equal(dp_tree_check(&t, "args", true, &leaves), 0);
    assert_int_equal(leaves, DP_TREE_MAX_NODES - 1);
    t.count++;
    expect_refused(&t, "args[65535]: the tree has more than 65536 nodes");
    free(items);
}

static void long_and_ugly_names_stay_on_one_line(void **state)
{
    (void)state;
    char name[300];
    const char *names[] = {name};
    struct dp_tree dicts[10];

    memset(name, 'n', sizeof(name));
    memcpy(name, "a\nb\t", 4);
    name[sizeof(name) - 1] = '\0';
    dicts[9] = dp_tensor(NULL);
    for (int i = 8; i >= 0; i--)
        dicts[i] = dp_dict(1, names, &dicts[i + 1]);
    assert_int_equal(dp_tree_check(dicts, "args", true, &(int32_t){0}), DP_EINVAL);
    assert_memory_equal(dp_last_error(), "args[\"a?b?nnnn", 13);
    assert_null(strchr(dp_last_error(), '\n'));
    assert_non_null(strstr(dp_last_error(), "...: a tensor without a DLTensor"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(specs_are_read_and_written),
        cmocka_unit_test(bad_specs_are_refused_with_the_place),
        cmocka_unit_test(deep_and_wide_text_ends_at_a_limit),
        cmocka_unit_test(numbers_and_names_make_specs),
        cmocka_unit_test(values_are_written_by_their_types),
        cmocka_unit_test(malformed_trees_are_refused_by_their_path),
        cmocka_unit_test(a_tree_that_contains_itself_ends_at_a_limit),
        cmocka_unit_test(a_tree_with_too_many_nodes_is_refused),
        cmocka_unit_test(long_and_ugly_names_stay_on_one_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
