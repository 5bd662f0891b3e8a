/* SPDX-License-Identifier: Apache-2.0
 *
 * sim_dmabuf.c - a part of device memory as a file, which stands in for a dma-buf. Its first byte
 * is that of the part. The memory file of an allocation can be that for the whole; for a part in
 * the middle the memory there is exchanged for a file of its own, with the same bytes at the same
 * address.
 */
#include "config.h" /* GNU extensions: memfd_create */
#include "simcuda/sim.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct part {
    char *start;
    size_t bytes;
    int fd;
    struct part *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct part *parts;

/* The first part that shares bytes with it. */
static struct part **find(const char *start, size_t bytes)
{
    struct part **at = &parts;

    while (*at && ((*at)->start >= start + bytes || start >= (*at)->start + (*at)->bytes))
        at = &(*at)->next;
    return at;
}

void sim_dmabuf_forget(const char *start, size_t bytes)
{
    pthread_mutex_lock(&lock);
    for (struct part **at = find(start, bytes), *part; (part = *at); at = find(start, bytes)) {
        *at = part->next;
        close(part->fd);
        free(part);
    }
    pthread_mutex_unlock(&lock);
}

/* A file with what is there, in its place. -1: it cannot be made. */
static int exchange(char *start, size_t bytes)
{
    int fd = memfd_create("simcuda-dmabuf", MFD_CLOEXEC);

    if (fd < 0)
        return -1;
    if (ftruncate(fd, (off_t)bytes) || pwrite(fd, start, bytes, 0) != (ssize_t)bytes ||
        mmap(start, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
        close(fd);
        return -1;
    }
    return fd;
}

/* The file of [start, start + bytes), NULL: what overlaps it has one already, or there is no
 * memory. */
static const struct part *part_of(const struct sim_memory *memory, char *start, size_t bytes)
{
    struct part *part = *find(start, bytes);

    if (part)
        return part->start == start && part->bytes >= bytes ? part : NULL;
    part = malloc(sizeof(*part));
    if (!part)
        return NULL;
    *part = (struct part){.start = start, .bytes = bytes, .next = parts};
    part->fd =
        start == memory->start && bytes >= memory->bytes ? dup(memory->fd) : exchange(start, bytes);
    if (part->fd < 0) {
        free(part);
        return NULL;
    }
    parts = part;
    return part;
}

SIM_EXPORT int cuMemGetHandleForAddressRange(int *out, uintptr_t ptr, size_t bytes, int type,
                                             unsigned long long flags)
{
    struct sim_memory memory = sim_memory_find((const void *)ptr);
    size_t whole = (bytes + 4095) & ~(size_t)4095;

    (void)type, (void)flags;
    if (memory.fd < 0 || ptr % 4096)
        return SIM_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    const struct part *part = part_of(&memory, (char *)ptr, whole);
    int fd = part ? fcntl(part->fd, F_DUPFD_CLOEXEC, 0) : -1;
    pthread_mutex_unlock(&lock);
    if (fd < 0)
        return SIM_NOT_SUPPORTED;
    *out = fd;
    return 0;
}
