/* SPDX-License-Identifier: Apache-2.0
 *
 * network.c - three pools of slots. A handle is the slot's turn in the pool, which is never used again,
 * and its kind in the two lowest bits; a slot that has another handle by now ignores the event.
 *
 * NCCL never ends some of what it starts. So a slot is taken from the oldest of a few if none of them is
 * free, and a pool never stays full. What then happens to the old one's late events is no more than a
 * wrong count; all members are atomic, relaxed, as they may come on any thread.
 */
#include "config.h"

#include "nccl-plugin/profiler/profiler.h"

#include "base/clock.h"
#include "nccl-plugin/profiler/counters.h"

#include <stddef.h>

enum { OPERATION = 1, PART, STEP, KIND_MASK = 3, KIND_BITS = 2 };
enum { FREE = 0, TAKEN = KIND_MASK + 1, TRIES = 16 };
enum { OPERATIONS = 4096, PARTS = 8192, STEPS = 16384 };

typedef _Atomic uint64_t number;

static inline uint64_t get(number *n)
{
    return atomic_load_explicit(n, memory_order_relaxed);
}

static inline void set(number *n, uint64_t value)
{
    atomic_store_explicit(n, value, memory_order_relaxed);
}

static inline void add(number *n, uint64_t value)
{
    atomic_fetch_add_explicit(n, value, memory_order_relaxed);
}

/* What all slots begin with. */
struct slot {
    number handle;
    number touched_ns;
};

struct operation {
    struct slot slot;
    number function, sequence;
};

struct part {
    struct slot slot;
    number key, counters, trace, function, sequence;
    number began_ns; /* to travel; 0: is queued */
    number bytes, chunks, told_bytes;
    number wait_ns[DPN_WAITS], waiting[DPN_WAITS];
    number last_step, last_handle; /* a step may be started again before it ends */
    _Atomic(struct dpn_profile_row *) flow;
};

struct step {
    struct slot slot;
    number part, wait, since_ns, bytes;
};

static struct operation operations[OPERATIONS];
static struct part parts[PARTS];
static struct step steps[STEPS];

static struct pool {
    void *slots;
    size_t size;
    uint64_t count; /* a power of 2 */
    number next;
} pools[] = {
    [OPERATION] = {operations, sizeof(*operations), OPERATIONS, 0},
    [PART] = {parts, sizeof(*parts), PARTS, 0},
    [STEP] = {steps, sizeof(*steps), STEPS, 0},
};

/* ---- slots ----------------------------------------------------------------------------------- */

static struct slot *slot_of(const struct pool *pool, uint64_t turn)
{
    return (struct slot *)((char *)pool->slots + (turn & (pool->count - 1)) * pool->size);
}

/* NULL: it has ended, or never was one. */
static void *find(int kind, uint64_t handle)
{
    if ((handle & KIND_MASK) != (uint64_t)kind)
        return NULL;
    struct slot *s = slot_of(&pools[kind], handle >> KIND_BITS);
    return get(&s->handle) == handle ? s : NULL;
}

static uint64_t to_number(const void *handle)
{
    return (uint64_t)(uintptr_t)handle;
}

static void *to_handle(uint64_t n)
{
    return (void *)(uintptr_t)n;
}

/* A step that NCCL did not end is of no use once its part has ended. */
static bool is_free(int kind, struct slot *s)
{
    return !get(&s->handle) ||
           (kind == STEP && !find(PART, get(&((struct step *)(void *)s)->part)));
}

static void end_part(struct part *p, int64_t now_ns);

/* The handle that the slot is to have, once it has been filled; 0: another thread was faster. */
static uint64_t take(int kind, int64_t now_ns, void *out)
{
    struct pool *pool = &pools[kind];
    struct slot *oldest = NULL;
    uint64_t turn, oldest_turn = 0;

    for (int i = 0; i < TRIES; i++) {
        turn = 1 + atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
        struct slot *s = slot_of(pool, turn);
        if (oldest && get(&s->touched_ns) >= get(&oldest->touched_ns) && !is_free(kind, s))
            continue;
        oldest = s;
        oldest_turn = turn;
        if (kind == OPERATION || is_free(kind, s))
            break;
    }
    uint64_t was = get(&oldest->handle);
    if (was == TAKEN || !atomic_compare_exchange_strong(&oldest->handle, &was, TAKEN)) {
        dpn_counters_lost();
        return 0;
    }
    if (kind == PART && was) {
        end_part((struct part *)(void *)oldest, now_ns);
        dpn_counters_lost();
    }
    set(&oldest->touched_ns, (uint64_t)now_ns);
    *(struct slot **)out = oldest;
    return oldest_turn << KIND_BITS | (uint64_t)kind;
}

/* ---- flows ----------------------------------------------------------------------------------- */

/* NULL: there is no place for it, or the communicator has ended. */
static struct dpn_profile_row *flow_of(struct part *p)
{
    struct dpn_profile_row *f = atomic_load_explicit(&p->flow, memory_order_relaxed);

    return f && get(&f->use) == get(&p->key) ? f : NULL;
}

