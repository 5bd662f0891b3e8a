/* SPDX-License-Identifier: Apache-2.0
 *
 * Tied parameters: the members of a group, on whatever stages and ranks, are one parameter of the
 * model. Their gradients are summed at one of them, the owner, whose values go to all others:
 *
 *      stage 0 "table", rank 0      stage 3 "head", rank 3
 *      grad += ------------------- grad, then 0
 *      value ------------------>   value
 *
 * The owner is the member of the earliest stage; of two copies of that stage, the one of stream 0. With
 * tied_copies the other one owns the group, too: it gets the sum, so that both take the same update.
 *
 * Ranks go through groups and members in one order, and tensors travel in pieces, so that a fixed
 * amount of memory is enough, on devices that the wire does not reach too. Where messages go from
 * device to device in the order of streams, and the device adds, all of it is queued in the compute
 * stream, and the host waits at the end.
 */
#include "comm/internal.h"
#include "pipeline/setup.h"
#include "pipeline/steps.h"

#include "base/fail.h"
#include "base/tensor.h"
#include "device/device_ops.h"
#include "pipeline/reduce.h"
#include "schedule/build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE_BYTES = 256 << 10, DEVICE_PIECE_BYTES = 4 << 20, FLIGHTS = 16, NAME_LEN = 80 };

/* One parameter of one slot, as its rank describes it to all. */
struct dp_tied_member {
    char group[NAME_LEN];
    uint64_t group_digest;  /* of the whole name */
    uint64_t layout_digest; /* of types and shapes */
    uint64_t bytes, grad_elements;
    int32_t rank, slot, stage, stream, parameter;
    int32_t grad_bits; /* of an element; 0: frozen */
};

struct dp_tied {
    struct dp_tied_member *members; /* by group, then stream, then stage */
    size_t count;
    const struct dp_pipeline_base *base;
    bool queued;     /* in the compute stream, messages and sums */
    bool reduced;    /* copies of a stage have the same gradient, summed by the step */
    char *pieces;    /* [2 * PIECE_BYTES] of pinned memory; queued [DEVICE_PIECE_BYTES] of the device.
                      * NULL where this rank has no member */
    size_t *offsets; /* [ranks + 1] scratch */
    /* Queued messages from `ended` to `begun`, each at its number % FLIGHTS. */
    struct {
        struct dp_request request;
        int peer;
    } flights[FLIGHTS];
    unsigned begun, ended;
};

static enum dp_memory kind_of_pieces(const struct dp_tied *tied)
{
    return tied->queued ? DP_MEMORY_DEVICE : DP_MEMORY_PINNED;
}

/* ---- finding tied parameters ------------------------------------------------------------------- */

static uint64_t mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * UINT64_C(0x9E3779B97F4A7C15);
    return h ^ h >> 29;
}

static uint64_t digest_name(const char *name)
{
    uint64_t h = 1;

    for (; *name; name++)
        h = mix(h, (unsigned char)*name);
    return h;
}

static uint64_t digest_tensor(uint64_t h, const DLTensor *t)
{
    h = mix(h, (uint64_t)t->dtype.code << 8 | t->dtype.bits);
    for (int i = 0; i < t->ndim; i++)
        h = mix(mix(h, (uint64_t)t->shape[i]), t->strides ? (uint64_t)t->strides[i] : 0);
    return h;
}

/* Slots of one location have the same parameters: they count once. */
static bool is_known(const struct dp_pipeline_base *base, int slot, const struct dp_parameter *p)
{
    for (int earlier = 0; earlier < slot; earlier++)
        for (int32_t k = 0; k < base->stages[earlier].parameter_count; k++)
            if (dp_tensor_address(base->stages[earlier].parameters[k].value) ==
                dp_tensor_address(p->value))
                return true;
    return false;
}

