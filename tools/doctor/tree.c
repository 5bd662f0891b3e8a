/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "doctor/doctor.h"
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

__attribute__((format(printf, 3, 0)))
static void place(const struct tree *tree, struct tree_path *full, const char *path, va_list args)
{
    size_t root = (size_t)snprintf(full->text, sizeof(full->text), "%s", tree->root);

    if (root < sizeof(full->text))
        vsnprintf(full->text + root, sizeof(full->text) - root, path, args);
}

#define PLACE(full) \
    struct tree_path full; \
    va_list args; \
    va_start(args, path); \
    place(tree, &full, path, args); \
    va_end(args)

char *tree_read(const struct tree *tree, size_t *len, const char *path, ...)
{
    PLACE(full);
    return input_read(full.text, INPUT_MOST, len);
}

const char *tree_map(const struct tree *tree, size_t *len, const char *path, ...)
{
    struct stat st;
    void *bytes = MAP_FAILED;

    PLACE(full);
    int fd = open(full.text, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    if (!fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_size > 0)
        bytes = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (bytes == MAP_FAILED)
        return NULL;
    *len = (size_t)st.st_size;
    return bytes;
}

void tree_unmap(const char *bytes, size_t len)
{
    if (bytes)
        munmap((void *)(uintptr_t)bytes, len);
}

static bool line_of(const struct tree_path *full, char line[static 256])
{
    size_t len;
    char *bytes = input_read(full->text, INPUT_MOST, &len);

    if (!bytes)
        return false;
    snprintf(line, 256, "%.*s", (int)strcspn(bytes, "\n"), bytes);
    for (len = strlen(line); len && strchr(" \t\r", line[len - 1]); len--)
        line[len - 1] = 0;
    free(bytes);
    return true;
}

bool tree_line(const struct tree *tree, char line[static 256], const char *path, ...)
{
    PLACE(full);
    return line_of(&full, line);
}

bool tree_number(const struct tree *tree, double *number, const char *path, ...)
{
    char line[256], *end;

    PLACE(full);
    if (!line_of(&full, line))
        return false;
    double value = strtod(line, &end);
    if (end == line)
        return false;
    *number = value;
    return true;
}

bool tree_has(const struct tree *tree, const char *path, ...)
{
    PLACE(full);
    return !access(full.text, F_OK);
}

bool tree_real(const struct tree *tree, struct tree_path *real, const char *path, ...)
{
    char root[PATH_MAX] = "", found[PATH_MAX];

    PLACE(full);
    if (*tree->root && !realpath(tree->root, root))
        return false;
    size_t skip = strcmp(root, "/") ? strlen(root) : 0;
    if (!realpath(full.text, found) || strncmp(found, root, skip))
        return false;
    return (size_t)snprintf(real->text, sizeof(real->text), "%s", found + skip) <
           sizeof(real->text);
}

struct tree_list tree_glob(const struct tree *tree, const char *path, ...)
{
    size_t root = strlen(tree->root);
    struct tree_list list = {0};
    glob_t matches;

    PLACE(full);
    if (glob(full.text, GLOB_BRACE, NULL, &matches))
        return list;
    list.paths = calloc(matches.gl_pathc, sizeof(*list.paths));
    for (size_t i = 0; list.paths && i < matches.gl_pathc; i++)
        if ((list.paths[list.count] = strdup(matches.gl_pathv[i] + root)))
            list.count++;
    globfree(&matches);
    return list;
}

void tree_list_free(struct tree_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->paths[i]);
    free(list->paths);
    *list = (struct tree_list){0};
}

const char *tree_base(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}
