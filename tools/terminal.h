/* SPDX-License-Identifier: Apache-2.0
 *
 * terminal.h - how wide a terminal is, and text folded between words to that width.
 */
#ifndef DP_TOOLS_TERMINAL_H
#define DP_TOOLS_TERMINAL_H

#include <stdbool.h>
#include <stdio.h>

/* COLUMNS, otherwise the columns of `to`; 0: it is no terminal. */
int terminal_columns(FILE *to);

/* Whether to use colours there: a terminal, and NO_COLOR is not set. */
bool terminal_colour(FILE *to);

/* Columns of a line of `to` that begins with `indent` spaces: at least wide enough for a
 * word behind them; INT_MAX where nothing limits it. */
int fold_columns(FILE *to, int indent);

/* From now on what is no terminal limits lines, too. */
enum { HELP_COLUMNS = 100 };
void fold_at(int columns);

/* Print a line and its end. `used` columns of its first line are taken already; the lines below begin
 * with `indent` spaces. */
void fold_line(FILE *to, const char *text, int used, int indent);

/* Print text with the breaks of its author as it is where there is no terminal, otherwise as one
 * paragraph that is folded anew. */
void fold_paragraph(FILE *to, const char *text);

#endif
