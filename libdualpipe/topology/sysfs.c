/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h" /* scandir, versionsort */

#include "topology/sysfs.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

DP_PRINTF(3, 0) static bool read_line(const char *root, char line[DP_SYSFS_LINE], const char *fmt,
                                      va_list args)
{
    char path[PATH_MAX];
    int len = snprintf(path, sizeof(path), "%s", root);

    line[0] = '\0';
    if (len < 0 || len >= (int)sizeof(path))
        return false;
    vsnprintf(path + len, sizeof(path) - (size_t)len, fmt, args);
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    bool found = fgets(line, DP_SYSFS_LINE, f);
    if (!found)
        line[0] = '\0';
    line[strcspn(line, "\n")] = '\0';
    fclose(f);
    return found;
}

bool dp_sysfs_line(const char *root, char line[DP_SYSFS_LINE], const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    bool found = read_line(root, line, fmt, args);
    va_end(args);
    return found;
}

int64_t dp_sysfs_number(const char *root, int64_t otherwise, const char *fmt, ...)
{
    char line[DP_SYSFS_LINE], *end;
    va_list args;

    va_start(args, fmt);
    bool found = read_line(root, line, fmt, args);
    va_end(args);
    long long number = strtoll(line, &end, 0);
    return found && end != line ? number : otherwise;
}

static int is_shown(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

struct dp_sysfs_names dp_sysfs_list(const char *root, const char *fmt, ...)
{
    struct dp_sysfs_names out = {-1, NULL};
    struct dirent **entries;
    char path[PATH_MAX];
    va_list args;
    int len = snprintf(path, sizeof(path), "%s", root);

    if (len < 0 || len >= (int)sizeof(path))
        return out;
    va_start(args, fmt);
    vsnprintf(path + len, sizeof(path) - (size_t)len, fmt, args);
    va_end(args);
    int count = scandir(path, &entries, is_shown, versionsort);
    if (count < 0)
        return out;
    out.names = calloc((size_t)count + 1, sizeof(*out.names));
    out.count = 0;
    for (int i = 0; i < count; i++) {
        char *name = out.names ? strdup(entries[i]->d_name) : NULL;
        if (name)
            out.names[out.count++] = name;
        free(entries[i]);
    }
    free(entries);
    return out;
}

void dp_sysfs_names_fini(struct dp_sysfs_names *n)
{
    for (int i = 0; i < n->count; i++)
        free(n->names[i]);
    free(n->names);
    *n = (struct dp_sysfs_names){0};
}
