/* SPDX-License-Identifier: Apache-2.0
 *
 * microbatch.h - cut a step's arguments into micro-batches, and put results together again.
 *
 * Arguments are trees, as in Python: tuples, lists and dictionaries whose leaves are tensors,
 * opaque values or nothing. A spec is a tree of the same shape whose leaves say what to do with
 * each value. Splitting makes views, it copies no element; merging copies each element once.
 *
 *      struct dp_tree args = dp_tuple(2, (struct dp_tree[]){dp_tensor(&ids), dp_opaque(&config)});
 *      struct dp_split_options options = {.count = 8};
 *      struct dp_microbatches *mbs;
 *
 *      err = dp_split(&args, NULL, &options, &mbs);
 *      ... mbs->args[3].items[0].tensor is rows 3/8 .. 4/8 of ids ...
 *      dp_microbatches_free(mbs);
 *
 * Who owns what. A tree node owns nothing: a tree that you build refers to your tensors, arrays
 * and names. A result (struct dp_microbatches, or the root that dp_merge hands
 * out) owns all its nodes, names and views and what had to be copied, and is freed by one call. It
 * refers to the data of the tensors that were cut, to replicated tensors and to opaque values,
 * which must therefore outlive it. Trees, names, specs and the DLTensors that were cut need not.
 *
 * Limits, so that no tree can hang or exhaust the stack: DP_TREE_MAX_DEPTH levels of containers,
 * DP_TREE_MAX_NODES nodes, tensors of DP_TREE_MAX_NDIM dimensions, DP_MAX_MICROBATCHES.
 *
 * Errors name the leaf by its path, such as kwargs["mask"][1].
 *
 * Threads: nothing here is shared; different threads may work on different objects at once.
 *
 * The rules are those of torch.distributed.pipelining.microbatch, except where a comment says
 * otherwise.
 */
#ifndef DUALPIPE_MICROBATCH_H
#define DUALPIPE_MICROBATCH_H

#include <dualpipe/dualpipe.h>
#include <dlpack/dlpack.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DP_TREE_MAX_DEPTH   64
#define DP_TREE_MAX_NODES   65536
#define DP_TREE_MAX_NDIM    64
#define DP_MAX_MICROBATCHES 65536

/* ---- sizes ---------------------------------------------------------------------------------- */

/* By which rule rows are dealt out. */
enum dp_cut_rule {
    DP_CUT_TENSOR_SPLIT, /* the first extent % count pieces have one row more than the rest, so 8 into 3
                          * is 3, 3, 2, and 2 into 3 is 1, 1, 0 */
    DP_CUT_CHUNK         /* as AsyncPipe does: every piece but the last has ceil(extent / count) rows, so
                          * that fewer than asked for may come out: 5 into 4 is 2, 2, 1. Nothing into k
                          * is k times nothing. Every tensor that is cut must make as many; dp_shrink is
                          * of no use here: shrink must be DP_SHRINK_NEVER */
};

/* How `extent` rows are cut into `count` pieces: sizes[count], and how many were made. DP_EINVAL for
 * extent < 0 or count < 1. */
DP_PUBLIC int dp_cut_sizes(enum dp_cut_rule rule, int64_t extent, int32_t count, int64_t *sizes,
                           int32_t *made);
/* Piece `piece` of `count` by a rule: where it begins and how many rows it has. By the chunk rule
 * `count` is what dp_cut_sizes has made, or was asked for: pieces beyond are empty. DP_EINVAL for
 * extent < 0, count < 1, or a piece that is not one of them. */
DP_PUBLIC int dp_cut_window(enum dp_cut_rule rule, int64_t extent, int32_t count, int32_t piece,
                            int64_t *begin, int64_t *size);

/* ---- trees ---------------------------------------------------------------------------------- */

