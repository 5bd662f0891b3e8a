/* SPDX-License-Identifier: Apache-2.0
 *
 * algorithms.c - the steps of each collective. A buffer is cut into `size` blocks, one for each
 * rank, and a block into segments, so that the transfer of one overlaps the sum of the one before.
 *
 * Scratch memory: DP_STEP_WINDOW slots that messages are received into before they are added, then
 * what the algorithm keeps besides.
 */
#include "comm/engine.h"

#include <string.h>

enum { COPY_SEGMENT_BYTES = 1 << 20 };

static int mod(int rank, int size)
{
    return (rank % size + size) % size;
}

/* ---- blocks and segments --------------------------------------------------------------------- */

struct range {
    size_t at, count; /* elements */
};

/* Segment s of a block; all blocks have as many segments as the longest, the last ones may be
 * empty. */
static struct range segment_of(size_t count, int size, int block, int s, size_t segment)
{
    const size_t begin = dp_block_at(count, size, block), end = dp_block_at(count, size, block + 1);
    size_t at = begin + (size_t)s * segment;

    at = at < end ? at : end;
    return (struct range){at, end - at < segment ? end - at : segment};
}

static int segments_in(size_t count, int size, size_t segment)
{
    const size_t longest = (count + (size_t)size - 1) / (size_t)size;

    return (int)((longest + segment - 1) / segment);
}

static size_t slot_bytes(const struct dp_collective_args *args)
{
    return args->segment * args->reducer->wide_bytes;
}

static void *slot(const struct dp_collective_args *args, int index)
{
    return args->scratch + (size_t)(index % DP_STEP_WINDOW) * slot_bytes(args);
}

static void *behind_slots(const struct dp_collective_args *args)
{
    return args->scratch + (size_t)DP_STEP_WINDOW * slot_bytes(args);
}

static const char *own(const struct dp_collective_args *args, size_t at)
{
    return args->in + at * args->reducer->bytes;
}

static char *result(const struct dp_collective_args *args, size_t at)
{
    return args->out + at * args->reducer->bytes;
}

/* ---- all-reduce: recursive doubling ---------------------------------------------------------- */

/* The ranks from p on, the largest power of 2, hand their values to those below first and get the
 * result at the end. Values are kept and sent wide. */
static int largest_power(int size)
{
    int p = 1;

    while (2 * p <= size)
        p *= 2;
    return p;
}

static int doubling_rounds(int p)
{
    int rounds = 0;

    while (1 << rounds < p)
        rounds++;
    return rounds;
}

static bool is_folded(const struct dp_collective_args *args)
{
    return args->rank + largest_power(args->size) < args->size;
}

static int doubling_steps(const struct dp_collective_args *args)
{
    const int p = largest_power(args->size);

    return args->rank >= p ? 2 : doubling_rounds(p) + 2 * is_folded(args);
}

static size_t doubling_scratch(const struct dp_collective_args *args)
{
    return (size_t)DP_STEP_WINDOW * slot_bytes(args) + args->count * args->reducer->wide_bytes;
}

static void doubling_begin(const struct dp_collective_args *args)
{
    args->reducer->widen(behind_slots(args), args->in, args->count);
}

static void doubling_step(const struct dp_collective_args *args, int index, struct dp_step *out)
{
    const int p = largest_power(args->size), folded = is_folded(args);
    const size_t len = args->count * args->reducer->wide_bytes;
    void *acc = behind_slots(args);
    const bool is_extra = args->rank >= p;
    const bool is_last = index == doubling_steps(args) - 1;
    int peer;

    if (is_extra)
        peer = args->rank - p;
    else if (folded && (!index || is_last))
        peer = args->rank + p;
    else
        peer = args->rank ^ 1 << (index - folded);
    *out = (struct dp_step){.send_to = peer,
                            .receive_from = peer,
                            .send = acc,
                            .send_len = len,
                            .receive_len = len,
                            .after = index,
                            .dst = acc,
                            .count = args->count};
    out->receive = slot(args, index);
    if (is_extra ? !index : folded && is_last) {
        out->receive_from = -1;
        return;
    }
    if (is_extra) {
        out->send_to = -1;
        out->receive = acc;
        return;
    }
    if (folded && !index)
        out->send_to = -1;
    out->action = DP_STEP_COMBINE;
    out->a = args->rank < peer ? acc : out->receive;
    out->b = args->rank < peer ? out->receive : acc;
}

