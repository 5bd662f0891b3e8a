/* SPDX-License-Identifier: Apache-2.0
 *
 * microbatch_case.h - cases of splitting and merging as data: JSON objects with
 *
 *      "tensors"   what the trees refer to, in order: a shape, or an object with "shape", "type"
 *                  ("int32" if left out), "data" (0, 1, 2, ... if left out), "strides", "device"
 *      trees       text: in a spec a number is Chunk of that dimension, * is Replicate, - is nothing,
 *                  sum and mean are reducers, stack(D) is Stack; (a, b) is a tuple, [a, b] a list,
 *                  {name: a, "other name": b} a dict. In a value a number n is tensor n, * is an
 *                  opaque value, stack(n) another one, and - is nothing
 *
 * and results printed as text: (int32[2, 1]=[0 1], *, -).
 */
#ifndef DP_TESTS_MICROBATCH_CASE_H
#define DP_TESTS_MICROBATCH_CASE_H

#include "cmocka_all.h"

#include "base/text.h"
#include "base/fp16.h"
#include "microbatch/tree.h"

#include <jansson.h>

enum { CASE_TENSORS = 16, CASE_DIMS = 8 };

struct case_tensor {
    DLTensor t;
    int64_t shape[CASE_DIMS], strides[CASE_DIMS];
};

struct case_data {
    const json_t *json;
    struct case_tensor tensors[CASE_TENSORS];
    struct dp_arena region; /* of data and value trees */
};

static const char case_opaque[CASE_TENSORS];

static inline const char *case_string(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}

static inline bool case_flag(const json_t *o, const char *key)
{
    return json_is_true(json_object_get(o, key));
}

static inline int case_choice(const json_t *o, const char *key, const char *const *names)
{
    const char *name = case_string(o, key);

    for (int i = 0; name && names[i]; i++)
        if (!strcmp(name, names[i]))
            return i;
    if (name)
        fail_msg("%s: '%s' is none of the choices", key, name);
    return 0;
}

static inline DLDataType case_dtype(const char *name)
{
    static const struct {
        const char *name;
        DLDataType type;
    } types[] = {
        {"int8", {kDLInt, 8, 1}},       {"uint8", {kDLUInt, 8, 1}},
        {"int16", {kDLInt, 16, 1}},     {"int32", {kDLInt, 32, 1}},
        {"int64", {kDLInt, 64, 1}},     {"int4", {kDLInt, 4, 1}},
        {"float16", {kDLFloat, 16, 1}}, {"bfloat16", {kDLBfloat, 16, 1}},
        {"float32", {kDLFloat, 32, 1}}, {"float64", {kDLFloat, 64, 1}},
        {"float8", {kDLFloat, 8, 1}},   {"complex64", {kDLComplex, 64, 1}},
        {"int32x2", {kDLInt, 32, 2}},   {"none", {kDLInt, 0, 1}},
    };

    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (!strcmp(name, types[i].name))
            return types[i].type;
    fail_msg("no type '%s'", name);
    return types[0].type;
}

/* Number `part` of the element at p. */
static inline double case_get(const char *p, DLDataType type, int part)
{
    uint16_t h;
    int32_t i;
    int64_t l;
    float f;
    double d;

    switch (type.code << 8 | type.bits) {
    case kDLInt << 8 | 8:
        return ((const int8_t *)p)[part];
    case kDLUInt << 8 | 8:
        return ((const uint8_t *)p)[part];
    case kDLInt << 8 | 16:
        memcpy(&h, p + 2 * part, 2);
        return (int16_t)h;
    case kDLFloat << 8 | 16:
        memcpy(&h, p + 2 * part, 2);
        return dp_float16_load(h);
    case kDLBfloat << 8 | 16:
        memcpy(&h, p + 2 * part, 2);
        return dp_bfloat16_load(h);
    case kDLInt << 8 | 32:
        memcpy(&i, p + 4 * part, 4);
        return i;
    case kDLInt << 8 | 64:
        memcpy(&l, p + 8 * part, 8);
        return (double)l;
    case kDLFloat << 8 | 32:
    case kDLComplex << 8 | 64:
        memcpy(&f, p + 4 * part, 4);
        return f;
    case kDLFloat << 8 | 64:
        memcpy(&d, p + 8 * part, 8);
        return d;
    default:
        return 0;
    }
}