static void add_waiting(struct dpn_profile_row *f, struct part *p, uint64_t wait, int n)
{
    add(&p->waiting[wait], (uint64_t)n);
    if (f)
        add(&f->values[DPN_PROFILE_WAITING + wait], (uint64_t)n);
}

/* The step waits for something else from now on. */
static void change(struct part *p, struct step *s, enum dpn_profile_wait wait, int64_t now_ns)
{
    struct dpn_profile_row *f = flow_of(p);
    const uint64_t was = get(&s->wait), waited_ns = (uint64_t)now_ns - get(&s->since_ns);

    if (was < DPN_WAITS) {
        add(&p->wait_ns[was], waited_ns);
        if (f)
            add(&f->values[DPN_PROFILE_WAIT_NS + was], waited_ns);
        add_waiting(f, p, was, -1);
    }
    if (wait < DPN_WAITS)
        add_waiting(f, p, wait, 1);
    set(&s->wait, wait);
    set(&s->since_ns, (uint64_t)now_ns);
    if (f)
        set(&f->values[DPN_PROFILE_STILL_NS], (uint64_t)now_ns);
}

/* ---- operations and their parts -------------------------------------------------------------- */

void *dpn_network_operation(const struct dpn_network_comm *comm, enum dpn_function function, int peer,
                            uint64_t bytes, uint64_t sequence)
{
    const int64_t now_ns = dp_now_ns();
    struct operation *o;
    const uint64_t handle = take(OPERATION, now_ns, &o);

    dpn_trace_add(&(struct dpn_trace_record){.comm = comm->trace,
                                             .start_ns = now_ns,
                                             .end_ns = now_ns,
                                             .function = (uint8_t)function,
                                             .kind = DPN_TRACE_QUEUED,
                                             .peer = peer,
                                             .bytes = bytes,
                                             .sequence = sequence});
    if (!handle)
        return NULL;
    set(&o->function, function);
    set(&o->sequence, sequence);
    set(&o->slot.handle, handle);
    return to_handle(handle);
}

static void fill_part(struct part *p, const struct dpn_network_comm *comm,
                      const struct dpn_network_part *given)
{
    struct operation *o = find(OPERATION, to_number(given->operation));
    const uint64_t key =
        dpn_profile_key(comm->counters, given->peer, given->is_send, given->channel);
    number *const zeroes[] = {&p->began_ns, &p->bytes, &p->chunks, &p->told_bytes, &p->last_handle};

    set(&p->key, key);
    set(&p->counters, comm->counters);
    set(&p->trace, comm->trace);
    set(&p->function, o ? get(&o->function) : DPN_FUNCTIONS);
    set(&p->sequence, o ? get(&o->sequence) : 0);
    for (size_t i = 0; i < sizeof(zeroes) / sizeof(zeroes[0]); i++)
        set(zeroes[i], 0);
    for (int i = 0; i < DPN_WAITS; i++) {
        set(&p->wait_ns[i], 0);
        set(&p->waiting[i], 0);
    }
    atomic_store_explicit(&p->flow, dpn_counters_flow(key), memory_order_relaxed);
}

void *dpn_network_part(const struct dpn_network_comm *comm, const struct dpn_network_part *given)
{
    struct part *p;
    const uint64_t handle = take(PART, dp_now_ns(), &p);

    if (!handle)
        return to_handle(PART); /* NCCL up to 2.27 needs one for all that follows; it is of no slot */
    fill_part(p, comm, given);
    set(&p->slot.handle, handle);
    return to_handle(handle);
}

static void begin_part(struct part *p, int64_t now_ns)
{
    if (!get(&p->began_ns))
        set(&p->began_ns, (uint64_t)now_ns);
}

static void record_part(struct part *p, int64_t now_ns)
{
    struct dpn_profile_row *f = flow_of(p);
    const uint64_t key = get(&p->key), began_ns = get(&p->began_ns);
    struct dpn_trace_record r = {.comm = (uint32_t)get(&p->trace),
                                 .start_ns = began_ns ? (int64_t)began_ns : now_ns,
                                 .end_ns = now_ns,
                                 .kind = dpn_profile_key_is_send(key) ? DPN_TRACE_SEND
                                                                      : DPN_TRACE_RECEIVE,
                                 .function = (uint8_t)get(&p->function),
                                 .channel = (uint8_t)dpn_profile_key_channel(key),
                                 .peer = dpn_profile_key_peer(key),
                                 .bytes = get(&p->bytes),
                                 .sequence = get(&p->sequence),
                                 .chunks = get(&p->chunks)};

    if (f)
        r.rail = (uint8_t)get(&f->values[DPN_PROFILE_RAIL]);
    for (int i = 0; i < DPN_WAITS; i++)
        r.wait_ns[i] = get(&p->wait_ns[i]);
    dpn_trace_add(&r);
}