static void doubling_end(const struct dp_collective_args *args)
{
    args->reducer->round(args->out, behind_slots(args), args->count);
}

static const struct dp_algorithm recursive_doubling = {
    .name = "recursive doubling",
    .kind = 1,
    .steps = doubling_steps,
    .scratch_bytes = doubling_scratch,
    .begin = doubling_begin,
    .step = doubling_step,
    .end = doubling_end,
};

/* ---- all-gather: ring ------------------------------------------------------------------------ */

/* Step (k, s): send segment s of the block that came in round k - 1, which in round 0 is the own
 * one. The bytes that messages are counted in are those of args->out. */
static void ring_gather_step(const struct dp_collective_args *args, size_t bytes, size_t count,
                             size_t segment, int k, int s, struct dp_step *out)
{
    const struct range sent =
        segment_of(count, args->size, mod(args->rank - k, args->size), s, segment);
    const struct range received =
        segment_of(count, args->size, mod(args->rank - k - 1, args->size), s, segment);

    *out = (struct dp_step){
        .send_to = mod(args->rank + 1, args->size),
        .receive_from = mod(args->rank - 1, args->size),
        .send = args->out + sent.at * bytes,
        .send_len = sent.count * bytes,
        .receive = args->out + received.at * bytes,
        .receive_len = received.count * bytes,
    };
}

static int allgather_segments(const struct dp_collective_args *args)
{
    return segments_in(args->count * (size_t)args->size, args->size, COPY_SEGMENT_BYTES);
}

static int ring_gather_steps(const struct dp_collective_args *args)
{
    return (args->size - 1) * allgather_segments(args);
}

static void place_own(const struct dp_collective_args *args)
{
    char *place = args->out + (size_t)args->rank * args->count;

    if (args->count && place != args->in)
        memmove(place, args->in, args->count);
}

static void ring_allgather_step(const struct dp_collective_args *args, int index,
                                struct dp_step *out)
{
    const int segments = allgather_segments(args), k = index / segments, s = index % segments;

    ring_gather_step(args, 1, args->count * (size_t)args->size, COPY_SEGMENT_BYTES, k, s, out);
    out->after = k ? index - segments + 1 : 0;
}

static const struct dp_algorithm ring_allgather = {
    .name = "ring",
    .kind = 2,
    .steps = ring_gather_steps,
    .begin = place_own,
    .step = ring_allgather_step,
};

/* ---- all-gather: Bruck ----------------------------------------------------------------------- */

/* In round k a rank knows the 2^k blocks from its own on, and fetches as many again from the rank
 * that knows the next ones. Blocks stay at their place and are numbered modulo size, so that a
 * round's blocks are one piece or, around the end, two: two steps.
 *
 *      size 5    rank 3 knows  3   | 3 4   | 3 4 0 1   | all
 *                asks rank     4     0       2
 */
static size_t offset_of(const struct dp_collective_args *args, int rank)
{
    return args->offsets ? args->offsets[rank] : (size_t)rank * args->count;
}

/* The `count` blocks from `first` on: those up to the end, or those from 0 on. */
static struct range cut_piece(const struct dp_collective_args *args, int first, int count,
                              bool second)
{
    const int end = first + count, wrapped = end > args->size ? end - args->size : 0;
    const size_t at = second ? 0 : offset_of(args, first);

    return (struct range){at, offset_of(args, second ? wrapped : end - wrapped) - at};
}

static int bruck_steps(const struct dp_collective_args *args)
{
    int rounds = 0;

    while (1 << rounds < args->size)
        rounds++;
    return 2 * rounds;
}

static void bruck_begin(const struct dp_collective_args *args)
{
    if (!args->offsets)
        place_own(args);
}

