/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/in_place.h"

#include "base/fail.h"
#include "comm/algorithms.h"
#include "wire/wire.h"

#include <inttypes.h>
#include <string.h>

/* As many peers as messages that are in flight at once. */
enum { PEERS = DP_STEP_WINDOW, LEAST_BYTES = 256 << 10 };
/* What is summed and stored while it is in a core's first cache, and how much of it in one call. */
enum { PIECE_BYTES = 16 << 10, PIECES = 32 };

/* What a rank tells a peer. */
struct offer {
    struct dp_wire_loan loan;
    uint64_t bytes;
};

/* In the scratch memory, in front of the wide sums of a piece. Peer j is j + 1 ranks further on. */
struct state {
    struct offer mine[PEERS], theirs[PEERS]; /* to, of */
    uint8_t ok, oks[PEERS];                  /* all are in reach: of this rank, of a peer */
    size_t next;                             /* element, of the block */
};

static struct state *state_of(const struct dp_collective_args *args)
{
    return (struct state *)(void *)args->scratch;
}

static void *wide_piece(const struct dp_collective_args *args)
{
    return args->scratch + sizeof(struct state);
}

static int peers_of(const struct dp_collective_args *args)
{
    return args->size - 1;
}

static int peer_at(const struct dp_collective_args *args, int j)
{
    return (args->rank + j + 1) % args->size;
}

/* The peer whose j-th peer this rank is. */
static int peer_before(const struct dp_collective_args *args, int j)
{
    return (args->rank - j - 1 + args->size) % args->size;
}

/* By which number the rank `peer` is a peer. */
static int number_of(const struct dp_collective_args *args, int peer)
{
    return (peer - args->rank - 1 + args->size) % args->size;
}

static size_t bytes_of(const struct dp_collective_args *args)
{
    return args->count * args->reducer->bytes;
}

/* ---- loans, over the wires of the collectives ------------------------------------------------ */

static int channel_of(const struct dp_collective_args *args)
{
    return args->comm->first_channel + DP_CHANNEL_COLLECTIVE;
}

static void lend_all(const struct dp_collective_args *args)
{
    struct dp_comm *world = args->comm->world;

    for (int j = 0; j < peers_of(args); j++)
        world->ops->loans->lend(world, dp_comm_world_rank(args->comm, peer_at(args, j)),
                                channel_of(args), args->out, bytes_of(args),
                                &state_of(args)->mine[j].loan);
}

static void end_all(const struct dp_collective_args *args)
{
    struct dp_comm *world = args->comm->world;

    for (int j = 0; j < peers_of(args); j++)
        world->ops->loans->end(world, dp_comm_world_rank(args->comm, peer_at(args, j)),
                               channel_of(args));
}

static char *use(const struct dp_collective_args *args, int j)
{
    struct dp_comm *world = args->comm->world;

    return world->ops->loans->use(world, dp_comm_world_rank(args->comm, peer_at(args, j)),
                                  channel_of(args), &state_of(args)->theirs[j].loan,
                                  bytes_of(args));
}

static void leave(const struct dp_collective_args *args, int j)
{
    struct dp_comm *world = args->comm->world;

    world->ops->loans->leave(world, dp_comm_world_rank(args->comm, peer_at(args, j)),
                             channel_of(args));
}

/* How many are in reach: all, or those before the first that is not. */
static int use_all(const struct dp_collective_args *args, char **buffers)
{
    int j = 0;

    while (j < peers_of(args) && (buffers[j] = use(args, j)))
        j++;
    return j;
}

static void leave_some(const struct dp_collective_args *args, int count)
{
    for (int j = 0; j < count; j++)
        leave(args, j);
}

/* ---- the sum --------------------------------------------------------------------------------- */

/* The order of a ring: from the rank above to the own. `at` is in elements. */
static void sum_piece(const struct dp_collective_args *args, char *const *buffers, size_t at,
                      size_t count)
{
    const struct dp_reducer *r = args->reducer;
    char *own = args->out + at * r->bytes, *first = buffers[0] + at * r->bytes;
    const int others = peers_of(args);

    if (r->bytes == r->wide_bytes && others == 1) {
        r->combine(own, first, own, count);
    } else {
        r->widen(wide_piece(args), first, count);
        for (int j = 1; j < others; j++)
            r->add(wide_piece(args), buffers[j] + at * r->bytes, count);
        r->add(wide_piece(args), own, count);
        r->round(own, wide_piece(args), count);
    }
    for (int j = 0; j < others; j++)
        memcpy(buffers[j] + at * r->bytes, own, count * r->bytes);
}

