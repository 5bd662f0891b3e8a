/* SPDX-License-Identifier: Apache-2.0 */
#include "files.h"

#include "command.h"

#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static bool is_same_inode(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* The directory and the last part of a path that need not exist. */
static bool split(const char *path, struct stat *directory, char name[static 256])
{
    char copy[4096];

    if ((size_t)snprintf(copy, sizeof(copy), "%s", path) >= sizeof(copy))
        return false;
    if ((size_t)snprintf(name, 256, "%s", basename(copy)) >= 256)
        return false;
    snprintf(copy, sizeof(copy), "%s", path); /* basename may have changed it */
    return !stat(dirname(copy), directory);
}

/* Neither exists: both would be made. */
static bool will_be_same(const char *a, const char *b)
{
    struct stat directory_a, directory_b;
    char name_a[256], name_b[256];

    return split(a, &directory_a, name_a) && split(b, &directory_b, name_b) &&
           is_same_inode(&directory_a, &directory_b) && !strcmp(name_a, name_b);
}

static bool is_same_file(const char *a, const char *b)
{
    struct stat there_a, there_b;
    const bool has_a = !stat(a, &there_a), has_b = !stat(b, &there_b);

    if (has_a && has_b)
        return S_ISREG(there_a.st_mode) && is_same_inode(&there_a, &there_b);
    return !has_a && !has_b && will_be_same(a, b);
}

static bool is_standard(const struct file_use *use)
{
    return !strcmp(use->path, "-");
}

/* A file that is read twice does no harm. */
static bool collide(const struct file_use *a, const struct file_use *b)
{
    if (!a->written && !b->written)
        return false;
    if (is_standard(a) || is_standard(b))
        return is_standard(a) && is_standard(b) && a->written && b->written;
    return is_same_file(a->path, b->path);
}

static bool refuse(const struct file_use *out, const struct file_use *other)
{
    command_misused("%s %s: is also %s%s%s; expected a file of its own", out->option, out->path,
                    other->written ? "what " : "an input",
                    other->written ? other->option : *other->option ? ", " : "",
                    other->written ? " writes" : other->option);
    return false;
}

bool files_are_apart(const struct file_use *uses, size_t count)
{
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < i; k++)
            if (collide(&uses[i], &uses[k]))
                return uses[i].written ? refuse(&uses[i], &uses[k]) : refuse(&uses[k], &uses[i]);
    return true;
}