static void bruck_step(const struct dp_collective_args *args, int index, struct dp_step *out)
{
    const int known = 1 << index / 2, rest = args->size - known;
    const int count = known < rest ? known : rest, from = mod(args->rank + known, args->size);
    const struct range mine = cut_piece(args, args->rank, count, index % 2);
    const struct range theirs = cut_piece(args, from, count, index % 2);

    *out = (struct dp_step){
        .send_to = mod(args->rank - known, args->size),
        .receive_from = from,
        .send = args->out + mine.at,
        .send_len = mine.count,
        .receive = args->out + theirs.at,
        .receive_len = theirs.count,
        .after = index / 2 * 2,
    };
}

static const struct dp_algorithm bruck = {
    .name = "Bruck",
    .kind = 3,
    .steps = bruck_steps,
    .begin = bruck_begin,
    .step = bruck_step,
};

const struct dp_algorithm *dp_choose_allgather(const struct dp_collective_args *args)
{
    return args->offsets || args->count <= DP_COLLECTIVE_SMALL ? &bruck : &ring_allgather;
}

/* ---- direct: every rank sends each other its block, and sums its own ---------------------------- */

/* Segment by segment: first the values of rank + 1, then of rank + 2, ..., last the own ones are
 * added up wide. Step (s, j) is about segment s and the j-th peer. */
static void scatter_step(const struct dp_collective_args *args, int index, struct dp_step *out)
{
    const int others = args->size - 1, s = index / others, j = index % others + 1;
    const int to = mod(args->rank - j, args->size);
    const struct range sent = segment_of(args->count, args->size, to, s, args->segment);
    const struct range received =
        segment_of(args->count, args->size, args->rank, s, args->segment);

    *out = (struct dp_step){
        .send_to = to,
        .receive_from = mod(args->rank + j, args->size),
        .send = own(args, sent.at),
        .send_len = sent.count * args->reducer->bytes,
        .receive = slot(args, index),
        .receive_len = received.count * args->reducer->bytes,
        .action = DP_STEP_ACCUMULATE,
        .first = j == 1,
        .last = j == others,
        .acc = behind_slots(args),
        .a = slot(args, index),
        .b = own(args, received.at),
        .dst = result(args, received.at),
        .count = received.count,
    };
}

static size_t scatter_scratch(const struct dp_collective_args *args)
{
    return (size_t)(DP_STEP_WINDOW + 1) * slot_bytes(args);
}

/* Steps of the sums, and of the all-gather that follows. */
static int steps_of_half(const struct dp_collective_args *args)
{
    return (args->size - 1) * segments_in(args->count, args->size, args->segment);
}

static int direct_steps(const struct dp_collective_args *args)
{
    return steps_of_half(args) * (args->phases == DP_SUM_ALL ? 2 : 1);
}

/* For the 16-bit types, whose partial sums are wider than what a ring would pass on, and for sums by
 * phases. Step (s, j) of the second half: segment s of the own block to the j-th peer. */
static void direct_step(const struct dp_collective_args *args, int index, struct dp_step *out)
{
    const int others = args->size - 1;
    const int half = args->phases & DP_SUM_SCATTER ? steps_of_half(args) : 0;

    if (index < half) {
        scatter_step(args, index, out);
        return;
    }
    const int s = (index - half) / others, j = (index - half) % others + 1;
    const int from = mod(args->rank + j, args->size);
    const size_t bytes = args->reducer->bytes;
    const struct range sent = segment_of(args->count, args->size, args->rank, s, args->segment);
    const struct range received = segment_of(args->count, args->size, from, s, args->segment);

    *out = (struct dp_step){
        .send_to = mod(args->rank - j, args->size),
        .receive_from = from,
        .send = result(args, sent.at),
        .send_len = sent.count * bytes,
        .receive = result(args, received.at),
        .receive_len = received.count * bytes,
        .after = half ? (s + 1) * others : 0,
    };
}

static const struct dp_algorithm direct_allreduce = {
    .name = "direct",
    .kind = 5,
    .steps = direct_steps,
    .scratch_bytes = scatter_scratch,
    .step = direct_step,
};

