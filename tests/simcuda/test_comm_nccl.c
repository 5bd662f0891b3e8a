/* SPDX-License-Identifier: Apache-2.0
 *
 * test_comm_nccl.c - what every communicator must do, as far as one by NCCL can (it has no tags),
 * on device memory; streams, aborts and deaths. The real libnccl on the simulated CUDA.
 */
#include "config.h" /* GNU extensions: RTLD_NEXT, dladdr */

#include "cmocka_all.h"
#include "comm/internal.h"
#include "simcuda/cuda_api.h"
#include "simcuda/nccl_ranks.h"

#include "base/clock.h"
#include "comm/nccl_links.h"
#include "device/device_ops.h"

#include <dualpipe/survival.h>

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const int64_t LONG_NS = 60 * DP_NS_PER_S;
static const char *why_not;

/* One after the other, since to connect takes the longest. */
static int run_all(struct dp_comm *comm, void *arg)
{
    for (const rank_fn *fn = arg; *fn; fn++)
        if ((*fn)(comm, NULL))
            return -1;
    return 0;
}

static void on_ranks(int size, rank_fn *fns)
{
    int killed;

    if (why_not)
        skip_because(why_not);
    assert_int_equal(nccl_ranks_run(size, run_all, fns, &killed), 0);
}

/* ---- threads that NCCL starts ---------------------------------------------------------------- */

static atomic_int threads_of_nccl;

/* Before the C library's own, also for NCCL, since this program exports it. */
__attribute__((visibility("default"))) int
pthread_create(pthread_t *out, const pthread_attr_t *attributes, void *(*run)(void *), void *user)
{
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    Dl_info caller;

    *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
    if (dladdr(__builtin_return_address(0), &caller) && strstr(caller.dli_fname, "libnccl"))
        atomic_fetch_add(&threads_of_nccl, 1);
    return real(out, attributes, run, user);
}

/* ---- device memory --------------------------------------------------------------------------- */

struct rig {
    struct dp_device *dev;
    struct dp_device_stream *stream;
    struct dp_device_event *event;
    unsigned char *pinned;
    size_t room;
};

static int rig_open(struct rig *g, size_t room)
{
    void *pinned = NULL;

    *g = (struct rig){.dev = nccl_ranks_device(), .room = room};
    int err = dp_device_stream_new(g->dev, DP_PRIORITY_NORMAL, &g->stream);
    if (!err)
        err = dp_device_event_new(g->dev, &g->event);
    if (!err)
        err = dp_device_alloc(g->dev, DP_MEMORY_PINNED, room, &pinned);
    g->pinned = pinned;
    return err;
}

static void rig_close(struct rig *g)
{
    dp_device_free(g->dev, DP_MEMORY_PINNED, g->pinned);
    dp_device_event_free(g->event);
    dp_device_stream_free(g->stream);
}

static unsigned char *take(const struct rig *g, size_t len)
{
    void *out = NULL;

    return dp_device_alloc(g->dev, DP_MEMORY_DEVICE, len, &out) ? NULL : out;
}

static void give_back(const struct rig *g, void *buf)
{
    dp_device_free(g->dev, DP_MEMORY_DEVICE, buf);
}

static int finish(struct rig *g)
{
    int err = dp_device_event_record(g->event, g->stream);

    return err ? err : dp_device_event_wait(g->event, LONG_NS);
}

static unsigned char pattern(size_t i, unsigned seed)
{
    return (unsigned char)(seed + i * 7 + (i >> 8) * 13);
}

static int fill(struct rig *g, unsigned char *buf, size_t len, unsigned seed)
{
    for (size_t i = 0; i < len; i++)
        g->pinned[i] = pattern(i, seed);
    int err = dp_device_copy(g->stream, buf, g->pinned, len);
    return err ? err : finish(g);
}

static bool holds(struct rig *g, const unsigned char *buf, size_t len, unsigned seed)
{
    if (dp_device_copy(g->stream, g->pinned, buf, len) || finish(g))
        return false;
    for (size_t i = 0; i < len; i++)
        if (g->pinned[i] != pattern(i, seed))
            return false;
    return true;
}

/* Before a rank ends the group the others must be where the case wants them, and wait for nothing
 * else: they tell that rank, which answers nothing. */
enum { READY = 55 };
static char told;
static struct dp_request telling;

static int tell_ready(struct dp_comm *comm, int peer)
{
    return dp_comm_isend(comm, peer, DP_CHANNEL_CONTROL, READY, &told, 1, &telling);
}