static struct dp_tied_member describe(const struct dp_pipeline_base *base, int slot, int32_t k)
{
    const struct dp_parameter *p = &base->stages[slot].parameters[k];
    const struct dp_slot *at = dp_base_slot(base, slot);
    struct dp_tied_member m = {
        .group_digest = digest_name(p->tied),
        .layout_digest = digest_tensor(p->grad ? digest_tensor(1, p->grad) : 0, p->value),
        .bytes = (uint64_t)dp_tensor_numel(p->value) * dp_tensor_element_bytes(p->value),
        .grad_elements = (uint64_t)dp_tensor_numel(p->value),
        .rank = base->rank,
        .slot = slot,
        .stage = at->stage,
        .stream = at->stream,
        .parameter = k,
        .grad_bits = p->grad ? p->grad->dtype.bits : 0,
    };

    snprintf(m.group, sizeof(m.group), "%s", p->tied);
    return m;
}

/* This rank's; room for all its parameters. */
static size_t list_own(const struct dp_pipeline_base *base, struct dp_tied_member *out)
{
    size_t count = 0;

    for (int slot = 0; slot < base->slots; slot++)
        for (int32_t k = 0; k < base->stages[slot].parameter_count; k++) {
            const struct dp_parameter *p = &base->stages[slot].parameters[k];
            if (p->tied && !is_known(base, slot, p))
                out[count++] = describe(base, slot, k);
        }
    return count;
}

static int by_group(const void *pa, const void *pb)
{
    const struct dp_tied_member *a = pa, *b = pb;

    if (a->group_digest != b->group_digest)
        return a->group_digest < b->group_digest ? -1 : 1;
    if (a->stream != b->stream)
        return a->stream - b->stream;
    return a->stage != b->stage ? a->stage - b->stage : a->parameter - b->parameter;
}

static int gather(struct dp_tied *tied)
{
    struct dp_comm *comm = tied->base->config.comm;
    void *all;

    if (!comm || dp_comm_size(comm) == 1)
        return 0;
    int err = dp_comm_allgatherv(comm, tied->members, tied->count * sizeof(*tied->members), &all,
                                 tied->offsets);
    if (err)
        return err;
    free(tied->members);
    tied->members = all;
    tied->count = tied->offsets[dp_comm_size(comm)] / sizeof(*tied->members);
    return 0;
}

static bool same_group(const struct dp_tied_member *a, const struct dp_tied_member *b)
{
    return a->group_digest == b->group_digest;
}

/* All ranks see the same list, and say the same. */
static int check(const struct dp_tied *tied)
{
    for (size_t i = 0; i < tied->count; i++) {
        const struct dp_tied_member *m = &tied->members[i], *before = m - 1;
        if (i && same_group(before, m) && before->layout_digest != m->layout_digest)
            return dp_fail_quietly(DP_EMISMATCH,
                                   "tied group '%s': stage %d and stage %d have it in other types, "
                                   "shapes or strides, expected the same",
                                   m->group, before->stage, m->stage);
        if (m->grad_bits && m->grad_bits < 32)
            return dp_fail_quietly(
                DP_EUNSUPPORTED,
                "tied group '%s': a gradient of %d bits on stage %d, expected 32 "
                "or 64",
                m->group, m->grad_bits, m->stage);
    }
    return 0;
}

static size_t all_parameters(const struct dp_pipeline_base *base)
{
    size_t count = 0;

    for (int slot = 0; slot < base->slots; slot++)
        count += (size_t)base->stages[slot].parameter_count;
    return count;
}

int dp_tied_new(const struct dp_pipeline_base *base, bool queued, struct dp_tied **out)
{
    struct dp_tied *tied = *out = calloc(1, sizeof(*tied));
    const struct dp_schedule *s = base->config.schedule;
    void *pieces = NULL;

    if (tied) {
        tied->base = base;
        tied->members = calloc(all_parameters(base) + 1, sizeof(*tied->members));
        tied->offsets = calloc((size_t)s->ranks + 1, sizeof(*tied->offsets));
    }
    if (!tied || !tied->members || !tied->offsets)
        return dp_fail(DP_ENOMEM, "no memory to find tied parameters");
    tied->queued = queued;
    tied->reduced = dp_schedule_has(s, DP_OP_REDUCE) || dp_config_adds_sums(&base->config, s);
    tied->count = list_own(base, tied->members);
    const size_t bytes = queued ? DEVICE_PIECE_BYTES : 2 * PIECE_BYTES;
    int err = tied->count ? dp_device_alloc(base->device, kind_of_pieces(tied), bytes, &pieces) : 0;
    if (!err)
        tied->pieces = pieces;
    return err;
}

