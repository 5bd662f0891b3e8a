/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_net.c - what the net plugin reads that a peer has made. The first byte says what the rest
 * is: a handle, clear-to-send entries and the messages that use them, a token about RDMA, or
 * messages that come before their receives.
 */
#include "config.h" /* HAVE_VERBS */

#include "fuzz.h"

#include "nccl-plugin/net/wire_transport.h"
#include "nccl-plugin/net/cts.h"
#include "nccl-plugin/net/comm.h"
#include "nccl-plugin/options.h"
#ifdef HAVE_VERBS
#include "nccl-plugin/verbs/control_message.h"
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

/* ---- clear-to-send --------------------------------------------------------------------------- */

static size_t take_cts(struct dpn_cts_list *g, const uint8_t *data, size_t size)
{
    struct dpn_cts cts = {.count = 0};
    const size_t len = size < 2 ? 0 : data[1] % (sizeof(cts) + 8), rest = size < 2 ? 0 : size - 2;
    const size_t have = len < rest ? len : rest;

    memcpy(&cts, data + (size < 2 ? 0 : 2), have < sizeof(cts) ? have : sizeof(cts));
    dpn_cts_list_add(g, &cts, have);
    return 2 + have;
}

/* No place is given away twice. */
static void take_message(struct dpn_cts_list *g, int tag)
{
    struct dpn_place place, next;

    if (!dpn_cts_list_find(g, tag, &place))
        return;
    must(place.slot < NCCL_NET_MAX_REQUESTS && place.sub < DPN_MAX_RECEIVES);
    must(g->slots[place.slot].cts.buffers[place.sub].tag == tag);
    dpn_cts_list_take(g, place);
    must(!dpn_cts_list_find(g, tag, &next) || next.slot != place.slot || next.sub != place.sub);
}

static void read_cts(const uint8_t *data, size_t size)
{
    struct dpn_cts_list list = {.live = 0};

    for (size_t at = 0; at < size;) {
        if (data[at] & 1) {
            at += take_cts(&list, data + at, size - at);
        } else {
            take_message(&list, data[at] / 2);
            at++;
        }
        must(list.live >= 0 && list.live <= NCCL_NET_MAX_REQUESTS);
    }
}

/* ---- words about RDMA ------------------------------------------------------------------------ */

#ifdef HAVE_VERBS
/* What is accepted can be used without a further look. */
static void check_control(uint64_t kind, const union dpn_control_body *t)
{
    if (kind == DPN_HELLO)
        must(t->hello.port_count <= DPN_MAX_RAILS && memchr(t->hello.ports[0].name, 0, DPN_CONTROL_NAME));
    if (kind == DPN_PLAN)
        must(memchr(t->plan.reason, 0, DPN_CONTROL_REASON) &&
             (!t->plan.agreed || t->plan.rails * t->plan.qps_per_rail <= DPN_MAX_QPS));
    if (kind == DPN_OPEN)
        must(t->open.index < DPN_MAX_QPS && t->open.gids.count <= DPN_MAX_GIDS);
    if (kind == DPN_OPENED)
        must(t->opened.index < DPN_MAX_QPS && memchr(t->opened.reason, 0, DPN_CONTROL_REASON));
    if (kind == DPN_REFUSED)
        must(t->refused.slot < NCCL_NET_MAX_REQUESTS);
}

static void read_word(const uint8_t *data, size_t size)
{
    union dpn_control_body body;
    const uint64_t kind = size ? data[0] >> 1 : 0;
    const size_t len = size ? size - 1 : 0;

    memset(&body, 0xa5, sizeof(body));
    if (!size || len > sizeof(body))
        return;
    memcpy(&body, data + 1, len);
    if (!dpn_control_check(kind, data[0] & 1, &body, len))
        check_control(kind, &body);
}
#endif

/* ---- messages before their receives ---------------------------------------------------------- */

struct early {
    struct dpn_eager_queue sends;
    struct dpn_unexpected_list unexpected;
};

/* What the sender may send, the receiver can keep. */
static void send_early(struct early *e, int tag, size_t size)
{
    if (e->sends.count == DPN_EAGER_COUNT)
        return;
    struct dpn_unexpected *unexpected = dpn_unexpected_new(&e->unexpected, tag, size);
    must((unexpected != NULL) == (size <= DPN_MAX_EAGER));
    if (!unexpected)
        return;
    memset(unexpected->data, tag, size);
    dpn_unexpected_add(&e->unexpected, unexpected);
    dpn_eager_queue_add(&e->sends, (struct dpn_eager_entry){tag, size, e->sends.count});
}

/* Both sides know which one it is for. */
static void receive_early(struct early *e, int tag)
{
    struct dpn_unexpected *unexpected = dpn_unexpected_take(&e->unexpected, tag);
    struct dpn_eager_entry send;

    must(dpn_eager_queue_take(&e->sends, tag, &send) == (unexpected != NULL));
    must(!unexpected || (unexpected->tag == tag && send.tag == tag && unexpected->size == send.size));
    dpn_unexpected_free(&e->unexpected, unexpected);
}

static void read_early(const uint8_t *data, size_t size)
{
    struct early e = {.unexpected.head = NULL};

    for (size_t i = 0; i < size; i++) {
        const int tag = data[i] >> 1 & 3;
        if (data[i] & 1)
            receive_early(&e, tag);
        else
            send_early(&e, tag, (data[i] >> 3) * (size_t)2300 + i);
        must(dpn_unexpected_count(&e.unexpected) == e.sends.count);
    }
    dpn_unexpected_fini(&e.unexpected);
    must(!dpn_unexpected_count(&e.unexpected));
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
        read_cts(data + 1, size - 1);
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