static int hear_ready(struct dp_comm *comm)
{
    struct dp_request req;
    int err = 0;

    for (int peer = 0; peer < dp_comm_size(comm) && !err; peer++) {
        char heard;
        if (peer == dp_comm_rank(comm))
            continue;
        err = dp_comm_irecv(comm, peer, DP_CHANNEL_CONTROL, READY, &heard, 1, &req);
        if (!err)
            err = dp_comm_wait(comm, &req, peer);
    }
    return err;
}

/* ---- messages -------------------------------------------------------------------------------- */

static int exchange(struct dp_comm *comm, struct rig *g, size_t len, bool batch)
{
    const int peer = !dp_comm_rank(comm);
    unsigned char *out = take(g, len + 1), *in = take(g, len + 1);
    struct dp_request send, receive;

    CHECK(out && in);
    CHECK(!fill(g, out, len + 1, (unsigned)dp_comm_rank(comm)));
    CHECK(!fill(g, in, len + 1, 77));
    const unsigned char after = pattern(len, 77);
    CHECK(!dp_comm_register(comm, out, len + 1) && !dp_comm_register(comm, in, len + 1));
    CHECK(!batch || !dp_comm_begin(comm));
    CHECK(!dp_comm_irecv(comm, peer, DP_CHANNEL_ACTIVATION, len, in, len, &receive));
    CHECK(!dp_comm_isend(comm, peer, DP_CHANNEL_ACTIVATION, len, out, len, &send));
    CHECK(!batch || dp_comm_test(comm, &send) == DP_EINVAL);
    CHECK(!batch || !dp_comm_commit(comm));
    CHECK(!dp_comm_wait(comm, &receive, peer));
    CHECK(!dp_comm_wait(comm, &send, peer));
    CHECK(!dp_comm_test(comm, &receive) && !dp_comm_wait(comm, &send, peer)); /* once more */
    CHECK(holds(g, in, len, (unsigned)peer));
    CHECK(!dp_device_copy(g->stream, g->pinned, in + len, 1) && !finish(g));
    CHECK(g->pinned[0] == after);
    dp_comm_unregister(comm, in);
    dp_comm_unregister(comm, out);
    dp_comm_unregister(comm, out); /* is not any more */
    give_back(g, in);
    give_back(g, out);
    return 0;
}

static int exchange_sizes(struct dp_comm *comm, void *arg)
{
    static const size_t sizes[] = {0, 1, 7, 64, 1000, 4097, 65536, 524288, 1048577};
    struct rig g;

    (void)arg;
    CHECK(!rig_open(&g, 2 << 20));
    CHECK(!strcmp(dp_comm_name(comm), "nccl"));
    CHECK(dp_comm_caps(comm).device_memory && dp_comm_caps(comm).stream_ordered);
    CHECK(!dp_comm_caps(comm).tags);
    CHECK(dp_comm_register(comm, NULL, 5) == DP_EINVAL && dp_comm_register(NULL, &g, 5) == DP_EINVAL);
    CHECK(!dp_comm_register(nccl_ranks_host(), &g, sizeof(g))); /* which has nothing to do */
    dp_comm_unregister(nccl_ranks_host(), &g);
    for (size_t i = 0; i < 2 * sizeof(sizes) / sizeof(sizes[0]); i++)
        if (exchange(comm, &g, sizes[i / 2], i % 2))
            return -1;
    rig_close(&g);
    return 0;
}

enum { MANY = 60, LEN = 3000 };

/* Rank 0 sends in three batches what rank 1 receives one by one, for which NCCL starts no thread. */
static int send_many(struct dp_comm *comm, void *arg)
{
    struct dp_request *reqs = calloc(MANY, sizeof(*reqs));
    struct rig g;

    (void)arg;
    CHECK(reqs && !rig_open(&g, LEN));
    unsigned char *bufs = take(&g, MANY * LEN);
    CHECK(bufs);
    for (unsigned i = 0; i < MANY; i++)
        CHECK(!fill(&g, bufs + i * LEN, LEN, dp_comm_rank(comm) ? 200 : i));
    const int threads = atomic_load(&threads_of_nccl);
    CHECK(threads > 0);
    for (unsigned i = 0; i < MANY; i++) {
        unsigned char *buf = bufs + i * LEN;
        CHECK(dp_comm_rank(comm) || i % 20 || !dp_comm_begin(comm));
        if (dp_comm_rank(comm))
            CHECK(!dp_comm_irecv(comm, 0, DP_CHANNEL_GRADIENT, i, buf, LEN - i, &reqs[i]));
        else
            CHECK(!dp_comm_isend(comm, 1, DP_CHANNEL_GRADIENT, i, buf, LEN - i, &reqs[i]));
        CHECK(dp_comm_rank(comm) || i % 20 != 19 || !dp_comm_commit(comm));
    }
    for (unsigned i = MANY; i-- > 0;)
        CHECK(!dp_comm_wait(comm, &reqs[i], !dp_comm_rank(comm)));
    CHECK(atomic_load(&threads_of_nccl) == threads);
    for (unsigned i = 0; i < MANY; i++)
        CHECK(holds(&g, bufs + i * LEN, LEN - i, i));
    give_back(&g, bufs);
    rig_close(&g);
    free(reqs);
    return 0;
}