/* ---- all-reduce: ring ------------------------------------------------------------------------ */

/* Round k of the first half: send block rank - 1 - k, add the own values to block rank - 2 - k,
 * which comes. A block starts at the rank above its owner and ends at its owner; then an
 * all-gather.
 *
 * Segments go in groups, so that what a group has summed is still in a cache when it is gathered.
 * The first sends of a group, of values that nothing has been added to, wait for nothing:
 *
 *      segments 0 to 3 of all blocks           segments 4 to 7 of all blocks
 *      sum, rounds 0 ..    gather, rounds 0 .. sum, rounds 0 ..    gather, rounds 0 ..
 */
enum { GROUP_SEGMENTS = 4 };

static int ring_segments(const struct dp_collective_args *args)
{
    return segments_in(args->count, args->size, args->segment);
}

static int ring_steps(const struct dp_collective_args *args)
{
    return 2 * (args->size - 1) * ring_segments(args);
}

static size_t ring_scratch(const struct dp_collective_args *args)
{
    return (size_t)DP_STEP_WINDOW * slot_bytes(args);
}

static void ring_reduce_step(const struct dp_collective_args *args, int index, int k, int s,
                             struct dp_step *out)
{
    const size_t segment = args->segment;
    const struct range sent =
        segment_of(args->count, args->size, mod(args->rank - 1 - k, args->size), s, segment);
    const struct range received =
        segment_of(args->count, args->size, mod(args->rank - 2 - k, args->size), s, segment);

    *out = (struct dp_step){
        .send_to = mod(args->rank + 1, args->size),
        .receive_from = mod(args->rank - 1, args->size),
        .send = k ? result(args, sent.at) : own(args, sent.at),
        .send_len = sent.count * args->reducer->bytes,
        .receive = slot(args, index),
        .receive_len = received.count * args->reducer->bytes,
        .action = DP_STEP_COMBINE,
        .dst = result(args, received.at),
        .a = slot(args, index),
        .b = own(args, received.at),
        .count = received.count,
    };
}

static void ring_step(const struct dp_collective_args *args, int index, struct dp_step *out)
{
    const int rounds = args->size - 1, all = ring_segments(args);
    const int first = index / (2 * rounds * GROUP_SEGMENTS) * GROUP_SEGMENTS;
    const int segments = all - first < GROUP_SEGMENTS ? all - first : GROUP_SEGMENTS;
    const int in_group = index - 2 * rounds * first;
    const int round = in_group / segments, s = first + in_group % segments;

    if (round < rounds)
        ring_reduce_step(args, index, round, s, out);
    else
        ring_gather_step(args, args->reducer->bytes, args->count, args->segment,
                         round - rounds, s, out);
    out->after = round ? index - segments + 1 : 0;
}

static const struct dp_algorithm ring_allreduce = {
    .name = "ring",
    .kind = 6,
    .steps = ring_steps,
    .scratch_bytes = ring_scratch,
    .step = ring_step,
};

const struct dp_algorithm *dp_choose_allreduce(const struct dp_collective_args *args)
{
    if (args->count * args->reducer->bytes <= DP_COLLECTIVE_SMALL)
        return &recursive_doubling;
    return args->reducer->bytes == args->reducer->wide_bytes ? &ring_allreduce : &direct_allreduce;
}

/* ---- sums in pairs: recursive halving and doubling ---------------------------------------------- */

/* Of 2^k ranks and in place, each sum rounded to the type. A piece of the buffer:
 *
 *      round, rank r of 4    with     the piece
 *      0                     r ^ 1    |  mine  | theirs |    send a half, receive the other, add
 *      1                     r ^ 2    | m |  t |             the same with a half of that
 *                                     one range is the sum of all
 *      2                     r ^ 2    | . | .  |             receive what the other one has summed
 *      3                     r ^ 1    |   .    |   .    |
 *
 * The first half of the rounds scatters sums, the second half gathers them. Two pieces take their rounds
 * in turn, a0 b0 a1 b1 ..., so that one is added up while the other moves. */
