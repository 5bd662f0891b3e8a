/* SPDX-License-Identifier: Apache-2.0
 *
 * tree.h - the files of a machine: this one's, or a captured one's below a directory of its own.
 * Paths are those of that machine, absolute, as printf formats.
 */
#ifndef DP_TOOLS_DOCTOR_TREE_H
#define DP_TOOLS_DOCTOR_TREE_H

#include <stdbool.h>
#include <stddef.h>

struct tree {
    const char *root; /* "": this machine */
};

enum { TREE_PATH_LEN = 1024 };
struct tree_path {
    char text[TREE_PATH_LEN];
};

#define TREE_PRINTF(fmt) __attribute__((format(printf, fmt, fmt + 1)))

/* The whole file with a 0 behind it, to be freed, or NULL with errno set. */
char *tree_read(const struct tree *tree, size_t *len, const char *path, ...) TREE_PRINTF(3);

/* The same without a copy and without the 0, for large files; NULL also if it is empty. */
const char *tree_map(const struct tree *tree, size_t *len, const char *path, ...) TREE_PRINTF(3);
void tree_unmap(const char *bytes, size_t len);

/* Its first line without blanks at the end, or false if there is none. */
bool tree_line(const struct tree *tree, char line[static 256], const char *path, ...) TREE_PRINTF(3);

/* The number that it begins with, hexadecimal after 0x; false if there is none. */
bool tree_number(const struct tree *tree, double *number, const char *path, ...) TREE_PRINTF(3);

bool tree_has(const struct tree *tree, const char *path, ...) TREE_PRINTF(2);

/* Where it is once all links are followed, still as a path of that machine. */
bool tree_real(const struct tree *tree, struct tree_path *real, const char *path, ...)
    TREE_PRINTF(3);

/* The files that match a pattern of the shell's, {} too, in order; free them with tree_list_free. */
struct tree_list {
    size_t count;
    char **paths;
};
struct tree_list tree_glob(const struct tree *tree, const char *pattern, ...) TREE_PRINTF(2);
void tree_list_free(struct tree_list *list);

/* What comes after the last slash. */
const char *tree_base(const char *path);

#endif
