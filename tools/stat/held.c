/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "stat/held.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_held(const struct stat_held *held, const char *file)
{
    for (int i = 0; i < held->count; i++)
        if (!strcmp(held->pages[i].file, file))
            return true;
    return false;
}

static bool can_be_read(int fd)
{
    struct dpn_stat_head head;
    struct stat st;

    return !fstat(fd, &st) && st.st_uid == geteuid() && dpn_stat_read_head(fd, &head) &&
           head.version == DPN_STAT_VERSION && head.bytes == sizeof(struct dpn_stat_page) &&
           st.st_size == (off_t)head.bytes && dpn_stat_is_live(fd);
}

static void add(struct stat_held *held, const char *file, const struct dpn_stat_page *page)
{
    const size_t count = (size_t)held->count + 1;
    struct stat_held_page *more = realloc(held->pages, count * sizeof(*more));

    if (!more) {
        munmap((void *)(uintptr_t)page, sizeof(*page));
        return;
    }
    held->pages = more;
    more[held->count] = (struct stat_held_page){.page = page};
    snprintf(more[held->count++].file, sizeof(more->file), "%s", file);
}

static void hold_file(struct stat_held *held, int dir, const char *file, bool (*wants)(int64_t pid))
{
    const int fd = openat(dir, file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    struct dpn_stat_page *page = MAP_FAILED;

    if (fd >= 0 && can_be_read(fd))
        page = mmap(NULL, sizeof(*page), PROT_READ, MAP_SHARED, fd, 0);
    if (page != MAP_FAILED && wants(page->pid))
        add(held, file, page);
    else if (page != MAP_FAILED)
        munmap(page, sizeof(*page));
    if (fd >= 0)
        close(fd);
}

void stat_hold(struct stat_held *held, bool (*wants)(int64_t pid))
{
    const char *given = getenv("DUALPIPE_NET_STAT_DIR");
    char usual[64];

    snprintf(usual, sizeof(usual), DPN_STAT_DIRECTORY "%ld", (long)geteuid());
    DIR *list = opendir(given && *given ? given : usual);
    if (!list)
        return;
    for (struct dirent *e; (e = readdir(list));)
        if (dpn_stat_is_name(e->d_name) && !is_held(held, e->d_name))
            hold_file(held, dirfd(list), e->d_name, wants);
    closedir(list);
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* NULL: there is no place for one more. */
static struct stat_device *find_device(struct stat_sum *sum, const struct stat_device *like)
{
    for (int i = 0; i < sum->device_count; i++)
        if (!strcmp(sum->devices[i].name, like->name))
            return &sum->devices[i];
    if (sum->device_count == DPN_STAT_DEVICES)
        return NULL;
    struct stat_device *d = &sum->devices[sum->device_count++];
    *d = (struct stat_device){.speed_mbps = like->speed_mbps};
    snprintf(d->name, sizeof(d->name), "%s", like->name);
    return d;
}

int stat_held_sum(const struct stat_held *held, struct stat_sum *out)
{
    struct stat_process *p = stat_process_new();
    int count = 0;

    for (int i = 0; p && i < held->count; i++) {
        if (stat_page_read(held->pages[i].page, p))
            continue;
        count++;
        for (int d = 0; d < p->device_count; d++) {
            struct stat_device *to = find_device(out, &p->devices[d]);
            for (int way = 0; to && way < DPN_STAT_WAYS; way++)
                stat_counts_add(&p->devices[d].ways[way], &to->ways[way]);
        }
    }
    if (p)
        stat_process_free(p);
    return count;
}

void stat_held_fini(struct stat_held *held)
{
    for (int i = 0; i < held->count; i++)
        munmap((void *)(uintptr_t)held->pages[i].page, sizeof(struct dpn_stat_page));
    free(held->pages);
    *held = (struct stat_held){0};
}
