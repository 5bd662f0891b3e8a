/* SPDX-License-Identifier: Apache-2.0 */
#include "input.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_ROOM = 4096 };
static const char byte_order_mark[] = "\xef\xbb\xbf";

/* Doubled each time; freed where that fails. */
static char *grow(char *text, size_t room)
{
    char *more = realloc(text, room + 1);

    if (!more) {
        free(text);
        errno = ENOMEM;
    }
    return more;
}

static char *read_all(FILE *file, size_t most, size_t *len)
{
    size_t room = FIRST_ROOM, used = 0, got;
    char *text = grow(NULL, room);

    while (text && used <= most && (got = fread(text + used, 1, room - used, file))) {
        used += got;
        if (used == room)
            text = grow(text, room *= 2);
    }
    if (!text)
        return NULL;
    if (!ferror(file) && used > most)
        errno = EFBIG;
    if (ferror(file) || used > most) {
        free(text);
        return NULL;
    }
    if (used >= 3 && !memcmp(text, byte_order_mark, 3))
        memmove(text, text + 3, used -= 3);
    text[used] = '\0';
    *len = used;
    return text;
}

char *input_read(const char *path, size_t most, size_t *len)
{
    if (!strcmp(path, "-"))
        return read_all(stdin, most, len);
    FILE *file = fopen(path, "re");
    if (!file)
        return NULL;
    char *text = read_all(file, most, len);
    int err = errno;
    fclose(file);
    errno = err;
    return text;
}

const char *input_error(int error)
{
    return error == EFBIG ? "more than 256 MiB, expected a file of less" : strerror(error);
}
