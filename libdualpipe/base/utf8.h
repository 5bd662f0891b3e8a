/* SPDX-License-Identifier: Apache-2.0
 *
 * utf8.h - the characters of UTF-8, for the library and for the tools, which see no other symbol of it.
 */
#ifndef DP_BASE_UTF8_H
#define DP_BASE_UTF8_H

#include <stddef.h>

/* The bytes of the UTF-8 character at s, of which `left` may be read; 0: there is none. Bytes behind one
 * that is wrong, such as the NUL of a text, are not read. */
static inline size_t dp_utf8_len(const char *s, size_t left)
{
    /* Table 3-7 of the Unicode standard: the first byte, the range of the second, the length. */
    static const struct {
        unsigned char from, to, second_from, second_to;
        size_t len;
    } forms[] = {
        {0x00, 0x7f, 0, 0, 1},       {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3},
        {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3},
        {0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4},
    };
    const size_t count = sizeof(forms) / sizeof(forms[0]);
    const unsigned char *u = (const unsigned char *)s;
    size_t f = 0;

    while (left && f < count && (u[0] < forms[f].from || u[0] > forms[f].to))
        f++;
    if (!left || f == count || forms[f].len > left)
        return 0;
    if (forms[f].len > 1 && (u[1] < forms[f].second_from || u[1] > forms[f].second_to))
        return 0;
    for (size_t i = 2; i < forms[f].len; i++)
        if (u[i] < 0x80 || u[i] > 0xbf)
            return 0;
    return forms[f].len;
}

#endif
