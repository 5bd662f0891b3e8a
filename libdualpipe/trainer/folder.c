/* SPDX-License-Identifier: Apache-2.0
 *
 * folder.c - checkpoints in a folder: names, new ones, those that are not needed any more.
 */
#include "trainer/saved.h"

#include "base/fail.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int folder_of_step(const char *dir, uint64_t step, char out[static SAVED_PATH])
{
    if (snprintf(out, SAVED_PATH, "%s/step-%06" PRIu64, dir, step) < SAVED_PATH)
        return 0;
    return dp_fail(DP_EINVAL, "%.100s...: a path of %zu characters, expected less than %d", dir,
                   strlen(dir), SAVED_PATH - 40);
}

int folder_find(const char *path, char out[static SAVED_PATH])
{
    if (checkpoint_find(path, out))
        return 0;
    return dp_fail_quietly(
        DP_ENOENT, "%s: no checkpoint there; expected index.json, or step-N/index.json", path);
}

int folder_ready(const char *dir)
{
    char inside[SAVED_PATH];

    if ((!mkdir(dir, 0777) || errno == EEXIST) && checkpoint_join(inside, dir, ".") &&
        !access(inside, W_OK | X_OK))
        return 0;
    return dp_fail(DP_EIO, "checkpoint.folder: '%.200s': %s, expected a folder that can be written", dir,
                   strerror(errno));
}

/* The name of a new folder is on the disk when its parent is. */
int folder_make(const char *dir, const char *folder)
{
    int fd;

    if ((mkdir(dir, 0777) && errno != EEXIST) || (mkdir(folder, 0777) && errno != EEXIST))
        return dp_fail(DP_EIO, "%s: cannot be made: %s", folder, strerror(errno));
    fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return dp_fail(DP_EIO, "%s: cannot be opened: %s", dir, strerror(errno));
    fsync(fd);
    close(fd);
    return 0;
}

void folder_file(char *out, size_t room, int rank, int attempt)
{
    snprintf(out, room, "rank-%d.%d.safetensors", rank, attempt);
}

/* A checkpoint of the same step may be there already, and is the last one until the index of this one
 * takes its index's place: no file of it is touched. Every index names the file of rank 0. */
int folder_next_attempt(const char *folder)
{
    char name[64], path[SAVED_PATH];
    int attempt = 0;

    for (;; attempt++) {
        folder_file(name, sizeof(name), 0, attempt);
        if (!checkpoint_join(path, folder, name) || access(path, F_OK))
            return attempt;
    }
}

void folder_clean(const char *folder, int attempt, const int *wrote, int ranks)
{
    char path[SAVED_PATH];
    int rank, other, end;
    DIR *d = opendir(folder);

    if (!d)
        return;
    for (struct dirent *e; (e = readdir(d));) {
        end = 0;
        if (sscanf(e->d_name, "rank-%d.%d.safetensors%n", &rank, &other, &end) == 2 && end &&
            (other != attempt || rank < 0 || rank >= ranks || !wrote[rank] || e->d_name[end]) &&
            checkpoint_join(path, folder, e->d_name))
            unlink(path);
    }
    closedir(d);
}

/* The index first: what is left of one that is cut off here is no checkpoint. */
static void remove_checkpoint(const char *folder)
{
    char path[SAVED_PATH];

    if (checkpoint_join(path, folder, "index.json"))
        unlink(path);
    folder_clean(folder, -1, NULL, 0);
    rmdir(folder);
}

void folder_keep(const char *dir, uint64_t step, int32_t keep)
{
    char folder[SAVED_PATH], index[SAVED_PATH];

    for (int32_t kept = 1; checkpoint_newest(dir, step, &step, index); kept++)
        if (kept >= keep && !folder_of_step(dir, step, folder))
            remove_checkpoint(folder);
}
