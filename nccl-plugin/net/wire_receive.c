/* SPDX-License-Identifier: Apache-2.0
 *
 * wire_receive.c - what arrives on the wire of a comm (net/wire_transport.c), and where it is
 * stored: messages at a receiver, clear-to-send messages at a sender.
 */
#include "base/fail.h"
#include "nccl-plugin/net/ordered_copy.h"
#include "nccl-plugin/net/wire_transport.h"

#include <string.h>
#include <sys/mman.h>

/* ---- eager messages -------------------------------------------------------------------------- */

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

enum { ARRIVALS = 16 }; /* of one progress, so that one comm leaves time for the others */

static int tag_of(uint64_t wire_tag)
{
    return (int32_t)(uint32_t)wire_tag;
}

static struct dpn_wire_comm_buffer *buffer_at(struct dpn_wire_comm *w, struct dpn_place place)
{
    return &w->requests[place.slot].buffers[place.sub];
}

/* ---- at a receiver --------------------------------------------------------------------------- */

static struct dpn_wire_comm_target find_target(struct dpn_wire_comm *w, uint64_t tag, size_t len)
{
    struct dpn_wire_comm_target a = {.is_set = true, .tag = tag, .len = len};

    if (tag & DPN_WIRE_REFUSED)
        return a;
    a.has_place = dpn_cts_list_find(&w->cts_list, tag_of(tag), &a.place);
    a.is_staged = a.has_place && buffer_at(w, a.place)->is_watched;
    if (!a.has_place && tag & DPN_WIRE_EAGER)
        a.message = dpn_unexpected_new(&w->unexpected, tag_of(tag), len);
    return a;
}

/* Where there is no place, none is given: a message with bytes is refused by the wire, one without
 * when it is looked at. */
void dpn_wire_comm_set_target(struct dp_wire_request *incoming, uint64_t tag, size_t len)
{
    struct dpn_wire_comm *w = (void *)((char *)incoming - offsetof(struct dpn_wire_comm, incoming));
    struct dpn_wire_comm_target *a = &w->target;

    if (!a->is_set || a->tag != tag || a->len != len) {
        dpn_unexpected_free(&w->unexpected, a->message);
        *a = find_target(w, tag, len);
    }
    const struct dpn_wire_comm_buffer *buffer = a->has_place ? buffer_at(w, a->place) : NULL;
    incoming->buf = a->message     ? a->message->data
                    : a->is_staged ? w->staging
                    : buffer       ? buffer->data
                                   : NULL;
    incoming->len = a->message ? a->message->size : buffer ? buffer->size : 0;
}

static void fail_too_long(struct dpn_wire_comm *w, size_t size,
                          const struct dpn_wire_comm_buffer *buffer)
{
    dp_wire_fail(w->wire, DP_EMISMATCH, "the peer has %zu bytes for a receive of %zu (tag %d)",
                 size, buffer->size, buffer->tag);
}

static void fail_unmatched(struct dpn_wire_comm *w, uint64_t tag, size_t len)
{
    if (tag & DPN_WIRE_EAGER)
        dp_wire_fail(w->wire, DP_EMISMATCH,
                     "no memory for %zu bytes (tag %d) that came before their receive; there are "
                     "%u such messages", len, tag_of(tag), dpn_unexpected_count(&w->unexpected));
    else
        dp_wire_fail(w->wire, DP_EMISMATCH, "what arrived belongs to no receive");
}

static void take_refusal(struct dpn_wire_comm *w, uint64_t tag)
{
    struct dpn_place place;

    if (dpn_cts_list_find(&w->cts_list, tag_of(tag), &place))
        fail_too_long(w, (size_t)((tag & ~DPN_WIRE_REFUSED) >> DPN_WIRE_TAG_BITS),
                      buffer_at(w, place));
    else
        fail_unmatched(w, dpn_wire_comm_tag(tag_of(tag)), 0);
}

static void finish_buffer(struct dpn_wire_comm *w, struct dpn_place place, size_t size)
{
    struct dpn_wire_comm_buffer *buffer = buffer_at(w, place);

    buffer->size = size;
    buffer->done = true;
    w->requests[place.slot].left--;
    dpn_cts_list_take(&w->cts_list, place);
}

static bool fits(struct dpn_wire_comm *w, const struct dpn_unexpected *message,
                 struct dpn_place place)
{
    return message->size <= buffer_at(w, place)->size;
}

/* It fits. The order of net/ordered_copy.h does for memory that is not watched, too. */
static void deliver_unexpected(struct dpn_wire_comm *w, struct dpn_unexpected *message,
                               struct dpn_place place)
{
    if (message->size)
        dpn_ordered_copy(buffer_at(w, place)->data, message->data, message->size);
    finish_buffer(w, place, message->size);
    dpn_unexpected_free(&w->unexpected, message);
}

