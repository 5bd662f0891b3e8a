/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json.h"

#include "base/fail.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct dp_json dp_json_member(const struct dp_json *at, const char *key)
{
    return (struct dp_json){json_object_get(at->value, key), at, key, 0};
}

struct dp_json dp_json_element(const struct dp_json *at, size_t index)
{
    return (struct dp_json){json_array_get(at->value, index), at, NULL, index};
}

/* ranks[0].events[7].chunk */
static void add_path(struct dp_text *t, const struct dp_json *at)
{
    if (!at->parent)
        return;
    add_path(t, at->parent);
    if (at->key)
        dp_text_addf(t, "%s%s", t->len ? "." : "", at->key);
    else
        dp_text_addf(t, "[%zu]", at->index);
}

/* "PATH: what stands there, expected ..." */
int dp_json_expected(const struct dp_json *at, const char *what)
{
    char *is = at->value ? json_dumps(at->value, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    struct dp_text path = {0};
    int err;

    add_path(&path, at);
    err = dp_fail(DP_EINVAL, "%s: %.60s, expected %s", path.len ? path.data : "the file",
                  is ? is : "not there", what);
    dp_text_fini(&path);
    free(is);
    return err;
}

int dp_json_get_int(const struct dp_json *at, const char *key, int least, int most, int *out)
{
    struct dp_json in = dp_json_member(at, key);
    char what[64];
    json_int_t value = json_integer_value(in.value);

    if (!json_is_integer(in.value) || value < least || value > most) {
        snprintf(what, sizeof(what), "a whole number from %d to %d", least, most);
        return dp_json_expected(&in, what);
    }
    *out = (int)value;
    return 0;
}

int dp_json_get_bool(const struct dp_json *at, const char *key, bool absent, bool *out)
{
    struct dp_json in = dp_json_member(at, key);

    if (in.value && !json_is_boolean(in.value))
        return dp_json_expected(&in, "true or false");
    *out = in.value ? json_is_true(in.value) : absent;
    return 0;
}

int dp_json_get_array(const struct dp_json *at, const char *key, struct dp_json *out)
{
    *out = dp_json_member(at, key);
    return json_is_array(out->value) ? 0 : dp_json_expected(out, "a list");
}

int dp_json_take_int(const struct dp_json *at, const char *key, int least, int most, int *out)
{
    return json_object_get(at->value, key) ? dp_json_get_int(at, key, least, most, out) : 0;
}

int dp_json_take_size(const struct dp_json *at, const char *key, uint64_t *out)
{
    struct dp_json in = dp_json_member(at, key);

    if (in.value && (!json_is_integer(in.value) || json_integer_value(in.value) < 0))
        return dp_json_expected(&in, "a whole number that is not negative");
    if (in.value)
        *out = (uint64_t)json_integer_value(in.value);
    return 0;
}

int dp_json_take_number(const struct dp_json *at, const char *key, double *out)
{
    struct dp_json in = dp_json_member(at, key);

    if (in.value && (!json_is_number(in.value) || json_number_value(in.value) < 0))
        return dp_json_expected(&in, "a number that is not negative");
    if (in.value)
        *out = json_number_value(in.value);
    return 0;
}

int dp_json_take_string(const struct dp_json *at, const char *key, const char **out)
{
    struct dp_json in = dp_json_member(at, key);

    if (in.value && !json_is_string(in.value))
        return dp_json_expected(&in, "a string");
    if (in.value)
        *out = json_string_value(in.value);
    return 0;
}

static int expected_word(const struct dp_json *in, const char *const *words)
{
    struct dp_text list = {0};

    for (int i = 0; words[i]; i++)
        dp_text_addf(&list, "%s%s", i ? ", " : "one of ", words[i]);
    int err = dp_json_expected(in, list.data ? list.data : "another word");
    dp_text_fini(&list);
    return err;
}

int dp_json_take_word(const struct dp_json *at, const char *key, const char *const *words,
                      int *out)
{
    struct dp_json in = dp_json_member(at, key);
    const char *word = json_string_value(in.value);

    for (int i = 0; word && words[i]; i++)
        if (!strcmp(word, words[i])) {
            *out = i;
            return 0;
        }
    return in.value ? expected_word(&in, words) : 0;
}

int dp_json_load(const char *text, size_t len, json_t **out)
{
    json_error_t error;
    json_t *value = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error);

    if (!value)
        return dp_fail(DP_EINVAL, "line %d, column %d: %s; expected JSON", error.line,
                       error.column, error.text);
    *out = value;
    return 0;
}

void dp_json_add_string(struct dp_text *t, const char *s)
{
    dp_text_adds(t, "\"");
    for (const char *plain = s;; s++) {
        bool special = *s == '"' || *s == '\\' || (unsigned char)*s < ' ';
        if (!special)
            continue;
        dp_text_add(t, plain, (size_t)(s - plain));
        if (!*s)
            break;
        if ((unsigned char)*s < ' ')
            dp_text_addf(t, "\\u%04x", *s);
        else
            dp_text_addf(t, "\\%c", *s);
        plain = s + 1;
    }
    dp_text_adds(t, "\"");
}