enum dp_tree_kind {
    DP_TREE_ABSENT, /* nothing; zeroed memory is this leaf */
    /* inner nodes */
    DP_TREE_TUPLE,
    DP_TREE_LIST,
    DP_TREE_DICT, /* names in insertion order, each once */
    /* leaves of values */
    DP_TREE_TENSOR,
    DP_TREE_OPAQUE, /* any pointer; passed on, never looked into */
    DP_TREE_BLOCK_MASK, /* a mask of attention, cut along its samples */
    /* leaves of specs                  split                     merge */
    DP_TREE_CHUNK,     /*               cut along dim             concatenate along dim */
    DP_TREE_REPLICATE, /*               the same for every mb     all equal: the first mb's */
    DP_TREE_REDUCE,    /*               -                         fold from the left */
    DP_TREE_STACK      /*               -                         as rows of a new dim */
};

struct dp_reducer;

/* A mask of attention by blocks: for each row of blocks of queries the blocks of keys that it looks
 * at, in part (kv) or in full (full_kv), and a function that tells the keys within the former.
 * Tables begin with the dimension of samples, which is 1 where all samples share the mask.
 * Source: BlockMask of torch.nn.attention.flex_attention. */
struct dp_block_mask {
    const DLTensor *kv_num_blocks;                        /* [samples or 1, heads, rows] */
    const DLTensor *kv_indices;                           /* [samples or 1, heads, rows, columns] */
    const DLTensor *full_kv_num_blocks, *full_kv_indices; /* the same, or both NULL: none */
    int32_t query_block, key_block;                       /* length of a block; not looked into */
    int64_t queries, keys;                                /* length of a sequence; likewise */
    /* Whether query q of that sample of the whole batch looks at key k in a head; NULL: always. */
    bool (*looks_at)(void *user, int64_t sample, int64_t head, int64_t q, int64_t k);
    void *user;
    int64_t first_sample; /* of the tables, in the whole batch; 0 before dp_split */
};

/* The same of a sample of this mask, counted from 0. */
static inline bool dp_block_mask_looks_at(const struct dp_block_mask *m, int64_t sample,
                                          int64_t head, int64_t q, int64_t k)
{
    return !m->looks_at || m->looks_at(m->user, m->first_sample + sample, head, q, k);
}

struct dp_tree {
    enum dp_tree_kind kind;
    int32_t count;               /* inner nodes: items */
    const struct dp_tree *items; /* [count] */
    const char *const *names;    /* [count], DICT only */
    union {
        const DLTensor *tensor;
        const void *opaque;
        const struct dp_block_mask *block_mask;
        int dim; /* CHUNK, STACK; negative: from the end */
        const struct dp_reducer *reducer;
    };
};

static inline struct dp_tree dp_tree_leaf(enum dp_tree_kind kind)
{
    struct dp_tree t = {kind, 0, NULL, NULL, {NULL}};
    return t;
}

static inline struct dp_tree dp_tree_node(enum dp_tree_kind kind, int32_t count,
                                          const struct dp_tree *items, const char *const *names)
{
    struct dp_tree t = {kind, count, items, names, {NULL}};
    return t;
}

static inline struct dp_tree dp_tuple(int32_t count, const struct dp_tree *items)
{
    return dp_tree_node(DP_TREE_TUPLE, count, items, NULL);
}

static inline struct dp_tree dp_list(int32_t count, const struct dp_tree *items)
{
    return dp_tree_node(DP_TREE_LIST, count, items, NULL);
}

static inline struct dp_tree dp_dict(int32_t count, const char *const *names,
                                     const struct dp_tree *items)
{
    return dp_tree_node(DP_TREE_DICT, count, items, names);
}

static inline struct dp_tree dp_absent(void)
{
    return dp_tree_leaf(DP_TREE_ABSENT);
}

static inline struct dp_tree dp_tensor(const DLTensor *tensor)
{
    struct dp_tree t = dp_tree_leaf(DP_TREE_TENSOR);
    t.tensor = tensor;
    return t;
}

static inline struct dp_tree dp_opaque(const void *value)
{
    struct dp_tree t = dp_tree_leaf(DP_TREE_OPAQUE);
    t.opaque = value;
    return t;
}

static inline struct dp_tree dp_block_mask(const struct dp_block_mask *mask)
{
    struct dp_tree t = dp_tree_leaf(DP_TREE_BLOCK_MASK);
    t.block_mask = mask;
    return t;
}

static inline struct dp_tree dp_chunk(int dim)
{
    struct dp_tree t = dp_tree_leaf(DP_TREE_CHUNK);
    t.dim = dim;
    return t;
}