void dpn_wire_comm_refuse_unexpected(struct dpn_wire_comm *w, struct dpn_unexpected *message,
                                     struct dpn_place place)
{
    fail_too_long(w, message->size, buffer_at(w, place));
    dpn_unexpected_free(&w->unexpected, message);
}

/* Its receive may have come while it was on its way. */
static void keep_or_deliver(struct dpn_wire_comm *w, struct dpn_unexpected *message)
{
    struct dpn_place place;

    if (!dpn_cts_list_find(&w->cts_list, message->tag, &place))
        dpn_unexpected_add(&w->unexpected, message);
    else if (fits(w, message, place))
        deliver_unexpected(w, message, place);
    else
        dpn_wire_comm_refuse_unexpected(w, message, place);
}

struct dpn_unexpected *dpn_wire_comm_take_unexpected(struct dpn_wire_comm *w,
                                                     const struct dpn_wire_comm_request *req,
                                                     struct dpn_place *place)
{
    for (unsigned sub = 0; sub < req->count && w->unexpected.head; sub++) {
        struct dpn_unexpected *message = dpn_unexpected_take(&w->unexpected, req->buffers[sub].tag);
        *place = (struct dpn_place){dpn_wire_comm_slot(req), sub};
        if (message && !fits(w, message, *place))
            return message;
        if (message)
            deliver_unexpected(w, message, *place);
    }
    return NULL;
}

static void take_placed(struct dpn_wire_comm *w, const struct dpn_wire_comm_target *a)
{
    const struct dpn_wire_comm_buffer *buffer = buffer_at(w, a->place);

    if (w->incoming.status) {
        fail_too_long(w, w->incoming.moved, buffer);
        return;
    }
    if (a->is_staged)
        dpn_ordered_copy(buffer->data, w->staging, w->incoming.moved);
    finish_buffer(w, a->place, w->incoming.moved);
}

static void take_message(struct dpn_wire_comm *w, struct dpn_stat *stat)
{
    const struct dpn_wire_comm_target a = w->target;

    w->target = (struct dpn_wire_comm_target){.is_set = false};
    if (a.tag & DPN_WIRE_REFUSED) {
        take_refusal(w, a.tag);
        return;
    }
    if (a.tag & DPN_WIRE_EAGER)
        dpn_stat_count(stat, DPN_STAT_EAGER, 1);
    if (a.has_place)
        take_placed(w, &a);
    else if (a.message)
        keep_or_deliver(w, a.message);
    else
        fail_unmatched(w, a.tag, a.len);
}

/* ---- at a sender ----------------------------------------------------------------------------- */

/* The buffers that eager sends have waited for. */
static void match_eager(struct dpn_wire_comm *w, const struct dpn_cts *cts)
{
    struct dpn_eager_entry send;

    for (unsigned sub = 0; sub < cts->count && !w->wire->error; sub++) {
        const struct dpn_place place = {cts->slot, sub};
        if (!dpn_eager_queue_take(&w->eager, cts->buffers[sub].tag, &send))
            continue;
        if (send.size > cts->buffers[sub].bytes) {
            dp_wire_fail(w->wire, DP_EMISMATCH,
                         "send of %zu bytes (tag %d): the peer's receive has %zu", send.size,
                         send.tag, (size_t)cts->buffers[sub].bytes);
            return;
        }
        dpn_cts_list_take(&w->cts_list, place);
        w->requests[send.slot].is_eager = false;
    }
}

static void take_cts(struct dpn_wire_comm *w)
{
    if (w->incoming.status || dpn_cts_list_add(&w->cts_list, &w->arrived, w->incoming.moved))
        dp_wire_fail(w->wire, DP_EMISMATCH, "what arrived is no receive of the peer's");
    else
        match_eager(w, &w->arrived);
}

/* ---- at both --------------------------------------------------------------------------------- */

void dpn_wire_comm_expect(struct dpn_wire_comm *w)
{
    if (w->is_expecting || !(w->is_sender || w->cts_list.live))
        return;
    w->is_expecting = true;
    if (w->is_sender)
        dp_wire_irecv(w->wire, &w->arrived, sizeof(w->arrived), &w->incoming);
    else
        dp_wire_irecv(w->wire, NULL, 0, &w->incoming); /* see dpn_wire_comm_set_target */
}

void dpn_wire_comm_progress(struct dpn_wire_comm *w, struct dpn_stat *stat)
{
    w->wire->ops->progress(w->wire);
    for (int i = 0; i < ARRIVALS && w->is_expecting && w->incoming.status != DP_EAGAIN; i++) {
        if (w->incoming.status && w->wire->error)
            return;
        w->is_expecting = false;
        if (w->is_sender)
            take_cts(w);
        else
            take_message(w, stat);
        dpn_wire_comm_expect(w);
    }
}
