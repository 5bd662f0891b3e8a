/* SPDX-License-Identifier: Apache-2.0
 *
 * in_place.c - a large all-reduce between ranks that have each other's memory mapped: each sums one
 * block of all buffers and stores it in all of them, so that no value is sent.
 *
 *      rank 0's buffer   | sum: rank 0 | sum: rank 1 |
 *      rank 1's buffer   | sum: rank 0 | sum: rank 1 |
 *
 * A rank whose buffer is plain memory, or that keeps its input, lends two chunks of shared memory
 * instead: it copies the blocks of the others into one and out of it, while the other is summed.
 * Whether all memory is in reach is found out first, in two small rounds; otherwise it goes on with
 * a ring.
 */
#include "comm/engine.h"

#include "base/fail.h"
#include "comm/comm_ops.h"
#include "wire/wire.h"

#include <dualpipe/memory.h>

#include <inttypes.h>
#include <string.h>

/* As many peers as messages that are in flight at once. */
enum { PEERS = DP_STEP_WINDOW, LEAST_BYTES = 256 << 10 };
/* What is summed and stored while it is in a core's first cache, and how much of it in one call. */
enum { PIECE_BYTES = 16 << 10, PIECES = 32 };
/* Both chunks of a rank stay in its core's second cache. */
enum { CHUNKS = 2, CHUNK_BYTES = 256 << 10 };

/* What a rank tells a peer. */
struct offer {
    struct dp_wire_loan loan;
    uint64_t bytes;  /* of the all-reduce */
    uint64_t direct; /* the loan is its buffer; 0: its staging memory */
};

