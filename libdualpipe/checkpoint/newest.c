/* SPDX-License-Identifier: Apache-2.0
 *
 * newest.c - the newest checkpoint below a folder.
 */
#include "checkpoint/newest.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool index_of(const char *folder, char out[static CHECKPOINT_PATH])
{
    return checkpoint_join(out, folder, "index.json") && !access(out, F_OK);
}

/* The number of "step-000500"; false: another name. */
static bool step_of(const char *name, uint64_t *step)
{
    static const char prefix[] = "step-";

    if (strncmp(name, prefix, sizeof(prefix) - 1))
        return false;
    name += sizeof(prefix) - 1;
    if (strspn(name, "0123456789") != strlen(name) || !*name)
        return false;
    *step = strtoull(name, NULL, 10);
    return true;
}

/* One without an index was not finished, and is passed over. */
bool checkpoint_newest(const char *dir, uint64_t below, uint64_t *best,
                       char index[static CHECKPOINT_PATH])
{
    char folder[CHECKPOINT_PATH], path[CHECKPOINT_PATH];
    bool found = false;
    uint64_t step;
    DIR *d = opendir(dir);

    if (!d)
        return false;
    for (struct dirent *e; (e = readdir(d));)
        if (step_of(e->d_name, &step) && step < below && (!found || step > *best) &&
            checkpoint_join(folder, dir, e->d_name) && index_of(folder, path)) {
            memcpy(index, path, CHECKPOINT_PATH);
            *best = step;
            found = true;
        }
    closedir(d);
    return found;
}

bool checkpoint_find(const char *path, char out[static CHECKPOINT_PATH])
{
    struct stat st;
    uint64_t step;

    if (!stat(path, &st) && !S_ISDIR(st.st_mode))
        return snprintf(out, CHECKPOINT_PATH, "%s", path) < CHECKPOINT_PATH;
    return index_of(path, out) || checkpoint_newest(path, UINT64_MAX, &step, out);
}
