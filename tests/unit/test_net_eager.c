/* SPDX-License-Identifier: Apache-2.0
 *
 * test_net_eager.c - messages of the net plugin over shm and tcp that come before their receives:
 * which receive each is for, how many there may be, and what becomes of them if something is wrong.
 * The plugin reads its options once, so each case has a process of its own, one for each wire.
 */
#include "cmocka_all.h"

#include "scratch.h"

#include "base/clock.h"
#include "nccl-plugin/net_comm.h"
#include "nccl-plugin/net_early.h"

#include <dualpipe/memory.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 1 << 20, LIMIT = 8192 };

static const char *const wires[] = {"shm", "tcp"};

static char said[4096]; /* the last line of NCCL's logger */
static char from[BYTES], to[BYTES];

__attribute__((format(printf, 5, 6)))
static void logger(ncclDebugLogLevel level, unsigned long flags, const char *file, int line,
                   const char *fmt, ...)
{
    va_list args;

    (void)level;
    (void)flags;
    (void)file;
    (void)line;
    va_start(args, fmt);
    vsnprintf(said, sizeof(said), fmt, args);
    va_end(args);
}

/* In the child: says what is not so, and ends it. */
#define must(so) must_be((so), #so, __LINE__)
static void must_be(bool so, const char *what, int line)
{
    if (so)
        return;
    printf("%s, line %d: not so: %s\nlast error: %s\nthe plugin said: %s\n",
           getenv("DUALPIPE_NET_WIRE"), line, what, dp_last_error(), said);
    fflush(stdout);
    _exit(1);
}

/* Generous: the machine may be busy. */
static void must_be_in_time(int64_t since_ns)
{
    must(dp_now_ns() - since_ns < 60 * DP_NS_PER_S);
}

