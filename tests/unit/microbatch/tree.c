/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h" /* nftw */

#include "tree.h"

#include "cmocka_all.h"
#include "scratch.h"

#include <ftw.h>
#include <limits.h>
#include <sys/stat.h>

static void make_parents(char *path)
{
    for (char *slash = path; (slash = strchr(slash + 1, '/'));) {
        *slash = '\0';
        mkdir(path, 0777);
        *slash = '/';
    }
}

static void append(const char *path, const char *mode, const char *line)
{
    FILE *f = fopen(path, mode);

    assert_non_null(f);
    fprintf(f, "%s\n", line);
    assert_int_equal(fclose(f), 0);
}

/* "= FILE LINE", "+ LINE" for the file before, "-> LINK TARGET". */
static void put(const char *root, char *line, char path[PATH_MAX])
{
    bool is_link = line[0] == '-';
    char *name = line + (is_link ? 3 : 2), *rest = strchr(name, ' ');

    if (line[0] == '+') {
        append(path, "ae", line + 2);
        return;
    }
    assert_non_null(rest);
    *rest++ = '\0';
    snprintf(path, PATH_MAX, "%s/%s", root, name);
    make_parents(path);
    if (is_link)
        assert_int_equal(symlink(rest, path), 0);
    else
        append(path, "we", rest);
}

char *tree_unpack(const char *name)
{
    char path[PATH_MAX], line[PATH_MAX], *root = malloc(SCRATCH_LEN);

    assert_true(root && scratch_directory(root, "tree"));
    snprintf(path, sizeof(path), "%s/topology/%s.tree", getenv("DP_TEST_DATA"), name);
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    while (fgets(line, sizeof(line), f)) {
        line[strcspn(line, "\n")] = '\0';
        if (*line && *line != '#')
            put(root, line, path);
    }
    fclose(f);
    return root;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *where)
{
    return remove(path);
}

void tree_remove(char *root)
{
    nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(root);
}
