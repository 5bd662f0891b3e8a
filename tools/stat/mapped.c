/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "stat/mapped.h"

#include "command.h"
#include "stat/pages.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int stat_check_page(const struct stat_mapped_kind *kind, const char *directory, const char *file,
                    int fd)
{
    struct stat_mapped_head head;
    const size_t len = offsetof(struct stat_mapped_head, pid);
    struct stat st;

    if (fstat(fd, &st))
        return command_broke("cannot read %s/%s: %s", directory, file, strerror(errno));
    if (st.st_uid != geteuid())
        return command_broke("%s/%s belongs to user %u: it is not read", directory, file,
                             (unsigned)st.st_uid);
    if (pread(fd, &head, len, 0) != (ssize_t)len ||
        memcmp(head.magic, kind->magic, sizeof(head.magic)) != 0)
        return command_broke("%s/%s is no page of %s", directory, file, kind->name);
    if (!dpn_stat_is_live(fd))
        return -1;
    if (head.version != kind->version)
        return command_broke(
            "%s/%s has layout %u, expected %u: another version of dualpipe writes it", directory,
            file, head.version, kind->version);
    if (head.bytes != kind->bytes || st.st_size != (off_t)head.bytes)
        return command_broke("%s/%s is damaged: it has %lld bytes, expected %u", directory, file,
                             (long long)st.st_size, kind->bytes);
    return 0;
}

static bool is_page_name(const struct stat_mapped_kind *kind, const char *name)
{
    const size_t len = strlen(name), end = strlen(kind->suffix);

    return len > end && len < sizeof(((struct stat_mapped_page *)0)->file) &&
           !strcmp(name + len - end, kind->suffix);
}

static bool is_mapped(const struct stat_mapped *m, const char *file)
{
    for (int i = 0; i < m->count; i++)
        if (!strcmp(m->pages[i].file, file))
            return true;
    return false;
}

static const struct stat_mapped_head *map(const struct stat_mapped_kind *kind, int fd)
{
    struct stat st;

    if (fstat(fd, &st) || st.st_uid != geteuid() || st.st_size != kind->bytes ||
        !dpn_stat_is_live(fd))
        return NULL;
    const void *page = mmap(NULL, kind->bytes, PROT_READ, MAP_SHARED, fd, 0);
    return page == MAP_FAILED ? NULL : page;
}

static void unmap(const struct stat_mapped_kind *kind, const void *page)
{
    munmap((void *)(uintptr_t)page, kind->bytes);
}

static bool is_known(const struct stat_mapped_kind *kind, const struct stat_mapped_head *head)
{
    return !memcmp(head->magic, kind->magic, sizeof(head->magic)) &&
           head->version == kind->version && head->bytes == kind->bytes;
}

static void add(struct stat_mapped *m, const char *file, const void *page)
{
    struct stat_mapped_page *more = realloc(m->pages, ((size_t)m->count + 1) * sizeof(*more));

    if (!more) {
        unmap(m->kind, page);
        return;
    }
    m->pages = more;
    more[m->count].page = page;
    snprintf(more[m->count++].file, sizeof(more->file), "%s", file);
}

static void map_file(struct stat_mapped *m, int dir, const char *file, bool (*wants)(int64_t pid))
{
    const int fd = openat(dir, file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    const struct stat_mapped_head *page = fd < 0 ? NULL : map(m->kind, fd);

    if (page && is_known(m->kind, page) && (!wants || wants(page->pid)))
        add(m, file, page);
    else if (page)
        unmap(m->kind, page);
    if (fd >= 0)
        close(fd);
}

void stat_map(struct stat_mapped *m, const struct stat_mapped_kind *kind, const char *directory,
              bool (*wants)(int64_t pid))
{
    char usual[64];

    m->kind = kind;
    snprintf(usual, sizeof(usual), DPN_STAT_DIRECTORY "%ld", (long)geteuid());
    DIR *list = opendir(directory && *directory ? directory : usual);
    if (!list)
        return;
    for (struct dirent *e; (e = readdir(list));)
        if (is_page_name(kind, e->d_name) && !is_mapped(m, e->d_name))
            map_file(m, dirfd(list), e->d_name, wants);
    closedir(list);
}

void stat_mapped_fini(struct stat_mapped *m)
{
    for (int i = 0; i < m->count; i++)
        unmap(m->kind, m->pages[i].page);
    free(m->pages);
    *m = (struct stat_mapped){0};
}
