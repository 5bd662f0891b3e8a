/* SPDX-License-Identifier: Apache-2.0
 *
 * page.h - the page (stat/train_page.h) by which `dualpipe stat` sees this process.
 */
#ifndef DP_TRAIN_PAGE_H
#define DP_TRAIN_PAGE_H

#include "stat/train_page.h"

/* Zeroed memory has no page. */
struct page {
    struct train_page *at; /* NULL: none could be made, or none is wanted */
    int fd;
    char path[4096];
};

/* `what` has all but magic, version, bytes, pid and time. directory NULL: where they are as a rule.
 * A page that cannot be made is a warning where `directory` was given; the job goes on without. */
void page_open(struct page *p, const char *directory, const struct train_page *what);
void page_step(struct page *p, const struct train_page_step *now);
void page_close(struct page *p);

#endif
