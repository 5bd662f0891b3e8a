/* SPDX-License-Identifier: Apache-2.0 */
#include "train/lines.h"

#include "draw/draw.h"

#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* At least wide enough for a word; without a limit as wide as it takes. */
static int columns_of(int indent)
{
    const int columns = draw_terminal_columns(stdout);

    if (!columns)
        return INT_MAX;
    return columns < indent + 20 ? indent + 20 : columns;
}

/* Where a line of at most `room` characters ends: before a space, or in a word that is longer. */
static size_t line_length(const char *text, size_t room)
{
    size_t len = strlen(text), end = room;

    if (len <= room)
        return len;
    while (end > 0 && text[end] != ' ')
        end--;
    while (end > 0 && text[end - 1] == ' ')
        end--;
    return end > 0 ? end : strcspn(text, " ");
}

void put_line(const char *format, ...)
{
    const int columns = columns_of(LINE_INDENT);
    char buffer[1024], *text = buffer;
    va_list args;

    va_start(args, format);
    vsnprintf(buffer, sizeof(buffer), format, args);
    va_end(args);
    buffer[strcspn(buffer, "\n")] = '\0';
    size_t len = line_length(text, (size_t)columns);
    printf("%.*s\n", (int)len, text);
    for (text += len; *text; text += len) {
        text += strspn(text, " ");
        len = line_length(text, (size_t)(columns - LINE_INDENT));
        if (len)
            printf("%*s%.*s\n", LINE_INDENT, "", (int)len, text);
    }
}

void print_in_place(const char *text)
{
    /* A terminal goes on to the next line behind its last column. */
    printf("\r\033[K%.*s", columns_of(0) - 1, text);
}

void print_bytes(const uint8_t *text, size_t len, int indent)
{
    const int columns = indent ? columns_of(indent) : INT_MAX;
    int used = indent;

    for (size_t i = 0; i < len; i++) {
        const bool plain = text[i] >= ' ' && text[i] < 0x7F;
        if (text[i] == '\n' || used >= columns)
            used = printf("\n%*s", indent, "") - 1;
        if (text[i] == '\n')
            continue;
        putchar(plain ? text[i] : '.');
        used++;
    }
}
