/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_net.c - what the net plugin reads that a peer has made. The first byte says what the rest
 * is: a handle, grants for messages and the messages that take them, a word about RDMA, or messages
 * that come before their receives.
 */
#include "config.h" /* HAVE_VERBS */

#include "fuzz.h"

#include "nccl-plugin/net_early.h"
#include "nccl-plugin/net_grants.h"
#include "nccl-plugin/net_handle.h"
#include "nccl-plugin/net_options.h"
#ifdef HAVE_VERBS
#include "nccl-plugin/verbs/verbs_talk.h"
#endif

#include <stdlib.h>
#include <string.h>

/* ---- handles --------------------------------------------------------------------------------- */

/* Magic, version, wires, checksum; with the right sum, or nothing behind it would ever be
 * reached. */
static void correct_sum(uint8_t handle[NCCL_NET_HANDLE_MAXSIZE])
{
    uint16_t wires;
    uint32_t sum;

    memcpy(&wires, handle + 6, sizeof(wires));
    sum = 2166136261u ^ wires;
    for (int i = 12; i < NCCL_NET_HANDLE_MAXSIZE; i++)
        sum = (sum ^ handle[i]) * 16777619u;
    memcpy(handle + 8, &sum, sizeof(sum));
}

/* What is accepted is written as it was read. */
static void read_handle(const uint8_t *data, size_t size)
{
    uint8_t handle[NCCL_NET_HANDLE_MAXSIZE] = {0}, again[NCCL_NET_HANDLE_MAXSIZE];
    struct dpn_addresses found, twice;
    bool any = false;

    memcpy(handle, data, size < sizeof(handle) ? size : sizeof(handle));
    if (size % 8)
        correct_sum(handle);
    if (dpn_handle_read(handle, &found))
        return;
    for (int w = 0; w < DPN_WIRES; w++)
        any |= found.present[w];
    must(any);
    must(!dpn_handle_write(&found, again) && !dpn_handle_read(again, &twice));
    must(!memcmp(&found, &twice, sizeof(found)));
}

/* ---- grants ---------------------------------------------------------------------------------- */

static size_t take_grant(struct dpn_grants *g, const uint8_t *data, size_t size)
{
    struct dpn_grant grant = {.count = 0};
    const size_t len = size < 2 ? 0 : data[1] % (sizeof(grant) + 8), rest = size < 2 ? 0 : size - 2;
    const size_t have = len < rest ? len : rest;

    memcpy(&grant, data + (size < 2 ? 0 : 2), have < sizeof(grant) ? have : sizeof(grant));
    dpn_grants_add(g, &grant, have);
    return 2 + have;
}

/* No place is given away twice. */
static void take_message(struct dpn_grants *g, int tag)
{
    struct dpn_place place, next;

    if (!dpn_grants_find(g, tag, &place))
        return;
    must(place.slot < NCCL_NET_MAX_REQUESTS && place.sub < DPN_MAX_RECEIVES);
    must(g->slots[place.slot].grant.rooms[place.sub].tag == tag);
    dpn_grants_take(g, place);
    must(!dpn_grants_find(g, tag, &next) || next.slot != place.slot || next.sub != place.sub);
}

static void read_grants(const uint8_t *data, size_t size)
{
    struct dpn_grants grants = {.live = 0};

    for (size_t at = 0; at < size;) {
        if (data[at] & 1) {
            at += take_grant(&grants, data + at, size - at);
        } else {
            take_message(&grants, data[at] / 2);
            at++;
        }
        must(grants.live >= 0 && grants.live <= NCCL_NET_MAX_REQUESTS);
    }
}

/* ---- words about RDMA ------------------------------------------------------------------------ */

#ifdef HAVE_VERBS
/* What is accepted can be used without a further look. */
static void check_word(uint64_t kind, const union dpn_talk *t)
{
    if (kind == DPN_HELLO)
        must(t->hello.port_count <= DPN_MAX_RAILS && memchr(t->hello.ports[0].name, 0, DPN_TALK_NAME));
    if (kind == DPN_PLAN)
        must(memchr(t->plan.reason, 0, DPN_TALK_REASON) &&
             (!t->plan.agreed || t->plan.rails * t->plan.lanes_per_rail <= DPN_MAX_LANES));
    if (kind == DPN_OPEN)
        must(t->open.lane < DPN_MAX_LANES && t->open.gids.count <= DPN_MAX_GIDS);
    if (kind == DPN_OPENED)
        must(t->opened.lane < DPN_MAX_LANES && memchr(t->opened.reason, 0, DPN_TALK_REASON));
    if (kind == DPN_REFUSED)
        must(t->refused.slot < NCCL_NET_MAX_REQUESTS);
}

static void read_word(const uint8_t *data, size_t size)
{
    union dpn_talk word;
    const uint64_t kind = size ? data[0] >> 1 : 0;
    const size_t len = size ? size - 1 : 0;

    memset(&word, 0xa5, sizeof(word));
    if (!size || len > sizeof(word))
        return;
    memcpy(&word, data + 1, len);
    if (!dpn_talk_check(kind, data[0] & 1, &word, len))
        check_word(kind, &word);
}
#endif

/* ---- messages before their receives ---------------------------------------------------------- */

struct early {
    struct dpn_early_sends sends;
    struct dpn_kept_list kept;
};

/* What the sender may send, the receiver can keep. */
static void send_early(struct early *e, int tag, size_t size)
{
    if (e->sends.count == DPN_EARLY_COUNT)
        return;
    struct dpn_kept *kept = dpn_kept_new(&e->kept, tag, size);
    must((kept != NULL) == (size <= DPN_MAX_EAGER));
    if (!kept)
        return;
    memset(kept->data, tag, size);
    dpn_kept_add(&e->kept, kept);
    dpn_early_add(&e->sends, (struct dpn_early_send){tag, size, e->sends.count});
}

/* Both sides know which one it is for. */
static void receive_early(struct early *e, int tag)
{
    struct dpn_kept *kept = dpn_kept_take(&e->kept, tag);
    struct dpn_early_send send;

    must(dpn_early_take(&e->sends, tag, &send) == (kept != NULL));
    must(!kept || (kept->tag == tag && send.tag == tag && kept->size == send.size));
    dpn_kept_free(&e->kept, kept);
}

static void read_early(const uint8_t *data, size_t size)
{
    struct early e = {.kept.head = NULL};

    for (size_t i = 0; i < size; i++) {
        const int tag = data[i] >> 1 & 3;
        if (data[i] & 1)
            receive_early(&e, tag);
        else
            send_early(&e, tag, (data[i] >> 3) * (size_t)2300 + i);
        must(dpn_kept_count(&e.kept) == e.sends.count);
    }
    dpn_kept_fini(&e.kept);
    must(!dpn_kept_count(&e.kept));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    switch (data[0] % 4) {
    case 0:
        read_handle(data + 1, size - 1);
        break;
    case 1:
        read_grants(data + 1, size - 1);
        break;
    case 3:
        read_early(data + 1, size - 1);
        break;
    default:
#ifdef HAVE_VERBS
        read_word(data + 1, size - 1);
#endif
        break;
    }
    return 0;
}