static int give_none(void **out, size_t bytes)
{
    (void)bytes;
    *out = NULL;
    return 1;
}

static int allocations_of(struct dp_device *dev, size_t bytes, int *out)
{
    void *ptr;

    sim_fail("cuMemAlloc_v2", 0, 0);
    int err = dp_device_alloc(dev, DP_MEMORY_MESSAGES, bytes, &ptr);
    *out = sim_calls("cuMemAlloc_v2");
    if (!err)
        dp_device_free(dev, DP_MEMORY_MESSAGES, ptr);
    return err;
}

/* Large buffers of messages are NCCL's while it has some, and count like others. */
static int alloc_by_nccl(struct dp_comm *comm, void *arg)
{
    const size_t large = 1 << 20;
    struct dp_device *dev = nccl_ranks_device();
    const struct dp_device_source source = dev->source;
    struct dp_device_usage usage;
    int small, of_nccl, without;

    (void)arg;
    CHECK(!allocations_of(dev, large - 1, &small) && small == 1);
    CHECK(!allocations_of(dev, large, &of_nccl) && of_nccl == 0);
    dp_device_usage(dev, &usage);
    CHECK(usage.peak_bytes >= large);
    dp_device_set_source(dev, (struct dp_device_source){give_none, NULL});
    CHECK(!allocations_of(dev, large, &without) && without == 1);
    dp_device_set_source(dev, source);
    return 0;
}

/* Rank 1 asks for two messages at once; rank 0 sends the second after the answer to the first. */
static int answer_before_the_next(struct dp_comm *comm, void *arg)
{
    enum { BYTES = 200 };
    const int rank = dp_comm_rank(comm);
    struct dp_request reqs[2], answer;
    struct rig g;

    (void)arg;
    CHECK(!rig_open(&g, BYTES));
    unsigned char *buf = take(&g, 2 * BYTES);
    CHECK(buf && !dp_comm_begin(comm));
    for (int i = 0; i < 2 && rank; i++)
        CHECK(!dp_comm_irecv(comm, 0, 0, 0, buf + i * BYTES, BYTES, &reqs[i]));
    CHECK(!dp_comm_commit(comm));
    for (unsigned i = 0; i < 2; i++) {
        CHECK(rank || !fill(&g, buf, BYTES, i));
        CHECK(rank || !dp_comm_isend(comm, 1, 0, 0, buf, BYTES, &reqs[i]));
        CHECK(!dp_comm_wait(comm, &reqs[i], !rank));
        CHECK(!rank || holds(&g, buf + i * BYTES, BYTES, i));
        CHECK(rank ? !dp_comm_isend(comm, 0, 1, 0, buf, 1, &answer)
                   : !dp_comm_irecv(comm, 1, 1, 0, buf, 1, &answer));
        CHECK(!dp_comm_wait(comm, &answer, !rank));
    }
    give_back(&g, buf);
    rig_close(&g);
    return 0;
}

/* Activations are sent first and asked for last. */
static int cross_channels(struct dp_comm *comm, void *arg)
{
    static const size_t len = 1 << 20;
    struct dp_request reqs[3];
    struct rig g;

    (void)arg;
    CHECK(!rig_open(&g, len));
    unsigned char *buf = take(&g, len);
    CHECK(buf && !fill(&g, buf, len, 1));
    for (int channel = 0; channel < 3 && !dp_comm_rank(comm); channel++)
        CHECK(!dp_comm_isend(comm, 1, channel, 5, buf, len, &reqs[channel]));
    for (int channel = 2; channel >= 0; channel--) {
        if (dp_comm_rank(comm))
            CHECK(!dp_comm_irecv(comm, 0, channel, 5, buf, len, &reqs[channel]));
        CHECK(!dp_comm_wait(comm, &reqs[channel], !dp_comm_rank(comm)));
    }
    give_back(&g, buf);
    rig_close(&g);
    return 0;
}

