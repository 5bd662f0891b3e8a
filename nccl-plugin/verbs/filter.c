/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl-plugin/verbs/filter.h"

#include <stdlib.h>
#include <string.h>

/* "name:port:rail:plane"; missing numbers are -1. */
struct entry {
    const char *name;
    size_t name_len;
    int numbers[3];
};

static struct entry parse_entry(const char *text, size_t len)
{
    struct entry e = {.name = text, .numbers = {-1, -1, -1}};
    const char *end = text + len, *at = memchr(text, ':', len);

    e.name_len = at ? (size_t)(at - text) : len;
    for (int i = 0; i < 3 && at && at + 1 < end; i++) {
        char *after;
        long value = strtol(at + 1, &after, 10);
        if (after > at + 1 && value >= 0 && value < 32768)
            e.numbers[i] = (int)value;
        at = memchr(at + 1, ':', (size_t)(end - at - 1));
    }
    return e;
}

static bool matches(const struct entry *e, bool exactly, const char *device, int port)
{
    if (strncmp(e->name, device, e->name_len) || (exactly && device[e->name_len]))
        return false;
    return e->numbers[0] < 0 || e->numbers[0] == port;
}

bool dpn_verbs_filter(const char *list, const char *device, int port, struct dpn_rail_place *place)
{
    bool is_named = false;

    *place = (struct dpn_rail_place){-1, -1};
    if (!list || !*list)
        return true;
    const bool all_but = *list == '^';
    list += all_but;
    const bool exactly = *list == '=';
    list += exactly;
    for (size_t len; *list && !is_named; list += len + (list[len] == ',')) {
        len = strcspn(list, ",");
        const struct entry e = parse_entry(list, len);
        is_named = e.name_len && matches(&e, exactly, device, port);
        if (is_named && !all_but)
            *place = (struct dpn_rail_place){e.numbers[1], e.numbers[2]};
    }
    return is_named != all_but;
}
