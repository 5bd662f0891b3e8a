/* SPDX-License-Identifier: Apache-2.0
 *
 * text.h - text: strings that grow, UTF-8, numbers and lines of files, reports of several processes.
 *
 * Of a string zeroed memory is an empty one. A failed allocation is remembered, so that a writer appends
 * without looking and asks once, at the end.
 *
 *      struct dp_text t = {0};
 *      dp_text_addf(&t, "%d ranks", n);
 *      return dp_text_take(&t, out, len);
 */
#ifndef DP_BASE_TEXT_H
#define DP_BASE_TEXT_H

#include "base/utf8.h"

#include <dualpipe/dualpipe.h>
#include <dualpipe/options.h>

#include <locale.h>
#include <stdarg.h>
#include <stddef.h>

struct dp_text {
    char *data; /* NUL-terminated once anything was added */
    size_t len, capacity;
    bool failed;
};

void dp_text_add(struct dp_text *t, const char *s, size_t len);
void dp_text_adds(struct dp_text *t, const char *s);
void dp_text_addf(struct dp_text *t, const char *fmt, ...) DP_PRINTF(2, 3);
/* With as few digits as give it back, and a point in every locale. */
void dp_text_add_number(struct dp_text *t, double number);
/* Hand the malloc'ed string to *out (never NULL on success) and its length, if wanted, to *len; t is
 * empty again. DP_ENOMEM if any addition failed. */
int dp_text_take(struct dp_text *t, char **out, size_t *len);
/* Add all of a file, at most `most` bytes of it; expected: what it should be, for the sentence that
 * says that it is longer. DP_ENOENT, DP_EIO, DP_EINVAL, DP_ENOMEM. */
int dp_text_add_file(struct dp_text *t, const char *path, size_t most, const char *expected);
/* A number for what has been added. DP_ENOMEM if any addition failed. */
int dp_text_hash(const struct dp_text *t, uint64_t *hash);
void dp_text_fini(struct dp_text *t);

/* ---- utf8 ------------------------------------------------------------------------------------ */

/* What every reader of a text format does first: skip a byte order mark, and refuse bytes
 * that are not UTF-8. What was read can then be written as JSON. */

/* Move *text and *len behind a byte order mark. DP_EINVAL, with line and column of the first byte that
 * is not UTF-8; name, which may be NULL, begins that sentence. */
int dp_utf8_begin(const char **text, size_t *len, const char *name);

/* ---- number ---------------------------------------------------------------------------------- */

/* Numbers as files have them, with a decimal point. We live in other people's processes,
 * which may have called setlocale: where a comma is the custom, strtod reads 1 out of "1.5" and printf
 * writes "1,5". These do not look at the locale (tests/checks/numbers.sh keeps others out). */

/* As strtod, snprintf and vsnprintf. */
double dp_strtod(const char *text, char **end);
int dp_snprintf(char *out, size_t room, const char *fmt, ...) DP_PRINTF(3, 4);
int dp_vsnprintf(char *out, size_t room, const char *fmt, va_list args) DP_PRINTF(3, 0);

/* Between the two, this thread is in the C locale, for letters too: around other libraries. */
locale_t dp_point_begin(void);
void dp_point_end(locale_t before);

/* ---- lines ----------------------------------------------------------------------------------- */

/* Files of text, a row a line, as plugins in other people's processes read them: "#" begins a
 * comment, blanks around a line and empty lines count for nothing.
 *
 *      struct dp_lines l;
 *      char *line;
 *      int err = dp_lines_begin(&l, text, len, name, "dualpipe tune fit --convert");
 *      if (!err)
 *          err = dp_lines_next(&l, &line);
 *      ... line, of which name:l.number is the place, until it is NULL */

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

/* ---- append ---------------------------------------------------------------------------------- */

/* Reports that several processes write to one file. */

/* Add text[len] to the file `path`, which is made if need be; "-" is standard error. It is one write to
 * a file opened for appending, so that the texts of several processes do not mix. What fails is warned
 * of, with the name of the option that asked for the file. */
void dp_append(const char *option, const char *path, const char *text, size_t len);

#endif