enum { RANKS = 3, ROUNDS = 4, PAIR_LEN = 5000 };

static int all_pairs(struct dp_comm *comm, void *arg)
{
    struct dp_request sends[RANKS][3], receives[RANKS][3];
    const int rank = dp_comm_rank(comm);
    struct rig g;

    (void)arg;
    CHECK(!rig_open(&g, PAIR_LEN));
    unsigned char *out = take(&g, RANKS * 3 * PAIR_LEN), *in = take(&g, RANKS * 3 * PAIR_LEN);
    CHECK(out && in);
    for (int round = 0; round < ROUNDS; round++) {
        const size_t len = (size_t)(PAIR_LEN - round * 250 - 1);
        for (int i = 0; i < RANKS * 3; i++)
            CHECK(!fill(&g, out + i * PAIR_LEN, len, (unsigned)(rank * 10 + i + round)));
        CHECK(!dp_comm_begin(comm));
        for (int i = 0; i < RANKS * 3; i++) {
            const int peer = i / 3, c = i % 3;
            if (peer == rank)
                continue;
            CHECK(!dp_comm_isend(comm, peer, c, 1, out + i * PAIR_LEN, len, &sends[peer][c]));
            CHECK(!dp_comm_irecv(comm, peer, c, 1, in + i * PAIR_LEN, len, &receives[peer][c]));
        }
        CHECK(!dp_comm_commit(comm));
        for (int i = 0; i < RANKS * 3; i++) {
            const int peer = i / 3, c = i % 3;
            if (peer == rank)
                continue;
            CHECK(!dp_comm_wait(comm, &receives[peer][c], peer));
            CHECK(!dp_comm_wait(comm, &sends[peer][c], peer));
            CHECK(holds(&g, in + i * PAIR_LEN, len, (unsigned)(peer * 10 + rank * 3 + c + round)));
        }
    }
    give_back(&g, in);
    give_back(&g, out);
    rig_close(&g);
    return 0;
}

/* ---- streams --------------------------------------------------------------------------------- */

static atomic_bool may_go;