static void run_over_both(void (*run)(void))
{
    for (size_t i = 0; i < sizeof(wires) / sizeof(wires[0]); i++) {
        int status;
        fflush(stdout);
        const pid_t child = fork();
        if (!child) {
            alarm(100);
            setenv("NCCL_SOCKET_IFNAME", "lo", 1);
            setenv("NCCL_IB_DISABLE", "1", 1);
            setenv("DUALPIPE_NET_WIRE", wires[i], 1);
            run();
            exit(0);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
    }
}

/* ---- both ends ------------------------------------------------------------------------------- */

struct pair {
    struct dpn_net *net;
    struct dpn_listener *listener;
    struct dpn_comm *sender, *receiver;
};

static struct pair connect_pair(void)
{
    const int64_t began_ns = dp_now_ns();
    char handle[NCCL_NET_HANDLE_MAXSIZE];
    struct pair p = {.net = NULL};

    must(!dpn_net_init(logger, &p.net) && !dpn_net_listen(p.net, 0, handle, &p.listener));
    while (!p.sender || !p.receiver) {
        int err = p.sender ? 0 : dpn_net_connect(p.net, 0, handle, &p.sender);
        must(!err || err == DP_EAGAIN);
        err = p.receiver ? 0 : dpn_net_accept(p.listener, &p.receiver);
        must(!err || err == DP_EAGAIN);
        must_be_in_time(began_ns);
    }
    for (size_t i = 0; i < BYTES; i++)
        from[i] = (char)(i * 2654435761u >> 11);
    memset(to, 0, BYTES);
    return p;
}

static void close_pair(struct pair *p)
{
    dpn_net_close(p->sender);
    dpn_net_close(p->receiver);
    dpn_net_close_listener(p->listener);
    dpn_net_finalize(p->net);
}

/* len bytes from `at` on; NULL: the sender has to wait. */
static struct dpn_request *try_send(struct pair *p, size_t at, size_t len, int tag)
{
    struct dpn_request *req = NULL;

    must(!dpn_net_isend(p->sender, from + at, len, tag, NULL, &req));
    return req;
}

static struct dpn_request *send_early(struct pair *p, size_t at, size_t len, int tag)
{
    struct dpn_request *req = try_send(p, at, len, tag);

    must(req);
    return req;
}

static struct dpn_request *receive(struct pair *p, size_t at, size_t room, int tag)
{
    struct dpn_request *req = NULL;

    must(!dpn_net_irecv(p->receiver, 1, (void *[]){to + at}, &room, &tag, NULL, false, &req));
    must(req);
    return req;
}

static bool is_done(struct dpn_request *req, int *sizes)
{
    bool done;

    must(!dpn_net_test(req, &done, sizes));
    return done;
}

static void finish(struct dpn_request *req, int *sizes)
{
    for (const int64_t began_ns = dp_now_ns(); !is_done(req, sizes);)
        must_be_in_time(began_ns);
}

static void finish_both(struct dpn_request *a, struct dpn_request *b)
{
    for (const int64_t began_ns = dp_now_ns(); a || b; must_be_in_time(began_ns)) {
        a = a && is_done(a, NULL) ? NULL : a;
        b = b && is_done(b, NULL) ? NULL : b;
    }
}

static struct dpn_request *send_in_time(struct pair *p, size_t at, size_t len, int tag)
{
    struct dpn_request *req = NULL;

    for (const int64_t began_ns = dp_now_ns(); !req; must_be_in_time(began_ns))
        req = try_send(p, at, len, tag);
    return req;
}

/* To [at, at + len) what was at `src`, and no byte more. */
static void receive_all(struct pair *p, size_t at, size_t src, size_t len, int tag)
{
    int size = -1;

    memset(to + at, 0x5a, len + 1);
    finish(receive(p, at, len, tag), &size);
    must(size == (int)len && !memcmp(to + at, from + src, len) && to[at + len] == 0x5a);
}

/* ---- which, how long and how many ----------------------------------------------------------- */

static void short_ones(void)
{
    static const size_t lens[] = {LIMIT, 0, 1, 40, 4096};
    struct dpn_request *sends[5];
    struct pair p = connect_pair();

    for (int i = 0; i < 5; i++)
        sends[i] = send_early(&p, (size_t)i, lens[i], 7);
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
    close_pair(&p);
}

static void a_message_up_to_the_limit_does_not_wait_for_its_receive(void **state)
{
    (void)state;
    run_over_both(short_ones);
}

static void none(void)
{
    setenv("DUALPIPE_NET_EAGER", "0", 1);
    struct pair p = connect_pair();
    must(!try_send(&p, 0, 1, 7) && !try_send(&p, 0, 0, 7));
    struct dpn_request *recv = receive(&p, 0, 0, 7);
    finish_both(recv, send_in_time(&p, 0, 0, 7));
    close_pair(&p);
}

static void with_a_limit_of_0_all_wait(void **state)
{
    (void)state;
    run_over_both(none);
}

/* Message i: so many bytes, from i on. */
static size_t len_of(int i)
{
    return (size_t)i * 631 % (LIMIT + 1);
}

/* Sends that wait are tried again, in order. */
static void more_than_may_wait(void)
{
    enum { N = 100 };
    struct dpn_request *sends[N];
    struct pair p = connect_pair();
    int sent = 0;

    for (; sent < DPN_EARLY_COUNT; sent++)
        sends[sent] = send_early(&p, (size_t)sent, len_of(sent), 7);
    must(!try_send(&p, 0, 1, 7) && !try_send(&p, 0, 0, 8));
    for (int i = 0; i < N; i++) {
        receive_all(&p, 0, (size_t)i, len_of(i), 7);
        for (; sent < N && sent <= i + DPN_EARLY_COUNT; sent++)
            sends[sent] = send_in_time(&p, (size_t)sent, len_of(sent), 7);
        finish(sends[i], NULL);
    }
    must(sent == N);
    close_pair(&p);
}

static void a_sender_waits_when_enough_are_waiting(void **state)
{
    (void)state;
    run_over_both(more_than_may_wait);
}

/* ---- which receive --------------------------------------------------------------------------- */

/* The last tag is received first, so what came before it is in the way. */
static void backwards(void)
{
    struct dpn_request *sends[DPN_EARLY_COUNT], *others[DPN_EARLY_COUNT];
    struct pair p = connect_pair();

    for (int i = 0; i < DPN_EARLY_COUNT; i++)
        sends[i] = send_early(&p, (size_t)i, len_of(i), i);
    for (int i = DPN_EARLY_COUNT - 1; i > 0; i--) {
        receive_all(&p, 0, (size_t)i, len_of(i), i);
        finish(sends[i], NULL);
    }
    /* A long one, and as many short ones as may, pass the only one that is left. */
    struct dpn_request *recv = receive(&p, 0, BYTES, 99);
    finish_both(recv, send_in_time(&p, 0, BYTES, 99));
    must(!memcmp(to, from, BYTES));
    for (int i = 1; i < DPN_EARLY_COUNT; i++)
        others[i] = send_early(&p, (size_t)i, 10, 50);
    for (int i = 1; i < DPN_EARLY_COUNT; i++) {
        receive_all(&p, 0, (size_t)i, 10, 50);
        finish(others[i], NULL);
    }
    receive_all(&p, 0, 0, len_of(0), 0);
    finish(sends[0], NULL);
    close_pair(&p);
}

static void what_is_in_the_way_is_kept(void **state)
{
    (void)state;
    run_over_both(backwards);
}

static void fill_kept(struct dpn_kept_list *list, struct dpn_kept *all[DPN_EARLY_COUNT])
{
    for (int i = 0; i < DPN_EARLY_COUNT; i++) {
        all[i] = dpn_kept_new(list, i, DPN_MAX_EAGER);
        assert_non_null(all[i]);
        memset(all[i]->data, i, DPN_MAX_EAGER);
    }
}

static void what_is_kept_has_memory_of_the_connection(void **state)
{
    struct dpn_kept *all[DPN_EARLY_COUNT];
    struct dpn_kept_list list = {.head = NULL};
    char same[DPN_MAX_EAGER];

    (void)state;
    assert_null(dpn_kept_new(&list, 0, DPN_MAX_EAGER + 1));
    assert_null(list.memory); /* a connection that keeps nothing has none */
    fill_kept(&list, all);
    assert_null(dpn_kept_new(&list, 0, 0));
    assert_int_equal(dpn_kept_count(&list), DPN_EARLY_COUNT);
    for (int i = 0; i < DPN_EARLY_COUNT; i++) {
        memset(same, i, sizeof(same));
        assert_true(all[i]->tag == i && all[i]->size == sizeof(same));
        assert_memory_equal(all[i]->data, same, sizeof(same));
    }
    struct dpn_kept *const freed = all[5];
    const char *memory = list.memory;
    dpn_kept_free(&list, freed);
    assert_ptr_equal(dpn_kept_new(&list, 99, 1), freed);
    for (int i = 0; i < DPN_EARLY_COUNT; i++)
        dpn_kept_free(&list, all[i]);
    assert_int_equal(dpn_kept_count(&list), 0);
    assert_ptr_equal(list.memory, memory);
    dpn_kept_fini(&list);
    assert_null(list.memory);
}

/* Groups, watched: tags 0 to 7, of which 3 was sent twice, and comes twice. */
static void groups(void)
{
    enum { N = 8, ROOM = 10000 };
    static const int order[] = {3, 7, 0, 3, 1, 2, 6, 4, 5};
    struct dpn_request *sends[N + 1], *recv = NULL;
    void *data[N];
    size_t rooms[N];
    int tags[N], sizes[N], size;
    struct pair p = connect_pair();

    for (int i = 0; i <= N; i++)
        sends[i] = send_early(&p, (size_t)i, len_of(i + 1), order[i]);
    for (int k = 0; k < N; k++) {
        data[k] = to + k * ROOM;
        rooms[k] = ROOM;
        tags[k] = k;
    }
    struct dpn_request *elder = receive(&p, N * ROOM, ROOM, 3);
    must(!dpn_net_irecv(p.receiver, N, data, rooms, tags, NULL, true, &recv) && recv);
    finish(recv, sizes);
    finish(elder, &size);
    must(size == (int)len_of(1) && !memcmp(to + N * ROOM, from, len_of(1)));
    for (int i = 1; i <= N; i++) {
        const int k = order[i];
        must(sizes[k] == (int)len_of(i + 1) && !memcmp(to + k * ROOM, from + i, len_of(i + 1)));
    }
    for (int i = 0; i <= N; i++)
        finish(sends[i], NULL);
    close_pair(&p);
}

static void a_group_finds_its_messages_whatever_their_order(void **state)
{
    (void)state;
    run_over_both(groups);
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

static char rooms[PENDING][2][200000];

static void begin_receive(struct pair *p, struct pending *r, char (*room)[200000], unsigned *next)
{
    void *data[2] = {room[0], room[1]};
    const size_t sizes[2] = {sizeof(room[0]), sizeof(room[1])};
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
static unsigned end_receive(struct pending *r, char (*room)[200000])
{
    int sizes[2];

    if (!is_done(r->req, sizes))
        return 0;
    r->req = NULL;
    for (int i = 0; i < r->n; i++) {
        const size_t len = random_len(r->tags[i], r->numbers[i]);
        must(sizes[i] == (int)len);
        must(!memcmp(room[i], from + random_at(r->tags[i], r->numbers[i]), len));
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

static void random_traffic(void)
{
    unsigned to_send[TAGS] = {0}, to_receive[TAGS] = {0}, arrived = 0;
    struct dpn_request *sends[24] = {NULL};
    struct pending recvs[PENDING] = {{.req = NULL}};
    struct pair p = connect_pair();
    const int64_t began_ns = dp_now_ns();
    bool sending = true;

    while (arrived < MESSAGES || sending) {
        must_be_in_time(began_ns);
        struct dpn_request **send = &sends[random_below(24)];
        if (!*send)
            begin_send(&p, send, to_send);
        else if (is_done(*send, NULL))
            *send = NULL;
        const unsigned i = random_below(PENDING);
        if (recvs[i].req)
            arrived += end_receive(&recvs[i], rooms[i]);
        else if (!random_below(3)) /* so that messages come before */
            begin_receive(&p, &recvs[i], rooms[i], to_receive);
        sending = false;
        for (int k = 0; k < 24; k++)
            sending |= sends[k] != NULL;
    }
    close_pair(&p);
}

static void messages_of_a_tag_keep_their_order_whatever_happens(void **state)
{
    (void)state;
    run_over_both(random_traffic);
}

/* ---- what is wrong --------------------------------------------------------------------------- */

static int error_of(struct dpn_request *req)
{
    const int64_t began_ns = dp_now_ns();
    bool done = false;
    int err = 0;

    while (!err && !done) {
        err = dpn_net_test(req, &done, NULL);
        must_be_in_time(began_ns);
    }
    must(!done);
    return err;
}

/* Straight from the wire, and, with another message before it, from where it was kept. */
static void too_long(void)
{
    for (int is_kept = 0; is_kept < 2; is_kept++) {
        struct pair p = connect_pair();
        struct dpn_request *send = send_early(&p, 0, 100, 7);
        if (is_kept) {
            struct dpn_request *other = send_early(&p, 0, 5, 8);
            receive_all(&p, 0, 0, 5, 8);
            finish(other, NULL);
        }
        memset(to, 0x5a, 200);
        struct dpn_request *recv = receive(&p, 0, 50, 7);
        must(error_of(recv) == DP_EMISMATCH);
        must(strstr(dp_last_error(), "the peer has 100 bytes for a receive of 50 (tag 7)"));
        must(error_of(send) == DP_EMISMATCH);
        must(strstr(dp_last_error(), "send of 100 bytes (tag 7): the peer's receive has 50"));
        for (int i = 50; i < 200; i++)
            must(to[i] == 0x5a);
        close_pair(&p);
    }
}

static void both_sides_say_that_a_message_is_too_long(void **state)
{
    (void)state;
    run_over_both(too_long);
}

/* What was in flight is dropped: what has come may be received, the rest is an error. */
static void sender_leaves(void)
{
    enum { N = 10 };
    struct pair p = connect_pair();

    for (int i = 0; i < N; i++)
        send_early(&p, (size_t)i, 8000, i % 3);
    receive_all(&p, 0, 1, 8000, 1); /* the first of tag 0 is kept */
    dpn_net_close(p.sender);
    p.sender = NULL;
    bool lost = false;
    for (int i = 0; i < N + 1 && !lost; i++) {
        const size_t room = 8000;
        const int tag = i % 3;
        struct dpn_request *req = NULL;
        const int64_t began_ns = dp_now_ns();
        bool done = false;
        if (i == 1)
            continue;
        lost = dpn_net_irecv(p.receiver, 1, (void *[]){to}, &room, &tag, NULL, false, &req);
        while (!lost && !done) {
            lost = dpn_net_test(req, &done, NULL);
            must_be_in_time(began_ns);
        }
        must(lost || !memcmp(to, from + i, 8000));
    }
    must(lost); /* there were only N */
    close_pair(&p);
}

static void what_a_sender_leaves_behind_is_received_or_an_error(void **state)
{
    (void)state;
    run_over_both(sender_leaves);
}

static void receiver_leaves(void)
{
    struct pair p = connect_pair();
    struct dpn_request *read = send_early(&p, 0, 8000, 7), *kept = send_early(&p, 0, 8000, 8),
                       *unread = send_early(&p, 0, 8000, 9);

    struct dpn_request *recv = receive(&p, 0, 8000, 7);
    finish(recv, NULL);
    finish(read, NULL);
    dpn_net_close(p.receiver);
    p.receiver = NULL;
    must(error_of(kept) == DP_ECOMM && error_of(unread) == DP_ECOMM);
    close_pair(&p);
}

static void a_receiver_that_leaves_fails_what_it_has_not_received(void **state)
{
    (void)state;
    run_over_both(receiver_leaves);
}

/* The wire fails between the message's last byte and the test of its receive. */
static void all_there(void)
{
    struct dpn_region region = {to + LIMIT, LIMIT, NCCL_PTR_HOST, -1, 0};
    struct dpn_request *other = NULL;
    struct dpn_memory *memory;
    const size_t room = LIMIT;
    bool done;

    if (strcmp(getenv("DUALPIPE_NET_WIRE"), "shm")) /* tcp may deliver it later */
        return;
    struct pair p = connect_pair();
    must(!dpn_net_register(p.receiver, &region, &memory));
    struct dpn_request *recv = receive(&p, 0, LIMIT, 7), *send = send_in_time(&p, 0, LIMIT, 7);
    must(!dpn_net_irecv(p.receiver, 1, &region.data, &room, (int[]){8}, &memory, false, &other));
    must(!dpn_net_deregister(p.receiver, memory));
    must(is_done(recv, NULL) && !memcmp(to, from, LIMIT));
    must(dpn_net_test(other, &done, NULL) == DP_EABORTED);
    finish(send, NULL);
    close_pair(&p);
}

static void what_was_all_there_when_the_wire_failed_is_received(void **state)
{
    (void)state;
    run_over_both(all_there);
}

/* The child has the receiver, and is killed with messages unread. */
static void receiver_dies(void)
{
    char handle[NCCL_NET_HANDLE_MAXSIZE];
    struct pair p = {.net = NULL};
    int to_parent[2], status;

    must(!pipe(to_parent));
    const pid_t child = fork();
    must(child >= 0);
    if (!child) {
        int err = DP_EAGAIN;
        alarm(60);
        must(!dpn_net_init(logger, &p.net) && !dpn_net_listen(p.net, 0, handle, &p.listener));
        must(write(to_parent[1], handle, sizeof(handle)) == (ssize_t)sizeof(handle));
        while (err == DP_EAGAIN)
            err = dpn_net_accept(p.listener, &p.receiver);
        must(!err && write(to_parent[1], "", 1) == 1);
        for (;;)
            pause();
    }
    must(read(to_parent[0], handle, sizeof(handle)) == (ssize_t)sizeof(handle));
    must(!dpn_net_init(logger, &p.net));
    int err = DP_EAGAIN;
    while (err == DP_EAGAIN)
        err = dpn_net_connect(p.net, 0, handle, &p.sender);
    must(!err && read(to_parent[0], said, 1) == 1);
    struct dpn_request *sends[DPN_EARLY_COUNT];
    for (int i = 0; i < DPN_EARLY_COUNT; i++)
        sends[i] = send_early(&p, 0, LIMIT, i);
    must(!kill(child, SIGKILL) && waitpid(child, &status, 0) == child);
    for (int i = 0; i < DPN_EARLY_COUNT; i++)
        must(error_of(sends[i]) == DP_ECOMM);
    close_pair(&p);
}

static void a_receiver_that_dies_fails_them_all(void **state)
{
    (void)state;
    run_over_both(receiver_dies);
}

/* ---- a peer that keeps to no rule ----------------------------------------------------------- */

/* The other end is a bare wire. */
static struct dp_wire *connect_bare(struct pair *p)
{
    const int64_t began_ns = dp_now_ns();
    char handle[NCCL_NET_HANDLE_MAXSIZE];
    struct dpn_addresses addresses;
    struct dp_wire *wire = NULL;

    must(!dpn_net_init(logger, &p->net) && !dpn_net_listen(p->net, 0, handle, &p->listener));
    must(!dpn_handle_read(handle, &addresses));
    for (int w = 0; w < DPN_WIRES && !wire; w++)
        if (addresses.present[w])
            must(!dpn_wires[w]->connect(&addresses.on[w], DPN_BY_WIRE, &wire));
    for (int err = DP_EAGAIN; err == DP_EAGAIN; err = dpn_net_accept(p->listener, &p->receiver)) {
        wire->ops->progress(wire);
        must_be_in_time(began_ns);
    }
    must(p->receiver);
    return wire;
}

/* As net_wired.h has them. */
#define REFUSED ((uint64_t)1 << 63)
#define EARLY ((uint64_t)1 << 62)

/* What comes for a receive of 100 bytes, tag 7. Returns what the receiver said. */
static const char *say_bare(const uint64_t *tags, const size_t *lens, int n)
{
    static char why[300];
    struct dp_wire_request sends[32];
    struct pair p = {.net = NULL};
    struct dp_wire *wire = connect_bare(&p);
    struct dpn_request *recv = receive(&p, 0, 100, 7);
    bool done = false;
    int err = 0;

    for (int i = 0; i < n; i++)
        dp_wire_isend(wire, tags[i], from, lens[i], &sends[i]);
    for (const int64_t began_ns = dp_now_ns(); !err && !done; must_be_in_time(began_ns)) {
        wire->ops->progress(wire);
        err = dpn_net_test(recv, &done, NULL);
    }
    snprintf(why, sizeof(why), "%s", err ? dp_last_error() : "done");
    dp_wire_close(wire);
    close_pair(&p);
    return why;
}

static void no_rule(void)
{
    uint64_t tags[DPN_EARLY_COUNT + 2];
    size_t lens[DPN_EARLY_COUNT + 2] = {0};

    for (int i = 0; i < DPN_EARLY_COUNT + 2; i++)
        tags[i] = EARLY | 8;
    tags[DPN_EARLY_COUNT] = 7;
    must(!strcmp(say_bare(tags, lens, DPN_EARLY_COUNT + 1), "done"));
    tags[DPN_EARLY_COUNT] = EARLY | 8;
    must(strstr(say_bare(tags, lens, DPN_EARLY_COUNT + 1), "there are 16 such messages"));
    must(strstr(say_bare((uint64_t[]){EARLY | 8}, (size_t[]){65537}, 1), "memory for 65537 bytes"));
    must(strstr(say_bare((uint64_t[]){8}, (size_t[]){1}, 1), "belongs to no receive"));
    must(strstr(say_bare((uint64_t[]){8}, (size_t[]){0}, 1), "belongs to no receive"));
    must(strstr(say_bare((uint64_t[]){7}, (size_t[]){101}, 1), "101 bytes for a receive of 100"));
    must(strstr(say_bare((uint64_t[]){EARLY | 7}, (size_t[]){200000}, 1), "200000 bytes for a"));
    must(strstr(say_bare((uint64_t[]){REFUSED | (uint64_t)1 << 62 | 7}, (size_t[]){0}, 1),
                "1073741824 bytes for a receive of 100"));
    must(strstr(say_bare((uint64_t[]){REFUSED | 8}, (size_t[]){0}, 1), "belongs to no receive"));
    must(strstr(say_bare((uint64_t[]){REFUSED | 7}, (size_t[]){10}, 1), "for a receive of 100"));
}

static void a_peer_that_keeps_to_no_rule_ends_the_connection(void **state)
{
    (void)state;
    run_over_both(no_rule);
}

/* ---- what is counted ------------------------------------------------------------------------ */

static uint64_t eager_of(const struct dpn_comm *comm)
{
    return atomic_load(&comm->stat.on->counters.counts[DPN_STAT_EAGER]);
}

static void counted(void)
{
    char path[SCRATCH_LEN];

    must(scratch_directory(path, "eager"));
    setenv("DUALPIPE_NET_STAT", "1", 1);
    setenv("DUALPIPE_NET_STAT_DIR", path, 1);
    struct pair p = connect_pair();
    for (int i = 0; i < 5; i++) {
        struct dpn_request *send = send_early(&p, 0, 100, 7);
        receive_all(&p, 0, 0, 100, 7);
        finish(send, NULL);
    }
    struct dpn_request *recv = receive(&p, 0, LIMIT + 1, 7);
    finish_both(recv, send_in_time(&p, 0, LIMIT + 1, 7));
    must(eager_of(p.sender) == 5 && eager_of(p.receiver) == 5);
    must(atomic_load(&p.receiver->stat.on->counters.counts[DPN_STAT_MESSAGES]) == 6);
    close_pair(&p);
    must(!scratch_remove(path));
}

static void both_sides_count_them(void **state)
{
    (void)state;
    run_over_both(counted);
}

/* ---- shared memory -------------------------------------------------------------------------- */

/* What kernels write to and read from may come from dp_shared_alloc. */
static void from_shared_memory(void)
{
    enum { LONG = 4 << 20 };
    static const size_t lens[] = {100, LIMIT, 100000, 128 << 10, 524288, LONG - 1};
    struct dpn_memory *there, *here;
    void *source, *target;
    struct pair p = connect_pair();

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
    close_pair(&p);
}

static void memory_that_the_library_shares_is_carried_like_other(void **state)
{
    (void)state;
    run_over_both(from_shared_memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_up_to_the_limit_does_not_wait_for_its_receive),
        cmocka_unit_test(with_a_limit_of_0_all_wait),
        cmocka_unit_test(a_sender_waits_when_enough_are_waiting),
        cmocka_unit_test(what_is_in_the_way_is_kept),
        cmocka_unit_test(what_is_kept_has_memory_of_the_connection),
        cmocka_unit_test(a_group_finds_its_messages_whatever_their_order),
        cmocka_unit_test(messages_of_a_tag_keep_their_order_whatever_happens),
        cmocka_unit_test(both_sides_say_that_a_message_is_too_long),
        cmocka_unit_test(what_a_sender_leaves_behind_is_received_or_an_error),
        cmocka_unit_test(a_receiver_that_leaves_fails_what_it_has_not_received),
        cmocka_unit_test(what_was_all_there_when_the_wire_failed_is_received),
        cmocka_unit_test(a_receiver_that_dies_fails_them_all),
        cmocka_unit_test(a_peer_that_keeps_to_no_rule_ends_the_connection),
        cmocka_unit_test(both_sides_count_them),
        cmocka_unit_test(memory_that_the_library_shares_is_carried_like_other),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