/* In the scratch memory, in front of the wide sums of a piece. Peer j is j + 1 ranks further on. */
struct state {
    struct offer mine[PEERS], theirs[PEERS]; /* to, of */
    uint8_t ok, oks[PEERS];                  /* all are in reach: of this rank, of a peer */
    bool direct;                             /* this rank lends its buffer */
    size_t next;                             /* element, of the own part of the chunk */
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

static bool lend(const struct dp_collective_args *args, int j, void *buf, size_t len)
{
    struct dp_comm *world = args->comm->world;

    return buf && world->ops->loans->lend(world, dp_comm_world_rank(args->comm, peer_at(args, j)),
                                          channel_of(args), buf, len,
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
    const struct offer *offer = &state_of(args)->theirs[j];

    return world->ops->loans->use(world, dp_comm_world_rank(args->comm, peer_at(args, j)),
                                  channel_of(args), &offer->loan,
                                  offer->direct ? bytes_of(args) : CHUNKS * CHUNK_BYTES);
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

/* ---- parts and chunks ------------------------------------------------------------------------ */

/* Chunk t is part t of every block. If no rank copies, a block has one part. In a chunk of staging
 * memory the parts lie one after the other, all with the room of the longest. */
static size_t most_in_part(const struct dp_collective_args *args)
{
    const struct state *st = state_of(args);
    bool direct = st->direct;

    for (int j = 0; j < peers_of(args); j++)
        direct &= st->theirs[j].direct;
    if (direct)
        return dp_block_at(args->count, args->size, 1);
    return CHUNK_BYTES / args->reducer->bytes / (size_t)args->size;
}

static int chunks_of(const struct dp_collective_args *args)
{
    const size_t most = most_in_part(args);

    return (int)((dp_block_at(args->count, args->size, 1) + most - 1) / most);
}

/* Elements of the whole buffer. */
static void find_part(const struct dp_collective_args *args, int block, int t, size_t *at,
                      size_t *count)
{
    const size_t most = most_in_part(args), end = dp_block_at(args->count, args->size, block + 1);

    *at = dp_block_at(args->count, args->size, block) + (size_t)t * most;
    *at = *at < end ? *at : end;
    *count = end - *at < most ? end - *at : most;
}

/* Where part t of the block is in memory that was lent. */
static char *in_window(const struct dp_collective_args *args, char *window, bool direct, int block,
                       int t)
{
    size_t at, count;

    find_part(args, block, t, &at, &count);
    if (!direct)
        at = (size_t)(t % CHUNKS) * CHUNK_BYTES / args->reducer->bytes +
             (size_t)block * most_in_part(args);
    return window + at * args->reducer->bytes;
}

/* The parts that others sum, into staging memory or out of it. */
static void copy_chunk(const struct dp_collective_args *args, int t, bool out)
{
    if (state_of(args)->direct)
        return;
    for (int block = 0; block < args->size; block++) {
        size_t at, count;
        find_part(args, block, t, &at, &count);
        char *staged = in_window(args, args->staging, false, block, t);
        const size_t bytes = args->reducer->bytes;
        if (block != args->rank && out)
            memcpy(args->out + at * bytes, staged, count * bytes);
        else if (block != args->rank)
            memcpy(staged, args->in + at * bytes, count * bytes);
    }
}

/* ---- the sum --------------------------------------------------------------------------------- */

/* The order of a ring: from the rank above to the own. */
static void sum_piece(const struct dp_collective_args *args, char *const *theirs, const char *in,
                      char *out, size_t count)
{
    const struct dp_reducer *r = args->reducer;
    const int others = peers_of(args);

    if (r->bytes == r->wide_bytes && others == 1) {
        r->combine(out, theirs[0], in, count);
    } else {
        r->widen(wide_piece(args), theirs[0], count);
        for (int j = 1; j < others; j++)
            r->add(wide_piece(args), theirs[j], count);
        r->add(wide_piece(args), in, count);
        r->round(out, wide_piece(args), count);
    }
    for (int j = 0; j < others; j++)
        memcpy(theirs[j], out, count * r->bytes);
}

static void sum_pieces(const struct dp_collective_args *args, int t, char *const *windows)
{
    struct state *st = state_of(args);
    const size_t bytes = args->reducer->bytes, most = PIECE_BYTES / args->reducer->wide_bytes;
    char *theirs[PEERS];
    size_t at, count;

    find_part(args, args->rank, t, &at, &count);
    for (int i = 0; i < PIECES && st->next < count; i++) {
        const size_t left = count - st->next, n = left < most ? left : most;
        for (int j = 0; j < peers_of(args); j++)
            theirs[j] = in_window(args, windows[j], st->theirs[j].direct, args->rank, t) +
                        st->next * bytes;
        sum_piece(args, theirs, args->in + (at + st->next) * bytes,
                  args->out + (at + st->next) * bytes, n);
        st->next += n;
    }
}

/* The own part of chunk t, some of it in each call. A peer that has ended its loan has failed: this
 * rank will hear of it. */
static int sum_some(const struct dp_collective_args *args, int t)
{
    struct state *st = state_of(args);
    char *windows[PEERS];
    size_t at, count;
    const int in_reach = use_all(args, windows);

    if (in_reach == peers_of(args))
        sum_pieces(args, t, windows);
    leave_some(args, in_reach);
    find_part(args, args->rank, t, &at, &count);
    if (st->next < count)
        return DP_EAGAIN;
    st->next = 0;
    return 0;
}

/* ---- chunk by chunk -------------------------------------------------------------------------- */

/* Step 0 sums chunk 0. Then come signals, of one small message to and from each peer, and what
 * follows each. "in" says that this rank has copied a chunk in, "summed" that it has summed its part
 * of one. Each is sent a chunk before the peer needs it, so that no rank waits for the other's copy:
 *
 *      signal           in 1    summed 0       in 2    summed 1 ..  in n-1   summed n-2   summed n-1
 *      then this rank   sums 1  copies 0 out,  sums 2  copies 1 ..  sums n-1 copies       copies
 *                               2 in                   out, 3 in             n-2 out      n-1 out
 *
 * Chunks 0 and 1 were copied in before the last round of meeting. */
struct signal {
    bool summed; /* else in */
    int t;       /* chunk */
};

static int signals_of(const struct dp_collective_args *args)
{
    return 2 * chunks_of(args) - 1;
}

static struct signal signal_at(const struct dp_collective_args *args, int k)
{
    if (k == signals_of(args) - 1)
        return (struct signal){true, chunks_of(args) - 1};
    return k % 2 ? (struct signal){true, k / 2} : (struct signal){false, k / 2 + 1};
}

static int reduce_steps(const struct dp_collective_args *args)
{
    return 1 + peers_of(args) * signals_of(args);
}

/* How many steps there are up to the work that follows signal k; k -1: step 0. */
static int steps_to(const struct dp_collective_args *args, int k)
{
    return 1 + peers_of(args) * (k + 1);
}

static void reduce_step(const struct dp_collective_args *args, int index, struct dp_step *out)
{
    *out = (struct dp_step){.send_to = -1, .receive_from = -1};
    if (!index)
        return;
    const int k = (index - 1) / peers_of(args), j = (index - 1) % peers_of(args);
    const struct signal s = signal_at(args, k);
    out->send_to = peer_at(args, j);
    out->receive_from = peer_before(args, j);
    /* Chunk t was summed after the signal "in t", which is number 2t - 2. */
    out->after = steps_to(args, s.summed ? (s.t ? 2 * s.t - 2 : -1) : k - 1);
}

static int reduce_work(const struct dp_collective_args *args, int index)
{
    if (!index)
        return sum_some(args, 0);
    if (index % peers_of(args))
        return 0;
    const struct signal s = signal_at(args, index / peers_of(args) - 1);
    if (!s.summed)
        return sum_some(args, s.t);
    copy_chunk(args, s.t, true);
    if (s.t + CHUNKS < chunks_of(args))
        copy_chunk(args, s.t + CHUNKS, false);
    return 0;
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

static bool is_shared(const struct dp_collective_args *args)
{
    struct dp_shared_place place;

    return args->in == args->out && dp_shared_find(args->out, bytes_of(args), &place);
}

static size_t meet_staging(const struct dp_collective_args *args)
{
    return is_shared(args) ? 0 : CHUNKS * CHUNK_BYTES;
}

static void meet_begin(const struct dp_collective_args *args)
{
    struct state *st = state_of(args);
    const bool direct = is_shared(args);

    *st = (struct state){.ok = 1, .direct = direct};
    for (int j = 0; j < peers_of(args); j++) {
        st->mine[j].bytes = bytes_of(args);
        st->mine[j].direct = direct;
        if (!lend(args, j, direct ? args->out : args->staging,
                  direct ? bytes_of(args) : CHUNKS * CHUNK_BYTES))
            st->ok = 0;
    }
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
    state_of(args)->ok &= in_reach == peers_of(args);
    for (int t = 0; state_of(args)->ok && t < CHUNKS && t < chunks_of(args); t++)
        copy_chunk(args, t, false);
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
    .staging_bytes = meet_staging,
    .begin = meet_begin,
    .step = meet_step,
    .work = meet_work,
    .next = meet_next,
    .drop = end_all,
};