enum { TOGETHER = 2 };

static size_t piece_elements(const struct dp_collective_args *args)
{
    return 2 * args->segment;
}

static int pieces_in(const struct dp_collective_args *args)
{
    return (int)((args->count + piece_elements(args) - 1) / piece_elements(args));
}

static int halving_rounds(const struct dp_collective_args *args)
{
    return doubling_rounds(args->size) * (args->phases == DP_SUM_ALL ? 2 : 1);
}

static int halving_steps(const struct dp_collective_args *args)
{
    return halving_rounds(args) * pieces_in(args);
}

/* What this rank has the newest of after so many halvings; and what its partner of the last one has. */
static struct range halve(const struct dp_collective_args *args, int piece, int halvings,
                          struct range *partners)
{
    const size_t at = (size_t)piece * piece_elements(args), left = args->count - at;
    struct range own = {at, left < piece_elements(args) ? left : piece_elements(args)};

    for (int k = 0; k < halvings; k++) {
        const size_t lower = (own.count + 1) / 2;
        const struct range halves[2] = {{own.at, lower}, {own.at + lower, own.count - lower}};
        const int upper = args->rank >> k & 1;
        own = halves[upper];
        *partners = halves[!upper];
    }
    return own;
}

/* Where messages are copied fastest into memory that the sender has mapped, slots are such. */
static size_t halving_staging(const struct dp_collective_args *args)
{
    const size_t least = dp_comm_shared_bytes(args->comm);

    return least && slot_bytes(args) >= least ? DP_STEP_WINDOW * slot_bytes(args) : 0;
}

static char *halving_slot(const struct dp_collective_args *args, int index)
{
    char *slots = args->staging ? args->staging : args->scratch;

    return slots + (size_t)(index % DP_STEP_WINDOW) * slot_bytes(args);
}

static void halving_step(const struct dp_collective_args *args, int index, struct dp_step *out)
{
    const struct dp_reducer *r = args->reducer;
    const int rounds = halving_rounds(args), levels = doubling_rounds(args->size);
    const int first = index / (TOGETHER * rounds) * TOGETHER, left = pieces_in(args) - first;
    const int together = left < TOGETHER ? left : TOGETHER, in_turn = index - first * rounds;
    const int round = in_turn / together + (args->phases == DP_SUM_GATHER ? levels : 0);
    const bool gathers = round >= levels;
    const int level = gathers ? 2 * levels - 1 - round : round, peer = args->rank ^ 1 << level;
    struct range theirs = {0};
    const struct range own = halve(args, first + in_turn % together, level + 1, &theirs);
    const struct range sent = gathers ? own : theirs, received = gathers ? theirs : own;
    char *arrival = halving_slot(args, index);

    *out = (struct dp_step){
        .send_to = peer,
        .receive_from = peer,
        .send = result(args, sent.at),
        .send_len = sent.count * r->bytes,
        .receive = gathers ? result(args, received.at) : arrival,
        .receive_len = received.count * r->bytes,
        .after = in_turn < together ? 0 : index - together + 1,
        .action = gathers                      ? DP_STEP_NOTHING
                  : r->bytes == r->wide_bytes ? DP_STEP_COMBINE
                                               : DP_STEP_ACCUMULATE,
        .first = true,
        .last = true,
        .dst = result(args, received.at),
        .acc = behind_slots(args),
        .a = arrival,
        .b = result(args, received.at),
        .count = received.count,
    };
}

static const struct dp_algorithm halving = {
    .name = "halving",
    .kind = 9,
    .steps = halving_steps,
    .scratch_bytes = scatter_scratch,
    .staging_bytes = halving_staging,
    .step = halving_step,
};

static bool adds_in_pairs(const struct dp_collective_args *args)
{
    return largest_power(args->size) == args->size;
}

const struct dp_algorithm *dp_choose_sum(const struct dp_collective_args *args)
{
    return adds_in_pairs(args) ? &halving : &direct_allreduce;
}

