/* SPDX-License-Identifier: Apache-2.0
 *
 * sim_memory.c - memory of the device and pinned memory: each allocation a memory file of its own,
 * so that other processes can map it (CUDA IPC) and it has a descriptor to give away (dma-buf).
 */
#include "config.h" /* GNU extensions: memfd_create */
#include "simcuda/sim.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct entry {
    struct sim_memory memory;
    struct entry *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct entry *entries;

static size_t whole_pages(size_t bytes)
{
    return (bytes + 4095) & ~(size_t)4095;
}

static struct entry **find(const void *ptr)
{
    struct entry **at = &entries;

    while (*at && (size_t)((const char *)ptr - (*at)->memory.start) >= (*at)->memory.bytes)
        at = &(*at)->next;
    return at;
}

struct sim_memory sim_memory_find(const void *ptr)
{
    struct sim_memory found = {.fd = -1};

    pthread_mutex_lock(&lock);
    struct entry *at = *find(ptr);
    if (at)
        found = at->memory;
    pthread_mutex_unlock(&lock);
    return found;
}

static int remember(struct sim_memory memory)
{
    struct entry *entry = malloc(sizeof(*entry));

    if (!entry)
        return SIM_OUT_OF_MEMORY;
    entry->memory = memory;
    pthread_mutex_lock(&lock);
    entry->next = entries;
    entries = entry;
    pthread_mutex_unlock(&lock);
    return 0;
}

/* Take it off the list if it starts at ptr. */
static struct sim_memory forget(const void *ptr)
{
    struct sim_memory found = {.fd = -1};

    pthread_mutex_lock(&lock);
    struct entry **at = find(ptr), *entry = *at;
    if (entry && entry->memory.start == ptr) {
        found = entry->memory;
        *at = entry->next;
        free(entry);
    }
    pthread_mutex_unlock(&lock);
    return found;
}

void sim_memory_forget_registered(void)
{
    pthread_mutex_lock(&lock);
    for (struct entry **at = &entries, *entry; (entry = *at);) {
        if (entry->memory.kind != SIM_MEMORY_REGISTERED) {
            at = &entry->next;
            continue;
        }
        *at = entry->next;
        free(entry);
    }
    pthread_mutex_unlock(&lock);
}

