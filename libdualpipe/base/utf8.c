/* SPDX-License-Identifier: Apache-2.0 */
#include "base/utf8.h"

#include "base/fail.h"

#include <dualpipe/options.h>

#include <string.h>

static const char byte_order_mark[] = "\xef\xbb\xbf";

/* Table 3-7 of the Unicode standard: the first byte, the range of the second, the length. */
static const struct form {
    unsigned char from, to, second_from, second_to;
    size_t len;
} forms[] = {
    {0x00, 0x7f, 0, 0, 1},       {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3},
    {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3},
    {0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4},
};
enum { FORMS = sizeof(forms) / sizeof(forms[0]) };

size_t dp_utf8_len(const char *s, size_t left)
{
    const unsigned char *u = (const unsigned char *)s;
    size_t f = 0;

    while (left && f < FORMS && (u[0] < forms[f].from || u[0] > forms[f].to))
        f++;
    if (!left || f == FORMS || forms[f].len > left)
        return 0;
    if (forms[f].len > 1 && (u[1] < forms[f].second_from || u[1] > forms[f].second_to))
        return 0;
    for (size_t i = 2; i < forms[f].len; i++)
        if (u[i] < 0x80 || u[i] > 0xbf)
            return 0;
    return forms[f].len;
}

int dp_utf8_begin(const char **text, size_t *len, const char *name)
{
    const char *s = *text, *end = s + *len;
    int line = 1, column = 1;

    if (*len >= 3 && !memcmp(s, byte_order_mark, 3))
        s += 3;
    const char *begin = s;
    for (size_t n; s < end; s += n) {
        n = dp_utf8_len(s, (size_t)(end - s));
        if (!n)
            return dp_fail(DP_EINVAL, "%s%sline %d, column %d: byte 0x%02x, expected UTF-8",
                           name ? name : "", name ? ": " : "", line, column, (unsigned char)*s);
        column = *s == '\n' ? 1 : column + 1;
        line += *s == '\n';
    }
    *text = begin;
    *len = (size_t)(end - begin);
    return 0;
}

int dp_check_utf8(const char *text, size_t len, const char *name)
{
    return dp_utf8_begin(&text, &len, name);
}
