/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/state.h"

#include "base/fail.h"
#include "base/json.h"
#include "base/tensor.h"
#include "checkpoint/crc32c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char metadata_key[] = "__metadata__", checksums_key[] = "dualpipe.crc32c";
static const char own_key[] = "dualpipe.header_crc32c", json_key[] = "dualpipe.json";
static const char no_digits[] = "00000000";
enum { DIGITS = 8 };

/* ---- types ---------------------------------------------------------------------------------- */

/* The codes of DLPack's later types, which not every installed dlpack.h has. */
enum { CODE_BOOL = 6, CODE_FLOAT8_E4M3FN = 10, CODE_FLOAT8_E5M2 = 12 };

static const struct type {
    const char *name;
    DLDataType dtype;
} types[] = {
    {"F64", {kDLFloat, 64, 1}},  {"F32", {kDLFloat, 32, 1}},
    {"F16", {kDLFloat, 16, 1}},  {"BF16", {kDLBfloat, 16, 1}},
    {"I64", {kDLInt, 64, 1}},    {"I32", {kDLInt, 32, 1}},
    {"I16", {kDLInt, 16, 1}},    {"I8", {kDLInt, 8, 1}},
    {"U64", {kDLUInt, 64, 1}},   {"U32", {kDLUInt, 32, 1}},
    {"U16", {kDLUInt, 16, 1}},   {"U8", {kDLUInt, 8, 1}},
    {"BOOL", {CODE_BOOL, 8, 1}}, {"F8_E4M3", {CODE_FLOAT8_E4M3FN, 8, 1}},
    {"C64", {kDLComplex, 64, 1}}, {"F8_E5M2", {CODE_FLOAT8_E5M2, 8, 1}},
};
enum { TYPES = sizeof(types) / sizeof(types[0]) };

const char *dp_header_type_name(DLDataType d)
{
    for (int i = 0; i < TYPES; i++)
        if (types[i].dtype.code == d.code && types[i].dtype.bits == d.bits && d.lanes == 1)
            return types[i].name;
    return NULL;
}

static int read_type(const char *path, const struct dp_json *at, DLDataType *out)
{
    const struct dp_json in = dp_json_member(at, "dtype");
    const char *name = json_string_value(in.value);

    if (!name)
        return dp_json_expected(&in, "the name of a type");
    for (int i = 0; i < TYPES; i++)
        if (!strcmp(types[i].name, name)) {
            *out = types[i].dtype;
            return 0;
        }
    return dp_fail(DP_EUNSUPPORTED, "checkpoint '%s': tensor '%s' is of type '%.40s', which is not "
                   "known here", path, at->key, name);
}

/* ---- reading: one tensor --------------------------------------------------------------------- */

static int read_shape(const struct dp_json *at, struct dp_header_tensor *t)
{
    struct dp_json list;
    int err = dp_json_get_array(at, "shape", &list);

    if (err)
        return err;
    if (json_array_size(list.value) > DP_TENSOR_MAX_NDIM)
        return dp_json_expected(&list, "at most 64 dimensions");
    t->ndim = (int32_t)json_array_size(list.value);
    for (int32_t i = 0; i < t->ndim; i++) {
        const struct dp_json in = dp_json_element(&list, (size_t)i);
        t->shape[i] = json_integer_value(in.value);
        if (!json_is_integer(in.value) || t->shape[i] < 0)
            return dp_json_expected(&in, "a whole number that is not negative");
    }
    return 0;
}

static int read_offsets(const struct dp_json *at, uint64_t data_bytes, struct dp_header_tensor *t)
{
    struct dp_json list;
    int err = dp_json_get_array(at, "data_offsets", &list);
    uint64_t *const out[] = {&t->begin, &t->end};

    if (err)
        return err;
    if (json_array_size(list.value) != 2)
        return dp_json_expected(&list, "two numbers");
    for (size_t i = 0; i < 2; i++) {
        const struct dp_json in = dp_json_element(&list, i);
        json_int_t value = json_integer_value(in.value);
        if (!json_is_integer(in.value) || value < 0)
            return dp_json_expected(&in, "a whole number that is not negative");
        *out[i] = (uint64_t)value;
        if (*out[i] > data_bytes)
            return dp_json_expected(&in, "a place in the file, which ends before (cut off?)");
    }
    return t->begin <= t->end ? 0 : dp_json_expected(&list, "the end behind the beginning");
}

