/* SPDX-License-Identifier: Apache-2.0
 *
 * test_net_eager.c - messages of the net plugin over shm and tcp that arrive before their receives:
 * which receive each is for, and how many there may be.
 */
#include "cmocka_all.h"
#include "scratch.h"
#include "eager_pair.h"

#include "base/clock.h"
#include "nccl-plugin/net/wire_transport.h"

#include <dualpipe/memory.h>

/* ---- which, how long and how many ----------------------------------------------------------- */

PART_CASE(a_message_up_to_the_limit_does_not_wait_for_its_receive, run_over_both(part))
{
    static const size_t lens[] = {LIMIT, 0, 1, 40, 4096};
    struct dpn_request *sends[5];
    ENDED_BY(close_pair) struct pair p = connect_pair();

    for (int i = 0; i < 5; i++)
        sends[i] = send_eager(&p, (size_t)i, lens[i], 7);
    must(!try_send(&p, 0, LIMIT + 1, 7));
    for (int i = 0; i < 5; i++)
        for (int looks = 0; looks < 100; looks++) /* without a receive none is done */
            must(!is_done(sends[i], NULL));
    for (int i = 0; i < 5; i++) {
        int size = -1;
        receive_all(&p, 0, (size_t)i, lens[i], 7);
        finish(sends[i], &size);
        must(size == (int)lens[i]);
    }
    struct dpn_request *recv = receive(&p, 0, LIMIT + 1, 7);
    finish_both(recv, send_in_time(&p, 0, LIMIT + 1, 7));
    must(!memcmp(to, from, LIMIT + 1));
}

PART_CASE(with_a_limit_of_0_all_wait, run_over_both(part))
{
    setenv("DUALPIPE_NET_EAGER", "0", 1);
    ENDED_BY(close_pair) struct pair p = connect_pair();
    must(!try_send(&p, 0, 1, 7) && !try_send(&p, 0, 0, 7));
    struct dpn_request *recv = receive(&p, 0, 0, 7);
    finish_both(recv, send_in_time(&p, 0, 0, 7));
}

/* Message i: so many bytes, from i on. As many as may wait have room together, over tcp, too. */
static size_t len_of(int i)
{
    return (size_t)i * 631 % 2049;
}

/* Sends that wait are tried again, in order. */
PART_CASE(a_sender_waits_when_enough_are_waiting, run_over_both(part))
{
    enum { N = 100 };
    struct dpn_request *sends[N];
    ENDED_BY(close_pair) struct pair p = connect_pair();
    int sent = 0;

    for (; sent < DPN_EAGER_COUNT; sent++)
        sends[sent] = send_eager(&p, (size_t)sent, len_of(sent), 7);
    must(!try_send(&p, 0, 1, 7) && !try_send(&p, 0, 0, 8));
    for (int i = 0; i < N; i++) {
        receive_all(&p, 0, (size_t)i, len_of(i), 7);
        for (; sent < N && sent <= i + DPN_EAGER_COUNT; sent++)
            sends[sent] = send_in_time(&p, (size_t)sent, len_of(sent), 7);
        finish(sends[i], NULL);
    }
    must(sent == N);
}

/* More would fill a tcp receiver, and the kernel would take it for dead after the timeout. */
PART_CASE(a_receive_may_come_later_than_the_timeout, run_over_both(part))
{
    const int most = strcmp(getenv("DUALPIPE_NET_WIRE"), "tcp") ? DPN_EAGER_COUNT : (32 << 10) / LIMIT;
    struct dpn_request *sends[DPN_EAGER_COUNT];

    setenv("DUALPIPE_NET_TIMEOUT", "1", 1);
    ENDED_BY(close_pair) struct pair p = connect_pair();
    for (int i = 0; i < most; i++)
        sends[i] = send_eager(&p, (size_t)i, LIMIT, 7);
    must(!try_send(&p, 0, 1, 7));
    for (const int64_t began_ns = dp_now_ns(); dp_now_ns() - began_ns < 2 * DP_NS_PER_S; usleep(10000))
        must(!is_done(sends[0], NULL));
    for (int i = 0; i < most; i++) {
        receive_all(&p, 0, (size_t)i, LIMIT, 7);
        finish(sends[i], NULL);
    }
}

