/* SPDX-License-Identifier: Apache-2.0 */
#include "microbatch/tree.h"

#include "base/fail.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool dp_tree_is_leaf(const struct dp_tree *t)
{
    return t->kind != DP_TREE_TUPLE && t->kind != DP_TREE_LIST && t->kind != DP_TREE_DICT;
}

int32_t dp_tree_leaves(const struct dp_tree *t)
{
    int32_t n = 0;

    if (dp_tree_is_leaf(t))
        return 1;
    for (int32_t i = 0; i < t->count; i++)
        n += dp_tree_leaves(&t->items[i]);
    return n;
}

/* ---- paths ---------------------------------------------------------------------------------- */

/* The way from the root to a node: the item taken at every level. */
struct path {
    const char *name; /* of the root */
    int depth;
    const struct dp_tree *nodes[DP_TREE_MAX_DEPTH];
    int32_t items[DP_TREE_MAX_DEPTH];
};

/* Names come from the user: what would break the line is left out. */
static size_t print_name(char *text, size_t n, const char *name)
{
    n += (size_t)snprintf(text + n, DP_TREE_PATH - n, "[\"");
    for (int i = 0; name[i] && i < 64; i++)
        text[n++] = (unsigned char)name[i] < ' ' ? '?' : name[i];
    return n + (size_t)snprintf(text + n, DP_TREE_PATH - n, "\"]");
}

static void print_path(const struct path *p, char *text)
{
    size_t n = (size_t)snprintf(text, 64, "%s", p->name);

    for (int i = 0; i < p->depth; i++) {
        if (n > DP_TREE_PATH - 80) { /* room for a name and these dots */
            snprintf(text + n, DP_TREE_PATH - n, "...");
            return;
        }
        if (p->nodes[i]->kind == DP_TREE_DICT)
            n = print_name(text, n, p->nodes[i]->names[p->items[i]]);
        else
            n += (size_t)snprintf(text + n, DP_TREE_PATH - n, "[%d]", p->items[i]);
    }
}

static DP_PRINTF(3, 0) int fail_at(const struct path *p, int err, const char *fmt, va_list args)
{
    char path[DP_TREE_PATH], sentence[512];

    print_path(p, path);
    vsnprintf(sentence, sizeof(sentence), fmt, args);
    return dp_fail(err, "%s: %s", path, sentence);
}

static void find_leaf(const struct dp_tree *t, int32_t leaf, struct path *p)
{
    for (; !dp_tree_is_leaf(t); p->depth++) {
        int32_t item = 0, n = dp_tree_leaves(&t->items[0]);
        while (leaf >= n) {
            leaf -= n;
            n = dp_tree_leaves(&t->items[++item]);
        }
        p->nodes[p->depth] = t;
        p->items[p->depth] = item;
        t = &t->items[item];
    }
}

const char *dp_tree_path(const struct dp_tree *t, const char *name, int32_t leaf, char *text)
{
    struct path p = {.name = name};

    find_leaf(t, leaf, &p);
    print_path(&p, text);
    return text;
}

int dp_fail_at(const struct dp_tree *t, const char *name, int32_t leaf, int err, const char *fmt,
               ...)
{
    struct path p = {.name = name};
    va_list args;

    find_leaf(t, leaf, &p);
    va_start(args, fmt);
    fail_at(&p, err, fmt, args);
    va_end(args);
    return err;
}

int dp_fail_at_item(const struct dp_tree *t, const char *name, int32_t item, int err,
                    const char *fmt, ...)
{
    struct path p = {name, 1, {t}, {item}};
    va_list args;

    va_start(args, fmt);
    fail_at(&p, err, fmt, args);
    va_end(args);
    return err;
}

/* ---- check ---------------------------------------------------------------------------------- */

struct check {
    struct path path; /* of the node being looked at */
    bool value;
    int32_t nodes, leaves;
};

