/* SPDX-License-Identifier: Apache-2.0
 *
 * page_reader.c - the one reader of the directory of pages: whose a page is, whether its writer lives,
 * and where in it the columns are that the kind has.
 */
#include "config.h"

#include "base/page_reader.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

struct look {
    struct dp_pages *pages;
    const struct dp_page_kind *kind;
    const char *directory;
    int fd; /* of the directory */
    bool (*wants)(int64_t pid);
    bool is_live; /* or it is passed over */
    char why[4608]; /* a page cannot be read */
};

/* ---- a page ---------------------------------------------------------------------------------- */

/* The file of this process must stay open: closing it would take away its writer's lock on it. */
static bool is_own(const char *file)
{
    return atol(file) == (long)getpid();
}

static bool has_sound_head(const struct dp_page_head *head, size_t bytes)
{
    return bytes == head->bytes && head->rows_at % 8 == 0 && head->row_bytes % 8 == 0 &&
           head->row_bytes >= sizeof(struct dp_page_row) &&
           sizeof(*head) + (uint64_t)head->columns * sizeof(struct dp_page_column) <= head->rows_at &&
           head->rows_at + (uint64_t)head->rows * head->row_bytes <= bytes;
}

/* 0; -1: its process has ended; 1: it cannot be read, and why. */
static int check(struct look *l, const char *file, int fd, struct dp_page_head *head)
{
    const ssize_t same = offsetof(struct dp_page_head, pid); /* in every version */
    struct stat st;

    if (fd < 0 || fstat(fd, &st))
        snprintf(l->why, sizeof(l->why), "cannot read %s/%s: %s", l->directory, file, strerror(errno));
    else if (st.st_uid != geteuid())
        snprintf(l->why, sizeof(l->why), "%s/%s belongs to user %u: it is not read", l->directory, file,
                 (unsigned)st.st_uid);
    else if (pread(fd, head, (size_t)same, 0) != same ||
             memcmp(head->magic, l->kind->magic, sizeof(head->magic)) != 0)
        snprintf(l->why, sizeof(l->why), "%s/%s is no page of %s", l->directory, file, l->kind->name);
    else if (l->is_live && !dp_page_is_live(fd))
        return -1;
    else if (head->version != DP_PAGE_VERSION)
        snprintf(l->why, sizeof(l->why),
                 "%s/%s has layout %u, expected %u: another version of dualpipe writes it",
                 l->directory, file, head->version, DP_PAGE_VERSION);
    else if (pread(fd, head, sizeof(*head), 0) != sizeof(*head) ||
             !has_sound_head(head, (size_t)st.st_size))
        snprintf(l->why, sizeof(l->why),
                 "%s/%s is damaged: it has %lld bytes, expected %u with %u rows of %u", l->directory,
                 file, (long long)st.st_size, head->bytes, head->rows, head->row_bytes);
    else
        return 0;
    return 1;
}

static unsigned find_column(const struct dp_page_kind *kind, const struct dp_page_column *like)
{
    unsigned i = 0;

    while (i < kind->column_count &&
           (strncmp(kind->columns[i].name, like->name, sizeof(like->name)) != 0 ||
            kind->columns[i].type != like->type))
        i++;
    return i;
}

/* Of a column, what both know; false: a row has not so many values. */
static bool find_columns(const struct dp_page_kind *kind, const struct dp_page_head *head,
                         struct dp_page_mapped *page)
{
    const struct dp_page_column *columns = (const void *)(page->head + 1);
    const uint32_t values = (head->row_bytes - (uint32_t)sizeof(struct dp_page_row)) / 8;
    uint32_t at = 0;

    for (uint32_t i = 0; i < head->columns; i++) {
        const struct dp_page_column column = columns[i]; /* its writer may have a fault */
        const unsigned c = find_column(kind, &column);
        if (at + column.places > values || at > UINT16_MAX)
            return false;
        if (c < kind->column_count) {
            page->columns[c].at = (uint16_t)at;
            page->columns[c].places =
                column.places < kind->columns[c].places ? column.places : kind->columns[c].places;
        }
        at += column.places;
    }
    return true;
}