/* ---- which receive --------------------------------------------------------------------------- */

/* The last tag is received first, so what came before it is in the way. */
PART_CASE(messages_before_the_wanted_one_are_kept, run_over_both(part))
{
    struct dpn_request *sends[DPN_EAGER_COUNT], *others[DPN_EAGER_COUNT];
    ENDED_BY(close_pair) struct pair p = connect_pair();

    for (int i = 0; i < DPN_EAGER_COUNT; i++)
        sends[i] = send_eager(&p, (size_t)i, len_of(i), i);
    for (int i = DPN_EAGER_COUNT - 1; i > 0; i--) {
        receive_all(&p, 0, (size_t)i, len_of(i), i);
        finish(sends[i], NULL);
    }
    /* A long one, and as many short ones as may, pass the only one that is left. */
    struct dpn_request *recv = receive(&p, 0, BYTES, 99);
    finish_both(recv, send_in_time(&p, 0, BYTES, 99));
    must(!memcmp(to, from, BYTES));
    for (int i = 1; i < DPN_EAGER_COUNT; i++)
        others[i] = send_eager(&p, (size_t)i, 10, 50);
    for (int i = 1; i < DPN_EAGER_COUNT; i++) {
        receive_all(&p, 0, (size_t)i, 10, 50);
        finish(others[i], NULL);
    }
    receive_all(&p, 0, 0, len_of(0), 0);
    finish(sends[0], NULL);
}

static void fill_unexpected(struct dpn_unexpected_list *list, struct dpn_unexpected *all[DPN_EAGER_COUNT])
{
    for (int i = 0; i < DPN_EAGER_COUNT; i++) {
        all[i] = dpn_unexpected_new(list, i, DPN_MAX_EAGER);
        assert_non_null(all[i]);
        memset(all[i]->data, i, DPN_MAX_EAGER);
    }
}

CASE(what_is_kept_has_memory_of_the_connection)
{
    struct dpn_unexpected *all[DPN_EAGER_COUNT];
    struct dpn_unexpected_list list = {.head = NULL};
    char same[DPN_MAX_EAGER];

    assert_null(dpn_unexpected_new(&list, 0, DPN_MAX_EAGER + 1));
    assert_null(list.memory); /* a connection that keeps nothing has none */
    fill_unexpected(&list, all);
    assert_null(dpn_unexpected_new(&list, 0, 0));
    assert_int_equal(dpn_unexpected_count(&list), DPN_EAGER_COUNT);
    for (int i = 0; i < DPN_EAGER_COUNT; i++) {
        memset(same, i, sizeof(same));
        assert_true(all[i]->tag == i && all[i]->size == sizeof(same));
        assert_memory_equal(all[i]->data, same, sizeof(same));
    }
    struct dpn_unexpected *const freed = all[5];
    const char *memory = list.memory;
    dpn_unexpected_free(&list, freed);
    assert_ptr_equal(dpn_unexpected_new(&list, 99, 1), freed);
    for (int i = 0; i < DPN_EAGER_COUNT; i++)
        dpn_unexpected_free(&list, all[i]);
    assert_int_equal(dpn_unexpected_count(&list), 0);
    assert_ptr_equal(list.memory, memory);
    dpn_unexpected_fini(&list);
    assert_null(list.memory);
}

