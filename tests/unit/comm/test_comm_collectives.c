/* SPDX-License-Identifier: Apache-2.0
 *
 * test_comm_collectives.c - collectives as requests, on every communicator: results to the bit, in
 * the order that comm.h promises, several in flight, and while the rank computes.
 */
#include "cmocka_all.h"
#include "comm/comm_core.h"
#include "comm_cases.h"

#include "base/clock.h"
#include "base/fp16.h"
#include "comm/comm_ops.h"
#include "comm/internal.h"
#include <dualpipe/memory.h>

static const int64_t LONG_NS = 60 * DP_NS_PER_S;
enum { SMALL = DP_COLLECTIVE_SMALL };

/* ---- values, and the sum of them in the order that is promised ------------------------------- */

struct type {
    DLDataType dl;
    size_t bytes;
};
static const struct type types[] = {
    {{kDLFloat, 32, 1}, 4}, {{kDLFloat, 64, 1}, 8}, {{kDLBfloat, 16, 1}, 2},
    {{kDLFloat, 16, 1}, 2}, {{kDLInt, 64, 1}, 8},
};
enum { TYPES = sizeof(types) / sizeof(types[0]) };

/* What is expected is in no other thread's memory: ThreadSanitizer would look at it for most of the time. */
#define UNWATCHED __attribute__((no_sanitize("thread")))

UNWATCHED static double value_of(int rank, size_t i, unsigned salt)
{
    const uint64_t h = (i * 2654435761u + (uint64_t)rank * 40503u + salt * 97u) % 100003u;

    return ((double)h - 50000.0) / 977.0;
}

UNWATCHED static void put(void *buf, const struct type *t, size_t i, double v)
{
    if (t->dl.code == kDLInt)
        ((int64_t *)buf)[i] = (int64_t)v;
    else if (t->dl.bits == 64)
        ((double *)buf)[i] = v;
    else if (t->dl.bits == 32)
        ((float *)buf)[i] = (float)v;
    else if (t->dl.code == kDLBfloat)
        ((uint16_t *)buf)[i] = dp_bfloat16_store((float)v);
    else
        ((uint16_t *)buf)[i] = dp_float16_store((float)v);
}

UNWATCHED static double get(const void *buf, const struct type *t, size_t i)
{
    if (t->dl.code == kDLInt)
        return (double)((const int64_t *)buf)[i];
    if (t->dl.bits == 64)
        return ((const double *)buf)[i];
    if (t->dl.bits == 32)
        return (double)((const float *)buf)[i];
    if (t->dl.code == kDLBfloat)
        return (double)dp_bfloat16_load(((const uint16_t *)buf)[i]);
    return (double)dp_float16_load(((const uint16_t *)buf)[i]);
}

/* Of a size that the compiler knows: to copy it by a call would take the longest of all. */
static void copy_value(void *out, const void *in, size_t bytes)
{
    if (bytes == 8)
        memcpy(out, in, 8);
    else if (bytes == 4)
        memcpy(out, in, 4);
    else
        memcpy(out, in, 2);
}

static void fill(void *buf, const struct type *t, size_t count, int rank, unsigned salt)
{
    uint64_t room = 0;

    for (size_t i = 0; i < count; i++) {
        put(&room, t, 0, value_of(rank, i, salt));
        copy_value((char *)buf + i * t->bytes, &room, t->bytes);
    }
}

/* What a rank has at i, as its type keeps it. */
UNWATCHED static double stored(const struct type *t, int rank, size_t i, unsigned salt)
{
    uint64_t room;

    put(&room, t, 0, value_of(rank, i, salt));
    return get(&room, t, 0);
}

/* a + b as sums are kept: float32 for all but 64-bit types. */
UNWATCHED static double add(const struct type *t, double a, double b)
{
    return t->dl.bits == 64 ? a + b : (double)((float)a + (float)b);
}

UNWATCHED static double sum_ring(const struct type *t, int size, int block, size_t i, unsigned salt)
{
    double sum = stored(t, (block + 1) % size, i, salt);

    for (int k = 2; k <= size; k++)
        sum = add(t, sum, stored(t, (block + k) % size, i, salt));
    return sum;
}