static struct dp_page_mapped *add(struct dp_pages *pages)
{
    struct dp_page_mapped *more =
        realloc(pages->list, ((size_t)pages->count + 1) * sizeof(*pages->list));

    if (!more)
        return NULL;
    pages->list = more;
    return &more[pages->count];
}

static void unmap(const struct dp_page_mapped *page)
{
    munmap((void *)(uintptr_t)page->head, page->bytes);
}

/* As check. */
static int map(struct look *l, const char *file, int fd)
{
    struct dp_page_head head;
    struct dp_page_mapped *page = NULL;
    const int state = check(l, file, fd, &head);

    if (state || (l->wants && !l->wants(head.pid)))
        return state;
    void *at = mmap(NULL, head.bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED || !(page = add(l->pages))) {
        snprintf(l->why, sizeof(l->why), "cannot read %s/%s: %s", l->directory, file, strerror(errno));
        if (at != MAP_FAILED)
            munmap(at, head.bytes);
        return 1;
    }
    *page = (struct dp_page_mapped){.head = at, .bytes = head.bytes, .rows = head.rows,
                                    .row_bytes = head.row_bytes, .rows_at = head.rows_at,
                                    .is_listed = true};
    memcpy(page->file, file, strlen(file) + 1);
    if (!find_columns(l->kind, &head, page)) {
        snprintf(l->why, sizeof(l->why), "%s/%s is damaged: a row of %u bytes has not all its columns",
                 l->directory, file, head.row_bytes);
        unmap(page);
        return 1;
    }
    l->pages->count++;
    return 0;
}

/* ---- the directory --------------------------------------------------------------------------- */

static struct dp_page_mapped *find_page(const struct dp_pages *pages, const char *file)
{
    for (int i = 0; i < pages->count; i++)
        if (!strcmp(pages->list[i].file, file))
            return &pages->list[i];
    return NULL;
}

static void see_file(struct look *l, const char *file, void (*refuse)(void *user, const char *why),
                     void *user)
{
    struct dp_page_mapped *known = find_page(l->pages, file);

    if (known)
        known->is_listed = true;
    if (known || !dp_page_is_name(file, l->kind->suffix) || strlen(file) >= sizeof(known->file) ||
        (is_own(file) && l->pages->own_is_refused))
        return;
    const int fd = openat(l->fd, file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return; /* it has just ended */
    const int state = map(l, file, fd);
    if (is_own(file))
        l->pages->own_is_refused = state && fd >= 0;
    else if (refuse && state < 0)
        unlinkat(l->fd, file, 0);
    if (refuse && state > 0)
        refuse(user, l->why);
    if (fd >= 0 && !is_own(file))
        close(fd);
}

const char *dp_page_directory(const char *directory, char *text, size_t len)
{
    if (directory && *directory)
        snprintf(text, len, "%s", directory);
    else
        snprintf(text, len, DP_PAGE_DIRECTORY "%ld", (long)geteuid());
    return text;
}

void dp_pages_map(struct dp_pages *pages, const struct dp_page_kind *kind, const char *directory,
                  bool (*wants)(int64_t pid), void (*refuse)(void *user, const char *why), void *user)
{
    char name[4096];
    struct look l = {.pages = pages, .kind = kind, .wants = wants, .is_live = wants || refuse,
                     .directory = dp_page_directory(directory, name, sizeof(name))};
    DIR *list = opendir(l.directory);

    for (int i = 0; i < pages->count; i++)
        pages->list[i].is_listed = false;
    if (!list)
        return;
    l.fd = dirfd(list);
    for (struct dirent *e; (e = readdir(list));)
        see_file(&l, e->d_name, refuse, user);
    closedir(list);
}

void dp_pages_drop_unlisted(struct dp_pages *pages)
{
    int kept = 0;

    for (int i = 0; i < pages->count; i++) {
        if (pages->list[i].is_listed)
            pages->list[kept++] = pages->list[i];
        else
            unmap(&pages->list[i]);
    }
    pages->count = kept;
}

void dp_pages_fini(struct dp_pages *pages)
{
    for (int i = 0; i < pages->count; i++)
        unmap(&pages->list[i]);
    free(pages->list);
    *pages = (struct dp_pages){0};
}
