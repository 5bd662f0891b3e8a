/* SPDX-License-Identifier: Apache-2.0
 *
 * wire_transport.c - messages over the comm's own wire, which keeps their order. A message goes to
 * the oldest open receive of its tag. The wire asks for the target before it stores a byte, so the
 * bytes go to the receive's memory without a copy. Two kinds are copied: into memory that NCCL's
 * kernels poll for flags, in order, once the message is complete (net/ordered_copy.h); and a
 * message that came before its receive while a later message was wanted (net/wire_transport.h).
 *
 * The receiver takes nothing off the wire as long as it has no open receive.
 */
#include "config.h" /* the name of libdualpipe.so: another one may have another interface */

#include "nccl-plugin/net/wire_transport.h"

#include "base/fail.h"
#include "base/shared.h"
#include "wire/tcp.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>

/* From now on memory that the program shares by libdualpipe.so (dualpipe/memory.h) is known here,
 * too, if that is loaded: into whatever name space, as languages other than C do. It stays loaded
 * with that. */
static void shared_look(void)
{
    static atomic_bool is_found;

    if (atomic_load(&is_found))
        return;
    void *library = dlopen(LIBDUALPIPE_SONAME, RTLD_LAZY | RTLD_NOLOAD);
    dp_shared_find_fn *find =
        library ? (dp_shared_find_fn *)dlsym(library, "dp_shared_find") : NULL;
    if (find)
        dp_shared_ask(find);
    atomic_store(&is_found, find != NULL);
}

/* ---- requests ------------------------------------------------------------------------------ */

static struct dpn_wire_comm_request *take_request(struct dpn_wire_comm *w)
{
    if (!w->free)
        return NULL;
    const int i = __builtin_ctz(w->free);
    w->free &= ~(1u << i);
    return &w->requests[i];
}

static int broken(const struct dpn_wire_comm *w, const char *what)
{
    const struct dp_wire *wire = w->wire;

    return dp_fail(wire->error, "%s over %s: %s", what, wire->ops->name, wire->why);
}

/* ---- send ---------------------------------------------------------------------------------- */

/* Tell the receiver too: it would wait for ever. */
static int refuse(struct dpn_wire_comm *w, struct dpn_place place, size_t size, int tag)
{
    const size_t room = dpn_cts_list_room(&w->cts_list, place);

    dpn_cts_list_take(&w->cts_list, place);
    dp_wire_isend(w->wire,
                  dpn_wire_comm_tag(tag) | (uint64_t)size << DPN_WIRE_TAG_BITS | DPN_WIRE_REFUSED,
                  NULL, 0, &w->refusal);
    return dp_fail(DP_EMISMATCH, "send of %zu bytes (tag %d): the peer's receive has %zu", size,
                   tag, room);
}

static struct dpn_request *begin_send(struct dpn_wire_comm *w, const struct dpn_piece *piece,
                                      bool is_eager)
{
    struct dpn_wire_comm_request *req = take_request(w);

    req->count = req->left = 0;
    req->memory = piece->memory;
    req->is_eager = is_eager;
    dp_wire_isend(w->wire, dpn_wire_comm_tag(piece->tag) | (is_eager ? DPN_WIRE_EAGER : 0),
                  piece->data, piece->size, &req->wire);
    return &req->base;
}

/* A TCP receiver offers room for so much at least. More would wait in the sender's kernel, and probes of
 * a full receiver become rare, so that the end of its host would be noticed late. */
static bool may_send_eager(const struct dpn_wire_comm *w, size_t size)
{
    enum { TCP_ROOM = 32 << 10 };

    return w->eager.count < DPN_EAGER_COUNT &&
           (w->wire->ops != &dp_wire_tcp || w->eager.bytes + size <= TCP_ROOM);
}

static struct dpn_request *send_eager(struct dpn_comm *comm, const struct dpn_piece *piece)
{
    struct dpn_wire_comm *w = comm->state;
    const size_t limit = (size_t)dpn_options.eager_bytes;
    const unsigned slot = (unsigned)__builtin_ctz(w->free);

    if (!limit || piece->size > limit || !may_send_eager(w, piece->size))
        return NULL;
    dpn_eager_queue_add(&w->eager, (struct dpn_eager_entry){piece->tag, piece->size, slot});
    dpn_stat_count(&comm->stat, DPN_STAT_EAGER, 1);
    return begin_send(w, piece, true);
}

