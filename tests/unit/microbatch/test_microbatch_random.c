/* SPDX-License-Identifier: Apache-2.0
 *
 * Random trees, specs and texts. DP_TEST_SEED=n runs the cases from seed n on, the first of which
 * is the one that a failure names.
 */
#include "cmocka_all.h"

#include "microbatch/tree.h"

enum { CASES = 1500, MAX_LEAVES = 40 };

static uint64_t random_state;

static uint32_t random_u32(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33);
}

static int below(int n)
{
    return (int)(random_u32() % (uint32_t)n);
}

static void seed_case(uint64_t seed)
{
    random_state = seed * 0x9e3779b97f4a7c15u + 1;
    random_u32();
}

static uint64_t first_seed(void)
{
    const char *text = getenv("DP_TEST_SEED");
    return text ? strtoull(text, NULL, 0) : 1;
}

/* Runs one(seed) for all seeds; each returns an error text, or NULL. */
static void try_cases(const char *(*one)(void))
{
    uint64_t first = first_seed();

    for (uint64_t seed = first; seed < first + CASES; seed++) {
        seed_case(seed);
        const char *wrong = one();
        if (wrong)
            fail_msg("DP_TEST_SEED=%llu: %s (last error: %s)", (unsigned long long)seed, wrong,
                     dp_last_error());
    }
}

/* ---- random values with specs that fit ------------------------------------------------------ */

struct making {
    struct dp_arena *region;
    int32_t count;  /* of micro-batches: no chunked extent is smaller */
    int leaves;     /* so far */
};

/* A view with odd strides into memory of its own. Dimension `dim` (-1: none) has at least `count`
 * rows. */
static const DLTensor *make_tensor(const struct making *m, int ndim, int dim)
{
    DLTensor *t = dp_arena_array(m->region, 1, sizeof(*t));
    int64_t *shape = dp_arena_array(m->region, (size_t)ndim, sizeof(*shape));
    int64_t *strides = dp_arena_array(m->region, (size_t)ndim, sizeof(*strides));
    int64_t step = 1, first = 0;
    bool compact = below(2);

    *t = (DLTensor){NULL, {kDLCPU, 0}, ndim, {kDLInt, (uint8_t)(8 << below(4)), 1}, shape, strides,
                    0};
    t->dtype.lanes = (uint16_t)(1 + below(3));
    for (int i = ndim - 1; i >= 0; i--) {
        shape[i] = i == dim ? m->count + below(5) : below(5);
        step *= compact || below(3) ? 1 : 2;
        bool backwards = !compact && below(4) == 0;
        strides[i] = backwards ? -step : step;
        first += backwards && shape[i] ? step * (shape[i] - 1) : 0;
        step *= shape[i] ? shape[i] : 1;
    }
    size_t bytes = dp_tensor_element_bytes(t);
    uint8_t *data = dp_arena_data(m->region, (size_t)step * bytes + 1);
    for (size_t i = 0; i < (size_t)step * bytes + 1; i++)
        data[i] = (uint8_t)random_u32();
    t->data = data;
    t->byte_offset = (uint64_t)first * bytes + 1;
    if (compact)
        t->strides = NULL;
    return t;
}

static void make_leaf(struct making *m, struct dp_tree *value, struct dp_tree *spec)
{
    int ndim = below(5), dim = ndim ? below(ndim) : -1;

    m->leaves++;
    *spec = dp_replicate();
    switch (below(8)) {
    case 0:
        *value = dp_absent();
        break;
    case 1:
        *value = dp_opaque(m);
        break;
    case 2:
        *value = dp_tensor(make_tensor(m, ndim, -1));
        break;
    default:
        *value = dp_tensor(make_tensor(m, ndim, dim));
        if (ndim)
            *spec = dp_chunk(below(2) ? dim : dim - ndim);
    }
}

static void make_tree(struct making *m, int depth, struct dp_tree *value, struct dp_tree *spec)
{
    static const char *const names[] = {"a", "b", "c", "d"};
    enum dp_tree_kind kind = (enum dp_tree_kind)(DP_TREE_TUPLE + below(3));

    if (depth == 0 || (depth < 4 && below(3) == 0) || m->leaves >= MAX_LEAVES) {
        make_leaf(m, value, spec);
        return;
    }
    int32_t count = below(5);
    struct dp_tree *values = dp_arena_array(m->region, (size_t)count, sizeof(*values));
    struct dp_tree *specs = dp_arena_array(m->region, (size_t)count, sizeof(*specs));
    for (int32_t i = 0; i < count; i++)
        make_tree(m, depth - 1, &values[i], &specs[i]);
    *value = dp_tree_node(kind, count, values, kind == DP_TREE_DICT ? names : NULL);
    *spec = dp_tree_node(kind, count, specs, kind == DP_TREE_DICT ? names : NULL);
}