void dp_tied_free(struct dp_tied *tied)
{
    if (!tied)
        return;
    dp_device_free(tied->base->device, kind_of_pieces(tied), tied->pieces);
    free(tied->offsets);
    free(tied->members);
    free(tied);
}

/* ---- moving ---------------------------------------------------------------------------------- */

/* A member's value or gradient on its way to another member's. */
struct way {
    struct dp_tied *tied;
    const struct dp_tied_member *from, *to;
    bool grads; /* else values */
    bool adds;  /* to what is there; else it takes the place of that */
};

static const DLTensor *tensor_of(const struct way *w, const struct dp_tied_member *m)
{
    const struct dp_parameter *p = &w->tied->base->stages[m->slot].parameters[m->parameter];
    return w->grads ? p->grad : p->value;
}

static char *address_of(const struct way *w, const struct dp_tied_member *m)
{
    return dp_tensor_address(tensor_of(w, m));
}

static int peer_of(const struct way *w)
{
    return w->from->rank == w->tied->base->rank ? w->to->rank : w->from->rank;
}

static int begin_transfer(const struct way *w, void *at, size_t len, struct dp_request *request)
{
    struct dp_tied *tied = w->tied;
    const int peer = tied->base->config.schedule->group_rank[peer_of(w)];
    const uint64_t tag = dp_messages_tag(tied->base->pipe, DP_CHANNEL_REDUCE, w->from->stage,
                                         (uint32_t)w->from->parameter & DP_MAX_MB);

    return w->from->rank == tied->base->rank
               ? dp_comm_isend(tied->base->config.comm, peer, DP_CHANNEL_REDUCE, tag, at, len, request)
               : dp_comm_irecv(tied->base->config.comm, peer, DP_CHANNEL_REDUCE, tag, at, len, request);
}

static int transfer(const struct way *w, void *at, size_t len)
{
    struct dp_request request;
    int err = begin_transfer(w, at, len, &request);

    return err ? err : dp_messages_wait_request(w->tied->base->pipe, &request, peer_of(w));
}

/* Bytes of the member that leaves: where the CPU reads them. */
static int read_piece(const struct way *w, size_t at, size_t len, char **out)
{
    *out = address_of(w, w->from) + at;
    if (!w->tied->base->out_of_reach)
        return 0;
    int err = dp_compute_copy(w->tied->base->pipe, w->tied->pieces, *out, len);
    *out = w->tied->pieces;
    return err;
}

static int add_piece(const struct way *w, size_t at, size_t len, const char *piece)
{
    char *to = address_of(w, w->to) + at, *sum = w->tied->pieces + PIECE_BYTES;
    const int bits = w->to->grad_bits;
    const size_t n = len / ((size_t)bits / 8);

    if (!w->tied->base->out_of_reach) {
        dp_sum_add(bits, to, piece, n);
        return 0;
    }
    int err = dp_compute_copy(w->tied->base->pipe, sum, to, len);
    if (err)
        return err;
    dp_sum_add(bits, sum, piece, n);
    return dp_compute_copy(w->tied->base->pipe, to, sum, len);
}

static int move_piece(const struct way *w, size_t at, size_t len)
{
    const int rank = w->tied->base->rank;
    char *piece = w->tied->pieces;
    int err = w->from->rank == rank ? read_piece(w, at, len, &piece) : 0;

    if (!err && w->from->rank != w->to->rank)
        err = transfer(w, piece, len);
    if (err || w->to->rank != rank)
        return err;
    return w->adds ? add_piece(w, at, len, piece)
                   : dp_compute_copy(w->tied->base->pipe, address_of(w, w->to) + at, piece, len);
}

