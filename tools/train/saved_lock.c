/* SPDX-License-Identifier: Apache-2.0 */
#include "train/saved_lock.h"

#include "checkpoint/find.h"
#include "command.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { TRIES = 300, TRY_MS = 10 }; /* a job that was killed may still be ending */

static bool is_locked(int fd)
{
    int tries = 0;

    while (flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        if (++tries == TRIES)
            return true;
        else
            nanosleep(&(struct timespec){.tv_nsec = TRY_MS * 1000000L}, NULL);
    return false;
}

/* For the one that comes second: "process 1234 on HOST". */
static void sign(int fd)
{
    char host[HOST_NAME_MAX + 1] = "";

    gethostname(host, HOST_NAME_MAX);
    if (!ftruncate(fd, 0))
        dprintf(fd, "process %ld on %s", (long)getpid(), host);
}

bool saved_lock(const char *dir)
{
    char path[CHECKPOINT_PATH], other[HOST_NAME_MAX + 64] = "";

    mkdir(dir, 0777); /* if it fails, so does open */
    if (snprintf(path, sizeof(path), "%s/.lock", dir) >= (int)sizeof(path))
        return command_misused("--save %s: %s", dir, strerror(ENAMETOOLONG)), false;
    int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    if (fd < 0)
        return command_misused("--save %s: cannot open .lock: %s", dir, strerror(errno)), false;
    if (!is_locked(fd)) {
        sign(fd);
        return true;
    }
    if (read(fd, other, sizeof(other) - 1) < 1)
        snprintf(other, sizeof(other), "a process");
    command_misused("--save %s: another job saves there, %s; expected a folder that no other job "
                    "saves to",
                    dir, other);
    close(fd);
    return false;
}