UNWATCHED static double sum_doubling(const struct type *t, int size, size_t i, unsigned salt)
{
    double parts[64];
    int p = 1;

    while (2 * p <= size)
        p *= 2;
    for (int r = 0; r < p; r++) {
        parts[r] = stored(t, r, i, salt);
        if (r + p < size)
            parts[r] = add(t, parts[r], stored(t, r + p, i, salt));
    }
    for (int step = 1; step < p; step *= 2)
        for (int r = 0; r < p; r += 2 * step)
            parts[r] = add(t, parts[r], parts[r + step]);
    return parts[0];
}

UNWATCHED static int block_of(size_t count, int size, size_t i)
{
    const size_t each = count / (size_t)size, longer = count % (size_t)size;

    if (i < (each + 1) * longer)
        return (int)(i / (each + 1));
    return (int)(longer + (i - (each + 1) * longer) / each);
}

static bool is_value(const struct type *t, const void *buf, size_t i, double sum)
{
    uint64_t room = 0, got = 0;

    put(&room, t, 0, sum);
    copy_value(&got, (const char *)buf + i * t->bytes, t->bytes);
    return room == got;
}

/* ---- all-reduce ------------------------------------------------------------------------------ */

static int reduce_one(struct dp_comm *comm, const struct type *t, size_t count, bool in_place)
{
    const int size = dp_comm_size(comm);
    char *in = malloc(count * t->bytes + 8), *out = in_place ? in : malloc(count * t->bytes + 8);
    struct dp_request req;

    CHECK(in && out);
    fill(in, t, count, dp_comm_rank(comm), (unsigned)count);
    CHECK(!dp_comm_iallreduce(comm, in, out, count, t->dl, DP_REDUCE_SUM, &req));
    CHECK(!dp_comm_wait(comm, &req, -1));
    for (size_t i = 0; i < count; i++) {
        const double sum = count * t->bytes <= SMALL
                               ? sum_doubling(t, size, i, (unsigned)count)
                               : sum_ring(t, size, block_of(count, size, i), i, (unsigned)count);
        CHECK(is_value(t, out, i, sum));
    }
    if (!in_place)
        for (size_t i = 0; i < count; i++)
            CHECK(is_value(t, in, i, value_of(dp_comm_rank(comm), i, (unsigned)count)));
    if (out != in)
        free(out);
    free(in);
    return 0;
}

static int reduce_all(struct dp_comm *comm, void *arg)
{
    static const size_t counts[] = {0, 1, 3, 2048, 2049, 8193, 100001};

    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++)
        for (size_t t = 0; t < (counts[c] < 10000 ? TYPES : 3); t += 1 + (counts[c] > 10000))
            if (reduce_one(comm, &types[t], counts[c], (c + t) % 2))
                return -1;
    return 0;
}

CASE(an_all_reduce_adds_in_the_promised_order)
{
    for (int size = 1; size <= 5; size++)
        on_all_kinds(size, LONG_NS, reduce_all, NULL);
}

/* ---- all-reduce in shared memory ------------------------------------------------------------- */

enum { TURNS = 2, STRIDE = 7 };

/* Sums and all, in memory of dp_shared_alloc where `shared`; the others get it by malloc. */
static int reduce_shared(struct dp_comm *comm, const struct type *t, size_t count, bool shared)
{
    const int size = dp_comm_size(comm);
    char *buf = NULL;

    CHECK(!dp_shared_alloc(count * t->bytes + 8, -1, (void **)&buf));
    char *plain = malloc(count * t->bytes + 8), *used = shared ? buf : plain;
    CHECK(plain);
    memset(used + count * t->bytes, 0x5A, 8);
    for (int turn = 0; turn < TURNS; turn++) {
        struct dp_request req;
        fill(used, t, count, dp_comm_rank(comm), (unsigned)turn);
        CHECK(!dp_comm_iallreduce(comm, used, used, count, t->dl, DP_REDUCE_SUM, &req));
        CHECK(!dp_comm_wait(comm, &req, -1));
        for (size_t i = (size_t)turn; i < count; i += STRIDE)
            CHECK(is_value(t, used, i,
                           sum_ring(t, size, block_of(count, size, i), i, (unsigned)turn)));
    }
    for (int i = 0; i < 8; i++)
        CHECK(used[count * t->bytes + (size_t)i] == 0x5A);
    free(plain);
    CHECK(!dp_shared_free(buf));
    return 0;
}

