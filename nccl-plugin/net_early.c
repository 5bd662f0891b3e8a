/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl-plugin/net_early.h"

#include "nccl-plugin/net_options.h"

#include <stdlib.h>
#include <string.h>

void dpn_early_add(struct dpn_early_sends *e, struct dpn_early_send send)
{
    e->sends[e->count++] = send;
}

bool dpn_early_take(struct dpn_early_sends *e, int tag, struct dpn_early_send *out)
{
    unsigned i = 0;

    while (i < e->count && e->sends[i].tag != tag)
        i++;
    if (i == e->count)
        return false;
    *out = e->sends[i];
    memmove(&e->sends[i], &e->sends[i + 1], (--e->count - i) * sizeof(e->sends[0]));
    return true;
}

struct dpn_kept *dpn_kept_new(struct dpn_kept_list *list, int tag, size_t size)
{
    const bool may = list->count < DPN_EARLY_COUNT && size <= DPN_MAX_EAGER;
    struct dpn_kept *kept = may ? malloc(sizeof(*kept) + size) : NULL;

    if (!kept)
        return NULL;
    *kept = (struct dpn_kept){.tag = tag, .size = size};
    list->count++;
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
    if (!kept)
        return;
    list->count--;
    free(kept);
}

void dpn_kept_free_all(struct dpn_kept_list *list)
{
    while (list->head) {
        struct dpn_kept *next = list->head->next;
        dpn_kept_free(list, list->head);
        list->head = next;
    }
}
