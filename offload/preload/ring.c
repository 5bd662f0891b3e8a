/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h" /* GNU extensions: MAP_ANONYMOUS */

#include "offload/preload/ring.h"

#include "offload/preload/node.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

enum { CONTEXTS = 64, PORTABLE = 1 /* CU_MEMHOSTREGISTER_PORTABLE */ };
static const size_t ring_bytes = DPO_RING_CHUNKS * DPO_RING_CHUNK_BYTES;

/* A broken one stays in its place, and so does its memory: the device may still write to it. */
enum ring_state { RING_NONE, RING_MAKING, RING_READY, RING_BROKEN };
static struct ring {
    enum ring_state state;
    void *context;
    int device;
    char *memory;
    struct dpo_chunk chunks[DPO_RING_CHUNKS];
} rings[CONTEXTS];
/* Of all rings; not held while a thread waits for the device. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- making one ------------------------------------------------------------------------------ */

static char *map_on_node(int node)
{
    char *at = mmap(NULL, ring_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (at == MAP_FAILED)
        return NULL;
    const bool is_placed = node != DPO_NO_NODE && dpo_memory_prefer(at, ring_bytes, node);
    madvise(at, ring_bytes, MADV_HUGEPAGE);
    madvise(at, ring_bytes, MADV_DONTFORK);
    memset(at, 0, ring_bytes);
    /* Where the node has no huge page left, the kernel takes one of another node instead. */
    if (is_placed)
        dpo_pages_move(at, ring_bytes, node);
    return at;
}

static void release(const struct dpo_driver *driver, struct ring *r)
{
    for (int i = 0; i < DPO_RING_CHUNKS; i++)
        if (r->chunks[i].event)
            driver->event_destroy(r->chunks[i].event);
    if (r->memory) {
        driver->host_unregister(r->memory);
        munmap(r->memory, ring_bytes);
    }
    r->memory = NULL;
    memset(r->chunks, 0, sizeof(r->chunks));
}

static bool make(const struct dpo_driver *driver, int node, struct ring *r)
{
    r->memory = map_on_node(node);
    bool is_good = r->memory && !driver->get_device(&r->device) &&
                   !driver->host_register(r->memory, ring_bytes, PORTABLE);
    for (int i = 0; i < DPO_RING_CHUNKS && is_good; i++) {
        r->chunks[i].at = r->memory + (size_t)i * DPO_RING_CHUNK_BYTES;
        is_good = !driver->event_create(&r->chunks[i].event, DPO_CUDA_EVENT_WITHOUT_TIME);
    }
    if (!is_good)
        release(driver, r);
    return is_good;
}

/* ---- finding one, with the lock -------------------------------------------------------------- */

static struct ring *find(const void *context)
{
    for (int i = 0; i < CONTEXTS; i++)
        if (rings[i].state != RING_NONE && rings[i].context == context)
            return &rings[i];
    return NULL;
}

static struct ring *find_place(void)
{
    for (int i = 0; i < CONTEXTS; i++)
        if (rings[i].state == RING_NONE)
            return &rings[i];
    return NULL;
}

/* Without the lock meanwhile, as it takes milliseconds; the others find a ring without chunks. */
static struct ring *make_for(const struct dpo_driver *driver, void *context, int node)
{
    struct ring *r = find_place();

    if (!r)
        return NULL;
    r->state = RING_MAKING;
    r->context = context;
    pthread_mutex_unlock(&lock);
    const bool is_made = make(driver, node, r);
    pthread_mutex_lock(&lock);
    r->state = is_made ? RING_READY : RING_BROKEN;
    return r;
}

static bool has_come(const struct dpo_driver *driver, struct ring *r, struct dpo_chunk *chunk)
{
    const int status = driver->event_query(chunk->event);

    if (status && status != DPO_CUDA_NOT_READY)
        r->state = RING_BROKEN;
    return !status;
}

static int take_free(const struct dpo_driver *driver, struct ring *r,
                     struct dpo_chunk *out[DPO_RING_TAKE])
{
    int count = 0;

    for (int i = 0; i < DPO_RING_CHUNKS && count < DPO_RING_TAKE && r->state == RING_READY; i++) {
        struct dpo_chunk *chunk = &r->chunks[i];
        if (chunk->state == DPO_CHUNK_IN_FLIGHT && has_come(driver, r, chunk))
            chunk->state = DPO_CHUNK_FREE;
        if (chunk->state == DPO_CHUNK_FREE) {
            chunk->state = DPO_CHUNK_TAKEN;
            out[count++] = chunk;
        }
    }
    return count;
}

int dpo_ring_take(const struct dpo_driver *driver, void *context, int node,
                  struct dpo_chunk *out[DPO_RING_TAKE])
{
    pthread_mutex_lock(&lock);
    struct ring *r = find(context);
    if (!r)
        r = make_for(driver, context, node);
    const int count = r ? take_free(driver, r, out) : 0;
    pthread_mutex_unlock(&lock);
    return count;
}

void dpo_ring_give(void *context, int count, struct dpo_chunk *chunks[DPO_RING_TAKE], bool is_good)
{
    pthread_mutex_lock(&lock);
    struct ring *r = find(context);
    if (r && !is_good)
        r->state = RING_BROKEN;
    for (int i = 0; i < count; i++)
        chunks[i]->state = DPO_CHUNK_IN_FLIGHT;
    pthread_mutex_unlock(&lock);
}

static bool is_taken(const struct ring *r)
{
    for (int i = 0; i < DPO_RING_CHUNKS; i++)
        if (r->chunks[i].state == DPO_CHUNK_TAKEN)
            return true;
    return false;
}

/* Events end with their context, and must be gone before. A ring with a copy at work, which a
 * program that destroys its context should not have, is left to the program's end. */
void dpo_ring_drop(const struct dpo_driver *driver, const void *context, int device)
{
    pthread_mutex_lock(&lock);
    for (struct ring *r = rings; r < rings + CONTEXTS; r++) {
        if (r->state == RING_NONE || r->state == RING_MAKING ||
            (context ? r->context != context : r->device != device))
            continue;
        if (r->state == RING_READY && !is_taken(r)) {
            release(driver, r);
            r->state = RING_NONE;
        } else {
            r->context = NULL; /* a new context may have the same address */
        }
    }
    pthread_mutex_unlock(&lock);
}
