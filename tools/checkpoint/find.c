/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/find.h"

#include "command.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool checkpoint_folder(const char *dir, uint64_t step, char out[static CHECKPOINT_PATH])
{
    return snprintf(out, CHECKPOINT_PATH, "%s/step-%06" PRIu64, dir, step) < CHECKPOINT_PATH;
}

static bool index_of(const char *folder, char out[static CHECKPOINT_PATH])
{
    return snprintf(out, CHECKPOINT_PATH, "%s/index.json", folder) < CHECKPOINT_PATH &&
           !access(out, F_OK);
}

/* The number of "step-000500"; false: another name. */
static bool step_of(const char *name, uint64_t *step)
{
    static const char prefix[] = "step-";
    char *end;

    if (strncmp(name, prefix, sizeof(prefix) - 1))
        return false;
    name += sizeof(prefix) - 1;
    if (strspn(name, "0123456789") != strlen(name) || !*name)
        return false;
    *step = strtoull(name, &end, 10);
    return true;
}

/* A folder without an index is one that was not finished, and is passed over. */
static bool newest(DIR *d, const char *dir, char out[static CHECKPOINT_PATH])
{
    char folder[CHECKPOINT_PATH], index[CHECKPOINT_PATH];
    uint64_t step, best = 0;
    bool found = false;

    for (struct dirent *e; (e = readdir(d));)
        if (step_of(e->d_name, &step) && (!found || step > best) &&
            snprintf(folder, sizeof(folder), "%s/%s", dir, e->d_name) < (int)sizeof(folder) &&
            index_of(folder, index)) {
            memcpy(out, index, CHECKPOINT_PATH);
            best = step;
            found = true;
        }
    return found;
}

int checkpoint_find(const char *option, const char *path, char out[static CHECKPOINT_PATH])
{
    struct stat st;

    if (stat(path, &st))
        return command_misused("%s%s: %s; expected a folder with checkpoints", option, path,
                               strerror(errno));
    if (!S_ISDIR(st.st_mode)) {
        if (snprintf(out, CHECKPOINT_PATH, "%s", path) < CHECKPOINT_PATH)
            return EXIT_OK;
        return command_misused("%s%s: %s", option, path, strerror(ENAMETOOLONG));
    }
    if (index_of(path, out))
        return EXIT_OK;
    DIR *d = opendir(path);
    if (!d)
        return command_misused("%s%s: %s", option, path, strerror(errno));
    const bool found = newest(d, path, out);
    closedir(d);
    if (found)
        return EXIT_OK;
    return command_misused("%s%s: no checkpoint there; expected index.json, or step-N/index.json",
                           option, path);
}
