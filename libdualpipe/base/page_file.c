/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h" /* GNU extensions: getrandom */

#include "base/page_file.h"

#include "base/clock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* The directory must be this user's, and closed to all others. -1: it cannot be used, for *why. */
static int open_directory(const char *name, const char **why)
{
    struct stat st;
    int fd = mkdir(name, 0700) && errno != EEXIST
                 ? -1
                 : open(name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    *why = fd < 0 && errno != ENOTDIR ? strerror(errno)
           : fd < 0 || fstat(fd, &st) || st.st_uid != geteuid() || st.st_mode & 077
               ? "expected a directory of this user alone, of mode 700"
               : NULL;
    if (!*why)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

static void sweep_entry(const struct dp_page_kind *kind, int dir, const char *name)
{
    int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

    if (fd < 0)
        return;
    if (dp_page_is_left(kind, fd))
        unlinkat(dir, name, 0);
    close(fd);
}

/* Processes that were killed leave their pages behind. Those that carry our own number are left
 * alone: one may be ours, of a copy of this library. */
static void sweep(const struct dp_page_kind *kind, int dir)
{
    char own[32];
    int copy = fcntl(dir, F_DUPFD_CLOEXEC, 0);
    DIR *list = copy < 0 ? NULL : fdopendir(copy);

    snprintf(own, sizeof(own), "%ld-", (long)getpid());
    for (struct dirent *e; list && (e = readdir(list));)
        if (dp_page_is_name(e->d_name, kind->suffix) && strncmp(e->d_name, own, strlen(own)) != 0)
            sweep_entry(kind, dir, e->d_name);
    if (list)
        closedir(list);
    else if (copy >= 0)
        close(copy);
}

/* The lock shows that the process lives; it is its own even after a fork. */
static int map_file(int fd, size_t bytes, void **out)
{
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int err = fcntl(fd, F_SETLK, &all) ? errno : posix_fallocate(fd, 0, (off_t)bytes);

    if (err)
        return err;
    *out = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return *out == MAP_FAILED ? errno : 0;
}

/* The command line of this process, without what a terminal would obey. */
static void read_command(char *out, size_t len)
{
    FILE *f = fopen("/proc/self/cmdline", "re");
    size_t got = f ? fread(out, 1, len - 1, f) : 0;

    if (f)
        fclose(f);
    for (size_t i = 0; i < got; i++)
        if ((unsigned char)out[i] < ' ' || out[i] == 127)
            out[i] = ' ';
    while (got && out[got - 1] == ' ')
        got--;
    out[got] = '\0';
}

static void fill_head(const struct dp_page_kind *kind, struct dp_page_head *head)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    memcpy(head->magic, kind->magic, sizeof(head->magic));
    memcpy(head + 1, kind->columns, kind->column_count * sizeof(*kind->columns));
    head->version = DP_PAGE_VERSION;
    head->bytes = kind->bytes;
    head->columns = kind->column_count;
    head->rows = kind->rows;
    head->row_bytes = kind->row_bytes;
    head->rows_at = kind->rows_at;
    head->pid = getpid();
    head->opened_ns = now.tv_sec * DP_NS_PER_S + now.tv_nsec;
    read_command(head->command, sizeof(head->command));
}

/* Map a new file, fill it, and only then let it be called like a page. It stays open, and its lock
 * with it. */
static int make_file(const struct dp_page_kind *kind, int dir, const char *name, void **out, int *opened)
{
    char early[72];
    void *at = MAP_FAILED;

    snprintf(early, sizeof(early), "%s.new", name);
    int fd = openat(dir, early, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return errno;
    int err = map_file(fd, kind->bytes, &at);
    if (!err) {
        fill_head(kind, at);
        err = renameat(dir, early, dir, name) ? errno : 0;
    }
    if (!err) {
        *out = at;
        *opened = fd;
        return 0;
    }
    if (at != MAP_FAILED)
        munmap(at, kind->bytes);
    unlinkat(dir, early, 0);
    close(fd);
    return err;
}

void *dp_page_new(const char *directory, const struct dp_page_kind *kind, char *path, size_t len,
                  int *fd)
{
    char name[64], usual[64];
    uint32_t salt = 0;
    void *page = NULL;
    int opened;

    if (!directory || !*directory) {
        snprintf(usual, sizeof(usual), DP_PAGE_DIRECTORY "%ld", (long)geteuid());
        directory = usual;
    }
    const char *why;
    const int dir = open_directory(directory, &why);
    if (dir < 0) {
        snprintf(path, len, "%s: %s", directory, why);
        return NULL;
    }
    sweep(kind, dir);
    if (getrandom(&salt, sizeof(salt), 0) < 0)
        salt = 0; /* the number of the process will do */
    snprintf(name, sizeof(name), "%ld-%08x%s", (long)getpid(), salt, kind->suffix);
    int err = make_file(kind, dir, name, &page, fd ? fd : &opened);
    if (err)
        snprintf(path, len, "%s: cannot make a page: %s", directory, strerror(err));
    else
        snprintf(path, len, "%s/%s", directory, name);
    close(dir);
    return page;
}
