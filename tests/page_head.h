/* SPDX-License-Identifier: Apache-2.0
 *
 * page_head.h - the beginning of a page that a test writes in the place of a process.
 */
#ifndef PAGE_HEAD_H
#define PAGE_HEAD_H

#include "base/page_file.h"

static inline void page_head_fill(const struct dp_page_kind *kind, struct dp_page_head *head)
{
    *head = (struct dp_page_head){.version = DP_PAGE_VERSION, .bytes = kind->bytes, .pid = 1,
                                  .columns = kind->column_count, .rows = kind->rows,
                                  .row_bytes = kind->row_bytes, .rows_at = kind->rows_at};
    memcpy(head->magic, kind->magic, sizeof(head->magic));
    memcpy(head + 1, kind->columns, kind->column_count * sizeof(*kind->columns));
}

#endif
