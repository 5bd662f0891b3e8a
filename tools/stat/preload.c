/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "stat/preload.h"

#include "stat/pages.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- pages ----------------------------------------------------------------------------------- */

static bool is_page_name(const char *name)
{
    const size_t len = strlen(name), end = strlen(DPO_PAGE_SUFFIX);

    return len > end && len < sizeof(((struct stat_preload_page *)0)->file) &&
           !strcmp(name + len - end, DPO_PAGE_SUFFIX);
}

static bool is_held(const struct stat_preload *p, const char *file)
{
    for (int i = 0; i < p->count; i++)
        if (!strcmp(p->pages[i].file, file))
            return true;
    return false;
}

static const struct dpo_page *map(int fd)
{
    struct stat st;

    if (fstat(fd, &st) || st.st_uid != geteuid() || st.st_size != sizeof(struct dpo_page) ||
        !dpn_stat_is_live(fd))
        return NULL;
    const struct dpo_page *page = mmap(NULL, sizeof(*page), PROT_READ, MAP_SHARED, fd, 0);
    return page == MAP_FAILED ? NULL : page;
}

static void unmap(const struct dpo_page *page)
{
    munmap((void *)(uintptr_t)page, sizeof(*page));
}

static bool is_known(const struct dpo_page *page)
{
    return !memcmp(page->magic, DPO_PAGE_MAGIC, sizeof(page->magic)) &&
           page->version == DPO_PAGE_VERSION && page->bytes == sizeof(*page);
}

static void add(struct stat_preload *p, const char *file, const struct dpo_page *page)
{
    struct stat_preload_page *more = realloc(p->pages, ((size_t)p->count + 1) * sizeof(*more));

    if (!more) {
        unmap(page);
        return;
    }
    p->pages = more;
    more[p->count].page = page;
    snprintf(more[p->count++].file, sizeof(more->file), "%s", file);
}

static void hold_file(struct stat_preload *p, int dir, const char *file,
                      bool (*wants)(int64_t pid))
{
    const int fd = openat(dir, file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    const struct dpo_page *page = fd < 0 ? NULL : map(fd);

    if (page && is_known(page) && (!wants || wants(page->pid)))
        add(p, file, page);
    else if (page)
        unmap(page);
    if (fd >= 0)
        close(fd);
}

void stat_preload_hold(struct stat_preload *p, const char *directory, bool (*wants)(int64_t pid))
{
    char usual[64];

    snprintf(usual, sizeof(usual), DPO_PAGE_DIRECTORY "%ld", (long)geteuid());
    DIR *list = opendir(directory && *directory ? directory : usual);
    if (!list)
        return;
    for (struct dirent *e; (e = readdir(list));)
        if (is_page_name(e->d_name) && !is_held(p, e->d_name))
            hold_file(p, dirfd(list), e->d_name, wants);
    closedir(list);
}

void stat_preload_fini(struct stat_preload *p)
{
    for (int i = 0; i < p->count; i++)
        unmap(p->pages[i].page);
    free(p->pages);
    *p = (struct stat_preload){0};
}

uint64_t stat_preload_count(const struct dpo_page *page, enum dpo_counter counter)
{
    return atomic_load_explicit(&page->counters[counter], memory_order_relaxed);
}

void stat_preload_sum(const struct stat_preload *p, uint64_t counts[DPO_COUNTERS])
{
    for (int i = 0; i < p->count; i++)
        for (int c = 0; c < DPO_COUNTERS; c++)
            counts[c] += stat_preload_count(p->pages[i].page, (enum dpo_counter)c);
}

/* ---- in words -------------------------------------------------------------------------------- */

const char *stat_preload_text(const uint64_t counts[DPO_COUNTERS], char *text, size_t len)
{
    const uint64_t known = counts[DPO_PAGES] - counts[DPO_PAGES_UNKNOWN];
    char pinned[16], up[16], down[16], staged[16];
    bool is_empty = true;

    for (int c = 0; c < DPO_COUNTERS; c++)
        is_empty &= !counts[c];
    if (is_empty)
        return "";
    snprintf(text, len,
             "pinned %s, %llu of %llu pages not on the nearest NUMA node; copied %s to the device, "
             "%s to the host; staged %s",
             stat_bytes_text((double)counts[DPO_PINNED_BYTES], pinned, sizeof(pinned)),
             (unsigned long long)(known - counts[DPO_PAGES_ON_NODE]), (unsigned long long)known,
             stat_bytes_text((double)counts[DPO_COPIES_TO_DEVICE_BYTES], up, sizeof(up)),
             stat_bytes_text((double)counts[DPO_COPIES_TO_HOST_BYTES], down, sizeof(down)),
             stat_bytes_text((double)(counts[DPO_STAGED_TO_DEVICE_BYTES] +
                                      counts[DPO_STAGED_TO_HOST_BYTES]),
                             staged, sizeof(staged)));
    return text;
}
