/* SPDX-License-Identifier: Apache-2.0 */
#include "text.h"

#include <string.h>

/* Table 3-7 of the Unicode standard, without control characters, U+FFFE and U+FFFF. */
int text_character(const char *c)
{
    static const struct {
        unsigned char from, to, second_from, second_to;
        int len;
    } forms[] = {
        {0x20, 0x7e, 0, 0, 1},       {0xc2, 0xc2, 0xa0, 0xbf, 2}, {0xc3, 0xdf, 0x80, 0xbf, 2},
        {0xe0, 0xe0, 0xa0, 0xbf, 3}, {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3},
        {0xee, 0xef, 0x80, 0xbf, 3}, {0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4},
        {0xf4, 0xf4, 0x80, 0x8f, 4},
    };
    const unsigned char *u = (const unsigned char *)c;
    size_t f = 0;

    while (f < sizeof(forms) / sizeof(forms[0]) && (u[0] < forms[f].from || u[0] > forms[f].to))
        f++;
    if (f == sizeof(forms) / sizeof(forms[0]))
        return 0;
    if (forms[f].len > 1 && (u[1] < forms[f].second_from || u[1] > forms[f].second_to))
        return 0;
    for (int i = 2; i < forms[f].len; i++)
        if (u[i] < 0x80 || u[i] > 0xbf)
            return 0;
    return u[0] == 0xef && u[1] == 0xbf && u[2] >= 0xbe ? 0 : forms[f].len;
}

void text_put_xml(FILE *to, const char *text, int most)
{
    static const char specials[] = "&<>\"";
    static const char *const names[] = {"&amp;", "&lt;", "&gt;", "&quot;"};

    for (int n; *text && most; text += n ? n : 1, most--) {
        const char *special = strchr(specials, *text);
        n = text_character(text);
        if (special)
            fputs(names[special - specials], to);
        else if (n)
            fwrite(text, 1, (size_t)n, to);
        else
            fputs("\xef\xbf\xbd", to);
    }
}