static inline void case_put(char *p, DLDataType type, int part, double value)
{
    uint16_t h = 0;
    int32_t i = (int32_t)value;
    int64_t l = (int64_t)value;
    float f = (float)value;

    switch (type.code << 8 | type.bits) {
    case kDLInt << 8 | 8:
    case kDLUInt << 8 | 8:
        p[part] = (char)i;
        break;
    case kDLInt << 8 | 16:
        memcpy(p + 2 * part, &(int16_t){(int16_t)i}, 2);
        break;
    case kDLFloat << 8 | 16:
        h = dp_float16_store(f);
        memcpy(p + 2 * part, &h, 2);
        break;
    case kDLBfloat << 8 | 16:
        h = dp_bfloat16_store(f);
        memcpy(p + 2 * part, &h, 2);
        break;
    case kDLInt << 8 | 32:
        memcpy(p + 4 * part, &i, 4);
        break;
    case kDLInt << 8 | 64:
        memcpy(p + 8 * part, &l, 8);
        break;
    case kDLFloat << 8 | 32:
    case kDLComplex << 8 | 64:
        memcpy(p + 4 * part, &f, 4);
        break;
    case kDLFloat << 8 | 64:
        memcpy(p + 8 * part, &value, 8);
        break;
    }
}

static inline int case_parts(DLDataType type)
{
    return type.lanes * (type.code == kDLComplex ? 2 : 1);
}

static inline void case_numbers(int64_t *to, const json_t *array)
{
    for (size_t i = 0; i < json_array_size(array); i++)
        to[i] = json_integer_value(json_array_get(array, i));
}

/* Memory for `numel` elements in order; the view of them may skip and reverse (strides). */
static inline void case_tensor(struct case_data *d, struct case_tensor *c, const json_t *json)
{
    const json_t *shape = json_is_array(json) ? json : json_object_get(json, "shape");
    const json_t *data = json_object_get(json, "data"), *strides = json_object_get(json, "strides");
    const char *type = case_string(json, "type");
    const json_t *device = json_object_get(json, "device");

    c->t.dtype = case_dtype(type ? type : "int32");
    c->t.ndim = (int)json_array_size(shape);
    c->t.shape = c->shape;
    c->t.device.device_type = device ? (DLDeviceType)json_integer_value(device) : kDLCPU;
    case_numbers(c->shape, shape);
    size_t bytes = dp_tensor_element_bytes(&c->t), count = 64;
    int parts = case_parts(c->t.dtype);
    char *p = dp_arena_data(&d->region, count * (bytes ? bytes : 1));
    for (size_t i = 0; i < count * (size_t)parts && bytes; i++) {
        const json_t *given = json_array_get(data, i);
        case_put(p + i / (size_t)parts * bytes, c->t.dtype, (int)i % parts,
                 given ? json_number_value(given) : data ? 0 : (double)i);
    }
    c->t.data = p + bytes * (size_t)json_integer_value(json_object_get(json, "first"));
    if (strides) {
        case_numbers(c->strides, strides);
        c->t.strides = c->strides;
    }
    if (case_flag(json, "no data"))
        c->t.data = NULL;
}

static inline void case_init(struct case_data *d, const json_t *json)
{
    const json_t *tensors = json_object_get(json, "tensors");

    *d = (struct case_data){.json = json};
    assert_in_range(json_array_size(tensors), 0, CASE_TENSORS);
    for (size_t i = 0; i < json_array_size(tensors); i++)
        case_tensor(d, &d->tensors[i], json_array_get(tensors, i));
}

static inline void case_fini(struct case_data *d)
{
    dp_arena_fini(&d->region);
}

