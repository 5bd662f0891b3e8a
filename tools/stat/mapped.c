/* SPDX-License-Identifier: Apache-2.0
 *
 * mapped.c - the one reader of the directory of pages: whose a page is, whether its writer lives, and
 * whether it has the layout that this command knows.
 */
#include "config.h"

#include "stat/pages.h"

#include "command.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct look {
    struct stat_mapped *m;
    const struct dp_page_kind *kind;
    const char *directory;
    int fd; /* of the directory */
};

/* 0; -1: its process has ended; or why it cannot be read. */
static int check(const struct look *l, const char *file, int fd, char *why, size_t len)
{
    struct dp_page_head head;
    const ssize_t want = offsetof(struct dp_page_head, pid); /* the same in every version */
    struct stat st;

    if (fstat(fd, &st))
        snprintf(why, len, "cannot read %s/%s: %s", l->directory, file, strerror(errno));
    else if (st.st_uid != geteuid())
        snprintf(why, len, "%s/%s belongs to user %u: it is not read", l->directory, file,
                 (unsigned)st.st_uid);
    else if (pread(fd, &head, (size_t)want, 0) != want ||
             memcmp(head.magic, l->kind->magic, sizeof(head.magic)) != 0)
        snprintf(why, len, "%s/%s is no page of %s", l->directory, file, l->kind->name);
    else if (!dp_page_is_live(fd))
        return -1;
    else if (head.version != l->kind->version)
        snprintf(why, len,
                 "%s/%s has layout %u, expected %u: another version of dualpipe writes it",
                 l->directory, file, head.version, l->kind->version);
    else if (head.bytes != l->kind->bytes || st.st_size != (off_t)head.bytes)
        snprintf(why, len, "%s/%s is damaged: it has %lld bytes, expected %u", l->directory, file,
                 (long long)st.st_size, l->kind->bytes);
    else
        return 0;
    return 1;
}

static void unmap(const struct dp_page_head *head, size_t bytes)
{
    munmap((void *)(uintptr_t)head, bytes);
}

/* false: there is no memory. */
static bool add(struct stat_mapped *m, const char *file, const struct dp_page_head *head)
{
    struct stat_mapped_page *more = realloc(m->pages, ((size_t)m->count + 1) * sizeof(*more));

    if (!more)
        return false;
    m->pages = more;
    more[m->count].head = head;
    snprintf(more[m->count++].file, sizeof(more->file), "%s", file);
    return true;
}

/* As check. */
static int map(const struct look *l, const char *file, int fd, bool (*wants)(int64_t pid), char *why,
               size_t len)
{
    const int state = fd < 0 ? 1 : check(l, file, fd, why, len);

    if (fd < 0)
        snprintf(why, len, "cannot read %s/%s: %s", l->directory, file, strerror(errno));
    if (state)
        return state;
    const struct dp_page_head *head = mmap(NULL, l->kind->bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (head == MAP_FAILED) {
        snprintf(why, len, "cannot read %s/%s: %s", l->directory, file, strerror(errno));
        return 1;
    }
    const bool is_wanted = !wants || wants(head->pid), is_kept = is_wanted && add(l->m, file, head);
    if (!is_kept)
        unmap(head, l->kind->bytes);
    if (is_wanted && !is_kept)
        snprintf(why, len, "no memory for %d processes", l->m->count + 1);
    return is_wanted && !is_kept;
}

static bool is_mapped(const struct stat_mapped *m, const char *file)
{
    for (int i = 0; i < m->count; i++)
        if (!strcmp(m->pages[i].file, file))
            return true;
    return false;
}

static bool is_new_page(const struct look *l, const char *file)
{
    return dp_page_is_name(file, l->kind->suffix) &&
           strlen(file) < sizeof(((struct stat_mapped_page *)0)->file) && !is_mapped(l->m, file);
}

static void map_file(const struct look *l, const char *file, bool (*wants)(int64_t pid), bool is_strict)
{
    char why[4608];
    const int fd = openat(l->fd, file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

    if (fd < 0 && errno == ENOENT)
        return; /* it has just ended */
    const int state = map(l, file, fd, wants, why, sizeof(why));
    if (is_strict && state < 0)
        unlinkat(l->fd, file, 0);
    if (is_strict && state > 0) {
        command_broke("%s", why);
        l->m->refused++;
    }
    if (fd >= 0)
        close(fd);
}

static const char *name_of(const char *directory, char *usual, size_t len)
{
    if (directory && *directory)
        return directory;
    snprintf(usual, len, DP_PAGE_DIRECTORY "%ld", (long)geteuid());
    return usual;
}

static void map_directory(struct look *l, DIR *list, bool (*wants)(int64_t pid), bool is_strict)
{
    l->fd = dirfd(list);
    l->m->bytes = l->kind->bytes;
    snprintf(l->m->directory, sizeof(l->m->directory), "%s", l->directory);
    for (struct dirent *e; (e = readdir(list));)
        if (is_new_page(l, e->d_name))
            map_file(l, e->d_name, wants, is_strict);
}

void stat_map(struct stat_mapped *m, const struct dp_page_kind *kind, const char *directory,
              bool (*wants)(int64_t pid))
{
    char usual[64];
    struct look l = {m, kind, name_of(directory, usual, sizeof(usual)), -1};
    DIR *list = opendir(l.directory);

    if (list) {
        map_directory(&l, list, wants, false);
        closedir(list);
    }
}

int stat_map_all(struct stat_mapped *m, const struct dp_page_kind *kind, const char *directory)
{
    char usual[64];
    struct look l = {m, kind, name_of(directory, usual, sizeof(usual)), -1};
    struct stat st;
    int fd = open(l.directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), status = 0;
    DIR *list = fd < 0 ? NULL : fdopendir(fd);

    if (fd < 0 && errno == ENOENT && l.directory == usual)
        return 0;
    if (!list)
        status = command_misused("cannot open the directory %s: %s", l.directory, strerror(errno));
    else if (fstat(fd, &st))
        status = command_broke("cannot read %s: %s", l.directory, strerror(errno));
    else if (st.st_uid != geteuid())
        status = command_broke("%s belongs to user %u: only your own processes are shown",
                               l.directory, (unsigned)st.st_uid);
    else
        map_directory(&l, list, NULL, true);
    if (list)
        closedir(list);
    else if (fd >= 0)
        close(fd);
    return status;
}

void stat_mapped_fini(struct stat_mapped *m)
{
    for (int i = 0; i < m->count; i++)
        unmap(m->pages[i].head, m->bytes);
    free(m->pages);
    *m = (struct stat_mapped){0};
}
