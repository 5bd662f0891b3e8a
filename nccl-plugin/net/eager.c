/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl-plugin/net/eager.h"

#include "nccl-plugin/net/options.h"

#include <string.h>
#include <sys/mman.h>

void dpn_eager_queue_add(struct dpn_eager_queue *e, struct dpn_eager_entry send)
{
    e->sends[e->count++] = send;
    e->bytes += send.size;
}

bool dpn_eager_queue_take(struct dpn_eager_queue *e, int tag, struct dpn_eager_entry *out)
{
    unsigned i = 0;

    while (i < e->count && e->sends[i].tag != tag)
        i++;
    if (i == e->count)
        return false;
    *out = e->sends[i];
    e->bytes -= out->size;
    memmove(&e->sends[i], &e->sends[i + 1], (--e->count - i) * sizeof(e->sends[0]));
    return true;
}

/* More than a message and its head: else all would begin in the same few sets of a cache. */
enum { PLACE_BYTES = DPN_MAX_EAGER + 128, POOL_BYTES = DPN_EAGER_COUNT * PLACE_BYTES };
_Static_assert(sizeof(struct dpn_unexpected) <= PLACE_BYTES - DPN_MAX_EAGER,
               "a message and its head fit");

static bool has_memory(struct dpn_unexpected_list *list)
{
    if (list->memory)
        return true;
    void *at = mmap(NULL, POOL_BYTES, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    list->memory = at == MAP_FAILED ? NULL : at;
    return list->memory;
}

struct dpn_unexpected *dpn_unexpected_new(struct dpn_unexpected_list *list, int tag, size_t size)
{
    const unsigned free = ~list->used & ((1u << DPN_EAGER_COUNT) - 1);

    if (!free || size > DPN_MAX_EAGER || !has_memory(list))
        return NULL;
    const int place = __builtin_ctz(free);
    struct dpn_unexpected *message = (void *)(list->memory + (size_t)place * PLACE_BYTES);
    *message = (struct dpn_unexpected){.tag = tag, .size = size};
    list->used |= 1u << place;
    return message;
}

void dpn_unexpected_add(struct dpn_unexpected_list *list, struct dpn_unexpected *message)
{
    struct dpn_unexpected **end = &list->head;

    while (*end)
        end = &(*end)->next;
    *end = message;
}

struct dpn_unexpected *dpn_unexpected_take(struct dpn_unexpected_list *list, int tag)
{
    for (struct dpn_unexpected **at = &list->head; *at; at = &(*at)->next)
        if ((*at)->tag == tag) {
            struct dpn_unexpected *message = *at;
            *at = message->next;
            message->next = NULL;
            return message;
        }
    return NULL;
}

void dpn_unexpected_free(struct dpn_unexpected_list *list, struct dpn_unexpected *message)
{
    if (message)
        list->used &= ~(1u << ((char *)message - list->memory) / PLACE_BYTES);
}

void dpn_unexpected_fini(struct dpn_unexpected_list *list)
{
    if (list->memory)
        munmap(list->memory, POOL_BYTES);
    *list = (struct dpn_unexpected_list){.head = NULL};
}