static inline struct dp_tree dp_replicate(void)
{
    return dp_tree_leaf(DP_TREE_REPLICATE);
}

static inline struct dp_tree dp_reduce(const struct dp_reducer *reducer)
{
    struct dp_tree t = dp_tree_leaf(DP_TREE_REDUCE);
    t.reducer = reducer;
    return t;
}

static inline struct dp_tree dp_stack(int dim)
{
    struct dp_tree t = dp_tree_leaf(DP_TREE_STACK);
    t.dim = dim;
    return t;
}

/* The tuple (Chunk(dims[0]), ...). items[count] is where its leaves go; replace any of them to nest
 * another tree there. */
static inline struct dp_tree dp_spec_from_dims(int32_t count, const int *dims, struct dp_tree *items)
{
    for (int32_t i = 0; i < count; i++)
        items[i] = dp_chunk(dims[i]);
    return dp_tuple(count, items);
}

/* The dict {names[0]: Chunk(dims[0]), ...}, likewise. */
static inline struct dp_tree dp_spec_from_names(int32_t count, const char *const *names,
                                                const int *dims, struct dp_tree *items)
{
    struct dp_tree t = dp_spec_from_dims(count, dims, items);

    t.kind = DP_TREE_DICT;
    t.names = names;
    return t;
}

/* Free a root that dp_merge handed out, with all it owns. May be NULL. */
DP_PUBLIC void dp_tree_free(struct dp_tree *root);

/* ---- split ---------------------------------------------------------------------------------- */

/* What happens if a tensor has fewer rows than there are micro-batches. */
enum dp_shrink {
    DP_SHRINK_NEVER, /* an error: a schedule needs the number that it was made for */
    DP_SHRINK_FIRST, /* the first chunked tensor of args, then the first of kwargs, may lower the
                      * number, with a warning; shorter ones after it are an error (as in
                      * PyTorch before 2026) */
    DP_SHRINK_MIN    /* the number is the smallest extent of all chunked tensors (as in later
                      * PyTorch) */
};

/* What stands for a spec that is not given. */
enum dp_default_spec {
    DP_DEFAULT_CHUNK,  /* split: one Chunk(0) for each argument, which must then have one leaf;
                        * merge: Chunk(0) for each leaf */
    DP_DEFAULT_BY_LEAF /* Chunk(0) for each tensor, Replicate for everything else */
};

struct dp_split_options {
    int32_t count;                      /* of micro-batches */
    enum dp_cut_rule rule;
    const struct dp_tree *args_spec;    /* tuple or list; NULL: the default for every argument */
    const struct dp_tree *kwargs_spec;  /* dict */
    enum dp_default_spec default_spec;
    enum dp_shrink shrink;
    bool strict;     /* an opaque value under Chunk is an error, not replicated */
    bool mask;       /* instead of a view of its rows every micro-batch gets a tensor of the full
                      * size with zeros elsewhere: for comparing results whatever the shape */
    bool contiguous; /* views that are not compact are copied into compact memory of the result */
    uint64_t reserved[2];
};

/* Micro-batch mb of count is args[mb] and kwargs[mb], trees of the same nodes as what went in. */
struct dp_microbatches {
    int32_t count;
    const struct dp_tree *args, *kwargs; /* [count] */
};

/* Cut args (a tuple or list of arguments; NULL: none) and kwargs (a dict; NULL: none).
 *
 * Spec and value must have as many leaves; they are paired in order, dicts by name. A tensor under
 * Chunk is cut by the rule into views: same memory, same strides. A tensor under
 * Replicate, and whatever is not a tensor, is the same in every micro-batch. Nothing as the spec of
 * a whole argument means Replicate. Without any tensor to cut, options->count is the number.
 * A mask of attention under Chunk(0) is cut along its samples, and one that all samples share is the
 * same in every micro-batch; with `mask` every one is, since rows stay where they are.
 *
 * Errors: DP_EINVAL for malformed trees or tensors; specs that are too many, too few, unnamed or
 * not for splitting; a dimension out of range; too few rows or none. DP_EUNSUPPORTED for elements
 * that are not whole bytes, and for a copy (mask, contiguous) out of memory that the CPU does not
 * reach. DP_ENOMEM. */
