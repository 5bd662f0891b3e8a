/* SPDX-License-Identifier: Apache-2.0
 *
 * number.h - numbers as files have them, with a decimal point. We live in other people's processes,
 * which may have called setlocale: where a comma is the custom, strtod reads 1 out of "1.5" and printf
 * writes "1,5". These do not look at the locale (tests/checks/numbers.sh keeps others out).
 */
#ifndef DP_BASE_NUMBER_H
#define DP_BASE_NUMBER_H

#include <dualpipe/dualpipe.h>

#include <locale.h>
#include <stdarg.h>

/* As strtod, snprintf and vsnprintf. */
double dp_strtod(const char *text, char **end);
int dp_snprintf(char *out, size_t room, const char *fmt, ...) DP_PRINTF(3, 4);
int dp_vsnprintf(char *out, size_t room, const char *fmt, va_list args) DP_PRINTF(3, 0);

/* Between the two, this thread is in the C locale, for letters too: around other libraries. */
locale_t dp_point_begin(void);
void dp_point_end(locale_t before);

#endif