/* ---- moving in the order of the compute stream ------------------------------------------------ */

static int end_flights(struct dp_tied *tied, unsigned most)
{
    int err = 0;

    for (; tied->begun - tied->ended > most && !err; tied->ended++)
        err = dp_messages_wait_request(tied->base->pipe, &tied->flights[tied->ended % FLIGHTS].request,
                                       tied->flights[tied->ended % FLIGHTS].peer);
    return err;
}

static int queue_transfer(const struct way *w, void *at, size_t len)
{
    struct dp_tied *tied = w->tied;
    const unsigned place = tied->begun % FLIGHTS;
    int err = end_flights(tied, FLIGHTS - 1);

    if (!err)
        err = dp_comm_after(tied->base->config.comm, tied->base->compute);
    if (!err)
        err = begin_transfer(w, at, len, &tied->flights[place].request);
    if (err)
        return err;
    tied->flights[place].peer = peer_of(w);
    tied->begun++;
    return dp_comm_stream_wait(tied->base->config.comm, &tied->flights[place].request,
                               tied->base->compute);
}

static int queue_piece(const struct way *w, size_t at, size_t len)
{
    struct dp_tied *tied = w->tied;
    const bool leaves = w->from->rank == tied->base->rank, comes = w->to->rank == tied->base->rank;
    char *to = comes ? address_of(w, w->to) + at : NULL;
    char *piece = leaves ? address_of(w, w->from) + at : w->adds ? tied->pieces : to;
    int err = leaves && comes ? 0 : queue_transfer(w, piece, len);

    if (err || !comes || piece == to)
        return err;
    if (!w->adds)
        return dp_device_copy(tied->base->compute, to, piece, len);
    const DLDataType type = tensor_of(w, w->to)->dtype;
    return dp_device_add(tied->base->compute, type, to, type, piece, len / (type.bits / 8));
}

/* The host waits for all that was queued. */
static int end_queue(struct dp_tied *tied)
{
    int err = end_flights(tied, 0);

    return err ? err : dp_compute_finish(tied->base->pipe);
}

static int move(const struct way *w)
{
    const size_t piece = w->tied->queued ? DEVICE_PIECE_BYTES : PIECE_BYTES;
    const size_t bytes =
        w->grads ? w->from->grad_elements * (size_t)w->from->grad_bits / 8 : w->from->bytes;
    int err = 0;

    if (w->from->rank != w->tied->base->rank && w->to->rank != w->tied->base->rank)
        return 0;
    for (size_t at = 0; at < bytes && !err; at += piece) {
        const size_t len = bytes - at < piece ? bytes - at : piece;
        err = w->tied->queued ? queue_piece(w, at, len) : move_piece(w, at, len);
    }
    return err;
}

/* ---- sums and broadcasts --------------------------------------------------------------------- */

static size_t end_of_group(const struct dp_tied *tied, size_t first)
{
    size_t end = first + 1;

    while (end < tied->count && same_group(&tied->members[first], &tied->members[end]))
        end++;
    return end;
}

static int clear_grad(const struct way *w)
{
    if (w->from->rank != w->tied->base->rank)
        return 0;
    int err = dp_device_zero(w->tied->base->compute, address_of(w, w->from),
                             w->from->grad_elements * (size_t)w->from->grad_bits / 8);
    return err ? err : dp_compute_sync(w->tied->base->pipe);
}

/* The first of a group, or one that is as good. */
static bool owns(const struct dp_tied *tied, size_t first, size_t i)
{
    const struct dp_tied_member *owner = &tied->members[first], *m = &tied->members[i];

    return i == first || (tied->base->config.tied_copies && m->stage == owner->stage &&
                          m->parameter == owner->parameter);
}