static int isend(struct dpn_comm *comm, const struct dpn_piece *piece, struct dpn_request **out)
{
    struct dpn_wire_comm *w = comm->state;
    struct dpn_place place;

    dpn_wire_comm_progress(w, &comm->stat);
    if (w->wire->error)
        return broken(w, "send");
    if (!w->free)
        return 0;
    if (!dpn_cts_list_find(&w->cts_list, piece->tag, &place)) {
        *out = send_eager(comm, piece);
        return 0;
    }
    if (piece->size > dpn_cts_list_room(&w->cts_list, place))
        return w->refusal.status == DP_EAGAIN ? 0 : refuse(w, place, piece->size, piece->tag);
    dpn_cts_list_take(&w->cts_list, place);
    *out = begin_send(w, piece, false);
    return 0;
}

/* ---- receive --------------------------------------------------------------------------------- */

static void fill_buffers(struct dpn_wire_comm_request *req, int n, const struct dpn_piece *pieces)
{
    req->memory = NULL;
    req->count = req->left = (unsigned)n;
    req->cts.slot = dpn_wire_comm_slot(req);
    req->cts.count = (unsigned)n;
    for (int i = 0; i < n; i++) {
        req->buffers[i] = (struct dpn_wire_comm_buffer){.data = pieces[i].data,
                                                        .size = pieces[i].size,
                                                        .tag = pieces[i].tag,
                                                        .memory = pieces[i].memory,
                                                        .is_watched = pieces[i].is_watched};
        req->cts.buffers[i].bytes = pieces[i].size;
        req->cts.buffers[i].tag = pieces[i].tag;
        req->cts.buffers[i].zero = 0;
    }
}

static size_t watched_bytes(int n, const struct dpn_piece *pieces)
{
    size_t most = 0;

    for (int i = 0; i < n; i++)
        if (pieces[i].is_watched && pieces[i].size > most)
            most = pieces[i].size;
    return most;
}

/* The buffers of a protocol are all of one size, so this is done once for each. DP_EAGAIN: a
 * message is just coming in there. */
static int grow_staging(struct dpn_wire_comm *w, size_t bytes)
{
    if (bytes <= w->staging_bytes)
        return 0;
    if (w->target.is_staged)
        return DP_EAGAIN;
    free(w->staging);
    w->staging = malloc(bytes);
    w->staging_bytes = w->staging ? bytes : 0;
    return w->staging ? 0 : dp_fail(DP_ENOMEM, "no memory to receive %zu bytes in", bytes);
}

/* To send moves the wire, which may bring more of the same tags: later ones than what is kept. And
 * nothing but the clear-to-send tells a peer that it has sent too much. */
static void send_cts(struct dpn_wire_comm *w, struct dpn_wire_comm_request *req)
{
    struct dpn_place place;

    dpn_cts_list_add(&w->cts_list, &req->cts, dpn_cts_len(req->count));
    struct dpn_unexpected *too_long = dpn_wire_comm_take_unexpected(w, req, &place);
    dp_wire_isend(w->wire, 0, &req->cts, dpn_cts_len(req->count), &req->wire);
    if (too_long)
        dpn_wire_comm_refuse_unexpected(w, too_long, place);
    dpn_wire_comm_expect(w);
}

static int irecv(struct dpn_comm *comm, int n, const struct dpn_piece *pieces,
                 struct dpn_request **out)
{
    struct dpn_wire_comm *w = comm->state;

    if (w->wire->error)
        return broken(w, "receive");
    int err = grow_staging(w, watched_bytes(n, pieces));
    if (err)
        return err == DP_EAGAIN ? 0 : err;
    struct dpn_wire_comm_request *req = take_request(w);
    if (!req)
        return 0;
    fill_buffers(req, n, pieces);
    send_cts(w, req);
    *out = &req->base;
    return 0;
}

/* What arrived in host memory is there: nothing to wait for. */
static int iflush(struct dpn_comm *comm, int n, const struct dpn_piece *pieces,
                  struct dpn_request **out)
{
    (void)comm;
    (void)n;
    (void)pieces;
    (void)out;
    return 0;
}

/* ---- test ---------------------------------------------------------------------------------- */

/* A peer that has sent everything may be gone before it was granted. */
static bool is_done(const struct dpn_wire_comm_request *req)
{
    return req->owner->is_sender ? req->wire.status == 0 && !req->is_eager
                                 : req->wire.status != DP_EAGAIN && !req->left;
}

