/* SPDX-License-Identifier: Apache-2.0
 *
 * page_reader.h - the pages of one kind in a directory (base/page_file.h), mapped while others write to
 * them. What is in a page may be anything; what is here has been checked.
 */
#ifndef DP_BASE_PAGE_READER_H
#define DP_BASE_PAGE_READER_H

#include "base/page_file.h"

/* Of a process that lived when it was mapped; it stays readable when that has ended. */
struct dp_page_mapped {
    char file[64]; /* of the directory */
    const struct dp_page_head *head;
    uint32_t bytes, rows, row_bytes, rows_at;
    struct {
        uint16_t at, places; /* of the values of a row; places 0: this page has none of them */
    } columns[DP_PAGE_COLUMNS]; /* as the kind's */
    uint64_t seen;              /* the caller's */
    bool is_listed;             /* it was in the directory when that was read last */
};

/* Zeroed memory is an empty list. */
struct dp_pages {
    int count;
    struct dp_page_mapped *list;
    bool own_is_refused; /* the page of this process cannot be read, and is not looked at again */
};

/* Map those that are not mapped yet and that `wants` (NULL: any) wants. directory: NULL or "": the usual
 * one. refuse: NULL, or called with a sentence for each page that cannot be read; then pages of
 * processes that have ended are removed. Without either, those that are there are mapped, too. The file
 * of this process itself stays open: to close it would take away the lock of its writer. */
void dp_pages_map(struct dp_pages *pages, const struct dp_page_kind *kind, const char *directory,
                  bool (*wants)(int64_t pid), void (*refuse)(void *user, const char *why), void *user);

/* Forget those whose file is gone. */
void dp_pages_drop_unlisted(struct dp_pages *pages);
void dp_pages_fini(struct dp_pages *pages);

/* `directory`, or the usual one, in text. */
const char *dp_page_directory(const char *directory, char *text, size_t len);

static inline const struct dp_page_row *dp_page_row_at(const struct dp_page_mapped *page, uint64_t row)
{
    return (const void *)((const char *)page->head + page->rows_at + row * page->row_bytes);
}

static inline uint32_t dp_page_rows(const struct dp_page_mapped *page)
{
    const uint64_t used = dp_page_get(&page->head->used_rows);

    return used && used < page->rows ? (uint32_t)used : page->rows;
}

/* place: below the column's places of this page. */
static inline uint64_t dp_page_value(const struct dp_page_mapped *page, const struct dp_page_row *row,
                                     unsigned column, unsigned place)
{
    return dp_page_get(&row->values[page->columns[column].at + place]);
}

static inline uint64_t dp_page_use(const struct dp_page_row *row)
{
    return atomic_load_explicit(&row->use, memory_order_acquire);
}

/* Before they look at what is changed as a whole, and whether nothing changed while they did. */
static inline uint64_t dp_page_changes(const struct dp_page_head *head)
{
    return atomic_load_explicit(&head->changes, memory_order_acquire);
}

static inline bool dp_page_is_steady(const struct dp_page_head *head, uint64_t since)
{
    dp_page_fence();
    return since % 2 == 0 && since == dp_page_get(&head->changes);
}

#endif
