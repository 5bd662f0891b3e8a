/* SPDX-License-Identifier: Apache-2.0 */
#include "train/lines.h"

#include "terminal.h"

#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

void put_line(const char *format, ...)
{
    char text[1024];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    text[strcspn(text, "\n")] = '\0';
    fold_line(stdout, text, 0, LINE_INDENT);
}

void print_in_place(const char *text)
{
    /* A terminal goes on to the next line behind its last column. */
    printf("\r\033[K%.*s", fold_columns(stdout, 0) - 1, text);
}

void print_bytes(const uint8_t *text, size_t len, int indent)
{
    const int columns = indent ? fold_columns(stdout, indent) : INT_MAX;
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
