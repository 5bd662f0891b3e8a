/* SPDX-License-Identifier: Apache-2.0 */
#include "cmocka_all.h"

#include "microbatch/tree.h"

CASE(numbers_and_names_make_specs)
{
    static const int dims[] = {0, 1, -1};
    static const char *const names[] = {"a", "b", "c"};
    struct dp_tree items[3], named[3];
    const struct dp_tree tuple = dp_spec_from_dims(3, dims, items);
    const struct dp_tree dict = dp_spec_from_names(3, names, dims, named);

    assert_int_equal(tuple.kind, DP_TREE_TUPLE);
    assert_int_equal(dict.kind, DP_TREE_DICT);
    assert_int_equal(tuple.count, 3);
    assert_int_equal(dict.count, 3);
    assert_string_equal(dict.names[2], "c");
    for (int i = 0; i < 3; i++) {
        assert_int_equal(tuple.items[i].kind, DP_TREE_CHUNK);
        assert_int_equal(tuple.items[i].dim, dims[i]);
        assert_int_equal(dict.items[i].dim, dims[i]);
    }
}

/* ---- hostile trees -------------------------------------------------------------------------- */

static void expect_refused(const struct dp_tree *t, const char *sentence)
{
    int32_t leaves = -7;

    assert_int_equal(dp_tree_check(t, "args", true, &leaves), DP_EINVAL);
    assert_string_equal(dp_last_error(), sentence);
    assert_int_equal(leaves, -7);
}

CASE(malformed_trees_are_refused_by_their_path)
{
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

CASE(a_tree_that_contains_itself_ends_at_a_limit)
{
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

CASE(a_tree_with_too_many_nodes_is_refused)
{
    struct dp_tree *items = calloc(DP_TREE_MAX_NODES, sizeof(*items));
    struct dp_tree t = dp_list(DP_TREE_MAX_NODES - 1, items);
    int32_t leaves;

    assert_int_equal(dp_tree_check(&t, "args", true, &leaves), 0);
    assert_int_equal(leaves, DP_TREE_MAX_NODES - 1);
    t.count++;
    expect_refused(&t, "args[65535]: the tree has more than 65536 nodes");
    free(items);
}

CASE(long_and_ugly_names_stay_on_one_line)
{
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