static int map_file(int fd, size_t bytes, enum sim_memory_kind kind, void **out)
{
    char *start = mmap(NULL, whole_pages(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (start == MAP_FAILED)
        return SIM_CANNOT_MAP;
    if (remember((struct sim_memory){start, bytes, kind, fd})) {
        munmap(start, whole_pages(bytes));
        return SIM_OUT_OF_MEMORY;
    }
    *out = start;
    return 0;
}

static int allocate(size_t bytes, enum sim_memory_kind kind, void **out)
{
    int fd = memfd_create("simcuda", MFD_CLOEXEC);

    bytes += bytes == 0;
    if (fd < 0)
        return SIM_OUT_OF_MEMORY;
    if (ftruncate(fd, (off_t)whole_pages(bytes)) || map_file(fd, bytes, kind, out)) {
        close(fd);
        return SIM_OUT_OF_MEMORY;
    }
    return 0;
}

static int release(void *ptr)
{
    struct sim_memory memory = forget(ptr);

    if (!ptr)
        return 0;
    if (memory.kind != SIM_MEMORY_DEVICE && memory.kind != SIM_MEMORY_PINNED &&
        memory.kind != SIM_MEMORY_MANAGED)
        return SIM_INVALID_VALUE;
    sim_dmabuf_forget(memory.start, memory.bytes);
    munmap(memory.start, whole_pages(memory.bytes));
    close(memory.fd);
    return 0;
}

static void release_late(void *arg)
{
    release(*(void **)arg);
}

/* ---- what CUDA calls it ---------------------------------------------------------------------- */

SIM_EXPORT int cudaMalloc(void **out, size_t bytes)
{
    return allocate(bytes, SIM_MEMORY_DEVICE, out);
}

SIM_EXPORT int cudaMallocManaged(void **out, size_t bytes, unsigned flags)
{
    (void)flags;
    return allocate(bytes, SIM_MEMORY_MANAGED, out);
}

SIM_EXPORT int cudaFree(void *ptr)
{
    sim_stream_drain_all();
    return release(ptr);
}

SIM_EXPORT int cudaMallocAsync(void **out, size_t bytes, struct sim_stream *stream)
{
    (void)stream;
    return cudaMalloc(out, bytes);
}

SIM_EXPORT int cudaMallocFromPoolAsync(void **out, size_t bytes, void *pool,
                                       struct sim_stream *stream)
{
    (void)pool;
    return cudaMallocAsync(out, bytes, stream);
}

SIM_EXPORT int cudaFreeAsync(void *ptr, struct sim_stream *stream)
{
    sim_stream_give(stream, release_late, &ptr, sizeof(ptr));
    return 0;
}

SIM_EXPORT int cudaHostAlloc(void **out, size_t bytes, unsigned flags)
{
    (void)flags;
    const int status = allocate(bytes, SIM_MEMORY_PINNED, out);
    if (!status)
        memset(*out, 0, bytes); /* pinned pages are taken now, by this thread's memory policy */
    return status;
}

SIM_EXPORT int cudaMallocHost(void **out, size_t bytes)
{
    return cudaHostAlloc(out, bytes, 0);
}

SIM_EXPORT int cudaFreeHost(void *ptr)
{
    return release(ptr);
}

SIM_EXPORT int cudaHostRegister(void *ptr, size_t bytes, unsigned flags)
{
    (void)flags;
    SIM_BEGIN();
    return remember((struct sim_memory){ptr, bytes, SIM_MEMORY_REGISTERED, -1});
}

SIM_EXPORT int cudaHostUnregister(void *ptr)
{
    return forget(ptr).kind == SIM_MEMORY_REGISTERED ? 0 : SIM_NOT_REGISTERED;
}

SIM_EXPORT int cudaHostGetDevicePointer(void **out, void *ptr, unsigned flags)
{
    (void)flags;
    *out = ptr;
    return 0;
}

SIM_EXPORT int cudaPointerGetAttributes(struct sim_pointer_attributes *out, const void *ptr)
{
    struct sim_memory memory = sim_memory_find(ptr);
    void *at = (void *)(uintptr_t)ptr;
    bool is_device = memory.kind == SIM_MEMORY_DEVICE, is_known = memory.kind != SIM_MEMORY_NONE;

    *out = (struct sim_pointer_attributes){
        .type = is_device  ? SIM_DEVICE
                : is_known ? SIM_HOST
                           : SIM_UNREGISTERED,
        .device = is_known ? 0 : -2,
        .device_pointer = is_known ? at : NULL,
        .host_pointer = is_device ? NULL : at,
    };
    return 0;
}

SIM_EXPORT int cudaMemPoolCreate(void **out, const void *properties)
{
    (void)properties;
    *out = malloc(1);
    return *out ? 0 : SIM_OUT_OF_MEMORY;
}

SIM_EXPORT int cudaMemPoolDestroy(void *pool)
{
    free(pool);
    return 0;
}

SIM_EXPORT int cudaMemPoolSetAttribute(void *pool, int attribute, void *value)
{
    (void)pool, (void)attribute, (void)value;
    return 0;
}

/* ---- between processes: the owner's memory file, reopened ------------------------------------ */

struct ipc {
    uint64_t bytes;
    int pid, fd;
};

SIM_EXPORT int cudaIpcGetMemHandle(struct sim_ipc_handle *out, void *ptr)
{
    struct sim_memory memory = sim_memory_find(ptr);
    struct ipc ipc = {memory.bytes, getpid(), memory.fd};

    if (memory.fd < 0)
        return SIM_INVALID_VALUE;
    memset(out, 0, sizeof(*out));
    memcpy(out, &ipc, sizeof(ipc));
    return 0;
}

SIM_EXPORT int cudaIpcOpenMemHandle(void **out, struct sim_ipc_handle handle, unsigned flags)
{
    struct ipc ipc;
    char path[64];

    (void)flags;
    memcpy(&ipc, &handle, sizeof(ipc));
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", ipc.pid, ipc.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return SIM_CANNOT_MAP;
    int err = map_file(fd, ipc.bytes, SIM_MEMORY_DEVICE, out);
    if (err)
        close(fd);
    return err;
}

SIM_EXPORT int cudaIpcCloseMemHandle(void *ptr)
{
    return release(ptr);
}

/* ---- what CUDA's driver calls it ------------------------------------------------------------- */

SIM_EXPORT int cuMemGetAddressRange(uintptr_t *start, size_t *bytes, uintptr_t ptr)
{
    struct sim_memory memory = sim_memory_find((const void *)ptr);

    if (memory.kind == SIM_MEMORY_NONE)
        return SIM_INVALID_VALUE;
    if (start)
        *start = (uintptr_t)memory.start;
    if (bytes)
        *bytes = memory.bytes;
    return 0;
}

/* NCCL 2.30 asks even where there is no virtual memory management. */
SIM_EXPORT int cuMemGetAllocationGranularity(size_t *out, const void *properties, int option)
{
    (void)properties, (void)option;
    *out = (size_t)2 << 20;
    return 0;
}

SIM_EXPORT int cuPointerGetAttribute(void *out, int attribute, uintptr_t ptr)
{
    enum { MEMORY_TYPE = 2, DEVICE_ORDINAL = 9, IS_LEGACY_IPC_CAPABLE = 10 };
    struct sim_memory memory = sim_memory_find((const void *)ptr);
    unsigned value;

    if (memory.kind == SIM_MEMORY_NONE)
        return SIM_INVALID_VALUE;
    switch (attribute) {
    case MEMORY_TYPE:
        value = memory.kind == SIM_MEMORY_DEVICE ? 2 : 1;
        break;
    case DEVICE_ORDINAL:
        value = 0;
        break;
    case IS_LEGACY_IPC_CAPABLE:
        value = 1;
        break;
    default:
        return SIM_NOT_SUPPORTED;
    }
    memcpy(out, &value, sizeof(value));
    return 0;
}

/* Of what CUDA does not know all are 0, which is no error. */
SIM_EXPORT int cuPointerGetAttributes(unsigned count, const int *attributes, void **out,
                                      uintptr_t ptr)
{
    enum { MEMORY_TYPE = 2, IS_MANAGED = 8, DEVICE_ORDINAL = 9 };
    const struct sim_memory memory = sim_memory_find((const void *)ptr);
    const bool is_host = memory.kind == SIM_MEMORY_PINNED || memory.kind == SIM_MEMORY_REGISTERED;

    SIM_BEGIN();
    for (unsigned i = 0; i < count; i++) {
        unsigned value = 0;
        if (attributes[i] == MEMORY_TYPE && memory.kind != SIM_MEMORY_NONE)
            value = is_host ? 1 : 2;
        else if (attributes[i] == IS_MANAGED)
            value = memory.kind == SIM_MEMORY_MANAGED;
        else if (attributes[i] == DEVICE_ORDINAL && memory.kind == SIM_MEMORY_NONE)
            value = (unsigned)-2;
        memcpy(out[i], &value, sizeof(value));
    }
    return 0;
}