static int reduce_all_shared(struct dp_comm *comm, void *arg)
{
    const unsigned before = comm->in_place;

    for (size_t t = 0; t < TYPES; t++)
        CHECK(!reduce_shared(comm, &types[t], ((256 << 10) + 24) / types[t].bytes + 3, true));
    /* The first of all connects the peers. */
    const unsigned in_place = comm->in_place - before;
    CHECK(in_place < TYPES * TURNS && (!in_place || (comm->lends && dp_comm_size(comm) <= 5)));
    /* Ranks without shared memory lend some of the library's own. */
    CHECK(!reduce_shared(comm, &types[0], 100001, dp_comm_rank(comm) % 2));
    CHECK(comm->in_place - before == in_place + (in_place ? TURNS : 0));
    return 0;
}

/* One chunk, several, and a last one that some blocks have no part in; see in_place.c. */
static int reduce_plain(struct dp_comm *comm, void *arg)
{
    const size_t size = (size_t)dp_comm_size(comm), part = (256 << 10) / size,
                 bytes[] = {part * size, 5 * part * size, 2 * part * size + 64};
    const unsigned before = comm->in_place;
    unsigned used = 0;

    CHECK(!reduce_shared(comm, &types[0], 100000, false)); /* connects the peers */
    for (size_t i = 0; i < sizeof(bytes) / sizeof(bytes[0]); i++)
        for (size_t t = 0; t < (i == 1 ? 2 : TYPES); t++) {
            CHECK(!reduce_one(comm, &types[t], bytes[i] / types[t].bytes + 3, (i + t) % 2));
            used++;
        }
    CHECK(comm->in_place == before ||
          (comm->lends && size <= 5 && comm->in_place - before >= used));
    return 0;
}

CASE(plain_buffers_are_summed_in_the_same_order)
{
    for (int size = 2; size <= 5; size += size - 1)
        on_all_kinds(size, LONG_NS, reduce_plain, NULL);
}

CASE(shared_buffers_are_summed_in_the_same_order)
{
    on_all_kinds(2, LONG_NS, reduce_all_shared, NULL);
    on_all_kinds(3, LONG_NS, reduce_all_shared, NULL);
    on_all_kinds(6, LONG_NS, reduce_all_shared, NULL);
}

/* Blocks of a group of segments, of one segment more, and of a part of one; see algorithms.c. */
static int reduce_groups(struct dp_comm *comm, void *arg)
{
    const size_t segment = 32768, size = (size_t)dp_comm_size(comm);
    const size_t counts[] = {4 * segment * size, 5 * segment * size - 1, (8 * segment + 5) * size + 1};

    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
        CHECK(!reduce_shared(comm, &types[0], counts[i], false));
    return 0;
}

CASE(groups_of_segments_are_summed_in_the_order_of_a_ring)
{
    assert_int_equal(types[0].bytes, 4);
    on_all_kinds(2, LONG_NS, reduce_groups, NULL);
    on_all_kinds(3, LONG_NS, reduce_groups, NULL);
}

static int reduce_in_place(struct dp_comm *comm, void *arg)
{
    float *shared, *plain = calloc(1 << 18, sizeof(*plain));
    struct dp_request req;

    CHECK(!dp_shared_alloc(1 << 20, -1, (void **)&shared));
    memset(shared, 0, 1 << 20);
    for (int turn = 0; turn < 20; turn++) {
        float *buf = turn % 2 ? plain : shared;
        CHECK(!dp_comm_iallreduce(comm, buf, buf, 1 << 18, types[0].dl, DP_REDUCE_SUM, &req));
        CHECK(!dp_comm_wait(comm, &req, -1));
    }
    CHECK(comm->in_place > 10);
    CHECK(!dp_shared_free(shared));
    free(plain);
    return 0;
}

