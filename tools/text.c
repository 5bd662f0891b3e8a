/* SPDX-License-Identifier: Apache-2.0 */
#include "text.h"

#include "base/utf8.h"

#include <string.h>

int text_character(const char *c)
{
    const unsigned char *u = (const unsigned char *)c;
    const size_t len = dp_utf8_len(c, 4); /* reads nothing behind the NUL */

    if ((len == 1 && (*u < 0x20 || *u == 0x7f)) || (len == 2 && u[0] == 0xc2 && u[1] < 0xa0))
        return 0; /* a control character */
    return len == 3 && u[0] == 0xef && u[1] == 0xbf && u[2] >= 0xbe ? 0 : (int)len;
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

void text_put_json(FILE *to, const char *text)
{
    putc('"', to);
    for (int n; *text; text += n ? n : 1) {
        n = text_character(text);
        if (!n || *text == '"' || *text == '\\' || *text == '<')
            fprintf(to, "\\u%04x", n ? (unsigned)*text : 0xfffdU);
        else
            fwrite(text, 1, (size_t)n, to);
    }
    putc('"', to);
}
