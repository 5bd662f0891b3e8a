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

/* What every page begins with; what follows is of its kind, and a change of either is a new version. The
 * file is <directory>/<pid>-<random><suffix>, of mode 0600, in a directory of mode 0700. */
struct dp_page_head {
    char magic[8];           /* of the kind */
    uint32_t version, bytes; /* of the whole page */
    int64_t pid;             /* as its process sees it */
    int64_t opened_ns;       /* CLOCK_REALTIME */
    char command[64];
    /* Odd while what must be seen as a whole is being changed, if the kind has such a thing. */
    _Atomic uint64_t changes;
};

struct dp_page_kind {
    const char *option; /* that asks for it, for warnings */
    const char *suffix; /* of its name */
    const char *magic;  /* 8 bytes with its NUL */
    uint32_t version, bytes;
    const char *name;         /* in messages of readers: "counters" */
    void (*fill)(void *page); /* NULL, or what is to be there from the beginning beside the head */
};

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

/* Around a change that a reader must not see half done, by one writer at a time. */
static inline void dp_page_begin_change(struct dp_page_head *head)
{
    atomic_store_explicit(&head->changes,
                          atomic_load_explicit(&head->changes, memory_order_relaxed) + 1,
                          memory_order_relaxed);
    dp_page_fence();
}

static inline void dp_page_end_change(struct dp_page_head *head)
{
    atomic_store_explicit(&head->changes,
                          atomic_load_explicit(&head->changes, memory_order_relaxed) + 1,
                          memory_order_release);
}

/* For readers: before they look, and whether nothing changed while they did. */
static inline uint64_t dp_page_changes(const struct dp_page_head *head)
{
    return atomic_load_explicit(&head->changes, memory_order_acquire);
}

static inline bool dp_page_is_steady(const struct dp_page_head *head, uint64_t since)
{
    dp_page_fence();
    return since % 2 == 0 && since == atomic_load_explicit(&head->changes, memory_order_relaxed);
}

#endif