/* A spec tree as a value tree. */
static inline struct dp_tree case_value_of(struct case_data *d, const struct dp_tree *t)
{
    switch (t->kind) {
    case DP_TREE_CHUNK:
        return dp_tensor(&d->tensors[t->dim].t);
    case DP_TREE_REPLICATE:
        return dp_opaque(&case_opaque[0]);
    case DP_TREE_STACK:
        return dp_opaque(&case_opaque[t->dim]);
    case DP_TREE_TUPLE:
    case DP_TREE_LIST:
    case DP_TREE_DICT: {
        struct dp_tree *items = dp_arena_array(&d->region, (size_t)t->count, sizeof(*items));
        const char **names = dp_arena_array(&d->region, (size_t)t->count, sizeof(*names));
        for (int32_t i = 0; i < t->count; i++) {
            items[i] = case_value_of(d, &t->items[i]);
            if (t->kind == DP_TREE_DICT) {
                char *name = dp_arena_array(&d->region, strlen(t->names[i]) + 1, 1);
                names[i] = strcpy(name, t->names[i]);
            }
        }
        return dp_tree_node(t->kind, t->count, items, t->kind == DP_TREE_DICT ? names : NULL);
    }
    default:
        return *t;
    }
}

/* ---- trees as text --------------------------------------------------------------------------- */

static inline const char *case_skip(const char *at)
{
    return at + strspn(at, " \n");
}

static inline const char *case_word(const char *at, const char *word)
{
    const size_t len = strlen(word);

    return strncmp(at, word, len) ? NULL : at + len;
}

static inline const char *case_parse_leaf(const char *at, struct dp_tree *out)
{
    const char *next;
    char *end;
    const int number = (int)strtol(at, &end, 10);

    if (end != at) {
        *out = dp_chunk(number);
        return end;
    }
    if ((next = case_word(at, "stack"))) {
        *out = dp_stack(*next == '(' ? (int)strtol(next + 1, &end, 10) : 0);
        return *next == '(' ? end + 1 : next;
    }
    *out = *at == '*'   ? dp_replicate()
           : *at == '-' ? dp_absent()
                        : dp_reduce(*at == 's' ? dp_reducer_sum() : dp_reducer_mean());
    if (*at == '*' || *at == '-')
        return at + 1;
    if (!(next = case_word(at, "sum")) && !(next = case_word(at, "mean")))
        fail_msg("'%s', expected a leaf", at);
    return next;
}

static inline const char *case_parse_name(struct dp_arena *arena, const char *at, const char **out)
{
    const bool quoted = *at == '"';
    const char *begin = at + quoted;
    const size_t len = strcspn(begin, quoted ? "\"" : ": ");
    char *name = dp_arena_array(arena, len + 1, 1);

    memcpy(name, begin, len);
    name[len] = '\0';
    *out = name;
    at = case_skip(begin + len + quoted);
    assert_int_equal(*at, ':');
    return case_skip(at + 1);
}

static inline const char *case_parse_tree(struct dp_arena *arena, const char *at,
                                          struct dp_tree *out)
{
    static const char open[] = "([{", close[] = ")]}";
    static const enum dp_tree_kind kinds[] = {DP_TREE_TUPLE, DP_TREE_LIST, DP_TREE_DICT};
    const char *const bracket = *at ? strchr(open, *at) : NULL;
    int32_t count = 0;

    if (!bracket)
        return case_parse_leaf(at, out);
    const enum dp_tree_kind kind = kinds[bracket - open];
    struct dp_tree *items = dp_arena_array(arena, strlen(at), sizeof(*items));
    const char **names = dp_arena_array(arena, strlen(at), sizeof(*names));
    for (at = case_skip(at + 1); *at != close[bracket - open]; count++) {
        if (kind == DP_TREE_DICT)
            at = case_parse_name(arena, at, &names[count]);
        at = case_skip(case_parse_tree(arena, at, &items[count]));
        at = case_skip(at + (*at == ','));
    }
    *out = dp_tree_node(kind, count, items, kind == DP_TREE_DICT ? names : NULL);
    return at + 1;
}

