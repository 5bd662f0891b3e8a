/* SPDX-License-Identifier: Apache-2.0
 *
 * spec.c - trees from a few numbers, from text, and as text.
 *
 *      tree   leaf | ( trees ) | [ trees ] | { name: tree, ... }      a comma may end a list
 *      leaf   NUMBER | * | - | sum | mean | stack | stack(NUMBER)
 *      name   letters, digits and _, or anything in double quotes, where \ keeps the next character
 */
#include "microbatch/tree.h"

#include "base/array.h"
#include "base/fail.h"
#include "base/text.h"

#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

struct dp_tree dp_spec_from_dims(int32_t count, const int *dims, struct dp_tree *items)
{
    for (int32_t i = 0; i < count; i++)
        items[i] = dp_chunk(dims[i]);
    return dp_tuple(count, items);
}

struct dp_tree dp_spec_from_names(int32_t count, const char *const *names, const int *dims,
                                  struct dp_tree *items)
{
    struct dp_tree t = dp_spec_from_dims(count, dims, items);

    t.kind = DP_TREE_DICT;
    t.names = names;
    return t;
}

/* ---- parse ---------------------------------------------------------------------------------- */

struct parser {
    const char *text, *at;
    struct dp_arena *arena;
    int depth, nodes;
};

static int expected(const struct parser *p, const char *what)
{
    if (!*p->at)
        return dp_fail(DP_EINVAL, "spec: ends after character %zu, expected %s",
                       (size_t)(p->at - p->text), what);
    return dp_fail(DP_EINVAL, "spec: '%.16s' at character %zu, expected %s", p->at,
                   (size_t)(p->at - p->text), what);
}

static char peek(struct parser *p)
{
    while (isspace((unsigned char)*p->at))
        p->at++;
    return *p->at;
}

static bool take(struct parser *p, char c)
{
    if (peek(p) != c)
        return false;
    p->at++;
    return true;
}

static bool take_word(struct parser *p, const char *word)
{
    size_t n = strlen(word);

    if (strncmp(p->at, word, n) || isalnum((unsigned char)p->at[n]) || p->at[n] == '_')
        return false;
    p->at += n;
    return true;
}

static int parse_number(struct parser *p, int *out)
{
    char *end;

    peek(p);
    errno = 0;
    long n = strtol(p->at, &end, 10);
    if (end == p->at || errno || n < INT_MIN || n > INT_MAX)
        return expected(p, "the number of a dimension");
    p->at = end;
    *out = (int)n;
    return 0;
}

static int parse_stack(struct parser *p, struct dp_tree *out)
{
    int dim = 0, err = 0;

    if (take(p, '(')) {
        err = parse_number(p, &dim);
        if (!err && !take(p, ')'))
            err = expected(p, "a ) after the dimension of stack");
    }
    *out = dp_stack(dim);
    return err;
}

static int parse_leaf(struct parser *p, struct dp_tree *out)
{
    char c = peek(p);
    int dim, err;

    if (isdigit((unsigned char)c) || (c == '-' && isdigit((unsigned char)p->at[1]))) {
        err = parse_number(p, &dim);
        *out = dp_chunk(err ? 0 : dim);
        return err;
    }
    if (take(p, '*'))
        *out = dp_replicate();
    else if (take(p, '-'))
        *out = dp_absent();
    else if (take_word(p, "sum"))
        *out = dp_reduce(dp_reducer_sum());
    else if (take_word(p, "mean"))
        *out = dp_reduce(dp_reducer_mean());
    else if (take_word(p, "stack"))
        return parse_stack(p, out);
    else
        return expected(p, "a dimension, *, -, sum, mean, stack, (, [ or {");
    return 0;
}

static int parse_name(struct parser *p, const char **out)
{
    bool quoted = take(p, '"');
    const char *begin = p->at, *s = begin;

    if (quoted)
        while (*s && *s != '"')
            s += s[0] == '\\' && s[1] ? 2 : 1;
    else
        while (isalnum((unsigned char)*s) || *s == '_')
            s++;
    p->at = s;
    if (quoted ? !take(p, '"') : s == begin)
        return expected(p, quoted ? "a closing quote" : "a name");

    char *name = dp_arena_array(p->arena, (size_t)(s - begin) + 1, 1);
    if (!name)
        return dp_fail(DP_ENOMEM, "no memory for a spec");
    *out = name;
    for (; begin < s; begin++) {
        if (quoted && *begin == '\\')
            begin++;
        *name++ = *begin;
    }
    *name = '\0';
    return 0;
}

static int parse_tree(struct parser *p, struct dp_tree *out);

/* Items so far; they move to the arena when all are known. */
struct items {
    struct dp_tree *trees;
    const char **names;
    int32_t count;
    size_t tree_room, name_room;
};

static bool grow(struct items *i)
{
    const size_t count = (size_t)i->count + 1;
    struct dp_tree *trees = dp_array_grow(i->trees, &i->tree_room, count, sizeof(*trees));
    const char **names = dp_array_grow(i->names, &i->name_room, count, sizeof(*names));

    if (trees)
        i->trees = trees;
    if (names)
        i->names = names;
    return trees && names;
}

static int parse_item(struct parser *p, bool dict, struct items *items)
{
    int err = 0;

    if (!grow(items))
        return dp_fail(DP_ENOMEM, "no memory for a spec");
    if (dict && (err = parse_name(p, &items->names[items->count])))
        return err;
    if (dict && !take(p, ':'))
        return expected(p, "a : after the name");
    err = parse_tree(p, &items->trees[items->count]);
    items->count += !err;
    return err;
}

