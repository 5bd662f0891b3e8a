/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/piece.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

int64_t piece_elements(int32_t ndim, const int64_t *shape)
{
    int64_t n = 1;

    for (int32_t i = 0; i < ndim; i++)
        n *= shape[i];
    return n;
}

struct piece piece_of(const char *name, int64_t elements)
{
    const char *bracket = strchr(name, '['), *slash = strrchr(name, '/');
    struct piece p = {slash ? slash : "", (int)strlen(name), 0, elements};

    if (slash)
        p.name_len = (int)(slash - name);
    if (bracket && bracket - name < p.name_len &&
        sscanf(bracket, "[%" SCNd64 ":%" SCNd64 "]", &p.first, &p.end) == 2)
        p.name_len = (int)(bracket - name);
    return p;
}

bool piece_same(const char *a, const struct piece *p, const char *b, const struct piece *q)
{
    return p->name_len == q->name_len && !strncmp(a, b, (size_t)p->name_len) &&
           !strcmp(p->suffix, q->suffix);
}
