/* SPDX-License-Identifier: Apache-2.0 */
#include "train/offload_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char expected[] =
    "params, optimizer or optimizer=FOLDER, and activations, in a list with commas";

/* The member that a name of `len` letters is for; NULL: none. */
static bool *part_of(struct offload_parts *parts, const char *name, size_t len)
{
    const struct {
        const char *name;
        bool *member;
    } known[] = {{"params", &parts->params},
                 {"optimizer", &parts->optimizer},
                 {"activations", &parts->activations}};

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strlen(known[i].name) == len && !memcmp(known[i].name, name, len))
            return known[i].member;
    return NULL;
}

/* What follows a name: nothing, or =FOLDER behind optimizer. */
static bool parse_folder(struct offload_parts *parts, const bool *part, const char *at, size_t len)
{
    if (!len)
        return true;
    if (part != &parts->optimizer || len < 2 || len > sizeof(parts->folder))
        return false;
    memcpy(parts->folder, at + 1, len - 1);
    return true;
}

bool offload_parts_parse(const char *text, void *member, char *why, size_t why_len)
{
    struct offload_parts *parts = member;

    for (;;) {
        size_t len = strcspn(text, ","), name = strcspn(text, "=,");
        bool *part = part_of(parts, text, name);
        if (!part || *part || !parse_folder(parts, part, text + name, len - name)) {
            snprintf(why, why_len, "%s", expected);
            return false;
        }
        *part = true;
        if (!text[len])
            break;
        text += len + 1;
    }
    parts->any = true;
    return true;
}

bool offload_buffers_parse(const char *text, void *member, char *why, size_t why_len)
{
    enum { MOST = 10000 };
    struct offload_buffers *buffers = member;
    char *end;

    *buffers = (struct offload_buffers){.measured = !strcmp(text, "auto")};
    if (buffers->measured)
        return true;
    long count = strtol(text, &end, 10);
    if (end == text || *end || count < 2 || count > MOST) {
        snprintf(why, why_len, "auto, or a number from 2 to %d", MOST);
        return false;
    }
    buffers->count = (int)count;
    return true;
}