/* Steps that never ended do not wait any longer. */
static void end_part(struct part *p, int64_t now_ns)
{
    struct dpn_profile_row *f = flow_of(p);

    if (!get(&p->bytes) && get(&p->told_bytes)) {
        set(&p->bytes, get(&p->told_bytes));
        if (f)
            add(&f->values[DPN_PROFILE_BYTES], get(&p->told_bytes));
    }
    for (uint64_t i = 0; i < DPN_WAITS; i++)
        if (get(&p->waiting[i]))
            add_waiting(f, p, i, -(int)get(&p->waiting[i]));
    if (f)
        add(&f->values[DPN_PROFILE_OPERATIONS], 1);
    record_part(p, now_ns);
}

void dpn_network_close(const struct dpn_network_comm *comm)
{
    for (struct part *p = parts; p < parts + PARTS; p++) {
        const uint64_t handle = get(&p->slot.handle);
        if (handle > TAKEN && get(&p->trace) == comm->trace) {
            end_part(p, dp_now_ns());
            set(&p->slot.handle, FREE);
        }
    }
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* The one that was started already, if it has not ended. */
static uint64_t started(struct part *p, int number_of_step)
{
    const uint64_t handle = get(&p->last_handle);

    return get(&p->last_step) == (uint64_t)number_of_step && find(STEP, handle) ? handle : 0;
}

void *dpn_network_step(void *part, int number_of_step)
{
    struct part *p = find(PART, to_number(part));
    const uint64_t again = p ? started(p, number_of_step) : 0;
    struct step *s;

    if (!p || again)
        return to_handle(again);
    const int64_t now_ns = dp_now_ns();
    const uint64_t handle = take(STEP, now_ns, &s);
    if (!handle)
        return NULL;
    begin_part(p, now_ns);
    set(&s->part, to_number(part));
    set(&s->wait, DPN_WAIT_NONE);
    set(&s->since_ns, (uint64_t)now_ns);
    set(&s->bytes, 0);
    set(&s->slot.handle, handle);
    set(&p->last_step, (uint64_t)number_of_step);
    set(&p->last_handle, handle);
    return to_handle(handle);
}

/* States of steps. The size is that of the step in these two only. */
enum { SEND_GPU_WAIT = 8, SEND_WAIT, RECV_WAIT, RECV_FLUSH_WAIT, RECV_GPU_WAIT, SEND_PEER_WAIT = 20 };

static enum dpn_profile_wait wait_of(int state)
{
    switch (state) {
    case SEND_GPU_WAIT:
    case RECV_GPU_WAIT:
        return DPN_WAIT_GPU;
    case SEND_PEER_WAIT:
    case RECV_WAIT:
        return DPN_WAIT_PEER;
    case SEND_WAIT:
        return DPN_WAIT_NETWORK;
    case RECV_FLUSH_WAIT:
        return DPN_WAIT_FLUSH;
    default:
        return DPN_WAIT_NONE;
    }
}

/* A send that is tried again says so every time: it waits on, and the clock is not read. */
static void step_state(struct part *p, struct step *s, int state, const uint64_t *bytes)
{
    const enum dpn_profile_wait wait = wait_of(state);

    if (bytes && (state == SEND_WAIT || state == RECV_FLUSH_WAIT))
        set(&s->bytes, *bytes);
    if (wait != DPN_WAIT_NONE && wait != get(&s->wait))
        change(p, s, wait, dp_now_ns());
}

static void stop_step(struct part *p, struct step *s)
{
    struct dpn_profile_row *f = flow_of(p);

    change(p, s, DPN_WAIT_NONE, dp_now_ns());
    add(&p->bytes, get(&s->bytes));
    add(&p->chunks, 1);
    if (f) {
        add(&f->values[DPN_PROFILE_BYTES], get(&s->bytes));
        add(&f->values[DPN_PROFILE_CHUNKS], 1);
    }
    set(&s->slot.handle, FREE);
}

void dpn_network_rail(void *step, const char *name)
{
    struct step *s = find(STEP, to_number(step));
    struct part *p = s ? find(PART, get(&s->part)) : NULL;
    struct dpn_profile_row *f = p ? flow_of(p) : NULL;

    if (f)
        dpn_counters_set_rail(f, name);
}

/* ---- events of a handle ---------------------------------------------------------------------- */

enum { PART_RECV_DONE = 7, PART_IN_PROGRESS = 19 };

/* Up to 2.26 its states have what it has sent in all. */
static void part_state(struct part *p, int state, const uint64_t *bytes)
{
    if (state == PART_IN_PROGRESS)
        begin_part(p, dp_now_ns());
    else if (state >= 0 && state <= PART_RECV_DONE && bytes && *bytes)
        set(&p->told_bytes, *bytes);
}

void dpn_network_state(void *handle, int state, const uint64_t *bytes)
{
    struct part *p = find(PART, to_number(handle));
    struct step *s = p ? NULL : find(STEP, to_number(handle));

    if (p)
        part_state(p, state, bytes);
    else if (s && (p = find(PART, get(&s->part))))
        step_state(p, s, state, bytes);
}

void dpn_network_stop(void *handle)
{
    struct part *p = find(PART, to_number(handle));
    struct step *s = p ? NULL : find(STEP, to_number(handle));

    if (p) {
        end_part(p, dp_now_ns());
        set(&p->slot.handle, FREE);
    } else if (s && (p = find(PART, get(&s->part)))) {
        stop_step(p, s);
    }
}