static int give_sum(struct dp_tied *tied, size_t first, size_t end)
{
    const struct dp_tied_member *members = tied->members;
    int err = 0;

    for (size_t i = first + 1; i < end && !err; i++)
        if (members[i].grad_bits && owns(tied, first, i))
            err = move(&(struct way){.tied = tied, .from = &members[first], .to = &members[i],
                                     .grads = true});
    return err;
}

/* From the last stage to the first. A copy of a stage whose gradient the step has summed has it
 * too. */
static int sum_group(struct dp_tied *tied, size_t first, size_t end)
{
    int err = 0;

    for (size_t i = end; --i > first && !err;) {
        const struct way w = {.tied = tied, .from = &tied->members[i], .to = &tied->members[first],
                              .grads = true, .adds = true};
        if (!w.from->grad_bits)
            continue;
        if (!tied->reduced || w.from->stream == 0)
            err = move(&w);
        if (!err)
            err = clear_grad(&w);
    }
    return err ? err : give_sum(tied, first, end);
}

static int spread_first(struct dp_tied *tied, size_t first, size_t end)
{
    int err = 0;

    for (size_t i = first + 1; i < end && !err; i++)
        err = move(&(struct way){.tied = tied, .from = &tied->members[first],
                                 .to = &tied->members[i]});
    return err;
}

/* An owner of the same rank, otherwise the first. */
static size_t source_of(const struct dp_tied *tied, size_t first, size_t end, size_t i)
{
    for (size_t k = first; k < end; k++)
        if (owns(tied, first, k) && tied->members[k].rank == tied->members[i].rank)
            return k;
    return first;
}

static int broadcast_group(struct dp_tied *tied, size_t first, size_t end)
{
    const struct dp_tied_member *members = tied->members;
    int err = 0;

    for (size_t i = first + 1; i < end && !err; i++)
        if (!owns(tied, first, i))
            err = move(&(struct way){.tied = tied,
                                     .from = &members[source_of(tied, first, end, i)],
                                     .to = &members[i]});
    return err;
}

static int for_all_groups(struct dp_tied *tied,
                          int (*fn)(struct dp_tied *tied, size_t first, size_t end))
{
    int err = 0;

    for (size_t first = 0, end; first < tied->count && !err; first = end) {
        end = end_of_group(tied, first);
        err = fn(tied, first, end);
    }
    if (!err && tied->queued)
        err = end_queue(tied);
    tied->ended = tied->begun; /* what has failed ends those that are left */
    if (err)
        dp_failure_tell(tied->base->config.comm, err);
    return err;
}

int dp_tied_find(struct dp_tied *tied)
{
    int err = gather(tied);

    if (err)
        return err;
    qsort(tied->members, tied->count, sizeof(*tied->members), by_group);
    err = check(tied);
    return err || tied->base->config.keep_copies ? err : for_all_groups(tied, spread_first);
}

static int call(const struct dp_pipeline *pipe, const char *what,
                int (*fn)(struct dp_tied *tied, size_t first, size_t end))
{
    if (!pipe || dp_step_under_way(pipe))
        return pipe ? dp_fail(DP_ESTATE, "%s: a step is under way", what)
                    : dp_fail(DP_EINVAL, "%s without a pipeline", what);
    return for_all_groups(dp_base_of(pipe)->tied, fn);
}

int dp_pipeline_sum_tied(struct dp_pipeline *pipe)
{
    return call(pipe, "dp_pipeline_sum_tied", sum_group);
}

int dp_pipeline_broadcast_tied(struct dp_pipeline *pipe)
{
    return call(pipe, "dp_pipeline_broadcast_tied", broadcast_group);
}

bool dp_pipeline_owns(const struct dp_pipeline *pipe, int slot, int32_t parameter)
{
    const struct dp_tied *tied = dp_base_of(pipe)->tied;

    for (size_t first = 0, end; first < tied->count; first = end) {
        end = end_of_group(tied, first);
        for (size_t i = first; i < end; i++) {
            const struct dp_tied_member *m = &tied->members[i];
            if (m->rank == tied->base->rank && m->slot == slot && m->parameter == parameter)
                return owns(tied, first, i);
        }
    }
    return true;
}
