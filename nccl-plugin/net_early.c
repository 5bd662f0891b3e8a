/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl-plugin/net_early.h"

#include "nccl-plugin/net_options.h"

#include <string.h>
#include <sys/mman.h>

void dpn_early_add(struct dpn_early_sends *e, struct dpn_early_send send)
{
    e->sends[e->count++] = send;
    e->bytes += send.size;
}

bool dpn_early_take(struct dpn_early_sends *e, int tag, struct dpn_early_send *out)
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
enum { PLACE_BYTES = DPN_MAX_EAGER + 128, POOL_BYTES = DPN_EARLY_COUNT * PLACE_BYTES };
_Static_assert(sizeof(struct dpn_kept) <= PLACE_BYTES - DPN_MAX_EAGER, "a message and its head fit");

static bool has_memory(struct dpn_kept_list *list)
{
    if (list->memory)
        return true;
    void *at = mmap(NULL, POOL_BYTES, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    list->memory = at == MAP_FAILED ? NULL : at;
    return list->memory;
}

struct dpn_kept *dpn_kept_new(struct dpn_kept_list *list, int tag, size_t size)
{
    const unsigned free = ~list->used & ((1u << DPN_EARLY_COUNT) - 1);

    if (!free || size > DPN_MAX_EAGER || !has_memory(list))
        return NULL;
    const int place = __builtin_ctz(free);
    struct dpn_kept *kept = (void *)(list->memory + (size_t)place * PLACE_BYTES);
    *kept = (struct dpn_kept){.tag = tag, .size = size};
    list->used |= 1u << place;
    return kept;
}

void dpn_kept_add(struct dpn_kept_list *list, struct dpn_kept *kept)
{
    struct dpn_kept **end = &list->head;

    while (*end)
        end = &(*end)->next;
    *end = kept;
}

struct dpn_kept *dpn_kept_take(struct dpn_kept_list *list, int tag)
{
    for (struct dpn_kept **at = &list->head; *at; at = &(*at)->next)
        if ((*at)->tag == tag) {
            struct dpn_kept *kept = *at;
            *at = kept->next;
            kept->next = NULL;
            return kept;
        }
    return NULL;
}

void dpn_kept_free(struct dpn_kept_list *list, struct dpn_kept *kept)
{
    if (kept)
        list->used &= ~(1u << ((char *)kept - list->memory) / PLACE_BYTES);
}

void dpn_kept_fini(struct dpn_kept_list *list)
{
    if (list->memory)
        munmap(list->memory, POOL_BYTES);
    *list = (struct dpn_kept_list){.head = NULL};
}