/* A peer that has ended its loan has failed: this rank will hear of it. */
static int sum_some(const struct dp_collective_args *args)
{
    struct state *st = state_of(args);
    const size_t begin = dp_block_at(args->count, args->size, args->rank),
                 end = dp_block_at(args->count, args->size, args->rank + 1),
                 most = PIECE_BYTES / args->reducer->wide_bytes;
    char *buffers[PEERS];
    const int in_reach = use_all(args, buffers);

    for (int i = 0; i < PIECES && in_reach == peers_of(args) && begin + st->next < end; i++) {
        const size_t left = end - begin - st->next, count = left < most ? left : most;
        sum_piece(args, buffers, begin + st->next, count);
        st->next += count;
    }
    leave_some(args, in_reach);
    return begin + st->next < end ? DP_EAGAIN : 0;
}

static int reduce_steps(const struct dp_collective_args *args)
{
    return 1 + peers_of(args);
}

/* First the sum, then every rank tells every other that it is done with its buffer. */
static void reduce_step(const struct dp_collective_args *args, int index, struct dp_step *out)
{
    *out = (struct dp_step){.send_to = -1, .receive_from = -1};
    if (!index)
        return;
    out->send_to = peer_at(args, index - 1);
    out->receive_from = peer_before(args, index - 1);
    out->after = 1;
}

static int reduce_work(const struct dp_collective_args *args, int index)
{
    return index ? 0 : sum_some(args);
}

static const struct dp_algorithm in_place_reduce = {
    .name = "in place",
    .kind = 11,
    .steps = reduce_steps,
    .step = reduce_step,
    .work = reduce_work,
    .end = end_all,
    .drop = end_all,
};

/* ---- whether it can be done ------------------------------------------------------------------ */

bool dp_in_place_is_worth(const struct dp_collective_args *args)
{
    const struct dp_comm *world = args->comm->world;

    return world->lends && world->ops->loans && args->size > 1 && peers_of(args) <= PEERS &&
           bytes_of(args) >= LEAST_BYTES;
}

static size_t meet_scratch(const struct dp_collective_args *args)
{
    const size_t own = sizeof(struct state) + PIECE_BYTES,
                 other = dp_choose_allreduce(args)->scratch_bytes(args);

    return own > other ? own : other;
}

static void meet_begin(const struct dp_collective_args *args)
{
    *state_of(args) = (struct state){.ok = 0};
    for (int j = 0; j < peers_of(args); j++)
        state_of(args)->mine[j].bytes = bytes_of(args);
    if (args->in == args->out)
        lend_all(args);
}

static int meet_steps(const struct dp_collective_args *args)
{
    return 2 * peers_of(args);
}

/* Loans go to all peers, then whether all are in reach. */
static void meet_step(const struct dp_collective_args *args, int index, struct dp_step *out)
{
    struct state *st = state_of(args);
    const int j = index % peers_of(args), from = peer_before(args, j);
    const int number = number_of(args, from);
    const bool first = index < peers_of(args);

    *out = (struct dp_step){
        .send_to = peer_at(args, j),
        .receive_from = from,
        .send = first ? (void *)&st->mine[j] : &st->ok,
        .receive = first ? (void *)&st->theirs[number] : &st->oks[number],
        .send_len = first ? sizeof(st->mine[j]) : sizeof(st->ok),
        .receive_len = first ? sizeof(st->theirs[number]) : sizeof(st->oks[number]),
        .after = first ? 0 : peers_of(args),
    };
}

static int check_sizes(const struct dp_collective_args *args)
{
    for (int j = 0; j < peers_of(args); j++)
        if (state_of(args)->theirs[j].bytes != bytes_of(args))
            return dp_fail(DP_EMISMATCH, "all-reduce of %zu bytes: rank %d has %" PRIu64,
                           bytes_of(args), peer_at(args, j), state_of(args)->theirs[j].bytes);
    return 0;
}

/* All offers have come. */
static int meet_work(const struct dp_collective_args *args, int index)
{
    char *buffers[PEERS];

    if (index != peers_of(args) - 1)
        return 0;
    int err = check_sizes(args);
    if (err)
        return err;
    const int in_reach = use_all(args, buffers);
    leave_some(args, in_reach);
    state_of(args)->ok = args->in == args->out && in_reach == peers_of(args);
    return 0;
}

static const struct dp_algorithm *meet_next(const struct dp_collective_args *args)
{
    const struct state *st = state_of(args);
    bool all = st->ok;

    for (int j = 0; j < peers_of(args); j++)
        all &= st->oks[j];
    if (all) {
        args->comm->world->in_place++;
        return &in_place_reduce;
    }
    end_all(args);
    return dp_choose_allreduce(args);
}

const struct dp_algorithm dp_in_place_allreduce = {
    .name = "in place",
    .kind = 10,
    .steps = meet_steps,
    .scratch_bytes = meet_scratch,
    .begin = meet_begin,
    .step = meet_step,
    .work = meet_work,
    .next = meet_next,
    .drop = end_all,
};
