/* SPDX-License-Identifier: Apache-2.0 */
#include "base/array.h"

#include <stdint.h>
#include <stdlib.h>

enum { FIRST_ROOM = 16 };

void *dp_array_grow(void *items, size_t *room, size_t count, size_t size)
{
    if (count <= *room && items)
        return items;
    size_t wanted = *room ? 2 * *room : FIRST_ROOM;
    if (wanted < count)
        wanted = count;
    void *larger = wanted <= SIZE_MAX / 2 / size ? realloc(items, wanted * size) : NULL;
    if (larger)
        *room = wanted;
    return larger;
}
