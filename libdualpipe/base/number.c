/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h" /* strtod_l */

#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>

/* glibc has this one in itself: it costs no memory, and cannot fail. */
static locale_t with_point(void)
{
    return newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

double dp_strtod(const char *text, char **end)
{
    return strtod_l(text, end, with_point());
}

locale_t dp_point_begin(void)
{
    return uselocale(with_point());
}

void dp_point_end(locale_t before)
{
    uselocale(before);
}

int dp_vsnprintf(char *out, size_t room, const char *fmt, va_list args)
{
    locale_t before = dp_point_begin();
    int len = vsnprintf(out, room, fmt, args);

    dp_point_end(before);
    return len;
}

int dp_snprintf(char *out, size_t room, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    int len = dp_vsnprintf(out, room, fmt, args);
    va_end(args);
    return len;
}
