/* SPDX-License-Identifier: Apache-2.0
 *
 * page_file.h - counters of one process in a file of shared memory, which other processes of its user
 * read while it runs. The writer holds a lock on the file, so that a reader knows whether it lives.
 */
#ifndef DP_BASE_PAGE_FILE_H
#define DP_BASE_PAGE_FILE_H

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#define DP_PAGE_DIRECTORY "/dev/shm/dualpipe-" /* and the number of the user */

enum { DP_PAGE_VERSION = 4, DP_PAGE_LABEL = 184, DP_PAGE_COLUMNS = 32 };

/* What a page begins with, the same for all kinds; a change of it is a new version. The file is
 * <directory>/<pid>-<random><suffix>, of mode 0600, in a directory of mode 0700.
 *
 *      head | columns | rows: use, label, values
 *
 * A value has one writer at a time, or is added to atomically; all stores are relaxed, so no reader can
 * make a writer wait. Readers find columns by name: one that they do not know is passed over, and one
 * that is not there is 0. */
struct dp_page_head {
    char magic[8];           /* of the kind */
    uint32_t version, bytes; /* of the whole page */
    int64_t pid;             /* as its process sees it */
    int64_t opened_ns;       /* CLOCK_REALTIME */
    char command[64];
    /* Odd while what must be seen as a whole is being changed, if the kind has such a thing. */
    _Atomic uint64_t changes;
    uint32_t columns, rows, row_bytes, rows_at; /* the last: of the page */
    _Atomic uint64_t used_rows; /* none behind so many has ever been there; 0: this is not known */
};

enum dp_page_type {
    DP_PAGE_COUNTER,
    DP_PAGE_GAUGE,
    DP_PAGE_HISTOGRAM, /* place k: of those that have k binary digits; the last: of larger ones, too */
    DP_PAGE_REAL,      /* a double; NAN: not known */
    DP_PAGE_SINCE,     /* CLOCK_MONOTONIC, 0: never; for readers ns until now, of several the most */
    DP_PAGE_BEFORE,    /* number, from 1 on, of the row whose label stands before this one's; 0: none */
    DP_PAGE_BEHIND     /* the same for one that stands behind it */
};

struct dp_page_column {
    char name[24], unit[4]; /* "ns", "ms", "B"; "": a number */
    uint16_t type, places;  /* 64-bit values */
};

/* What every row begins with, and then come its values. A row is there if `use` is above 1, and no other
 * row, before or after, has the same; readers look at it before and after. The label is words, with tabs
 * between them. */
#define DP_PAGE_ROW                                                                                \
    _Atomic uint64_t use;                                                                          \
    char label[DP_PAGE_LABEL]

struct dp_page_row {
    DP_PAGE_ROW;
    _Atomic uint64_t values[];
};

struct dp_page_kind {
    const char *option; /* that asks for it, for warnings */
    const char *suffix; /* of its name */
    const char *magic;  /* 8 bytes with its NUL */
    const char *name;   /* in messages of readers: "counters" */
    uint32_t bytes, rows, row_bytes, rows_at, column_count; /* at most DP_PAGE_COLUMNS */
    const struct dp_page_column *columns;
};

/* Of a list of columns, X(ID, "name", "unit", TYPE, places): names of the values' places, the table,
 * rows, in whole lines of 64 bytes so that no two share one, a page of them, and its kind. */
