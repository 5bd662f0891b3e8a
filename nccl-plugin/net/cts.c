/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl-plugin/net/cts.h"

#include <string.h>

size_t dpn_cts_len(unsigned count)
{
    return offsetof(struct dpn_cts, buffers) + count * sizeof(((struct dpn_cts *)0)->buffers[0]);
}

static bool is_cts(const struct dpn_cts_list *g, const struct dpn_cts *cts, size_t len)
{
    return len >= dpn_cts_len(0) && cts->slot < NCCL_NET_MAX_REQUESTS && cts->count >= 1 &&
           cts->count <= DPN_MAX_RECEIVES && len == dpn_cts_len(cts->count) &&
           !g->slots[cts->slot].live;
}

int dpn_cts_list_add(struct dpn_cts_list *g, const struct dpn_cts *cts, size_t len)
{
    if (!is_cts(g, cts, len))
        return DP_EMISMATCH;
    g->slots[cts->slot].live = true;
    g->slots[cts->slot].open = (uint8_t)((1u << cts->count) - 1);
    memcpy(&g->slots[cts->slot].cts, cts, len);
    g->order[g->live++] = (uint8_t)cts->slot;
    return 0;
}

bool dpn_cts_list_find(const struct dpn_cts_list *g, int tag, struct dpn_place *out)
{
    for (int i = 0; i < g->live; i++) {
        const unsigned slot = g->order[i];
        for (unsigned sub = 0; sub < g->slots[slot].cts.count; sub++)
            if (g->slots[slot].open >> sub & 1 && g->slots[slot].cts.buffers[sub].tag == tag) {
                *out = (struct dpn_place){slot, sub};
                return true;
            }
    }
    return false;
}

size_t dpn_cts_list_room(const struct dpn_cts_list *g, struct dpn_place place)
{
    return g->slots[place.slot].cts.buffers[place.sub].bytes;
}

static void retire(struct dpn_cts_list *g, unsigned slot)
{
    int i = 0;

    while (g->order[i] != slot)
        i++;
    memmove(&g->order[i], &g->order[i + 1], (size_t)(--g->live - i));
    g->slots[slot].live = false;
}

void dpn_cts_list_take(struct dpn_cts_list *g, struct dpn_place place)
{
    g->slots[place.slot].open &= (uint8_t)~(1u << place.sub);
    if (!g->slots[place.slot].open)
        retire(g, place.slot);
}
