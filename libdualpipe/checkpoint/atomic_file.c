/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/state.h"

#include "base/fail.h"
#include "base/hmac.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int failed(const struct dp_atomic_file *f, const char *what)
{
    int error = errno;

    return dp_fail(error == ENOENT || error == ENOTDIR ? DP_ENOENT : DP_EIO,
                   "checkpoint '%s': cannot %s: %s", f->path, what, dp_errno_text(error));
}

/* A device, a pipe: nothing can be renamed over it. */
static bool is_special(const char *path)
{
    struct stat st;

    return !stat(path, &st) && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode);
}

enum { SUFFIX = sizeof(".0123456789abcdef.partial") - 1 };

/* What earlier writers left of this name, which has one at a time. */
static void sweep(const char *target)
{
    const char *slash = strrchr(target, '/'), *name = slash ? slash + 1 : target;
    char *folder = slash ? strndup(target, (size_t)(name - target)) : strdup(".");
    DIR *dir = folder ? opendir(folder) : NULL;
    const size_t len = strlen(name);

    for (const struct dirent *e; dir && (e = readdir(dir));)
        if (!strncmp(e->d_name, name, len) && strlen(e->d_name) == len + SUFFIX &&
            !strcmp(e->d_name + len + SUFFIX - strlen(".partial"), ".partial"))
            unlinkat(dirfd(dir), e->d_name, 0);
    if (dir)
        closedir(dir);
    free(folder);
}

static int create(struct dp_atomic_file *f)
{
    const size_t room = strlen(f->target) + SUFFIX + 1;
    uint64_t random;
    const int err = dp_random_bytes(&random, sizeof(random));

    if (err)
        return err;
    f->partial = malloc(room);
    if (!f->partial)
        return dp_fail(DP_ENOMEM, "checkpoint '%s': no memory", f->path);
    snprintf(f->partial, room, "%s.%016" PRIx64 ".partial", f->target, random);
    f->fd = open(f->partial, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    return f->fd < 0 ? failed(f, "create it") : 0;
}

int dp_atomic_begin(struct dp_atomic_file *f, const char *path)
{
    *f = (struct dp_atomic_file){.path = path, .target = realpath(path, NULL), .fd = -1};
    if (!f->target)
        f->target = strdup(path); /* it is not there yet */
    if (!f->target)
        return dp_fail(DP_ENOMEM, "checkpoint '%s': no memory", path);
    if (!is_special(path)) {
        sweep(f->target);
        return create(f);
    }
    f->fd = open(path, O_WRONLY | O_CLOEXEC);
    return f->fd < 0 ? failed(f, "create it") : 0;
}

int dp_atomic_write(struct dp_atomic_file *f, const void *data, size_t len)
{
    const char *p = data;

    while (len) {
        ssize_t n = write(f->fd, p, len < (1u << 30) ? len : 1u << 30);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return failed(f, "write it");
        p += n;
        len -= (size_t)n;
    }
    return 0;
}

/* The name is in the directory, which is written by itself. */
static int sync_directory(const struct dp_atomic_file *f)
{
    char *dir = f->partial, *slash;
    int fd, err = 0;

    slash = strrchr(dir, '/');
    if (slash)
        slash[slash == dir] = '\0';
    fd = open(slash ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return failed(f, "open its directory");
    if (fsync(fd) && errno != EINVAL) /* a file system that cannot, and need not */
        err = failed(f, "sync its directory");
    close(fd);
    return err;
}

/* Its new name, or the end of it. */
static int name_it(struct dp_atomic_file *f, int err)
{
    if (!err && rename(f->partial, f->target))
        err = failed(f, "name it");
    if (!err)
        return sync_directory(f);
    unlink(f->partial);
    return err;
}

int dp_atomic_end(struct dp_atomic_file *f, int err)
{
    bool opened = f->fd >= 0;

    if (!err && fsync(f->fd) && f->partial)
        err = failed(f, "sync it");
    if (opened)
        close(f->fd);
    if (opened && f->partial)
        err = name_it(f, err);
    free(f->partial);
    free(f->target);
    return err;
}