/* Groups, watched: tags 0 to 7, of which 3 was sent twice, and comes twice. */
PART_CASE(a_group_finds_its_messages_whatever_their_order, run_over_both(part))
{
    enum { N = 8, ROOM = 10000 };
    static const int order[] = {3, 7, 0, 3, 1, 2, 6, 4, 5};
    struct dpn_request *sends[N + 1], *recv = NULL;
    void *data[N];
    size_t buffers[N];
    int tags[N], sizes[N], size;
    ENDED_BY(close_pair) struct pair p = connect_pair();

    for (int i = 0; i <= N; i++)
        sends[i] = send_eager(&p, (size_t)i, len_of(i + 1), order[i]);
    for (int k = 0; k < N; k++) {
        data[k] = to + k * ROOM;
        buffers[k] = ROOM;
        tags[k] = k;
    }
    struct dpn_request *elder = receive(&p, N * ROOM, ROOM, 3);
    must(!dpn_net_irecv(p.receiver, N, data, buffers, tags, NULL, true, &recv) && recv);
    finish(recv, sizes);
    finish(elder, &size);
    must(size == (int)len_of(1) && !memcmp(to + N * ROOM, from, len_of(1)));
    for (int i = 1; i <= N; i++) {
        const int k = order[i];
        must(sizes[k] == (int)len_of(i + 1) && !memcmp(to + k * ROOM, from + i, len_of(i + 1)));
    }
    for (int i = 0; i <= N; i++)
        finish(sends[i], NULL);
}

/* ---- at random ------------------------------------------------------------------------------- */

enum { TAGS = 4, MESSAGES = 3000, PENDING = 8 };

static uint32_t random_state = 1;

static unsigned random_below(unsigned n)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (random_state >> 8) % n;
}

/* The nth message of a tag is told by its length and by where its bytes are from. */
static size_t random_len(int tag, unsigned n)
{
    const uint32_t x = (n * 4 + (unsigned)tag + 1) * 2654435761u;

    return x % 16 ? (x >> 8) % (LIMIT + 1) : (x >> 8) % 200000;
}

static size_t random_at(int tag, unsigned n)
{
    return (n * 97 + (unsigned)tag * 31) % 500000;
}

/* A receive, or a group of two. */
struct pending {
    struct dpn_request *req;
    int n, tags[2];
    unsigned numbers[2];
};

static char buffers[PENDING][2][200000];

static void begin_receive(struct pair *p, struct pending *r, char (*buffer)[200000], unsigned *next)
{
    void *data[2] = {buffer[0], buffer[1]};
    const size_t sizes[2] = {sizeof(buffer[0]), sizeof(buffer[1])};
    bool may = true;

    r->n = 1 + (int)random_below(2);
    for (int i = 0; i < r->n; i++)
        r->tags[i] = (int)random_below(TAGS);
    may = r->n == 1 || r->tags[0] != r->tags[1];
    for (int i = 0; i < r->n; i++)
        may &= next[r->tags[i]] < MESSAGES / TAGS;
    if (!may)
        return;
    must(!dpn_net_irecv(p->receiver, r->n, data, sizes, r->tags, NULL, random_below(2), &r->req));
    for (int i = 0; r->req && i < r->n; i++)
        r->numbers[i] = next[r->tags[i]]++;
}

/* Returns how many messages came. */
static unsigned end_receive(struct pending *r, char (*buffer)[200000])
{
    int sizes[2];

    if (!is_done(r->req, sizes))
        return 0;
    r->req = NULL;
    for (int i = 0; i < r->n; i++) {
        const size_t len = random_len(r->tags[i], r->numbers[i]);
        must(sizes[i] == (int)len);
        must(!memcmp(buffer[i], from + random_at(r->tags[i], r->numbers[i]), len));
    }
    return (unsigned)r->n;
}

static void begin_send(struct pair *p, struct dpn_request **send, unsigned *next)
{
    const int tag = (int)random_below(TAGS);

    if (next[tag] == MESSAGES / TAGS)
        return;
    *send = try_send(p, random_at(tag, next[tag]), random_len(tag, next[tag]), tag);
    next[tag] += *send != NULL;
}