bool dp_sum_is_allreduce(const struct dp_collective_args *args)
{
    const bool rounds_once = args->reducer->bytes == args->reducer->wide_bytes || args->size == 2;

    return args->phases == DP_SUM_ALL &&
           (!adds_in_pairs(args) || args->size == 2 ||
            (rounds_once && dp_choose_allreduce(args) == &recursive_doubling));
}

bool dp_sum_part(const struct dp_collective_args *args, int index, size_t *first, size_t *count)
{
    struct range own, partners;

    if (index >= (adds_in_pairs(args) ? pieces_in(args) : 1))
        return false;
    own = (struct range){dp_block_at(args->count, args->size, args->rank), 0};
    own.count = dp_block_at(args->count, args->size, args->rank + 1) - own.at;
    if (adds_in_pairs(args))
        own = halve(args, index, doubling_rounds(args->size), &partners);
    *first = own.at;
    *count = own.count;
    return true;
}

/* ---- broadcast: binomial tree ---------------------------------------------------------------- */

/* Ranks are counted from the root. A place receives from the place without its lowest set bit, and
 * sends to those with one more bit below it, the farthest first. */
static int lowest_bit(int place, int size)
{
    int bit = 1;

    while (bit < size && !(place & bit))
        bit *= 2;
    return bit;
}

static int tree_place(const struct dp_collective_args *args)
{
    return mod(args->rank - args->root, args->size);
}

static int tree_steps(const struct dp_collective_args *args)
{
    const int place = tree_place(args);
    int steps = place != 0;

    for (int bit = lowest_bit(place, args->size) / 2; bit; bit /= 2)
        steps += place + bit < args->size;
    return steps;
}

static int tree_child(const struct dp_collective_args *args, int place, int index)
{
    int bit = lowest_bit(place, args->size) / 2;

    for (;; bit /= 2)
        if (place + bit < args->size && !index--)
            return mod(place + bit + args->root, args->size);
}

static void tree_step(const struct dp_collective_args *args, int index, struct dp_step *out)
{
    const int place = tree_place(args);

    *out = (struct dp_step){.send_to = -1, .receive_from = -1};
    if (place && !index) {
        out->receive_from = mod(place - lowest_bit(place, args->size) + args->root, args->size);
        out->receive = args->out;
        out->receive_len = args->count;
        return;
    }
    out->send_to = tree_child(args, place, index - (place != 0));
    out->send = args->out;
    out->send_len = args->count;
    out->after = place != 0;
}

static const struct dp_algorithm tree_broadcast = {
    .name = "tree",
    .kind = 7,
    .steps = tree_steps,
    .step = tree_step,
};

/* ---- broadcast: chain ------------------------------------------------------------------------ */

/* Each place passes the segments on to the next one as they come. */
static int chain_steps(const struct dp_collective_args *args)
{
    return segments_in(args->count, 1, COPY_SEGMENT_BYTES) + 1;
}

static void chain_step(const struct dp_collective_args *args, int index, struct dp_step *out)
{
    const int place = tree_place(args), segments = chain_steps(args) - 1;

    *out = (struct dp_step){.send_to = -1, .receive_from = -1};
    if (place && index < segments) {
        const struct range r = segment_of(args->count, 1, 0, index, COPY_SEGMENT_BYTES);
        out->receive_from = mod(args->rank - 1, args->size);
        out->receive = args->out + r.at;
        out->receive_len = r.count;
    }
    if (place < args->size - 1 && index) {
        const struct range r = segment_of(args->count, 1, 0, index - 1, COPY_SEGMENT_BYTES);
        out->send_to = mod(args->rank + 1, args->size);
        out->send = args->out + r.at;
        out->send_len = r.count;
        out->after = place ? index : 0;
    }
}

static const struct dp_algorithm chain_broadcast = {
    .name = "chain",
    .kind = 8,
    .steps = chain_steps,
    .step = chain_step,
};

const struct dp_algorithm *dp_choose_broadcast(const struct dp_collective_args *args)
{
    return args->count <= DP_COLLECTIVE_SMALL || args->size == 2 ? &tree_broadcast
                                                                 : &chain_broadcast;
}