static struct dp_tree make_root(struct making *m, enum dp_tree_kind kind, struct dp_tree *spec)
{
    static const char *const names[] = {"w", "x", "y", "z"};
    struct dp_tree value;

    do {
        m->leaves = 0;
        make_tree(m, 4, &value, spec);
    } while (dp_tree_is_leaf(&value));
    value.kind = spec->kind = kind;
    value.names = spec->names = kind == DP_TREE_DICT ? names : NULL;
    return value;
}

/* ---- what goes in comes out ----------------------------------------------------------------- */

static bool same_leaf(const struct dp_tree *a, const struct dp_tree *b)
{
    if (a->kind != b->kind)
        return false;
    if (a->kind == DP_TREE_OPAQUE)
        return a->opaque == b->opaque;
    return a->kind != DP_TREE_TENSOR ||
           (dp_tensor_same_dtype(a->tensor, b->tensor) &&
            dp_tensor_same_shape(a->tensor, b->tensor) &&
            dp_tensor_same_elements(a->tensor, b->tensor));
}

static bool same_tree(const struct dp_tree *a, const struct dp_tree *b)
{
    if (dp_tree_is_leaf(a) || dp_tree_is_leaf(b))
        return same_leaf(a, b);
    if (a->kind != b->kind || a->count != b->count)
        return false;
    for (int32_t i = 0; i < a->count; i++)
        if ((a->kind == DP_TREE_DICT && strcmp(a->names[i], b->names[i])) ||
            !same_tree(&a->items[i], &b->items[i]))
            return false;
    return true;
}

static const char *merge_back(const struct dp_tree *pieces, int32_t count,
                              const struct dp_tree *spec, const struct dp_split_options *cut,
                              const struct dp_tree *original)
{
    struct dp_merge_options options = {.spec = spec, .mask = cut->mask, .rule = cut->rule};
    struct dp_tree *merged;

    if (dp_merge(pieces, count, &options, &merged))
        return "cannot be merged";
    bool same = same_tree(merged, original);
    dp_tree_free(merged);
    return same ? NULL : "merged into something else";
}

static const char *split_and_merge(struct making *m)
{
    struct dp_tree args_spec, kwargs_spec;
    struct dp_tree args = make_root(m, DP_TREE_TUPLE, &args_spec);
    struct dp_tree kwargs = make_root(m, DP_TREE_DICT, &kwargs_spec);
    struct dp_split_options options = {.count = m->count, .args_spec = &args_spec,
                                       .kwargs_spec = &kwargs_spec, .mask = below(3) == 0,
                                       .shrink = (enum dp_shrink)below(3),
                                       .contiguous = below(3) == 0};
    OWNED(dp_microbatches) *mbs = NULL;

    if (below(4) == 0) {
        options.rule = DP_CUT_CHUNK;
        options.shrink = DP_SHRINK_NEVER;
    }
    const bool by_chunks = options.rule == DP_CUT_CHUNK;
    if (dp_split(&args, &kwargs, &options, &mbs))
        return by_chunks && strstr(dp_last_error(), "as many as of the tensors before")
                   ? NULL
                   : "cannot be split";
    const char *wrong = mbs->count == m->count || (by_chunks && mbs->count < m->count)
                            ? NULL
                            : "another number of micro-batches";
    if (!wrong)
        wrong = merge_back(mbs->args, mbs->count, &args_spec, &options, &args);
    if (!wrong)
        wrong = merge_back(mbs->kwargs, mbs->count, &kwargs_spec, &options, &kwargs);
    return wrong;
}

static const char *round_trip(void)
{
    struct dp_arena region = {0};
    struct making m = {&region, 1 + below(6), 0};
    const char *wrong = split_and_merge(&m);

    dp_arena_fini(&region);
    return wrong;
}

CASE(merging_undoes_splitting_for_random_trees)
{
    try_cases(round_trip);
}

/* ---- trees that are wrong somewhere --------------------------------------------------------- */