PART_CASE(messages_of_a_tag_keep_their_order_whatever_happens, run_over_both(part))
{
    unsigned to_send[TAGS] = {0}, to_receive[TAGS] = {0}, arrived = 0;
    struct dpn_request *sends[24] = {NULL};
    struct pending recvs[PENDING] = {{.req = NULL}};
    ENDED_BY(close_pair) struct pair p = connect_pair();
    bool sending = true;

    WHILE_IN_TIME (arrived < MESSAGES || sending) {
        struct dpn_request **send = &sends[random_below(24)];
        if (!*send)
            begin_send(&p, send, to_send);
        else if (is_done(*send, NULL))
            *send = NULL;
        const unsigned i = random_below(PENDING);
        if (recvs[i].req)
            arrived += end_receive(&recvs[i], buffers[i]);
        else if (!random_below(3)) /* so that messages come before */
            begin_receive(&p, &recvs[i], buffers[i], to_receive);
        sending = false;
        for (int k = 0; k < 24; k++)
            sending |= sends[k] != NULL;
    }
}

/* ---- what is counted ------------------------------------------------------------------------ */

static uint64_t eager_of(const struct dpn_comm *comm)
{
    return atomic_load(&comm->stat.on->values[DPN_STAT_EAGER]);
}

PART_CASE(both_sides_count_them, run_over_both(part))
{
    char path[SCRATCH_LEN];

    must(scratch_directory(path, "eager"));
    setenv("DUALPIPE_NET_STAT", "1", 1);
    setenv("DUALPIPE_NET_STAT_DIR", path, 1);
    struct pair p = connect_pair();
    for (int i = 0; i < 5; i++) {
        struct dpn_request *send = send_eager(&p, 0, 100, 7);
        receive_all(&p, 0, 0, 100, 7);
        finish(send, NULL);
    }
    struct dpn_request *recv = receive(&p, 0, LIMIT + 1, 7);
    finish_both(recv, send_in_time(&p, 0, LIMIT + 1, 7));
    must(eager_of(p.sender) == 5 && eager_of(p.receiver) == 5);
    must(atomic_load(&p.receiver->stat.on->values[DPN_STAT_MESSAGES]) == 6);
    close_pair(&p);
    must(!scratch_remove(path));
}

/* ---- shared memory -------------------------------------------------------------------------- */

/* What kernels write to and read from may come from dp_shared_alloc. */
PART_CASE(memory_that_the_library_shares_is_carried_like_other, run_over_both(part))
{
    enum { LONG = 4 << 20 };
    static const size_t lens[] = {100, LIMIT, 100000, 128 << 10, 524288, LONG - 1};
    struct dpn_memory *there, *here;
    void *source, *target;
    ENDED_BY(close_pair) struct pair p = connect_pair();

    must(!dp_shared_alloc(LONG, -1, &source));
    must(!dp_shared_alloc(LONG, -1, &target));
    const struct dpn_region out = {source, LONG, NCCL_PTR_HOST, -1, 0},
                            in = {target, LONG, NCCL_PTR_HOST, -1, 0};
    must(!dpn_net_register(p.sender, &out, &here) && !dpn_net_register(p.receiver, &in, &there));
    for (size_t i = 0; i < LONG; i++)
        ((char *)source)[i] = (char)(i * 2654435761u >> 13);
    for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
        struct dpn_request *recv = NULL, *send = NULL;
        memset(target, 0, LONG);
        must(!dpn_net_irecv(p.receiver, 1, &target, &lens[i], (int[]){7}, &there, false, &recv) &&
             recv);
        for (const int64_t began_ns = dp_now_ns(); !send; must_be_in_time(began_ns))
            must(!dpn_net_isend(p.sender, source, lens[i], 7, here, &send));
        finish_both(recv, send);
        must(!memcmp(target, source, lens[i]) && !((char *)target)[lens[i]]);
    }
    must(!dpn_net_deregister(p.sender, here) && !dpn_net_deregister(p.receiver, there));
    must(!dp_shared_free(source) && !dp_shared_free(target));
}
