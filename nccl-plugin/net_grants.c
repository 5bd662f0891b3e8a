/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl-plugin/net_grants.h"

#include <string.h>

size_t dpn_grant_len(unsigned count)
{
    return offsetof(struct dpn_grant, rooms) + count * sizeof(((struct dpn_grant *)0)->rooms[0]);
}

static bool is_grant(const struct dpn_grants *g, const struct dpn_grant *grant, size_t len)
{
    return len >= dpn_grant_len(0) && grant->slot < NCCL_NET_MAX_REQUESTS && grant->count >= 1 &&
           grant->count <= DPN_MAX_RECEIVES && len == dpn_grant_len(grant->count) &&
           !g->slots[grant->slot].live;
}

int dpn_grants_add(struct dpn_grants *g, const struct dpn_grant *grant, size_t len)
{
    if (!is_grant(g, grant, len))
        return DP_EMISMATCH;
    g->slots[grant->slot].live = true;
    g->slots[grant->slot].open = (uint8_t)((1u << grant->count) - 1);
    memcpy(&g->slots[grant->slot].grant, grant, len);
    g->order[g->live++] = (uint8_t)grant->slot;
    return 0;
}

bool dpn_grants_find(const struct dpn_grants *g, int tag, struct dpn_place *out)
{
    for (int i = 0; i < g->live; i++) {
        const unsigned slot = g->order[i];
        for (unsigned sub = 0; sub < g->slots[slot].grant.count; sub++)
            if (g->slots[slot].open >> sub & 1 && g->slots[slot].grant.rooms[sub].tag == tag) {
                *out = (struct dpn_place){slot, sub};
                return true;
            }
    }
    return false;
}

size_t dpn_grants_room(const struct dpn_grants *g, struct dpn_place place)
{
    return g->slots[place.slot].grant.rooms[place.sub].bytes;
}

static void retire(struct dpn_grants *g, unsigned slot)
{
    int i = 0;

    while (g->order[i] != slot)
        i++;
    memmove(&g->order[i], &g->order[i + 1], (size_t)(--g->live - i));
    g->slots[slot].live = false;
}

void dpn_grants_take(struct dpn_grants *g, struct dpn_place place)
{
    g->slots[place.slot].open &= (uint8_t)~(1u << place.sub);
    if (!g->slots[place.slot].open)
        retire(g, place.slot);
}