static DP_PRINTF(2, 3) int refuse(const struct check *c, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    fail_at(&c->path, DP_EINVAL, fmt, args);
    va_end(args);
    return DP_EINVAL;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int check_names(const struct check *c, const struct dp_tree *dict)
{
    size_t n = (size_t)dict->count;
    int err = 0;

    for (size_t i = 0; i < n; i++)
        if (!dict->names || !dict->names[i])
            return refuse(c, "a dict without a name for item %zu", i);
    if (n < 2)
        return 0;

    const char **sorted = malloc(n * sizeof(*sorted));
    if (!sorted)
        return dp_fail(DP_ENOMEM, "%s: no memory for %zu names", c->path.name, n);
    memcpy(sorted, dict->names, n * sizeof(*sorted));
    qsort(sorted, n, sizeof(*sorted), compare_names);
    for (size_t i = 1; !err && i < n; i++)
        if (!strcmp(sorted[i - 1], sorted[i]))
            err = refuse(c, "a dict with the name \"%.64s\" twice", sorted[i]);
    free(sorted);
    return err;
}

static int check_leaf(struct check *c, const struct dp_tree *t)
{
    c->leaves++;
    switch (t->kind) {
    case DP_TREE_TENSOR:
        return t->tensor ? 0 : refuse(c, "a tensor without a DLTensor");
    case DP_TREE_BLOCK_MASK:
        return t->block_mask ? 0 : refuse(c, "a mask of attention without a dp_block_mask");
    case DP_TREE_ABSENT:
    case DP_TREE_OPAQUE:
        return 0;
    case DP_TREE_REDUCE:
        if (!t->reducer || !t->reducer->fold)
            return refuse(c, "a reducer without a fold function");
        break;
    case DP_TREE_CHUNK:
    case DP_TREE_STACK:
    case DP_TREE_REPLICATE:
        break;
    default:
        return refuse(c, "a node of the unknown kind %d", (int)t->kind);
    }
    return c->value ? refuse(c, "a leaf of a spec, expected a tensor, an opaque value or nothing")
                    : 0;
}

/* Counts before it descends, so that a tree that contains itself ends at a limit, too. */
static int check_node(struct check *c, const struct dp_tree *t)
{
    int depth = c->path.depth, err = 0;

    if (++c->nodes > DP_TREE_MAX_NODES)
        return refuse(c, "the tree has more than %d nodes", DP_TREE_MAX_NODES);
    if (dp_tree_is_leaf(t))
        return check_leaf(c, t);
    if (depth == DP_TREE_MAX_DEPTH)
        return refuse(c, "the tree is deeper than %d levels", DP_TREE_MAX_DEPTH);
    if (t->count < 0 || (t->count && !t->items))
        return refuse(c, "a node with %d items%s", t->count,
                      t->items ? "" : " and no array of them");
    if (t->kind == DP_TREE_DICT)
        err = check_names(c, t);

    c->path.nodes[depth] = t;
    c->path.depth++;
    for (int32_t i = 0; !err && i < t->count; i++) {
        c->path.items[depth] = i;
        err = check_node(c, &t->items[i]);
    }
    c->path.depth--;
    return err;
}

int dp_tree_check(const struct dp_tree *t, const char *name, bool value, int32_t *leaves)
{
    struct check c = {.path.name = name, .value = value};
    int err = check_node(&c, t);

    if (!err)
        *leaves = c.leaves;
    return err;
}

/* ---- flatten and rebuild -------------------------------------------------------------------- */

int32_t dp_tree_find(const struct dp_tree *dict, const char *name, int32_t hint)
{
    if (hint < dict->count && !strcmp(dict->names[hint], name))
        return hint;
    for (int32_t i = 0; i < dict->count; i++)
        if (!strcmp(dict->names[i], name))
            return i;
    return -1;
}

static int flatten(const struct dp_tree *t, const struct dp_tree *like, const char *name,
                   const struct dp_tree ***next)
{
    int err = 0;

    if (dp_tree_is_leaf(t)) {
        *(*next)++ = t;
        return 0;
    }
    if (like && (dp_tree_is_leaf(like) || like->count != t->count))
        like = NULL;
    bool by_name = like && like->kind == DP_TREE_DICT && t->kind == DP_TREE_DICT;
    for (int32_t i = 0; !err && i < t->count; i++) {
        int32_t item = by_name ? dp_tree_find(t, like->names[i], i) : i;
        if (item < 0)
            return dp_fail(DP_EINVAL, "%s: the dict with \"%.64s\" is paired with one without it",
                           name, like->names[i]);
        err = flatten(&t->items[item], like ? &like->items[i] : NULL, name, next);
    }
    return err;
}

int dp_tree_flatten(const struct dp_tree *t, const struct dp_tree *like, const char *name,
                    const struct dp_tree **leaves)
{
    return flatten(t, like, name, &leaves);
}

struct rebuilding {
    struct dp_arena *arena;
    const struct dp_tree *next_leaf;
    bool own_names;
};

static const char *const *copy_names(struct dp_arena *arena, const struct dp_tree *dict)
{
    const char **names = dp_arena_array(arena, (size_t)dict->count, sizeof(*names));

    for (int32_t i = 0; names && i < dict->count; i++) {
        size_t size = strlen(dict->names[i]) + 1;
        char *name = dp_arena_array(arena, size, 1);
        if (!name)
            return NULL;
        names[i] = memcpy(name, dict->names[i], size);
    }
    return names;
}

static bool rebuild(struct rebuilding *r, const struct dp_tree *t, struct dp_tree *out)
{
    const char *const *names = t->names;

    if (dp_tree_is_leaf(t)) {
        *out = *r->next_leaf++;
        return true;
    }
    if (t->kind == DP_TREE_DICT && r->own_names && !(names = copy_names(r->arena, t)))
        return false;
    struct dp_tree *items = dp_arena_array(r->arena, (size_t)t->count, sizeof(*items));
    if (!items)
        return false;
    for (int32_t i = 0; i < t->count; i++)
        if (!rebuild(r, &t->items[i], &items[i]))
            return false;
    *out = dp_tree_node(t->kind, t->count, items, names);
    return true;
}

bool dp_tree_rebuild(struct dp_arena *arena, const struct dp_tree *t,
                     const struct dp_tree *leaves, bool own_names, struct dp_tree *out)
{
    struct rebuilding r = {arena, leaves, own_names};
    return rebuild(&r, t, out);
}

void dp_tree_free(struct dp_tree *root)
{
    dp_arena_object_free(root);
}

