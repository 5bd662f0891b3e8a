/* SPDX-License-Identifier: Apache-2.0
 *
 * lines.h - files of text, a row a line, as plugins in other people's processes read them: "#" begins a
 * comment, blanks around a line and empty lines count for nothing.
 *
 *      struct dp_lines l;
 *      char *line;
 *      int err = dp_lines_begin(&l, text, len, name, "dualpipe tune fit --convert");
 *      if (!err)
 *          err = dp_lines_next(&l, &line);
 *      ... line, of which name:l.number is the place, until it is NULL
 */
#ifndef DP_BASE_LINES_H
#define DP_BASE_LINES_H

#include <dualpipe/dualpipe.h>

enum { DP_LINE_MAX_LEN = 4095 };

struct dp_lines {
    const char *name; /* for messages */
    const char *at, *end;
    int number; /* of the line, from 1 on */
    char text[DP_LINE_MAX_LEN + 1];
};

/* Older releases wrote JSON in such places, which is refused with the command that converts it.
 * DP_EINVAL for that, and for text that is not UTF-8. The text and the name stay the caller's. */
int dp_lines_begin(struct dp_lines *l, const char *text, size_t len, const char *name,
                   const char *converter);
/* The next line that says something, until the next call; NULL behind the last one. DP_EINVAL for
 * one that is too long or has a NUL. */
int dp_lines_next(struct dp_lines *l, char **line);

/* The text of [from, end) without the blanks around it; *end becomes the NUL. */
char *dp_trim(char *from, char *end);

#endif