/* dp_tree_free frees it. */
static inline struct dp_tree *case_parse(const char *text)
{
    struct dp_arena *arena;
    struct dp_tree *root = dp_arena_object_new(sizeof(*root), &arena);

    assert_non_null(root);
    if (*case_skip(case_parse_tree(arena, case_skip(text), root)))
        fail_msg("'%s' goes on behind a tree", text);
    return root;
}

static inline struct dp_tree case_value(struct case_data *d, const char *text)
{
    struct dp_tree *parsed = case_parse(text);
    struct dp_tree value = case_value_of(d, parsed);
    dp_tree_free(parsed);
    return value;
}

/* NULL where there is no such key. */
static inline struct dp_tree *case_spec(const json_t *json, const char *key)
{
    const char *text = case_string(json, key);

    return text ? case_parse(text) : NULL;
}

static inline void case_print_data(struct dp_text *out, const DLTensor *t, int dim, const char *p)
{
    int64_t strides[DP_TREE_MAX_NDIM];

    dp_tensor_strides(t, strides);
    if (dim == t->ndim) {
        for (int i = 0; i < case_parts(t->dtype); i++)
            dp_text_addf(out, "%s%g", out->data[out->len - 1] == '[' ? "" : " ",
                         case_get(p, t->dtype, i));
        return;
    }
    for (int64_t i = 0; i < t->shape[dim]; i++)
        case_print_data(out, t, dim + 1,
                        p + i * strides[dim] * (int64_t)dp_tensor_element_bytes(t));
}

static inline void case_print(struct dp_text *out, const struct dp_tree *t)
{
    static const char *const brackets[] = {
        [DP_TREE_TUPLE] = "()", [DP_TREE_LIST] = "[]", [DP_TREE_DICT] = "{}"};
    char text[DP_TENSOR_TEXT];

    if (t->kind == DP_TREE_TENSOR) {
        dp_text_addf(out, "%s=[", dp_tensor_text(t->tensor, text));
        if (dp_tensor_on_host(t->tensor))
            case_print_data(out, t->tensor, 0, dp_tensor_address(t->tensor));
        dp_text_adds(out, "]");
    } else if (t->kind == DP_TREE_OPAQUE) {
        int i = (int)((const char *)t->opaque - case_opaque);
        dp_text_addf(out, i ? "*%d" : "*", i);
    } else if (dp_tree_is_leaf(t)) {
        dp_text_adds(out, "-");
    } else {
        dp_text_add(out, brackets[t->kind], 1);
        for (int32_t i = 0; i < t->count; i++) {
            dp_text_adds(out, i ? ", " : "");
            if (t->kind == DP_TREE_DICT)
                dp_text_addf(out, "%s: ", t->names[i]);
            case_print(out, &t->items[i]);
        }
        dp_text_add(out, brackets[t->kind] + 1, 1);
    }
}

static inline void case_expect_error(const json_t *json, int err)
{
    assert_string_equal(dp_strerror(err), case_string(json, "error"));
    if (strcmp(dp_last_error(), case_string(json, "says")))
        fail_msg("says\n    %s\ninstead of\n    %s", dp_last_error(), case_string(json, "says"));
}

/* One cmocka test for each case of a file in tests/data/microbatch, plus `more`. */
/* Those of the file, before the program's own. */
static inline int case_run(const char *file, CMUnitTestFunction function)
{
    char path[4096];
    json_error_t why;
    const char *data = getenv("DP_TEST_DATA");

    snprintf(path, sizeof(path), "%s/microbatch/%s", data ? data : "tests/data", file);
    json_t *cases = json_load_file(path, 0, &why);
    if (!cases) {
        fprintf(stderr, "%s: %s at line %d\n", path, why.text, why.line);
        return 99;
    }
    for (size_t i = 0; i < json_array_size(cases); i++) {
        json_t *json = json_array_get(cases, i);
        add_case(0, (struct CMUnitTest){case_string(json, "name"), function, NULL, NULL, json});
    }
    int failed = run_titled_cases(file);
    json_decref(cases);
    return failed;
}

#endif