static int check_bytes(const struct dp_json *at, const struct dp_header_tensor *t)
{
    uint64_t bytes = t->dtype.bits / 8;
    bool overflow = false;

    for (int32_t i = 0; i < t->ndim; i++)
        if (t->shape[i] == 0)
            bytes = 0;
    for (int32_t i = 0; i < t->ndim && bytes; i++)
        overflow |= __builtin_mul_overflow(bytes, (uint64_t)t->shape[i], &bytes);
    if (!overflow && bytes == t->end - t->begin)
        return 0;
    return dp_json_expected(at, "as many bytes as its type and shape say");
}

static int read_tensor(const char *path, const struct dp_json *root, const char *name,
                       uint64_t data_bytes, struct dp_header_tensor *t)
{
    const struct dp_json at = dp_json_member(root, name);
    int err;

    t->name = name;
    if (!json_is_object(at.value))
        return dp_json_expected(&at, "an object with dtype, shape and data_offsets");
    err = read_type(path, &at, &t->dtype);
    if (!err)
        err = read_shape(&at, t);
    if (!err)
        err = read_offsets(&at, data_bytes, t);
    return err ? err : check_bytes(&at, t);
}

/* ---- reading: checksums ---------------------------------------------------------------------- */

static bool read_digits(const char *text, uint32_t *out)
{
    uint32_t value = 0;

    if (!text || strlen(text) != DIGITS)
        return false;
    for (const char *c = text; *c; c++) {
        const char *digits = "0123456789abcdef", *found = strchr(digits, *c);
        if (!found)
            return false;
        value = value << 4 | (uint32_t)(found - digits);
    }
    *out = value;
    return true;
}

/* With the digits of the checksum as zeros. They stand where dp_header_write has put them. */
static bool own_checksum(const char *text, size_t len, uint32_t *out)
{
    static const char before[] = "\"dualpipe.header_crc32c\":\"";
    const size_t n = sizeof(before) - 1;
    const char *found = strstr(text, before);

    if (!found || (size_t)(text + len - found) < n + DIGITS)
        return false;
    found += n;
    *out = dp_crc32c(0, text, (size_t)(found - text));
    *out = dp_crc32c(*out, no_digits, DIGITS);
    *out = dp_crc32c(*out, found + DIGITS, (size_t)(text + len - found) - DIGITS);
    return true;
}

static int check_own(const char *path, const json_t *metadata, const char *text, size_t len)
{
    const json_t *value = json_object_get(metadata, own_key);
    uint32_t said, is;

    if (!value && !json_object_get(metadata, checksums_key) && !json_object_get(metadata, json_key))
        return 0; /* another program's file */
    if (read_digits(json_string_value(value), &said) && own_checksum(text, len, &is) && said == is)
        return 0;
    return dp_fail(DP_EINVAL, "checkpoint '%s': its header does not have the checksum that it "
                   "says: it was damaged or changed", path);
}

static int read_checksums(const char *path, const json_t *metadata, struct dp_header *h)
{
    const char *text = json_string_value(json_object_get(metadata, checksums_key));
    json_t *list = text ? json_loads(text, JSON_REJECT_DUPLICATES, NULL) : NULL;
    int err = 0;

    for (size_t i = 0; i < h->count && list && !err; i++) {
        struct dp_header_tensor *t = &h->tensors[i];
        const json_t *value = json_object_get(list, t->name);
        t->has_checksum = value && read_digits(json_string_value(value), &t->checksum);
        if (value && !t->has_checksum)
            err = dp_fail(DP_EINVAL, "checkpoint '%s': the checksum of tensor '%s' is none, expected "
                          "eight hexadecimal digits", path, t->name);
    }
    if (text && !json_is_object(list))
        err = dp_fail(DP_EINVAL, "checkpoint '%s': %s is no JSON object", path, checksums_key);
    json_decref(list);
    return err;
}

static int read_metadata(const char *path, const char *text, size_t len, struct dp_header *h)
{
    const json_t *metadata = json_object_get(h->root, metadata_key);
    int err;

    if (metadata && !json_is_object(metadata))
        return dp_fail(DP_EINVAL, "checkpoint '%s': %s is no object", path, metadata_key);
    h->json = json_string_value(json_object_get(metadata, json_key));
    h->json = h->json ? h->json : "{}";
    err = check_own(path, metadata, text, len);
    if (!err)
        err = read_checksums(path, metadata, h);
    return err ? err : dp_header_check_json(path, h->json);
}

/* ---- reading: the whole ---------------------------------------------------------------------- */