/* Without memory that peers can map it goes by messages. */
static int reduce_without_staging(struct dp_comm *comm, void *arg)
{
    static void *taken[DP_SHARED_MAX];
    int count = 0;

    while (count < DP_SHARED_MAX && !dp_shared_alloc(1, -1, &taken[count]))
        count++;
    const unsigned before = comm->in_place;
    for (int turn = 0; turn < 3; turn++)
        CHECK(!reduce_one(comm, &types[0], 100001, true));
    CHECK(count > 0 && comm->in_place == before);
    while (count)
        CHECK(!dp_shared_free(taken[--count]));
    return 0;
}

/* The path is used at all: where processes may map each other's memory, which the shared memory
 * transport needs. */
CASE(two_processes_sum_in_place)
{
    for (const struct comm_kind *k = comm_kinds; k->name; k++) {
        int killed;
        if (!strcmp(k->name, "shm") && !k->by_ring)
            assert_int_equal(k->run(k, 2, LONG_NS, reduce_in_place, NULL, &killed), 0);
    }
}

CASE(without_shared_memory_sums_go_by_messages)
{
    for (const struct comm_kind *k = comm_kinds; k->name; k++) {
        int killed;
        if (!strcmp(k->name, "shm") && !k->by_ring)
            assert_int_equal(k->run(k, 2, LONG_NS, reduce_without_staging, NULL, &killed), 0);
    }
}

RANKS_CASE(different_sizes_of_shared_buffers_abort_the_group, on_all_kinds(2, LONG_NS, part, NULL))
{
    const size_t count = dp_comm_rank(comm) ? 100004 : 100000;
    float *buf;
    struct dp_request req;
    struct dp_abort why;

    CHECK(!dp_shared_alloc(1 << 20, -1, (void **)&buf));
    int err = dp_comm_iallreduce(comm, buf, buf, count, types[0].dl, DP_REDUCE_SUM, &req);
    if (!err)
        err = dp_comm_wait(comm, &req, -1);
    CHECK(err == DP_EMISMATCH || err == DP_EABORTED);
    CHECK(dp_comm_aborted(comm, &why) && why.error == DP_EMISMATCH);
    CHECK(strstr(why.text, "message of rank") == why.text ||
          strstr(why.text, "all-reduce of") == why.text);
    CHECK(!dp_shared_free(buf));
    return 0;
}

/* Rank 1 gives up in the middle, and from then on its buffer is its own. */
static int give_up(struct dp_comm *comm, void *arg)
{
    enum { BYTES = 8 << 20 };
    const int tests = *(int *)arg;
    char *buf;
    struct dp_request req;
    int err = 0;

    CHECK(!dp_shared_alloc(BYTES, -1, (void **)&buf));
    memset(buf, 0, BYTES);
    for (int turn = 0; turn < 2 && !err; turn++) {
        const bool gives_up = turn && dp_comm_rank(comm);
        int in_flight = DP_EAGAIN;
        err = dp_comm_iallreduce(comm, buf, buf, BYTES / sizeof(float), types[0].dl, DP_REDUCE_SUM,
                                 &req);
        for (int i = 0; gives_up && i < tests && !err && in_flight == DP_EAGAIN; i++)
            in_flight = dp_comm_test(comm, &req);
        if (gives_up)
            CHECK(!dp_comm_abort(comm, DP_EIO, "enough"));
        if (!err && in_flight == DP_EAGAIN)
            err = dp_comm_wait(comm, &req, -1);
    }
    if (dp_comm_rank(comm)) {
        CHECK(dp_comm_progress(comm) == DP_EABORTED);
        memset(buf, 0x5A, BYTES);
    }
    CHECK(!dp_comm_reset(comm));
    for (size_t i = 0; i < BYTES && dp_comm_rank(comm); i++)
        CHECK(buf[i] == 0x5A);
    CHECK(!dp_comm_barrier(comm));
    CHECK(!dp_shared_free(buf));
    return 0;
}