static void tell_sizes(const struct dpn_wire_comm_request *req, int *sizes)
{
    if (!sizes)
        return;
    if (req->owner->is_sender)
        sizes[0] = (int)req->wire.len;
    for (unsigned i = 0; i < req->count; i++)
        sizes[i] = (int)req->buffers[i].size;
}

static int test(struct dpn_request *request, bool *done, int *sizes)
{
    struct dpn_wire_comm_request *req = (struct dpn_wire_comm_request *)request;
    struct dpn_wire_comm *w = req->owner;

    if (w->free >> dpn_wire_comm_slot(req) & 1)
        return dp_fail(DP_EINVAL, "test of a request that is done already");
    if (!is_done(req))
        dpn_wire_comm_progress(w, &request->comm->stat);
    *done = is_done(req);
    if (*done) {
        tell_sizes(req, sizes);
        w->free |= 1u << dpn_wire_comm_slot(req);
        return 0;
    }
    return w->wire->error ? broken(w, w->is_sender ? "send" : "receive") : 0;
}

/* ---- memory -------------------------------------------------------------------------------- */

/* The wires need none, only to know what is shared; it is kept to know which requests use what,
 * since NCCL may free memory in the middle of them. */
static int reg(struct dpn_comm *comm, const struct dpn_region *region, struct dpn_memory **out)
{
    if (region->type != NCCL_PTR_HOST || region->fd >= 0)
        return dp_fail(DP_EUNSUPPORTED,
                       "registering %zu bytes of %s: %s carries host memory only", region->size,
                       region->fd >= 0 ? "a dma-buf" : "GPU memory", comm->wire->ops->name);
    shared_look();
    *out = calloc(1, sizeof(**out));
    return *out ? 0 : dp_fail(DP_ENOMEM, "no memory for a registration");
}

static bool uses(const struct dpn_wire_comm_request *req, const struct dpn_memory *memory)
{
    for (unsigned i = 0; i < req->count; i++)
        if (!req->buffers[i].done && req->buffers[i].memory == memory)
            return true;
    return req->memory == memory && req->wire.status == DP_EAGAIN;
}

static bool is_in_flight(const struct dpn_wire_comm *w, const struct dpn_memory *memory)
{
    for (int i = 0; i < NCCL_NET_MAX_REQUESTS; i++)
        if (!(w->free >> i & 1) && uses(&w->requests[i], memory))
            return true;
    return false;
}

static void dereg(struct dpn_comm *comm, struct dpn_memory *memory)
{
    pthread_mutex_lock(&comm->lock);
    if (comm->state && is_in_flight(comm->state, memory))
        dp_wire_fail(comm->wire, DP_EABORTED,
                     "memory was deregistered while a request still used it");
    pthread_mutex_unlock(&comm->lock);
    free(memory);
}

/* ---- life ---------------------------------------------------------------------------------- */

static int open_transport(struct dpn_comm *comm)
{
    struct dpn_wire_comm *w = calloc(1, sizeof(*w));

    if (!w)
        return dp_fail(DP_ENOMEM, "no memory for a connection");
    w->wire = comm->wire;
    w->is_sender = comm->is_sender;
    w->free = UINT32_MAX;
    for (int i = 0; i < NCCL_NET_MAX_REQUESTS; i++) {
        w->requests[i].base.comm = comm;
        w->requests[i].owner = w;
    }
    comm->state = w;
    w->wire->set_target = w->is_sender ? NULL : dpn_wire_comm_set_target;
    dpn_wire_comm_expect(w);
    return 0;
}

/* Unread bytes would make the kernel break a connection off, and what was sent would be lost. With
 * requests in flight their memory may be gone already. */
static void close_transport(struct dpn_comm *comm)
{
    struct dpn_wire_comm *w = comm->state;

    if (w && w->free == UINT32_MAX)
        dpn_wire_comm_progress(w, &comm->stat);
    dp_wire_close(comm->wire);
    comm->wire = NULL;
    comm->state = NULL;
    if (!w)
        return;
    dpn_unexpected_fini(&w->unexpected);
    free(w->staging);
    free(w);
}

const struct dpn_transport dpn_wire_transport = {
    .name = "wire",
    .open = open_transport,
    .reg = reg,
    .dereg = dereg,
    .isend = isend,
    .irecv = irecv,
    .iflush = iflush,
    .test = test,
    .close = close_transport,
};
