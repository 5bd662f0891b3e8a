/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "train/page.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const struct dp_page_kind kind = {TRAIN_PAGE_KIND};

/* Processes that were killed leave theirs behind. */
static void sweep(const char *directory)
{
    DIR *list = opendir(directory);

    for (struct dirent *e; list && (e = readdir(list));) {
        const int fd = dp_page_is_name(e->d_name, kind.suffix)
                           ? openat(dirfd(list), e->d_name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC)
                           : -1;
        if (fd < 0)
            continue;
        if (!dp_page_is_live(fd))
            unlinkat(dirfd(list), e->d_name, 0);
        close(fd);
    }
    if (list)
        closedir(list);
}

/* The directory must be this user's, and closed to all others. */
static int make_directory(const char *name)
{
    struct stat st;

    if ((mkdir(name, 0700) && errno != EEXIST) || lstat(name, &st))
        return errno;
    return S_ISDIR(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & 077) ? 0 : EPERM;
}

/* Locked and filled before it has the name of a page. */
static int make_file(struct page *p, const struct train_page *what)
{
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    char early[sizeof(p->path) + 4];
    struct timespec now;

    snprintf(early, sizeof(early), "%s.new", p->path);
    p->fd = open(early, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (p->fd < 0)
        return errno;
    int err = fcntl(p->fd, F_SETLK, &all) ? errno : posix_fallocate(p->fd, 0, sizeof(*p->at));
    void *at =
        err ? MAP_FAILED : mmap(NULL, sizeof(*p->at), PROT_READ | PROT_WRITE, MAP_SHARED, p->fd, 0);
    if (at != MAP_FAILED) {
        struct train_page *page = at;
        *page = *what;
        clock_gettime(CLOCK_REALTIME, &now);
        memcpy(page->head.magic, kind.magic, sizeof(page->head.magic));
        page->head.version = kind.version;
        page->head.bytes = kind.bytes;
        page->head.pid = getpid();
        page->head.opened_ns = now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
    }
    if (!err && (at == MAP_FAILED || rename(early, p->path)))
        err = errno;
    if (!err) {
        p->at = at;
        return 0;
    }
    if (at != MAP_FAILED)
        munmap(at, sizeof(*p->at));
    unlink(early);
    close(p->fd);
    return err;
}

void page_open(struct page *p, const char *directory, const struct train_page *what)
{
    char usual[64];
    uint32_t salt = 0;

    *p = (struct page){0};
    snprintf(usual, sizeof(usual), DP_PAGE_DIRECTORY "%ld", (long)geteuid());
    const char *name = directory ? directory : usual;
    int err = make_directory(name);
    if (getrandom(&salt, sizeof(salt), 0) < 0)
        salt = 0; /* the number of the process will do */
    if (snprintf(p->path, sizeof(p->path), "%s/%ld-%08x%s", name, (long)getpid(), salt,
                 kind.suffix) >= (int)sizeof(p->path) - 8)
        err = ENAMETOOLONG;
    if (!err) {
        sweep(name);
        err = make_file(p, what);
    }
    if (err && directory)
        fprintf(stderr,
                "dualpipe: warning: --stat-dir %s: %s; 'dualpipe stat' will not show rank %d\n",
                directory, err == EPERM ? "expected a directory of this user alone, of mode 700"
                                        : strerror(err),
                what->rank);
}

void page_step(struct page *p, const struct train_page_step *now)
{
    if (!p->at)
        return;
    dp_page_begin_change(&p->at->head);
    p->at->now = *now;
    dp_page_end_change(&p->at->head);
}

void page_close(struct page *p)
{
    if (!p->at)
        return;
    unlink(p->path);
    munmap(p->at, sizeof(*p->at));
    close(p->fd);
    *p = (struct page){0};
}