CASE(no_peer_writes_into_the_buffer_of_a_rank_that_gave_up)
{
    for (int tests = 0; tests < 8; tests += 3)
        on_all_kinds(2, LONG_NS, give_up, &tests);
}

/* Rank 1 is killed in the middle; the others get an error. */
static int die(struct dp_comm *comm, void *arg)
{
    float *buf;
    struct dp_request req;
    int err = 0;

    CHECK(!dp_shared_alloc(16 << 20, -1, (void **)&buf));
    for (int turn = 0; turn < 100 && !err; turn++) {
        err = dp_comm_iallreduce(comm, buf, buf, 4 << 20, types[0].dl, DP_REDUCE_SUM, &req);
        if (turn == 2 && dp_comm_rank(comm) == 1) {
            dp_comm_test(comm, &req);
            raise(SIGKILL);
        }
        if (!err)
            err = dp_comm_wait(comm, &req, -1);
    }
    CHECK(err == DP_EABORTED);
    CHECK(!dp_shared_free(buf));
    return 0;
}

CASE(a_rank_that_dies_in_an_all_reduce_ends_it)
{
    for (const struct comm_kind *k = comm_kinds; k->name; k++) {
        int killed = 0;
        if (k->processes)
            assert_int_equal(k->run(k, 3, LONG_NS, die, NULL, &killed), 1);
    }
}

static int reduce_extremes(struct dp_comm *comm, void *arg)
{
    const double rank = dp_comm_rank(comm), last = dp_comm_size(comm) - 1;
    double in[3] = {rank, -rank, rank == 1 ? (double)NAN : 1}, out[3];
    struct dp_request req;

    CHECK(!dp_comm_iallreduce(comm, in, out, 3, types[1].dl, DP_REDUCE_MAX, &req));
    CHECK(!dp_comm_wait(comm, &req, -1));
    CHECK(out[0] == last && out[1] == 0 && isnan(out[2]));
    CHECK(!dp_comm_iallreduce(comm, in, out, 3, types[1].dl, DP_REDUCE_MIN, &req));
    CHECK(!dp_comm_wait(comm, &req, -1));
    CHECK(out[0] == 0 && out[1] == -last && isnan(out[2]));
    return 0;
}

CASE(minimum_and_maximum_keep_a_nan)
{
    on_all_kinds(3, LONG_NS, reduce_extremes, NULL);
}

/* ---- the others ------------------------------------------------------------------------------ */

static int sum_one(struct dp_comm *comm, const struct type *t, size_t count)
{
    const int size = dp_comm_size(comm), rank = dp_comm_rank(comm);
    FREED char *buf = malloc(count * t->bytes);
    struct dp_request req;

    CHECK(buf);
    fill(buf, t, count, rank, 5);
    CHECK(!dp_comm_isum(comm, buf, count, 999, t->dl, DP_SUM_SCATTER, &req));
    CHECK(!dp_comm_wait(comm, &req, -1));
    for (size_t i = 0; i < count; i++)
        CHECK(block_of(count, size, i) != rank ||
              is_value(t, buf, i, sum_ring(t, size, rank, i, 5)));
    CHECK(!dp_comm_isum(comm, buf, count, 999, t->dl, DP_SUM_GATHER, &req));
    CHECK(!dp_comm_wait(comm, &req, -1));
    for (size_t i = 0; i < count; i++)
        CHECK(is_value(t, buf, i, sum_ring(t, size, block_of(count, size, i), i, 5)));
    return 0;
}

static int sum_all(struct dp_comm *comm, void *arg)
{
    static const size_t counts[] = {1, 1000, 40001};

    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++)
        for (size_t t = 0; t < TYPES; t++)
            if (sum_one(comm, &types[t], counts[c]))
                return -1;
    return 0;
}

