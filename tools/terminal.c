/* SPDX-License-Identifier: Apache-2.0 */
#include "terminal.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

int terminal_columns(FILE *to)
{
    struct winsize size;

    const char *columns = getenv("COLUMNS");
    if (columns && atoi(columns) > 0)
        return atoi(columns);
    if (!isatty(fileno(to)))
        return 0;
    return ioctl(fileno(to), TIOCGWINSZ, &size) || !size.ws_col ? 80 : size.ws_col;
}

bool terminal_colour(FILE *to)
{
    const char *no_colour = getenv("NO_COLOR"), *term = getenv("TERM");

    return isatty(fileno(to)) && !(no_colour && *no_colour) && !(term && !strcmp(term, "dumb"));
}

/* ---- folding -------------------------------------------------------------------------------- */

static int other_columns = INT_MAX;

void fold_at(int columns)
{
    other_columns = columns;
}

int fold_columns(FILE *to, int indent)
{
    const int columns = terminal_columns(to);

    if (!columns)
        return other_columns;
    return columns < indent + 20 ? indent + 20 : columns;
}

/* Where a line of at most `room` characters ends: before a space or behind a |, or in a word that
 * is longer. */
static size_t line_length(const char *text, size_t room)
{
    size_t len = strlen(text), end = room;

    if (len <= room)
        return len;
    while (end > 0 && text[end] != ' ' && text[end - 1] != '|')
        end--;
    while (end > 0 && text[end - 1] == ' ')
        end--;
    return end > 0 ? end : strcspn(text, " ");
}

void fold_line(FILE *to, const char *text, int used, int indent)
{
    const int columns = fold_columns(to, indent);
    size_t len = line_length(text, (size_t)(columns > used ? columns - used : 1));

    fprintf(to, "%.*s\n", (int)len, text);
    for (text += len; *text; text += len) {
        text += strspn(text, " ");
        len = line_length(text, (size_t)(columns - indent));
        if (len)
            fprintf(to, "%*s%.*s\n", indent, "", (int)len, text);
    }
}

void fold_paragraph(FILE *to, const char *text)
{
    char joined[4096];

    if (!terminal_columns(to)) {
        fprintf(to, "%s\n", text);
        return;
    }
    snprintf(joined, sizeof(joined), "%s", text);
    for (char *end = joined; (end = strchr(end, '\n'));)
        *end = ' ';
    fold_line(to, joined, 0, 0);
}
