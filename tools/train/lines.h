/* SPDX-License-Identifier: Apache-2.0
 *
 * lines.h - lines for people, no wider than the terminal or COLUMNS says.
 */
#ifndef DP_TRAIN_LINES_H
#define DP_TRAIN_LINES_H

#include <stddef.h>
#include <stdint.h>

/* What stands before a line: its subject. Lines that are folded go on below the rest. */
enum { LINE_INDENT = 10 };

/* Print text that ends with a newline to standard output, folded between words. */
void put_line(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Print a line that the next one overwrites, cut off where it would not fit. */
void print_in_place(const char *text);
/* Print bytes that a model has made. What a terminal would not print as text appears as a dot. indent:
 * spaces before all lines but the first, which are folded; 0: lines are as the model made them. */
void print_bytes(const uint8_t *text, size_t len, int indent);

#endif
