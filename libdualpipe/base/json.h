/* SPDX-License-Identifier: Apache-2.0
 *
 * json.h - read JSON that people write, and say where it is wrong: "ranks[0].events[7].chunk: "x",
 * expected a whole number from 0 to 7". Not in libdpbase, which needs no library.
 */
#ifndef DP_BASE_JSON_H
#define DP_BASE_JSON_H

#include "base/text.h"

#include <jansson.h>

/* A value and the way to it, which is spelled out only when something is wrong there. */
struct dp_json {
    const json_t *value;                /* NULL: not there */
    const struct dp_json *parent; /* NULL: the file */
    const char *key;                    /* NULL: element `index` of a list */
    size_t index;
};

struct dp_json dp_json_member(const struct dp_json *at, const char *key);
struct dp_json dp_json_element(const struct dp_json *at, size_t index);

/* Fails: "PATH: what stands there, expected WHAT". DP_EINVAL. */
int dp_json_expected(const struct dp_json *at, const char *what);

/* The member `key` of an object, which must be there and be such. DP_EINVAL as above. */
int dp_json_get_int(const struct dp_json *at, const char *key, int least, int most, int *out);
int dp_json_get_array(const struct dp_json *at, const char *key, struct dp_json *out);
/* The same; `absent` where it is not there. */
int dp_json_get_bool(const struct dp_json *at, const char *key, bool absent, bool *out);

/* The whole text, whose objects have no key twice. DP_EINVAL with line and column. */
int dp_json_load(const char *text, size_t len, json_t **out);

/* Members that may be left out: then *out stays as it is. DP_EINVAL if they are something else. */
int dp_json_take_int(const struct dp_json *at, const char *key, int least, int most, int *out);
int dp_json_take_size(const struct dp_json *at, const char *key, uint64_t *out);
/* A number that is not negative. */
int dp_json_take_number(const struct dp_json *at, const char *key, double *out);
/* The string lives as long as the value. */
int dp_json_take_string(const struct dp_json *at, const char *key, const char **out);
/* A string out of `words` (NULL-terminated): its place in the list. */
int dp_json_take_word(const struct dp_json *at, const char *key, const char *const *words,
                      int *out);

/* Append s as a JSON string, quotes included. Expects UTF-8. */
void dp_json_add_string(struct dp_text *t, const char *s);

#endif
