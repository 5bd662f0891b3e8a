/* SPDX-License-Identifier: Apache-2.0
 *
 * page_owner.c - the pages of this process: made when first needed, left to the parent by a forked
 * child, removed in the end.
 */
#include "base/fail.h"
#include "base/page_file.h"

#include <sys/mman.h>

pthread_mutex_t dp_page_lock = PTHREAD_MUTEX_INITIALIZER;
static struct dp_page *list; /* that were asked for, in this process or one before it */

static void before_fork(void)
{
    pthread_mutex_lock(&dp_page_lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&dp_page_lock);
}

static void after_fork_in_child(void)
{
    for (struct dp_page *p = list; p; p = p->next) {
        if (p->path[0])
            (void)mmap(p->at, p->kind->bytes, PROT_READ | PROT_WRITE,
                       MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p->own)
            memset(p->own, 0, p->kind->bytes);
        p->at = p->own;
        p->generation++;
        p->was_tried = false;
        p->path[0] = '\0';
    }
    after_fork();
}

__attribute__((destructor)) static void remove_files(void)
{
    for (struct dp_page *p = list; p; p = p->next)
        if (p->path[0])
            unlink(p->path);
}

static void add_to_list(struct dp_page *page)
{
    if (!list)
        pthread_atfork(before_fork, after_fork, after_fork_in_child);
    page->is_listed = true;
    page->next = list;
    list = page;
}

void *dp_page_ensure(struct dp_page *page, bool is_wanted, const char *directory)
{
    if (!page->is_listed)
        add_to_list(page);
    if (!is_wanted || page->was_tried)
        return page->at;
    page->was_tried = true;
    void *made = dp_page_new(directory, page->kind, page->path, sizeof(page->path), NULL);
    if (made)
        return page->at = made;
    dp_log(DP_LOG_WARN, "%s: nothing is counted: %s", page->kind->option, page->path);
    page->path[0] = '\0';
    return page->at;
}
