/* SPDX-License-Identifier: Apache-2.0 */
#include "fabric.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Only the pages that are used cost anything. */
static const size_t file_bytes = (size_t)256 << 20;

struct fv_fabric *fv;

int64_t fv_now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- joining --------------------------------------------------------------------------------- */

static void found(struct fv_fabric *f)
{
    pthread_mutexattr_t a;

    pthread_mutexattr_init(&a);
    pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&f->lock, &a);
    pthread_mutexattr_destroy(&a);
    f->top = (sizeof(*f) + 4095) & ~UINT64_C(4095);
    f->bytes = file_bytes;
    f->serial = 1;
}

static struct fv_fabric *map(int fd)
{
    struct stat s;

    if (fstat(fd, &s) || (!s.st_size && ftruncate(fd, (off_t)file_bytes)))
        return NULL;
    void *at = mmap(NULL, file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        return NULL;
    if (!s.st_size)
        found(at);
    return at;
}

static void join(void)
{
    const char *dir = getenv("FAKE_VERBS_FABRIC");
    char path[512];

    if (!dir || !*dir)
        return;
    snprintf(path, sizeof(path), "%s/fabric", dir);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || flock(fd, LOCK_EX)) {
        fprintf(stderr, "fake verbs: %s: %s\n", path, strerror(errno));
        return;
    }
    fv = map(fd);
    flock(fd, LOCK_UN); /* the mapping would keep it when fd is closed */
    close(fd);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY); /* for kernels that let only parents in */
}

bool fv_join(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, join);
    return fv != NULL;
}

/* A process may die anywhere; each change is complete enough for the others to go on. */
void fv_lock(void)
{
    if (pthread_mutex_lock(&fv->lock) == EOWNERDEAD)
        pthread_mutex_consistent(&fv->lock);
}

void fv_unlock(void)
{
    pthread_mutex_unlock(&fv->lock);
}

/* ---- blocks: sizes are powers of two, a free one begins with the next free one --------------- */

static unsigned log_of(size_t bytes)
{
    unsigned log = 6;

    while ((size_t)1 << log < bytes)
        log++;
    return log;
}

void *fv_at(uint64_t block)
{
    return (char *)fv + block;
}

uint64_t fv_alloc(size_t bytes)
{
    const unsigned log = log_of(bytes);
    uint64_t block = fv->free[log];

    if (block) {
        fv->free[log] = *(uint64_t *)fv_at(block);
    } else {
        if (fv->bytes - fv->top < (uint64_t)1 << log)
            return 0;
        block = fv->top;
        fv->top += (uint64_t)1 << log;
    }
    memset(fv_at(block), 0, bytes);
    return block;
}

void fv_free(uint64_t block, size_t bytes)
{
    const unsigned log = log_of(bytes);

    if (!block)
        return;
    *(uint64_t *)fv_at(block) = fv->free[log];
    fv->free[log] = block;
}