/* Break what can be broken without lying about the memory behind a pointer. */
static void damage_tensor(struct dp_tree *leaf, DLTensor *copy, int64_t *dims)
{
    *copy = *leaf->tensor;
    leaf->tensor = copy;
    for (int i = 0; i < copy->ndim; i++)
        dims[i] = copy->shape[i];
    copy->shape = dims;
    switch (below(7)) {
    case 0:
        copy->ndim = below(2) ? -1 : 65 + below(1000);
        break;
    case 1:
        copy->shape = NULL;
        break;
    case 2:
        dims[0] = -1 - below(3);
        break;
    case 3:
        dims[0] = INT64_MAX - below(3);
        break;
    case 4:
        copy->data = NULL;
        break;
    case 5:
        copy->dtype.bits = (uint8_t)below(8);
        break;
    default:
        leaf->tensor = NULL;
    }
}

static void damage_node(struct dp_tree *t)
{
    switch (below(5)) {
    case 0:
        t->kind = (enum dp_tree_kind)(below(14) - 2);
        if (t->kind == DP_TREE_REDUCE)
            t->reducer = below(2) ? dp_reducer_sum() : NULL;
        if (t->kind == DP_TREE_TENSOR || t->kind == DP_TREE_BLOCK_MASK)
            t->opaque = NULL; /* tensor, or block_mask */
        break;
    case 1:
        t->count = below(t->count + 2) - 1;
        break;
    case 2:
        t->names = NULL;
        break;
    case 3:
        t->items = NULL;
        break;
    default:
        t->dim = below(20) - 10;
        if (t->kind == DP_TREE_TENSOR || t->kind == DP_TREE_OPAQUE || t->kind == DP_TREE_REDUCE)
            t->kind = DP_TREE_CHUNK;
    }
}

/* The nodes were made by make_tree, in memory that is ours to write to. */
static struct dp_tree *random_node(struct dp_tree *t)
{
    while (!dp_tree_is_leaf(t) && t->items && t->count > 0 && below(4))
        t = (struct dp_tree *)(uintptr_t)&t->items[below(t->count)];
    return t;
}

static void damage(struct dp_tree *root, DLTensor *copy, int64_t *dims)
{
    struct dp_tree *t = random_node(root);

    if (t->kind == DP_TREE_TENSOR && t->tensor && t->tensor->ndim > 0 && t->tensor->ndim < 8 &&
        t->tensor->shape && below(2))
        damage_tensor(t, copy, dims);
    else
        damage_node(t);
}

static const char *damaged(void)
{
    struct dp_arena region = {0};
    struct making m = {&region, 1 + below(4), 0};
    struct dp_tree args_spec, kwargs_spec;
    struct dp_tree args = make_root(&m, DP_TREE_TUPLE, &args_spec);
    struct dp_tree kwargs = make_root(&m, DP_TREE_DICT, &kwargs_spec);
    struct dp_tree *trees[] = {&args, &kwargs, &args_spec, &kwargs_spec};
    DLTensor copies[3];
    int64_t dims[3][8];
    struct dp_split_options options = {.count = m.count, .args_spec = &args_spec,
                                       .kwargs_spec = &kwargs_spec,
                                       .rule = (enum dp_cut_rule)below(2),
                                       .shrink = (enum dp_shrink)below(3)};
    OWNED(dp_microbatches) *mbs = NULL;
    const char *wrong = NULL;

    for (int i = below(3); i >= 0; i--)
        damage(trees[below(4)], &copies[i], dims[i]);
    int err = dp_split(&args, &kwargs, &options, &mbs);
    if (err && err != DP_EINVAL && err != DP_EUNSUPPORTED)
        wrong = "an error of another kind";
    if (err && (mbs || !*dp_last_error()))
        wrong = "a failure with a result or without a sentence";
    dp_arena_fini(&region);
    return wrong;
}

static void ignore_line(void *user, enum dp_log_level level, const char *line)
{
}

CASE(damaged_trees_are_refused_or_split_never_more)
{
    dp_log_set(ignore_line, NULL, DP_LOG_WARN);
    try_cases(damaged);
    dp_log_set(NULL, NULL, DP_LOG_WARN);
}

int main(void)
{
    printf("seeds %llu to %llu\n", (unsigned long long)first_seed(),
           (unsigned long long)first_seed() + CASES - 1);
    return run_cases(NULL, NULL);
}
