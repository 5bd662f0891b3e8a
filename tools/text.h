/* SPDX-License-Identifier: Apache-2.0
 *
 * text.h - text that came from outside, for files whose readers are strict about it.
 */
#ifndef DP_TOOLS_TEXT_H
#define DP_TOOLS_TEXT_H

#include <stdio.h>

/* The bytes of the character at c, which ends with a NUL. 0: it is none that XML, JSON and terminals
 * take: a control character, not UTF-8, or no character of Unicode. */
int text_character(const char *c);

/* Text or the value of an attribute in XML: at most so many characters, -1: all. U+FFFD stands for what
 * is no character. */
void text_put_xml(FILE *to, const char *text, int most);

/* A JSON string, quotes included, that may stand in a script; U+FFFD as above. */
void text_put_json(FILE *to, const char *text);

#endif