#define DP_PAGE_ID(id, name, unit, type, places) id, id##_LAST = id + (places) - 1,
#define DP_PAGE_COLUMN(id, name, unit, type, places) {name, unit, DP_PAGE_##type, places},
#define DP_PAGE_DEFINE(prefix, list, row_count, ...)                                               \
    enum prefix##_value { list(DP_PAGE_ID) prefix##_values };                                      \
    static const struct dp_page_column prefix##_columns[] = {list(DP_PAGE_COLUMN)};                \
    struct prefix##_row {                                                                          \
        DP_PAGE_ROW;                                                                               \
        _Atomic uint64_t values[prefix##_values];                                                  \
    } __attribute__((aligned(64)));                                                                \
    struct prefix##_page {                                                                         \
        struct dp_page_head head;                                                                  \
        struct dp_page_column columns[sizeof(prefix##_columns) / sizeof(prefix##_columns[0])];     \
        struct prefix##_row rows[row_count];                                                       \
    };                                                                                             \
    static const struct dp_page_kind prefix##_kind = {                                             \
        .bytes = sizeof(struct prefix##_page), .rows = row_count,                                  \
        .row_bytes = sizeof(struct prefix##_row), .rows_at = offsetof(struct prefix##_page, rows), \
        .column_count = sizeof(prefix##_columns) / sizeof(prefix##_columns[0]),                    \
        .columns = prefix##_columns, __VA_ARGS__}

/* Make and map a page in the directory (NULL or "": the usual one), which is made if need be and must be
 * this user's alone, and remove those of processes that have ended. `path` is where it is; the caller
 * removes it in the end, and closes *fd (fd NULL: it stays open, and locked, while the process lives).
 * NULL: it cannot be, and `path` says where and why. */
void *dp_page_new(const char *directory, const struct dp_page_kind *kind, char *path, size_t len,
                  int *fd);

/* A page of this process, in static memory. What a forked child inherits of it counts where nothing
 * looks: the file stays the parent's, and the child may make its own. */
struct dp_page {
    const struct dp_page_kind *kind;
    void *own;           /* to count in where there is no file, cleared in a child; or NULL */
    void *at;            /* where to count: begins as own */
    unsigned generation; /* of processes, each forked from the one before */
    bool was_tried, is_listed;
    char path[4096]; /* of the file; "": there is none */
    struct dp_page *next;
};

/* Held while a child is forked, and by writers while what they do must not be half done there. */
extern pthread_mutex_t dp_page_lock;

/* Where to count; once a process it makes a file, if one is wanted, and warns if it cannot. The file
 * goes when the process ends. The caller holds dp_page_lock. */
void *dp_page_ensure(struct dp_page *page, bool is_wanted, const char *directory);

/* Whether the process lives that writes to this file. Not for that process itself: a process that
 * closes a file loses its own lock on it. */
static inline bool dp_page_is_live(int fd)
{
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

    return fcntl(fd, F_GETLK, &all) || all.l_type != F_UNLCK;
}

/* Whether a file is a page of this kind whose process has ended. */
static inline bool dp_page_is_left(const struct dp_page_kind *kind, int fd)
{
    char magic[8];

    return pread(fd, magic, sizeof(magic), 0) == sizeof(magic) &&
           !memcmp(magic, kind->magic, sizeof(magic)) && !dp_page_is_live(fd);
}

/* Whether a file is called like a page with this suffix. */
static inline bool dp_page_is_name(const char *name, const char *suffix)
{
    const size_t len = strlen(name), end = strlen(suffix);

    return len > end && !strcmp(name + len - end, suffix);
}

/* What stands before is seen, by other processes too, before what comes after. GCC's thread
 * sanitizer warns that it does not know fences; it sees one process only. */
static inline void dp_page_fence(void)
{
#if defined(__SANITIZE_THREAD__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wtsan"
    atomic_thread_fence(memory_order_seq_cst);
#pragma GCC diagnostic pop
#else
    atomic_thread_fence(memory_order_seq_cst);
#endif
}

static inline uint64_t dp_page_get(const _Atomic uint64_t *value)
{
    return atomic_load_explicit(value, memory_order_relaxed);
}

static inline void dp_page_set(_Atomic uint64_t *value, uint64_t n)
{
    atomic_store_explicit(value, n, memory_order_relaxed);
}

/* For one writer at a time. */
static inline void dp_page_add(_Atomic uint64_t *value, uint64_t n)
{
    dp_page_set(value, dp_page_get(value) + n);
}

/* Around a change that a reader must not see half done, by one writer at a time. */
static inline void dp_page_begin_change(struct dp_page_head *head)
{
    dp_page_add(&head->changes, 1);
    dp_page_fence();
}

static inline void dp_page_end_change(struct dp_page_head *head)
{
    atomic_store_explicit(&head->changes, dp_page_get(&head->changes) + 1, memory_order_release);
}

#endif
