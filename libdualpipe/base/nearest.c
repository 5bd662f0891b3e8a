/* SPDX-License-Identifier: Apache-2.0 */
#include "base/nearest.h"

#include <string.h>

enum { LONGEST = 63 };

static unsigned min3(unsigned a, unsigned b, unsigned c)
{
    unsigned m = a < b ? a : b;
    return m < c ? m : c;
}

/* Levenshtein's distance, one row at a time; longer names are compared by their beginnings. */
static unsigned edit_distance(const char *a, const char *b)
{
    unsigned row[LONGEST + 1];
    size_t na = strnlen(a, LONGEST), nb = strnlen(b, LONGEST);

    for (size_t j = 0; j <= nb; j++)
        row[j] = (unsigned)j;
    for (size_t i = 1; i <= na; i++) {
        unsigned diagonal = row[0];
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= nb; j++) {
            unsigned above = row[j];
            row[j] = min3(above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1]));
            diagonal = above;
        }
    }
    return row[nb];
}

const char *dp_nearest(const char *name, const char *const *names, size_t count)
{
    unsigned limit = (unsigned)strlen(name) / 3, best = (limit < 2 ? 2 : limit) + 1;
    const char *found = NULL;

    for (size_t i = 0; i < count; i++) {
        unsigned distance = edit_distance(name, names[i]);
        if (distance < best) {
            best = distance;
            found = names[i];
        }
    }
    return found;
}
