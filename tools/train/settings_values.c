/* SPDX-License-Identifier: Apache-2.0
 *
 * settings_values.c - values of options that have a form of their own.
 */
#include "train/settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Numbers to `most`, and with_ranges also "2-5", with commas between them. */
static bool parse_numbers(const char *at, bool with_ranges, int32_t most, struct number_list *list)
{
    for (list->count = 0;; at++) {
        if (!is_digit(*at))
            return false;
        const long first = strtol(at, (char **)&at, 10);
        const bool is_range = with_ranges && *at == '-' && is_digit(at[1]);
        const long last = is_range ? strtol(at + 1, (char **)&at, 10) : first;
        if (last < first || last > most)
            return false;
        for (long n = first; n <= last; n++) {
            if (list->count == NUMBERS_MOST)
                return false;
            list->items[list->count++] = (int32_t)n;
        }
        if (*at != ',')
            return !*at;
    }
}

bool block_list_parse(const char *text, void *member, char *why, size_t why_len)
{
    struct number_list *list = member;

    if (parse_numbers(text, false, GPT_MAX_LAYERS, list) && list->count <= BLOCK_LIST_MAX)
        return true;
    snprintf(why, why_len, "at most %d numbers of blocks, as in 1,3,3,1", BLOCK_LIST_MAX);
    return false;
}

bool stage_list_parse(const char *text, void *member, char *why, size_t why_len)
{
    if (parse_numbers(text, true, NUMBERS_MOST - 1, member))
        return true;
    snprintf(why, why_len, "stages from 0 to %d, such as 0,2-3", NUMBERS_MOST - 1);
    return false;
}

/* One name of the list, and behind optimizer "=FOLDER". */
static bool parse_part(struct offload_parts *parts, const char *text, size_t len)
{
    const struct {
        const char *name;
        bool *member;
    } known[] = {{"params", &parts->params},
                 {"optimizer", &parts->optimizer},
                 {"activations", &parts->activations}};

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        const size_t name = strlen(known[i].name);
        if (len < name || memcmp(text, known[i].name, name) || *known[i].member)
            continue;
        *known[i].member = true;
        if (len == name)
            return true;
        if (known[i].member != &parts->optimizer || text[name] != '=' || len < name + 2 ||
            len - name > sizeof(parts->folder))
            return false;
        memcpy(parts->folder, text + name + 1, len - name - 1);
        return true;
    }
    return false;
}

bool offload_parts_parse(const char *text, void *member, char *why, size_t why_len)
{
    struct offload_parts *parts = member;

    if (parts->text) {
        snprintf(why, why_len, "it once; it was %s before", parts->text);
        return false;
    }
    parts->text = text;
    for (size_t len;; text += len + 1) {
        len = strcspn(text, ",");
        if (!parse_part(parts, text, len)) {
            snprintf(why, why_len,
                     "params, optimizer or optimizer=FOLDER, and activations, in a list with "
                     "commas");
            return false;
        }
        if (!text[len])
            return true;
    }
}

bool offload_buffers_parse(const char *text, void *member, char *why, size_t why_len)
{
    enum { MOST = 10000 };
    const bool any = !strcmp(text, "auto");
    char *end = NULL;
    const long count = any ? BUFFERS_AUTO : strtol(text, &end, 10);

    if (!any && (end == text || *end || count < 2 || count > MOST)) {
        snprintf(why, why_len, "auto, or a number from 2 to %d", MOST);
        return false;
    }
    *(int32_t *)member = (int32_t)count;
    return true;
}
