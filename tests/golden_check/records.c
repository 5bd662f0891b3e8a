/* SPDX-License-Identifier: Apache-2.0
 *
 * records.c - golden files are mostly lists of records.
 */
#include "golden_check/golden.h"

bool golden_all_have(const json_t *value, const char *const *keys)
{
    const json_t *record;
    size_t i;

    if (!json_array_size(value))
        return false;
    json_array_foreach(value, i, record)
        for (const char *const *key = keys; *key; key++)
            if (!json_object_get(record, *key))
                return false;
    return true;
}

bool golden_each(struct golden *g, const json_t *list,
                 bool (*check)(struct golden *g, size_t index, const json_t *record))
{
    const json_t *record;
    size_t i;

    json_array_foreach(list, i, record)
        if (!check(g, i, record))
            return false;
    return true;
}

bool golden_same(const json_t *list, const int32_t *numbers, int32_t count)
{
    bool same = json_array_size(list) == (size_t)count;

    for (int32_t i = 0; same && i < count; i++)
        same = json_integer_value(json_array_get(list, (size_t)i)) == numbers[i];
    return same;
}

json_int_t golden_integer(const json_t *record, const char *key)
{
    return json_integer_value(json_object_get(record, key));
}

double golden_number(const json_t *record, const char *key)
{
    return json_number_value(json_object_get(record, key));
}

const char *golden_string(const json_t *record, const char *key)
{
    return json_string_value(json_object_get(record, key));
}