static int compare_places(const void *a, const void *b)
{
    const struct dp_header_tensor *s = a, *t = b;

    if (s->begin != t->begin)
        return s->begin < t->begin ? -1 : 1;
    return (s->end > t->end) - (s->end < t->end);
}

static int check_places(const char *path, struct dp_header *h, uint64_t data_bytes)
{
    uint64_t at = 0;

    qsort(h->tensors, h->count, sizeof(*h->tensors), compare_places);
    for (size_t i = 0; i < h->count; at = h->tensors[i++].end)
        if (h->tensors[i].begin != at)
            return dp_fail(DP_EINVAL, "checkpoint '%s': tensor '%s' begins at byte %llu of the data, %s "
                           "the one before it, which ends at %llu", path, h->tensors[i].name,
                           (unsigned long long)h->tensors[i].begin,
                           h->tensors[i].begin < at ? "inside" : "with a gap behind",
                           (unsigned long long)at);
    if (at == data_bytes)
        return 0;
    return dp_fail(DP_EINVAL, "checkpoint '%s': its tensors end at byte %llu of the data, the file at "
                   "%llu", path, (unsigned long long)at, (unsigned long long)data_bytes);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp((*(const struct dp_header_tensor *const *)a)->name,
                  (*(const struct dp_header_tensor *const *)b)->name);
}

static void sort_by_name(struct dp_header *h)
{
    for (size_t i = 0; i < h->count; i++)
        h->by_name[i] = &h->tensors[i];
    qsort(h->by_name, h->count, sizeof(*h->by_name), compare_names);
}

const struct dp_header_tensor *dp_header_find(const struct dp_header *h, const char *name)
{
    const struct dp_header_tensor key = {.name = name}, *at = &key;
    const struct dp_header_tensor **found = NULL;

    if (h->count)
        found = bsearch(&at, h->by_name, h->count, sizeof(*h->by_name), compare_names);
    return found ? *found : NULL;
}

static int allocate(struct dp_header *h)
{
    size_t dims = 0;
    const char *name;
    json_t *value;

    json_object_foreach(h->root, name, value) {
        size_t ndim = json_array_size(json_object_get(value, "shape"));
        h->count += strcmp(name, metadata_key) != 0;
        dims += ndim <= DP_TENSOR_MAX_NDIM ? ndim : 0;
    }
    h->tensors = calloc(h->count + 1, sizeof(*h->tensors));
    h->shapes = calloc(dims + 1, sizeof(*h->shapes));
    h->by_name = calloc(h->count + 1, sizeof(*h->by_name));
    if (h->tensors && h->shapes && h->by_name)
        return 0;
    return dp_fail(DP_ENOMEM, "no memory for a checkpoint's header");
}

static int read_tensors(const char *path, uint64_t data_bytes, struct dp_header *h)
{
    const struct dp_json nothing = {0}, root = {h->root, &nothing, path, 0};
    int64_t *shape = h->shapes;
    size_t count = 0;
    const char *name;
    json_t *value;
    int err = 0;

    json_object_foreach(h->root, name, value) {
        if (!strcmp(name, metadata_key))
            continue;
        h->tensors[count].shape = shape;
        err = read_tensor(path, &root, name, data_bytes, &h->tensors[count]);
        if (err)
            return err;
        shape += h->tensors[count++].ndim;
    }
    return check_places(path, h, data_bytes);
}

int dp_header_read(const char *path, const char *text, size_t len, uint64_t data_bytes,
                   struct dp_header *out)
{
    struct dp_header h = {0};
    json_error_t why;
    int err;

    h.root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &why);
    if (!json_is_object(h.root)) {
        err = dp_fail(DP_EINVAL, "checkpoint '%s': its header is no JSON object: %s", path,
                      h.root ? "it is something else" : why.text);
        json_decref(h.root);
        return err;
    }
    err = allocate(&h);
    if (!err)
        err = read_tensors(path, data_bytes, &h);
    if (!err)
        err = read_metadata(path, text, len, &h);
    if (err) {
        dp_header_fini(&h);
        return err;
    }
    sort_by_name(&h);
    *out = h;
    return 0;
}

void dp_header_fini(struct dp_header *h)
{
    json_decref(h->root);
    free(h->tensors);
    free(h->shapes);
    free(h->by_name);
}

/* ---- writing --------------------------------------------------------------------------------- */