DP_PUBLIC int dp_split(const struct dp_tree *args, const struct dp_tree *kwargs,
                       const struct dp_split_options *options, struct dp_microbatches **out);

/* Micro-batches that were made elsewhere, a loader for instance, checked and in the form dp_split
 * has: args[args_count] are tuples or lists, kwargs[kwargs_count] dicts, either may be NULL with 0.
 * Every micro-batch must have the tree of the first (tuple, list and dict names; leaves may have
 * any kind and size): else DP_EMISMATCH. DP_EINVAL if both are given with different numbers. The
 * result refers to the nodes given. */
DP_PUBLIC int dp_split_given(const struct dp_tree *args, int32_t args_count,
                             const struct dp_tree *kwargs, int32_t kwargs_count,
                             struct dp_microbatches **out);

DP_PUBLIC void dp_microbatches_free(struct dp_microbatches *mbs); /* may be NULL */

/* ---- merge ---------------------------------------------------------------------------------- */

/* How the values of a leaf become one: fold from the left,
 *
 *      acc = init;  for mb = 0 .. count - 1:  fold(user, &acc, value of mb, mb, count)
 *
 * The accumulator is a leaf. A tensor init is copied into compact host memory of the result; an
 * absent init stands for zeros of the shape and dtype of micro-batch 0's tensor, or for nothing if
 * that is none; an opaque init is passed as it is. fold changes the tensor's elements in place, or
 * sets *acc to another leaf, whose memory is then its own business. It returns 0, DP_EMISMATCH if
 * shape or dtype of the value do not fit, DP_EUNSUPPORTED if it cannot take such a value; anything
 * else is reported as DP_ECALLBACK. */
struct dp_reducer {
    const char *name; /* for sentences */
    struct dp_tree init;
    int (*fold)(void *user, struct dp_tree *acc, const struct dp_tree *value, int32_t mb,
                int32_t count);
    void *user;
};

/* Sum: integers (which wrap), float16, bfloat16, float32, float64, complex. Added in order and
 * rounded each time to the dtype. */
DP_PUBLIC const struct dp_reducer *dp_reducer_sum(void);
/* The sum divided by the number of micro-batches; not for integers. */
DP_PUBLIC const struct dp_reducer *dp_reducer_mean(void);

/* Mean with a weight for each micro-batch: sum of weights[mb] * value of mb, divided by the sum of
 * the weights. With the numbers of tokens as weights, the mean losses of uneven micro-batches
 * become the mean over all tokens. *weights must live until the merge is done, which is refused for
 * another number of micro-batches and for weights that sum up to 0. */
struct dp_weights {
    const double *weights;
    int32_t count;
};
DP_PUBLIC struct dp_reducer dp_reducer_weighted_mean(const struct dp_weights *weights);

struct dp_merge_options {
    const struct dp_tree *spec; /* NULL: the default */
    enum dp_default_spec default_spec;
    bool mask; /* the micro-batches come from dp_split with mask: each gives the rows it owns, */
    enum dp_cut_rule rule; /* by its rule */
    bool (*equal)(void *user, const void *a, const void *b); /* of opaque values; NULL: same
                                                              * pointer */
    void *user;
    uint64_t reserved[2];
};

/* Put results[count] together; options NULL: all zero. The result has the tree of the spec, or of
 * results[0] without one. Chunk and Stack copy into new compact memory, 256-byte aligned.
 * Replicate, and any other leaf in a spec, wants equal values (tensors: shape, dtype, bytes) and
 * refers to that of results[0].
 *
 * Errors: DP_EINVAL for no micro-batch, malformed trees, numbers of leaves that differ, a value
 * that is not a tensor where one is needed, 0-dimensional tensors under Chunk, a dimension out of
 * range. DP_EMISMATCH for values that differ under Replicate, and for dtypes and shapes that do not
 * fit together. DP_EUNSUPPORTED for memory that the CPU does not reach. DP_ECALLBACK, DP_ENOMEM. */
DP_PUBLIC int dp_merge(const struct dp_tree *results, int32_t count,
                       const struct dp_merge_options *options, struct dp_tree **out);

#ifdef __cplusplus
}
#endif
#endif