static int keep_items(struct parser *p, enum dp_tree_kind kind, const struct items *items,
                      struct dp_tree *out)
{
    size_t n = (size_t)items->count;
    struct dp_tree *trees = dp_arena_array(p->arena, n, sizeof(*trees));
    const char **names = dp_arena_array(p->arena, n, sizeof(*names));

    if (!trees || !names)
        return dp_fail(DP_ENOMEM, "no memory for a spec");
    if (n)
        memcpy(trees, items->trees, n * sizeof(*trees));
    if (n && kind == DP_TREE_DICT)
        memcpy(names, items->names, n * sizeof(*names));
    *out = dp_tree_node(kind, items->count, trees, kind == DP_TREE_DICT ? names : NULL);
    return 0;
}

static int parse_node(struct parser *p, enum dp_tree_kind kind, char close, struct dp_tree *out)
{
    static const char *const ends[] = {
        [DP_TREE_TUPLE] = "a , or )", [DP_TREE_LIST] = "a , or ]", [DP_TREE_DICT] = "a , or }"};
    struct items items = {0};
    bool more = true;
    int err = 0;

    while (!err && !take(p, close)) {
        if (!more)
            err = expected(p, ends[kind]);
        else if (!(err = parse_item(p, kind == DP_TREE_DICT, &items)))
            more = take(p, ',');
    }
    if (!err)
        err = keep_items(p, kind, &items, out);
    free(items.trees);
    free(items.names);
    return err;
}

static int parse_tree(struct parser *p, struct dp_tree *out)
{
    int err;

    if (p->depth > DP_TREE_MAX_DEPTH || ++p->nodes > DP_TREE_MAX_NODES)
        return dp_fail(DP_EINVAL, "spec: more than %d levels or %d nodes", DP_TREE_MAX_DEPTH,
                       DP_TREE_MAX_NODES);
    p->depth++;
    if (take(p, '('))
        err = parse_node(p, DP_TREE_TUPLE, ')', out);
    else if (take(p, '['))
        err = parse_node(p, DP_TREE_LIST, ']', out);
    else if (take(p, '{'))
        err = parse_node(p, DP_TREE_DICT, '}', out);
    else
        err = parse_leaf(p, out);
    p->depth--;
    return err;
}

int dp_spec_parse(const char *text, struct dp_tree **out)
{
    struct parser p = {.text = text, .at = text};
    int32_t leaves;

    if (!text)
        return dp_fail(DP_EINVAL, "spec: NULL, expected its text");
    struct dp_tree *root = dp_arena_object_new(sizeof(*root), &p.arena);
    if (!root)
        return dp_fail(DP_ENOMEM, "no memory for a spec");
    int err = parse_tree(&p, root);
    if (!err && peek(&p))
        err = expected(&p, "the end");
    if (!err)
        err = dp_tree_check(root, "spec", false, &leaves);
    if (err)
        dp_tree_free(root);
    else
        *out = root;
    return err;
}

/* ---- print ---------------------------------------------------------------------------------- */

static void print_leaf(struct dp_text *t, const struct dp_tree *leaf)
{
    char text[DP_TENSOR_TEXT];

    switch (leaf->kind) {
    case DP_TREE_TENSOR:
        dp_text_adds(t, dp_tensor_fault(leaf->tensor) ? "malformed tensor"
                                                      : dp_tensor_text(leaf->tensor, text));
        break;
    case DP_TREE_CHUNK:
        dp_text_addf(t, "%d", leaf->dim);
        break;
    case DP_TREE_STACK:
        dp_text_addf(t, "stack(%d)", leaf->dim);
        break;
    case DP_TREE_REDUCE:
        dp_text_adds(t, leaf->reducer->name ? leaf->reducer->name : "reducer");
        break;
    default:
        dp_text_adds(t, leaf->kind == DP_TREE_OPAQUE       ? "opaque"
                        : leaf->kind == DP_TREE_BLOCK_MASK ? "block mask"
                        : leaf->kind == DP_TREE_REPLICATE  ? "*"
                                                           : "-");
    }
}

static void print_name(struct dp_text *t, const char *name)
{
    bool plain = *name != '\0';

    for (const char *s = name; *s; s++)
        plain &= isalnum((unsigned char)*s) || *s == '_';
    if (plain) {
        dp_text_adds(t, name);
        return;
    }
    dp_text_adds(t, "\"");
    for (const char *s = name; *s; s++) {
        if (*s == '"' || *s == '\\')
            dp_text_adds(t, "\\");
        dp_text_add(t, s, 1);
    }
    dp_text_adds(t, "\"");
}

static void print_tree(struct dp_text *t, const struct dp_tree *tree)
{
    static const char *const brackets[] = {
        [DP_TREE_TUPLE] = "()", [DP_TREE_LIST] = "[]", [DP_TREE_DICT] = "{}"};

    if (dp_tree_is_leaf(tree)) {
        print_leaf(t, tree);
        return;
    }
    dp_text_add(t, brackets[tree->kind], 1);
    for (int32_t i = 0; i < tree->count; i++) {
        dp_text_adds(t, i ? ", " : "");
        if (tree->kind == DP_TREE_DICT) {
            print_name(t, tree->names[i]);
            dp_text_adds(t, ": ");
        }
        print_tree(t, &tree->items[i]);
    }
    dp_text_add(t, brackets[tree->kind] + 1, 1);
}

int dp_tree_print(const struct dp_tree *tree, char **out)
{
    struct dp_text t = {0};
    int32_t leaves;
    int err = dp_tree_check(tree, "tree", false, &leaves);

    if (err)
        return err;
    print_tree(&t, tree);
    return dp_text_take(&t, out, NULL);
}