int dp_header_check_json(const char *path, const char *json)
{
    json_error_t why;
    json_t *value = json_loads(json ? json : "{}", JSON_REJECT_DUPLICATES, &why);
    bool good = json_is_object(value);

    json_decref(value);
    if (good)
        return 0;
    return dp_fail(DP_EINVAL, "checkpoint '%s': its json is no JSON object: %s", path,
                   value ? "it is something else" : why.text);
}

static json_t *describe(const struct dp_header_tensor *t)
{
    json_t *shape = json_array();

    for (int32_t i = 0; i < t->ndim; i++)
        json_array_append_new(shape, json_integer(t->shape[i]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", dp_header_type_name(t->dtype), "shape", shape,
                     "data_offsets", (json_int_t)t->begin, (json_int_t)t->end);
}

static json_t *digits(uint32_t value)
{
    char text[DIGITS + 1];

    snprintf(text, sizeof(text), "%08x", value);
    return json_string(text);
}

static json_t *describe_all(const struct dp_header_tensor *tensors, size_t count, const char *json)
{
    json_t *root = json_object(), *metadata = json_object(), *sums = json_object();
    bool good = !json_object_set_new(root, metadata_key, metadata);
    char *text;

    good = good && !json_object_set_new(metadata, own_key, json_string(no_digits));
    good = good && (!json || !json_object_set_new(metadata, json_key, json_string(json)));
    for (size_t i = 0; i < count && good; i++)
        good = !json_object_set_new(sums, tensors[i].name, digits(tensors[i].checksum)) &&
               !json_object_set_new(root, tensors[i].name, describe(&tensors[i]));
    text = good ? json_dumps(sums, JSON_COMPACT) : NULL;
    good = text && !json_object_set_new(metadata, checksums_key, json_string(text));
    free(text);
    json_decref(sums);
    if (!good) {
        json_decref(root);
        return NULL;
    }
    return root;
}

/* The text with blanks behind it. NULL: no memory. */
static char *padded_text(const json_t *root, size_t *len)
{
    char *text = json_dumps(root, JSON_COMPACT), *padded = NULL;
    size_t n = text ? strlen(text) : 0;

    *len = (sizeof(uint64_t) + n + DP_HEADER_ALIGN - 1) / DP_HEADER_ALIGN * DP_HEADER_ALIGN -
           sizeof(uint64_t);
    if (text)
        padded = malloc(*len + 1);
    if (padded) {
        memcpy(padded, text, n);
        memset(padded + n, ' ', *len - n);
        padded[*len] = '\0';
    }
    free(text);
    return padded;
}

/* No name may come twice, nor be that of the metadata; jansson takes UTF-8 only. */
static int check_names(const char *path, const struct dp_header_tensor *tensors, size_t count)
{
    json_t *seen = json_object();
    int err = seen ? 0 : dp_fail(DP_ENOMEM, "no memory for the names of a checkpoint");

    for (size_t i = 0; i < count && !err; i++) {
        const char *name = tensors[i].name;
        if (!name || !*name || !strcmp(name, metadata_key))
            err = dp_fail(DP_EINVAL, "checkpoint '%s': tensor %zu cannot be named '%s'", path, i,
                          name ? name : "(null)");
        else if (json_object_get(seen, name))
            err = dp_fail(DP_EINVAL, "checkpoint '%s': two tensors are named '%s'", path, name);
        else if (json_object_set_new(seen, name, json_true()))
            err = dp_fail(DP_EINVAL, "checkpoint '%s': the name of tensor %zu is not UTF-8", path, i);
    }
    json_decref(seen);
    return err;
}

int dp_header_write(const char *path, const struct dp_header_tensor *tensors, size_t count,
                    const char *json, char **text, size_t *len)
{
    int err = check_names(path, tensors, count);
    json_t *root;
    uint32_t sum;

    if (!err)
        err = dp_header_check_json(path, json);
    if (err)
        return err;
    root = describe_all(tensors, count, json);
    *text = root ? padded_text(root, len) : NULL;
    json_decref(root);
    if (!*text || !own_checksum(*text, *len, &sum)) {
        free(*text);
        return dp_fail(DP_ENOMEM, "checkpoint '%s': no memory for its header", path);
    }
    char *at = strstr(*text, own_key) + strlen(own_key) + strlen("\":\"");
    char own[DIGITS + 1];
    snprintf(own, sizeof(own), "%08x", sum);
    memcpy(at, own, DIGITS);
    if (*len > DP_HEADER_MOST) {
        free(*text);
        return dp_fail(DP_EINVAL, "checkpoint '%s': a header of %zu bytes, expected at most %d", path,
                       *len, DP_HEADER_MOST);
    }
    return 0;
}