CASE(a_sum_by_phases_leaves_each_rank_its_block_and_then_all)
{
    on_all_kinds(3, LONG_NS, sum_all, NULL);
    on_all_kinds(5, LONG_NS, sum_all, NULL);
}

/* Room for len bytes; those of the rank are in it. */
UNWATCHED static unsigned char *bytes_of(int rank, size_t len)
{
    unsigned char *bytes = malloc(len + 1);

    for (size_t i = 0; bytes && i < len; i++)
        bytes[i] = (unsigned char)((size_t)rank * 31 + i * 7 + (i >> 8));
    return bytes;
}

static int gather_one(struct dp_comm *comm, size_t len, bool in_place)
{
    const int size = dp_comm_size(comm), rank = dp_comm_rank(comm);
    unsigned char *all = calloc((size_t)size, len + 1), *own = bytes_of(rank, len);
    unsigned char *mine = in_place ? all + (size_t)rank * len : own;
    struct dp_request req;

    CHECK(all && own);
    if (in_place)
        memcpy(mine, own, len);
    CHECK(!dp_comm_iallgather(comm, mine, all, len, &req));
    CHECK(!dp_comm_wait(comm, &req, -1));
    for (int r = 0; r < size; r++) {
        FREED unsigned char *theirs = bytes_of(r, len);
        CHECK(theirs && !memcmp(all + (size_t)r * len, theirs, len));
    }
    free(own);
    free(all);
    return 0;
}

static int broadcast_one(struct dp_comm *comm, size_t len, int root)
{
    FREED unsigned char *buf = calloc(1, len + 1), *sent = bytes_of(root, len);
    struct dp_request req;

    CHECK(buf && sent);
    if (dp_comm_rank(comm) == root)
        memcpy(buf, sent, len);
    CHECK(!dp_comm_ibroadcast(comm, buf, len, root, &req));
    CHECK(!dp_comm_wait(comm, &req, -1));
    CHECK(!memcmp(buf, sent, len));
    CHECK(buf[len] == 0);
    return 0;
}

static int copy_all(struct dp_comm *comm, void *arg)
{
    static const size_t lens[] = {0, 1, SMALL, SMALL + 1, 2500000};

    for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
        if (gather_one(comm, lens[i], i % 2))
            return -1;
        for (int root = 0; root < dp_comm_size(comm); root++)
            if (broadcast_one(comm, lens[i], root))
                return -1;
    }
    return 0;
}

CASE(all_gather_and_broadcast_copy_every_byte)
{
    for (int size = 1; size <= 5; size++)
        on_all_kinds(size, LONG_NS, copy_all, NULL);
}

/* ---- several at once ------------------------------------------------------------------------- */

/* Requests that are finished stay so, and their state is not given to two later ones. */
static int test_after_the_end(struct dp_comm *comm, void *arg)
{
    const int64_t sum = (int64_t)dp_comm_size(comm) * (dp_comm_size(comm) - 1) / 2;
    int64_t in = dp_comm_rank(comm), out[3];
    struct dp_request reqs[3];

    CHECK(!dp_comm_iallreduce(comm, &in, &out[0], 1, types[4].dl, DP_REDUCE_SUM, &reqs[0]));
    CHECK(!dp_comm_wait(comm, &reqs[0], -1));
    CHECK(!dp_comm_test(comm, &reqs[0]) && !dp_comm_wait(comm, &reqs[0], -1));
    CHECK(!dp_comm_iallreduce(comm, &in, &out[1], 1, types[4].dl, DP_REDUCE_SUM, &reqs[1]));
    CHECK(!dp_comm_iallreduce(comm, &in, &out[2], 1, types[4].dl, DP_REDUCE_MAX, &reqs[2]));
    CHECK(!dp_comm_test(comm, &reqs[0]));
    for (int i = 2; i >= 0; i--)
        CHECK(!dp_comm_wait(comm, &reqs[i], -1));
    CHECK(out[0] == sum && out[1] == sum && out[2] == dp_comm_size(comm) - 1);
    return 0;
}

