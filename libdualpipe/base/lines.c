/* SPDX-License-Identifier: Apache-2.0 */
#include "base/lines.h"

#include "base/fail.h"
#include "base/utf8.h"

#include <string.h>

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

char *dp_trim(char *from, char *end)
{
    while (from < end && is_blank(*from))
        from++;
    while (end > from && is_blank(end[-1]))
        end--;
    *end = '\0';
    return from;
}

/* No line of text begins with a bracket. */
static bool is_json(const char *text, const char *end)
{
    while (text < end && (is_blank(*text) || *text == '\n'))
        text++;
    return text < end && (*text == '{' || *text == '[');
}

int dp_lines_begin(struct dp_lines *l, const char *text, size_t len, const char *name,
                   const char *converter)
{
    int err = dp_utf8_begin(&text, &len, name);

    l->name = name;
    l->at = text;
    l->end = text + len;
    l->number = 0;
    if (!err && is_json(text, l->end))
        err = dp_fail(DP_EINVAL, "%s: JSON, expected lines of text: `%s %s` writes them", name,
                      converter, name);
    return err;
}

int dp_lines_next(struct dp_lines *l, char **line)
{
    for (*line = NULL; l->at < l->end && (!*line || !**line);) {
        const char *stop = memchr(l->at, '\n', (size_t)(l->end - l->at));
        const size_t len = (size_t)((stop ? stop : l->end) - l->at);
        l->number++;
        if (len > DP_LINE_MAX_LEN || memchr(l->at, '\0', len))
            return dp_fail(DP_EINVAL, "%s:%d: %s", l->name, l->number,
                           len > DP_LINE_MAX_LEN ? "a line of more than 4095 characters"
                                                 : "a NUL, expected text");
        memcpy(l->text, l->at, len);
        l->text[len] = '\0';
        *line = dp_trim(l->text, l->text + strcspn(l->text, "#"));
        l->at = stop ? stop + 1 : l->end;
    }
    if (*line && !**line)
        *line = NULL;
    return 0;
}
