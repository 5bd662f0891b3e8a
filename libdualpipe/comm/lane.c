/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/lane.h"

#include "base/fail.h"

#include <sched.h>
#include <string.h>

/* ---- the queue; the lock is held ------------------------------------------------------------- */

static void push(struct dp_lane *lane, struct dp_transfer *t)
{
    t->next = NULL;
    *lane->end = t;
    lane->end = &t->next;
}

static struct dp_transfer *pop(struct dp_lane *lane)
{
    struct dp_transfer *t = lane->head;

    lane->head = t->next;
    if (!lane->head)
        lane->end = &lane->head;
    return t;
}

static void drop(struct dp_lane *lane, bool sends)
{
    struct dp_transfer **at = &lane->head;

    while (*at) {
        struct dp_transfer *t = *at;
        if (t->is_send != sends || t->put_aside) {
            at = &t->next;
            continue;
        }
        *at = t->next;
        atomic_store_explicit(&t->state, DP_TRANSFER_LEFT, memory_order_release);
    }
    lane->end = at;
}

static bool put_aside(struct dp_lane *lane, const struct dp_transfer *send)
{
    if (send->len > DP_LANE_SHORT_BYTES ||
        lane->asides_put - lane->asides_taken == DP_LANE_SHORT_COUNT)
        return false;
    struct dp_lane_aside *a = &lane->asides[lane->asides_put++ % DP_LANE_SHORT_COUNT];
    a->transfer = *send;
    a->transfer.buf = a->bytes;
    a->transfer.put_aside = true;
    if (send->len)
        memcpy(a->bytes, send->buf, send->len);
    push(lane, &a->transfer);
    return true;
}

/* ---- meeting ------------------------------------------------------------------------------- */

static void copy_message(const struct dp_transfer *send, struct dp_transfer *receive)
{
    receive->met_tag = send->tag;
    receive->met_len = send->len;
    if (send->tag == receive->tag && send->len == receive->len && send->len)
        memcpy(receive->buf, send->buf, send->len);
}

/* Take the first of the other side's transfers and copy; the lock is held, and given back. The
 * owner of `theirs` may be gone right after its state is stored; `copying` keeps him from leaving
 * before. true: there is an owner who should know. */
static bool meet(struct dp_lane *lane, struct dp_transfer *mine)
{
    struct dp_transfer *theirs = pop(lane);
    struct dp_transfer *send = mine->is_send ? mine : theirs;
    struct dp_transfer *receive = mine->is_send ? theirs : mine;
    const bool has_owner = !theirs->put_aside;

    if (has_owner) {
        atomic_fetch_add_explicit(&lane->copying, 1, memory_order_relaxed);
        pthread_mutex_unlock(&lane->lock);
    }
    copy_message(send, receive);
    atomic_store_explicit(&mine->state, DP_TRANSFER_DONE, memory_order_relaxed);
    if (has_owner) {
        atomic_store_explicit(&theirs->state, DP_TRANSFER_DONE, memory_order_release);
        atomic_fetch_sub_explicit(&lane->copying, 1, memory_order_release);
    } else {
        lane->asides_taken++;
        pthread_mutex_unlock(&lane->lock);
    }
    return has_owner;
}

int dp_lane_start(struct dp_lane *lane, struct dp_transfer *t, bool *met)
{
    t->lane = lane;
    atomic_init(&t->state, DP_TRANSFER_WAITING);
    *met = false;
    pthread_mutex_lock(&lane->lock);
    if (lane->head && lane->head->is_send != t->is_send) {
        *met = meet(lane, t);
        return 0;
    }
    if (lane->closed) {
        pthread_mutex_unlock(&lane->lock);
        return dp_fail(DP_ECOMM, "rank %d has left the group",
                       t->is_send ? lane->receiver : lane->sender);
    }
    if (t->is_send && put_aside(lane, t))
        atomic_store_explicit(&t->state, DP_TRANSFER_DONE, memory_order_relaxed);
    else
        push(lane, t);
    pthread_mutex_unlock(&lane->lock);
    return 0;
}

/* ---- ends ---------------------------------------------------------------------------------- */

void dp_lane_drop(struct dp_lane *lane, bool sends)
{
    pthread_mutex_lock(&lane->lock);
    drop(lane, sends);
    pthread_mutex_unlock(&lane->lock);
    while (atomic_load_explicit(&lane->copying, memory_order_acquire))
        sched_yield();
}

void dp_lane_leave(struct dp_lane *lane, bool sender)
{
    pthread_mutex_lock(&lane->lock);
    lane->closed = true;
    drop(lane, !sender);
    pthread_mutex_unlock(&lane->lock);
}

void dp_lane_clear(struct dp_lane *lane)
{
    pthread_mutex_lock(&lane->lock);
    lane->head = NULL;
    lane->end = &lane->head;
    lane->asides_put = lane->asides_taken = 0;
    pthread_mutex_unlock(&lane->lock);
}

void dp_lane_init(struct dp_lane *lane, int sender, int receiver, struct dp_lane_aside *asides)
{
    *lane = (struct dp_lane){.sender = sender, .receiver = receiver, .asides = asides};
    pthread_mutex_init(&lane->lock, NULL);
    lane->end = &lane->head;
}

void dp_lane_fini(struct dp_lane *lane)
{
    pthread_mutex_destroy(&lane->lock);
}