CASE(a_finished_collective_may_be_waited_for_again)
{
    for (int size = 2; size <= 3; size++)
        on_all_kinds(size, LONG_NS, test_after_the_end, NULL);
}

static int many_in_flight(struct dp_comm *comm, void *arg)
{
    enum { MANY = 12, COUNT = 9000 };
    const int size = dp_comm_size(comm), rank = dp_comm_rank(comm);
    FREED float *bufs = malloc(sizeof(float) * MANY * COUNT);
    struct dp_request reqs[MANY];

    CHECK(bufs);
    for (unsigned k = 0; k < MANY; k++) {
        float *buf = bufs + k * COUNT;
        fill(buf, &types[0], COUNT, rank, k);
        CHECK(!dp_comm_iallreduce(comm, buf, buf, k % 3 ? COUNT : 5, types[0].dl, DP_REDUCE_SUM,
                                  &reqs[k]));
    }
    /* Tested in another order on each rank. */
    for (int k = 0; k < MANY; k++)
        CHECK(!dp_comm_wait(comm, &reqs[(k * 5 + rank) % MANY], -1));
    for (unsigned k = 0; k < MANY; k++)
        CHECK(is_value(&types[0], bufs + k * COUNT, 4,
                       k % 3 ? sum_ring(&types[0], size, block_of(COUNT, size, 4), 4, k)
                             : sum_doubling(&types[0], size, 4, k)));
    return 0;
}

CASE(collectives_in_flight_do_not_mix)
{
    on_all_kinds(2, LONG_NS, many_in_flight, NULL);
    on_all_kinds(3, LONG_NS, many_in_flight, NULL);
}

RANKS_CASE(different_sizes_abort_the_group, on_all_kinds(2, LONG_NS, part, NULL))
{
    float buf[16] = {0};
    struct dp_request req;
    struct dp_abort why;

    int err = dp_comm_iallreduce(comm, buf, buf, dp_comm_rank(comm) ? 16 : 12, types[0].dl,
                                 DP_REDUCE_SUM, &req);
    if (!err)
        err = dp_comm_wait(comm, &req, -1);
    CHECK(err == DP_EMISMATCH || err == DP_EABORTED);
    CHECK(dp_comm_aborted(comm, &why) && why.error == DP_EMISMATCH);
    CHECK(dp_comm_iallreduce(comm, buf, buf, 16, types[0].dl, DP_REDUCE_SUM, &req) == DP_EABORTED);
    return 0;
}

RANKS_CASE(bad_arguments_of_collectives_are_refused, on_all_kinds(2, LONG_NS, part, NULL))
{
    const DLDataType int8 = {kDLInt, 8, 1};
    struct dp_request req;
    float x = 1;

    CHECK(dp_comm_iallreduce(comm, &x, &x, 1, int8, DP_REDUCE_SUM, &req) == DP_EINVAL);
    CHECK_SAYS("expected float32, float64, bfloat16, float16 or int64");
    CHECK(dp_comm_iallreduce(comm, NULL, &x, 1, types[0].dl, DP_REDUCE_SUM, &req) == DP_EINVAL);
    CHECK(dp_comm_iallreduce(comm, &x, &x, 1, types[0].dl, DP_REDUCE_SUM, NULL) == DP_EINVAL);
    CHECK(dp_comm_ibroadcast(comm, &x, 4, 2, &req) == DP_EINVAL);
    CHECK_SAYS("broadcast from rank 2: expected 0 to 1");
    CHECK(!dp_comm_begin(comm));
    CHECK(dp_comm_begin(comm) == DP_EINVAL);
    CHECK_ERROR(dp_comm_test(comm, &req), DP_EINVAL, "a test between begin and commit");
    CHECK(!dp_comm_commit(comm));
    CHECK(dp_comm_commit(comm) == DP_EINVAL);
    return 0;
}

/* ---- parts of a group ------------------------------------------------------------------------ */