/* Work of the stream, as a kernel that takes its time. */
static void wait_for_go(void *user)
{
    const int64_t until_ns = dp_now_ns() + LONG_NS;

    (void)user;
    while (!atomic_load(&may_go) && dp_now_ns() < until_ns)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

/* Rank 0's message is written by work that begins only after isend has returned; rank 1's stream
 * copies what its host has never waited for. */
static int go_by_streams(struct dp_comm *comm, void *arg)
{
    enum { BYTES = 40000 };
    struct dp_request req;
    struct rig g;

    (void)arg;
    CHECK(!rig_open(&g, BYTES));
    unsigned char *buf = take(&g, BYTES), *copy = take(&g, BYTES);
    CHECK(buf && copy && !fill(&g, copy, BYTES, 3) && !fill(&g, buf, BYTES, 4));
    if (!dp_comm_rank(comm)) {
        CHECK(!dp_device_call(g.stream, wait_for_go, NULL));
        CHECK(!dp_device_copy(g.stream, buf, copy, BYTES));
        CHECK(!dp_comm_after(comm, g.stream));
        CHECK(!dp_comm_isend(comm, 1, 0, 0, buf, BYTES, &req));
        for (int i = 0; i < 100; i++)
            CHECK(dp_comm_test(comm, &req) == DP_EAGAIN);
        CHECK(!dp_comm_barrier(comm)); /* rank 1 has queued all that it wants */
        atomic_store(&may_go, true);
    } else {
        CHECK(!dp_comm_irecv(comm, 0, 0, 0, buf, BYTES, &req));
        CHECK(!dp_comm_stream_wait(comm, &req, g.stream));
        CHECK(!dp_device_copy(g.stream, copy, buf, BYTES));
        CHECK(dp_comm_test(comm, &req) == DP_EAGAIN);
        CHECK(!dp_comm_barrier(comm));
        CHECK(holds(&g, copy, BYTES, 3));
    }
    CHECK(!dp_comm_wait(comm, &req, !dp_comm_rank(comm)));
    CHECK(dp_comm_stream_wait(comm, &req, g.stream) == DP_EINVAL);
    CHECK_SAYS("is not in a stream");
    give_back(&g, copy);
    give_back(&g, buf);
    rig_close(&g);
    return 0;
}

/* An event that two streams record is that of the second, also where the first is later. */
static int record_again(struct dp_comm *comm, void *arg)
{
    struct dp_device_stream *late;
    struct dp_device_event *event, *end;
    struct rig g;

    (void)arg;
    atomic_store(&may_go, false);
    CHECK(!rig_open(&g, 1) && !dp_device_stream_new(g.dev, DP_PRIORITY_NORMAL, &late));
    CHECK(!dp_device_event_new(g.dev, &event) && !dp_device_event_new(g.dev, &end));
    CHECK(!dp_device_call(late, wait_for_go, NULL));
    CHECK(!dp_device_event_record(event, late) && !dp_device_event_record(end, late));
    CHECK(!dp_device_event_record(event, g.stream) && !dp_device_event_wait(event, LONG_NS));
    CHECK(dp_device_event_test(end) == DP_EAGAIN);
    atomic_store(&may_go, true);
    CHECK(!dp_device_event_wait(end, LONG_NS) && !dp_device_event_test(event));
    dp_device_event_free(end);
    dp_device_event_free(event);
    dp_device_stream_free(late);
    rig_close(&g);
    return dp_comm_barrier(comm);
}

/* ---- the host's part ------------------------------------------------------------------------- */

static int collectives(struct dp_comm *comm, void *arg)
{
    const int size = dp_comm_size(comm), rank = dp_comm_rank(comm);
    const int peer = (rank + 1) % size;
    int64_t all[8], own = 100 + rank, ns, error_ns;
    struct dp_comm *part;
    struct dp_request req;
    struct dp_received got;

    (void)arg;
    CHECK(!dp_comm_allgather(comm, &own, all, sizeof(own)));
    for (int i = 0; i < size; i++)
        CHECK(all[i] == 100 + i);
    CHECK(dp_comm_agree(comm, "rank", (uint64_t)rank) == DP_EMISMATCH);
    CHECK(!dp_comm_clock_offset(comm, 5, &ns, &error_ns));
    CHECK(!dp_comm_irecv_any(comm, DP_ANY_SOURCE, DP_CHANNEL_CONTROL, all, sizeof(own), &req));
    struct dp_request send;
    CHECK(!dp_comm_isend(comm, peer, DP_CHANNEL_CONTROL, 9, &own, sizeof(own), &send));
    CHECK(!dp_comm_wait(comm, &req, -1) && !dp_comm_wait(comm, &send, peer));
    dp_comm_received(comm, &req, &got);
    CHECK(got.peer == (rank + size - 1) % size && got.tag == 9 && got.len == sizeof(own));
    CHECK(!dp_comm_barrier(nccl_ranks_host()));

    CHECK(dp_comm_isend(comm, rank, 0, 0, &own, 8, &req) == DP_EINVAL);
    CHECK(dp_comm_irecv_any(comm, peer, 0, all, 8, &req) == DP_EUNSUPPORTED);
    CHECK_SAYS("whose messages have none");
    CHECK(!dp_comm_split(comm, 0, rank, &part));
    CHECK(dp_comm_isend(part, peer, 0, 0, &own, 8, &req) == DP_EUNSUPPORTED);
    CHECK_SAYS("a part of the host's communicator");
    dp_comm_close(part);
    CHECK(dp_comm_survive(comm) == DP_EUNSUPPORTED);
    return dp_comm_barrier(comm);
}

/* Ranks in a row, over a part of the host's communicator in which they are counted backwards. */
static int open_neighbours(struct dp_comm *comm, void *arg)
{
    const int rank = 2 - dp_comm_rank(comm);
    const struct dp_nccl_peer peers[] = {
        {.rank = rank == 1 ? 0 : 1, .sends = rank == 0, .receives = (unsigned[]){0, 1, 4}[rank]},
        {.rank = 2, .sends = 1 << DP_CHANNEL_REDUCE},
    };
    struct dp_nccl_config config = {
        .device = nccl_ranks_device(), .peers = peers, .peer_count = rank == 1 ? 2 : 1};
    struct dp_comm *back, *row = NULL;
    struct dp_request req;
    struct dp_abort why;
    struct rig g;

    (void)arg;
    CHECK(!rig_open(&g, 100));
    unsigned char *buf = take(&g, 100);
    CHECK(buf && !fill(&g, buf, 100, (unsigned)rank));
    CHECK(!dp_comm_split(nccl_ranks_host(), 0, rank, &back) && dp_comm_rank(back) == rank);
    CHECK(!dp_comm_nccl_open(back, &config, &row));
    CHECK(rank != 0 || dp_comm_isend(row, 2, 0, 0, buf, 100, &req) == DP_EINVAL);
    CHECK(rank != 0 || dp_comm_isend(row, 1, 1, 0, buf, 100, &req) == DP_EINVAL);
    CHECK(rank != 0 || dp_comm_irecv(row, 1, 0, 0, buf, 100, &req) == DP_EINVAL);
    CHECK(rank != 0 || !dp_comm_isend(row, 1, 0, 0, buf, 100, &req));
    CHECK(rank != 1 || !dp_comm_irecv(row, 0, 0, 0, buf, 100, &req));
    CHECK(rank == 2 || !dp_comm_wait(row, &req, !rank));
    CHECK(rank == 2 || holds(&g, buf, 100, 0));
    CHECK(!dp_comm_barrier(row));
    CHECK(dp_comm_reset(row) == DP_EUNSUPPORTED);
    config.peer_count = 1; /* 1 names 0 only, and 2 receives from 1 */
    struct dp_comm *none = NULL;
    CHECK(dp_comm_nccl_open(back, &config, &none) == DP_EMISMATCH && !none);
    CHECK_SAYS("rank 1 sends to rank 2 on the channels 0x0, which receives on 0x4");
    CHECK(!dp_comm_barrier(row));
    CHECK(rank == 2 ? !hear_ready(row) : !tell_ready(row, 2));
    CHECK(rank != 2 || !dp_comm_abort(row, DP_EIO, "it is over"));
    while (!dp_comm_barrier(row))
        ;
    CHECK(dp_comm_aborted(row, &why) && why.rank == 2 && why.error == DP_EIO);
    CHECK(dp_comm_aborted(comm, &why) && why.rank == 0);
    dp_comm_close(row);
    dp_comm_close(back);
    give_back(&g, buf);
    rig_close(&g);
    return 0;
}

/* ---- failure --------------------------------------------------------------------------------- */

/* Rank 1 gives up while messages of all kinds are in flight. */
static int give_up_and_go_on(struct dp_comm *comm, void *arg)
{
    static const size_t len = 300000;
    const int rank = dp_comm_rank(comm), peer = !rank;
    struct dp_request reqs[3];
    struct dp_abort why;
    struct rig g;

    (void)arg;
    CHECK(!rig_open(&g, len));
    unsigned char *buf = take(&g, len);
    CHECK(buf && !fill(&g, buf, len, 1));
    CHECK(!dp_comm_register(comm, buf, len)); /* and again after the reset */
    for (int c = 0; c < 3; c++)
        CHECK(rank || !dp_comm_irecv(comm, peer, c, 0, buf, len, &reqs[c]));
    CHECK(rank ? !hear_ready(comm) : !tell_ready(comm, 1));
    CHECK(!rank || !dp_comm_abort(comm, DP_ECALLBACK, "a stage failed"));
    int err = rank ? dp_comm_isend(comm, peer, 0, 0, buf, len, &reqs[0])
                   : dp_comm_wait(comm, &reqs[1], peer);
    CHECK(err == DP_EABORTED);
    CHECK_SAYS("a stage failed");
    CHECK(dp_comm_aborted(comm, &why) && why.rank == 1 && why.error == DP_ECALLBACK);
    CHECK(!fill(&g, buf, len, 9) && holds(&g, buf, len, 9)); /* nobody writes to it */
    CHECK(!dp_comm_reset(comm));
    CHECK(!dp_comm_aborted(comm, NULL));
    if (exchange(comm, &g, 1000, false))
        return -1;
    dp_comm_unregister(comm, buf);
    give_back(&g, buf);
    rig_close(&g);
    return 0;
}

/* Rank 0's deadline is short; rank 1 waits for the message of another channel. */
static int wait_in_vain(struct dp_comm *comm, void *arg)
{
    const int rank = dp_comm_rank(comm);
    struct dp_request req;
    struct dp_abort why;
    struct rig g;

    (void)arg;
    CHECK(!rig_open(&g, 100));
    unsigned char *buf = take(&g, 100);
    CHECK(buf && !dp_comm_irecv(comm, !rank, rank, 0, buf, 100, &req));
    CHECK(rank ? !tell_ready(comm, 0) : !hear_ready(comm));
    if (!rank)
        dp_comm_set_deadline(comm, 100 * DP_NS_PER_MS);
    int err = dp_comm_wait(comm, &req, !rank);
    CHECK(err == (rank ? DP_EABORTED : DP_ETIMEDOUT));
    CHECK(dp_comm_aborted(comm, &why) && why.error == DP_ETIMEDOUT && why.rank == 1);
    CHECK(dp_comm_progress(comm) == DP_EABORTED);
    give_back(&g, buf);
    rig_close(&g);
    return 0;
}

static int die(struct dp_comm *comm, void *arg)
{
    const int rank = dp_comm_rank(comm);
    struct dp_request req;
    struct dp_abort why;
    struct rig g;

    (void)arg;
    CHECK(!rig_open(&g, 100));
    unsigned char *buf = take(&g, 100);
    CHECK(buf && (rank ? !hear_ready(comm) : !tell_ready(comm, 1)));
    if (rank)
        raise(SIGKILL);
    int err = dp_comm_irecv(comm, 1, 0, 0, buf, 100, &req);
    CHECK((err ? err : dp_comm_wait(comm, &req, 1)) == DP_EABORTED);
    CHECK(dp_comm_aborted(comm, &why) && why.rank);
    give_back(&g, buf);
    rig_close(&g);
    return 0;
}

static void a_rank_that_dies_is_named(void **state)
{
    (void)state;
    int killed;

    if (why_not)
        skip_because(why_not);
    assert_int_equal(nccl_ranks_run(2, die, NULL, &killed), 1);
    assert_int_equal(killed, 1);
}

/* ---- an interrupt in the set-up -------------------------------------------------------------- */

/* What rank 1 does of dp_comm_nccl_open: it takes part in all that goes by the host's communicator,
 * and then makes no communicator by NCCL, for which rank 0 waits. */
static int stay_away(struct dp_comm *given)
{
    const struct dp_nccl_peer own[2] = {{.rank = 0, .receives = 1}, {.rank = 1}};
    struct readiness {
        int32_t error, version;
    } ready = {0, 0}, all[2];
    struct dp_nccl_id ids[DP_NCCL_CHANNELS];
    struct dp_nccl_peer peers[4];
    struct dp_request req;
    struct dp_comm *comm = given;

    memset(ids, 0, sizeof(ids));
    CHECK(!dp_nccl_version(&ready.version, NULL));
    CHECK(!dp_comm_split(given, 0, 1, &comm));
    CHECK(!dp_comm_allgather(comm, &ready, all, sizeof(ready)));
    CHECK(!dp_comm_allgather(comm, own, peers, sizeof(own)));
    CHECK(!dp_comm_allgather(comm, &ready, all, sizeof(ready)));
    CHECK(!dp_comm_isend(comm, 0, DP_CHANNEL_CONTROL, DP_NCCL_ID_TAG, ids, sizeof(ids), &req));
    CHECK(!dp_comm_wait(comm, &req, 0));
    CHECK(!dp_comm_irecv(comm, 0, DP_CHANNEL_CONTROL, DP_NCCL_ID_TAG, ids, sizeof(ids), &req));
    CHECK(!dp_comm_wait(comm, &req, 0));
    dp_comm_close(comm);
    return 0;
}

/* Once rank 1 stays away, and rank 0 has had time to hear the last of it: nothing of the host's
 * is waited for any more. */
struct countdown {
    atomic_int *away; /* shared by the ranks */
    int polls;
};

static int give_up_later(void *user)
{
    struct countdown *i = user;

    return atomic_load(i->away) && ++i->polls >= 200 ? -4 : 0;
}

static int interrupt_open(struct dp_comm *comm, void *arg)
{
    const struct dp_nccl_peer peer = {.rank = 1, .sends = 1};
    struct countdown countdown = {.away = arg};
    struct dp_nccl_config config = {.peers = &peer, .peer_count = 1};
    struct dp_comm *nccl;
    struct dp_request req;
    struct dp_abort why;
    char byte;

    if (dp_comm_rank(comm)) {
        if (stay_away(comm))
            return -1;
        atomic_store(countdown.away, 1);
        int err = dp_comm_irecv(comm, 0, 0, 0, &byte, 1, &req);
        CHECK((err ? err : dp_comm_wait(comm, &req, 0)) == DP_EABORTED);
    } else {
        CHECK(!dp_device_cuda_open(0, &config.device));
        dp_comm_set_poll(comm, give_up_later, &countdown);
        int err = dp_comm_nccl_open(comm, &config, &nccl);
        dp_comm_set_poll(comm, NULL, NULL);
        CHECK(err == -4);
        CHECK_SAYS("interrupted");
        dp_device_close(config.device);
    }
    CHECK(dp_comm_aborted(comm, &why) && why.rank == 0 && why.error == -4);
    if (dp_comm_rank(comm))
        return 0;
    dp_comm_close(comm);
    _exit(0); /* NCCL listens for rank 1 until the process ends, so that files stay open */
}

static void a_poll_function_ends_a_set_up(void **state)
{
    (void)state;
    int killed;

    if (why_not)
        skip_because(why_not);
    atomic_int *away = mmap(NULL, sizeof(*away), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_int_equal(nccl_ranks_run_hosts(2, interrupt_open, away, &killed), 0);
    munmap(away, sizeof(*away));
}

/* ---- the cases ------------------------------------------------------------------------------- */

static void messages_arrive_whole_and_in_order_and_channels_and_streams_are_apart(void **state)
{
    (void)state;
    on_ranks(2, (rank_fn[]){exchange_sizes, send_many, alloc_by_nccl, answer_before_the_next, cross_channels,
                            go_by_streams, record_again, NULL});
}

static void ranks_talk_to_all_at_once_or_to_some_and_by_the_host(void **state)
{
    (void)state;
    on_ranks(RANKS, (rank_fn[]){all_pairs, collectives, open_neighbours, NULL});
}

static void aborts_and_deadlines_end_messages_on_every_rank_and_a_reset_connects_anew(void **state)
{
    (void)state;
    on_ranks(2, (rank_fn[]){give_up_and_go_on, wait_in_vain, NULL});
}

/* ---- what is missing ------------------------------------------------------------------------- */

static void a_missing_library_or_function_is_named(void **state)
{
    (void)state;
    char *before = getenv("DUALPIPE_NCCL_LIBRARY") ? strdup(getenv("DUALPIPE_NCCL_LIBRARY")) : NULL;
    const char *file = "";
    int version;

    setenv("DUALPIPE_NCCL_LIBRARY", "libnowhere.so", 1);
    assert_int_equal(dp_nccl_version(&version, NULL), DP_ENOENT);
    assert_non_null(strstr(dp_last_error(), "libnowhere.so"));
    assert_non_null(strstr(dp_last_error(), "DUALPIPE_NCCL_LIBRARY"));
    setenv("DUALPIPE_NCCL_LIBRARY", "libc.so.6", 1);
    assert_int_equal(dp_nccl_version(&version, NULL), DP_ENOENT);
    assert_non_null(strstr(dp_last_error(), "libc.so.6 has no ncclGetVersion"));
    unsetenv("DUALPIPE_NCCL_LIBRARY");
    if (before) {
        setenv("DUALPIPE_NCCL_LIBRARY", before, 1);
        assert_int_equal(dp_nccl_version(&version, &file), 0);
        assert_true(version >= 22700);
        assert_string_equal(file, before);
    }
    free(before);
}

static void another_device_than_cuda_is_refused(void **state)
{
    (void)state;
    struct dp_comm *host, *comm = NULL;
    struct dp_device *dev;

    assert_int_equal(dp_comm_threads_new(1, &host), 0);
    assert_int_equal(dp_device_host_open(0, &dev), 0);
    struct dp_nccl_config config = {.device = dev};
    assert_int_equal(dp_comm_nccl_open(host, &config, &comm), DP_EINVAL);
    assert_non_null(strstr(dp_last_error(), "expected one of CUDA"));
    config.device = NULL;
    assert_int_equal(dp_comm_nccl_open(host, &config, &comm), DP_EINVAL);
    assert_int_equal(dp_comm_nccl_open(NULL, &config, &comm), DP_EINVAL);
    assert_null(comm);
    dp_device_close(dev);
    dp_comm_close(host);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_arrive_whole_and_in_order_and_channels_and_streams_are_apart),
        cmocka_unit_test(ranks_talk_to_all_at_once_or_to_some_and_by_the_host),
        cmocka_unit_test(aborts_and_deadlines_end_messages_on_every_rank_and_a_reset_connects_anew),
        cmocka_unit_test(a_rank_that_dies_is_named),
        cmocka_unit_test(a_poll_function_ends_a_set_up),
        cmocka_unit_test(a_missing_library_or_function_is_named),
        cmocka_unit_test(another_device_than_cuda_is_refused),
    };

    why_not = nccl_ranks_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