CASE(all_of_it_holds_in_a_part_of_a_group)
{
    static const struct comm_case cases[] = {
        {3, reduce_all, NULL},   {4, reduce_all, NULL}, {3, reduce_extremes, NULL},
        {3, sum_all, NULL},      {3, copy_all, NULL},   {3, test_after_the_end, NULL},
        {3, many_in_flight, NULL},
    };

    on_parts_of_all_kinds(LONG_NS, cases, sizeof(cases) / sizeof(*cases));
}

/* ---- what a short all-reduce does ------------------------------------------------------------- */

/* The operations of a communicator, counted on their way. */
static const struct dp_comm_ops *counted;
static int progresses, sends, receives_before_send;

static int count_progress(struct dp_comm *comm, int waiting_for)
{
    progresses++;
    return counted->progress(comm, waiting_for);
}

static int count_send(struct dp_comm *comm, int peer, int channel, uint64_t tag, const void *buf,
                      size_t len, struct dp_request *req)
{
    sends++;
    return counted->isend(comm, peer, channel, tag, buf, len, req);
}

static int count_receive(struct dp_comm *comm, int peer, int channel, uint64_t tag, void *buf,
                         size_t len, struct dp_request *req)
{
    receives_before_send += !sends;
    return counted->irecv(comm, peer, channel, tag, buf, len, req);
}

/* Rank 0's call, then rank 1's, which ends at once; the message to rank 0 has come by then. */
static void reduce_by_turns(struct dp_comm *comms[2])
{
    const DLDataType f32 = {kDLFloat, 32, 1};
    struct dp_request req[2];
    float values[2] = {1, 2};

    for (int rank = 0; rank < 2; rank++)
        assert_int_equal(dp_comm_iallreduce(comms[rank], &values[rank], &values[rank], 1, f32,
                                            DP_REDUCE_SUM, &req[rank]),
                         0);
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(dp_comm_test(comms[rank], &req[rank]), 0);
        assert_true(values[rank] == 3);
    }
}

CASE(a_short_all_reduce_sends_first_and_looks_at_nothing_else)
{
    enum { TIMES = 256, LOOKS_AT_MOST = TIMES / 32 };
    struct dp_comm *comms[2];

    assert_int_equal(dp_comm_threads_new(2, comms), 0);
    struct dp_comm_ops ops = *comms[0]->ops;
    counted = comms[0]->ops;
    ops.progress = count_progress;
    ops.isend = count_send;
    ops.irecv = count_receive;
    comms[0]->ops = &ops;
    progresses = sends = receives_before_send = 0;
    for (int i = 0; i < TIMES; i++)
        reduce_by_turns(comms);
    assert_int_equal(sends, TIMES);
    assert_int_equal(receives_before_send, 0);
    /* Now and then all the same: others may have died, or want to connect. */
    assert_in_range(progresses, 1, LOOKS_AT_MOST);
    comms[0]->ops = counted;
    for (int rank = 0; rank < 2; rank++)
        dp_comm_close(comms[rank]);
}

/* Its transfers end before it returns, also those that have not failed: the caller may free its memory. */
CASE(a_collective_that_fails_gives_the_memory_back)
{
    const DLDataType f32 = {kDLFloat, 32, 1};
    static float values[2][100004];
    struct dp_comm *comms[2];
    struct dp_request req[2];

    assert_int_equal(dp_comm_threads_new(2, comms), 0);
    struct dp_comm_ops ops = *comms[1]->ops;
    counted = comms[1]->ops;
    ops.progress = count_progress;
    comms[1]->ops = &ops;
    progresses = 0;
    for (int rank = 0; rank < 2; rank++)
        assert_int_equal(dp_comm_iallreduce(comms[rank], values[rank], values[rank],
                                            100000 + 4 * (size_t)rank, f32, DP_REDUCE_SUM, &req[rank]),
                         0);
    assert_int_equal(progresses, 1);
    assert_int_equal(dp_comm_test(comms[1], &req[1]), DP_EMISMATCH);
    assert_int_equal(dp_comm_test(comms[0], &req[0]), DP_EABORTED);
    comms[1]->ops = counted;
    for (int rank = 0; rank < 2; rank++)
        dp_comm_close(comms[rank]);
}
