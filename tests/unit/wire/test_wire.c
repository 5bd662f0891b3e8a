/* SPDX-License-Identifier: Apache-2.0
 *
 * test_wire.c - what every wire must do; each case runs over all of them. Both ends live in this
 * process as a rule: nothing blocks, so one thread can be both sides.
 */
#include "cmocka_all.h"
#include "fault_wire.h"
#include "open_files.h"

#include "base/clock.h"
#include "base/fail.h"
#include "wire/acceptor.h"
#include "wire/tcp.h"
#include "wire/wire.h"

#include <arpa/inet.h>
#include <pthread.h>

struct kind {
    const char *name;
    const struct dp_wire_ops *ops;
    const char *interface;
    bool wrapped; /* in a fault wire that does nothing */
    bool by_ring; /* large messages, too */
    const char *sockets; /* NULL: the wire's default */
};
static const struct kind kinds[] = {
    {.name = "shm", .ops = &dp_wire_shm},
    {.name = "tcp", .ops = &dp_wire_tcp},
    {.name = "tcp over lo", .ops = &dp_wire_tcp, .interface = "lo"},
    {.name = "tcp over IPv6", .ops = &dp_wire_tcp, .interface = "::1"},
    {.name = "fault(shm)", .ops = &dp_wire_shm, .wrapped = true},
    {.name = "fault(tcp)", .ops = &dp_wire_tcp, .wrapped = true},
    {.name = "shm by the ring", .ops = &dp_wire_shm, .by_ring = true},
    {.name = "tcp over four sockets", .ops = &dp_wire_tcp, .sockets = "4"},
    {.name = "fault(tcp over two)", .ops = &dp_wire_tcp, .sockets = "2", .wrapped = true},
};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

static bool has_ipv6(void)
{
    union dp_sockaddr a;
    bool has = !dp_interface_address("::1", &a);
    return has;
}

static bool is_here(const struct kind *kind)
{
    return !kind->interface || strcmp(kind->interface, "::1") || has_ipv6();
}

/* Two connected ends. */
struct pair {
    struct dp_wire_listener *listener;
    const struct dp_wire_ops *ops;
    struct dp_wire *a, *b;
};

static void progress(struct pair *p)
{
    if (p->a)
        p->a->ops->progress(p->a);
    if (p->b)
        p->b->ops->progress(p->b);
}

static struct dp_wire *wrap(const struct kind *kind, struct dp_wire *inner)
{
    struct dp_wire *out = inner;

    if (kind->wrapped)
        assert_int_equal(fault_wire_wrap(inner, &out), 0);
    return out;
}

static struct pair make_pair(const struct kind *kind)
{
    struct pair p = {.ops = kind->ops};
    const struct dp_wire_config config = {.interface = kind->interface};
    struct dp_wire_address address;
    const int64_t until = dp_now_ns() + 20 * DP_NS_PER_S;
    uint64_t label = 0;
    int err;

    setenv("DUALPIPE_WIRE_CMA", kind->by_ring ? "0" : "1", 1);
    setenv("DUALPIPE_WIRE_MEASURE", "0", 1);
    setenv("DUALPIPE_WIRE_TCP_SOCKETS", kind->sockets ? kind->sockets : "0", 1);
    assert_int_equal(kind->ops->listen(&config, &p.listener, &address), 0);
    assert_int_equal(kind->ops->connect(&address, 0x1234, &p.a), 0);
    p.a = wrap(kind, p.a);
    do {
        progress(&p);
        err = kind->ops->accept(p.listener, &label, &p.b);
        assert_true(dp_now_ns() < until);
    } while (err == DP_EAGAIN);
    assert_int_equal(err, 0);
    assert_int_equal(label, 0x1234);
    p.b = wrap(kind, p.b);
    while (!p.a->connected) {
        progress(&p);
        assert_int_equal(p.a->error, 0);
        assert_true(dp_now_ns() < until);
    }
    return p;
}

static void free_pair(struct pair *p)
{
    dp_wire_close(p->a);
    dp_wire_close(p->b);
    p->ops->unlisten(p->listener);
}

static void finish(struct pair *p, const struct dp_wire_request *req)
{
    const int64_t until = dp_now_ns() + 20 * DP_NS_PER_S;

    while (req->status == DP_EAGAIN) {
        progress(p);
        assert_true(dp_now_ns() < until);
    }
}

static void on_all_kinds(void (*fn)(struct pair *p))
{
    for (int k = 0; k < KINDS; k++) {
        if (!is_here(&kinds[k]))
            continue;
        ENDED_BY(free_pair) struct pair p = make_pair(&kinds[k]);
        fn(&p);
    }
}

/* ---- messages ------------------------------------------------------------------------------ */

static void fill(char *buf, size_t len, unsigned seed)
{
    for (size_t i = 0; i < len; i++)
        buf[i] = (char)(seed + i * 7 + (i >> 9) * 3);
}

static void expect_filled(const char *buf, size_t len, unsigned seed)
{
    for (size_t i = 0; i < len; i++)
        if (buf[i] != (char)(seed + i * 7 + (i >> 9) * 3))
            fail_msg("byte %zu of %zu is wrong", i, len);
}

static void send_each_size(struct pair *p)
{
    static const size_t sizes[] = {0,    1,    39,   40,    41,    64,      8191,    8192,
                                   8193, 9000, 16384, 16400, 70000, 524288, 1 << 20, 9 << 20};
    static char out[9 << 20], in[(9 << 20) + 1];

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct dp_wire_request send, receive;
        const size_t len = sizes[i];
        const bool back = i % 2;
        fill(out, len, (unsigned)i);
        in[len] = 'x';
        dp_wire_isend(back ? p->b : p->a, i, out, len, &send);
        dp_wire_irecv(back ? p->a : p->b, in, sizeof(in), &receive);
        finish(p, &receive);
        finish(p, &send);
        assert_int_equal(receive.status, 0);
        assert_int_equal(send.status, 0);
        assert_int_equal(receive.moved, len);
        assert_int_equal(receive.tag, i);
        expect_filled(in, len, (unsigned)i);
        assert_int_equal(in[len], 'x');
    }
}

CASE(messages_of_any_size_arrive_whole)
{
    on_all_kinds(send_each_size);
}

/* More than the wire can hold, in both directions at once, the receives in the middle of it. */
static void send_many(struct pair *p)
{
    enum { MANY = 300, LEN = 20000 };
    struct dp_wire_request *reqs = calloc((size_t)4 * MANY, sizeof(*reqs));
    FREED char *bufs = malloc((size_t)4 * MANY * LEN);

    assert_true(reqs && bufs);
    for (int phase = 0; phase < 2; phase++)
        for (int i = 0; i < MANY; i++)
            for (int way = 0; way < 2; way++) {
                const int at = (phase * MANY + i) * 2 + way;
                char *buf = bufs + (size_t)at * LEN;
                struct dp_wire *end = (way + phase) % 2 ? p->a : p->b;
                const size_t len = (size_t)(LEN - 61 * i);
                if (phase == 0)
                    fill(buf, len, (unsigned)(i * 2 + way));
                if (phase == 0)
                    dp_wire_isend(end, (uint64_t)i, buf, len, &reqs[at]);
                else
                    dp_wire_irecv(end, buf, LEN, &reqs[at]);
            }
    for (int i = 4 * MANY; i-- > 0;) {
        finish(p, &reqs[i]);
        assert_int_equal(reqs[i].status, 0);
    }
    for (int i = 0; i < 2 * MANY; i++) {
        const struct dp_wire_request *r = &reqs[2 * MANY + i];
        assert_int_equal(r->tag, i / 2);
        assert_int_equal(r->moved, LEN - 61 * (i / 2));
        expect_filled(r->buf, r->moved, (unsigned)i);
    }
    free(reqs);
}

CASE(many_messages_in_flight_keep_their_order)
{
    on_all_kinds(send_many);
}

static void send_too_long(struct pair *p)
{
    static char out[300000], in[300000];
    const size_t sizes[] = {100, 9000, sizeof(out)};
    struct dp_wire_request sends[6], receives[6];

    for (int i = 0; i < 6; i++) {
        fill(out, sizeof(out), 1);
        dp_wire_isend(p->a, (uint64_t)i, out, sizes[i / 2], &sends[i]);
    }
    for (int i = 0; i < 6; i++) {
        dp_wire_irecv(p->b, in, i % 2 ? sizes[i / 2] : 50, &receives[i]);
        finish(p, &receives[i]);
        assert_int_equal(receives[i].status, i % 2 ? 0 : DP_EMISMATCH);
        assert_int_equal(receives[i].moved, sizes[i / 2]);
        assert_int_equal(receives[i].tag, i);
        finish(p, &sends[i]);
        assert_int_equal(sends[i].status, 0);
    }
    expect_filled(in, sizeof(in), 1);
}

CASE(a_message_longer_than_its_receive_is_refused_and_the_next_arrives)
{
    on_all_kinds(send_too_long);
}

/* ---- ends ---------------------------------------------------------------------------------- */

static void send_and_close(struct pair *p)
{
    char out[5000], in[5000];
    struct dp_wire_request send, receives[2], late;

    fill(out, sizeof(out), 3);
    dp_wire_isend(p->a, 9, out, sizeof(out), &send);
    finish(p, &send);
    dp_wire_close(p->a);
    p->a = NULL;
    for (int i = 0; i < 2; i++)
        dp_wire_irecv(p->b, in, sizeof(in), &receives[i]);
    finish(p, &receives[0]);
    assert_int_equal(receives[0].status, 0);
    expect_filled(in, sizeof(in), 3);
    finish(p, &receives[1]);
    assert_int_equal(receives[1].status, DP_ECOMM);
    assert_int_equal(p->b->error, DP_ECOMM);
    assert_true(strlen(p->b->why) > 0);
    dp_wire_isend(p->b, 9, out, sizeof(out), &late);
    assert_int_equal(late.status, DP_ECOMM);
}

CASE(what_was_sent_before_a_close_arrives_and_then_the_wire_is_broken)
{
    on_all_kinds(send_and_close);
}

static void send_into_nothing(struct pair *p)
{
    enum { MANY = 100, LEN = 1 << 20 };
    char *big = calloc(1, LEN);
    struct dp_wire_request sends[MANY];

    assert_non_null(big);
    dp_wire_close(p->b);
    p->b = NULL;
    for (int i = 0; i < MANY; i++)
        dp_wire_isend(p->a, 1, big, LEN, &sends[i]);
    finish(p, &sends[MANY - 1]);
    assert_int_equal(sends[MANY - 1].status, DP_ECOMM);
    free(big);
}

CASE(sending_to_a_closed_peer_fails)
{
    on_all_kinds(send_into_nothing);
}

static void close_in_the_middle(struct pair *p)
{
    static char big[16 << 20];
    static struct dp_wire_request send, receive, other;

    dp_wire_isend(p->a, 1, big, sizeof(big), &send);
    dp_wire_irecv(p->b, big, sizeof(big), &receive);
    dp_wire_irecv(p->a, big, sizeof(big), &other);
    dp_wire_close(p->a); /* with requests in flight, half a message sent */
    p->a = NULL;
    finish(p, &receive);
    assert_int_equal(receive.status, DP_ECOMM);
}

CASE(a_wire_may_be_closed_in_the_middle_of_a_message)
{
    on_all_kinds(close_in_the_middle);
}

/* ---- sleeping ------------------------------------------------------------------------------ */

static void *send_later(void *arg)
{
    struct dp_wire *wire = arg;
    static struct dp_wire_request send, receive;
    char word[4];

    dp_wire_irecv(wire, word, sizeof(word), &receive);
    while (receive.status == DP_EAGAIN) {
        struct pollfd fd;
        if (wire->ops->arm(wire, &fd))
            poll(&fd, 1, 10000);
        wire->ops->disarm(wire, fd.revents);
        wire->ops->progress(wire);
    }
    dp_wire_isend(wire, 7, "back", 4, &send);
    return (void *)(intptr_t)send.status;
}

/* Two threads, each asleep until the other's message comes: had one been missed, it would take the
 * 10 s of the poll. */
static void sleep_and_wake(struct pair *p)
{
    const int64_t start = dp_now_ns();

    for (int round = 0; round < 20; round++) {
        struct dp_wire_request send, receive;
        pthread_t other;
        char word[4];
        void *result;
        pthread_create(&other, NULL, send_later, p->b);
        dp_wire_irecv(p->a, word, sizeof(word), &receive);
        dp_wire_isend(p->a, 7, "word", 4, &send);
        while (receive.status == DP_EAGAIN) {
            struct pollfd fd = {0};
            if (p->a->ops->arm(p->a, &fd))
                poll(&fd, 1, 10000);
            p->a->ops->disarm(p->a, fd.revents);
            p->a->ops->progress(p->a);
        }
        assert_memory_equal(word, "back", 4);
        pthread_join(other, &result);
        assert_null(result);
    }
    assert_true(dp_now_ns() - start < 9 * DP_NS_PER_S);
}

CASE(a_sleeper_is_woken_by_a_message)
{
    on_all_kinds(sleep_and_wake);
}

/* More messages than one progress handles. The rest, wherever it is by then, must not be slept on:
 * after each progress the receiver sleeps and is woken at once. */
static void sleep_between_polls(struct pair *p)
{
    enum { MANY = 60 };
    static struct dp_wire_request sends[MANY], receives[MANY];
    static char words[MANY];

    for (int i = 0; i < MANY; i++)
        dp_wire_irecv(p->b, &words[i], 1, &receives[i]);
    for (int i = 0; i < MANY; i++)
        dp_wire_isend(p->a, (uint64_t)i, "x", 1, &sends[i]);
    while (receives[MANY - 1].status == DP_EAGAIN) {
        struct pollfd fd = {0};
        if (p->b->ops->arm(p->b, &fd))
            assert_int_equal(poll(&fd, 1, 20000), 1);
        p->b->ops->disarm(p->b, fd.revents);
        p->b->ops->progress(p->b);
        p->a->ops->progress(p->a);
    }
    for (int i = 0; i < MANY; i++)
        assert_true(!receives[i].status && words[i] == 'x');
}

CASE(no_wait_sleeps_on_messages_that_have_arrived)
{
    on_all_kinds(sleep_between_polls);
}

static void wake_on_close(struct pair *p)
{
    struct dp_wire_request receive;
    char word[4];
    struct pollfd fd = {0};

    dp_wire_irecv(p->a, word, sizeof(word), &receive);
    assert_true(p->a->ops->arm(p->a, &fd));
    assert_int_equal(poll(&fd, 1, 0), 0);
    dp_wire_close(p->b);
    p->b = NULL;
    assert_int_equal(poll(&fd, 1, 10000), 1);
    p->a->ops->disarm(p->a, fd.revents);
    p->a->ops->progress(p->a);
    assert_int_equal(receive.status, DP_ECOMM);
}

CASE(a_sleeper_is_woken_when_the_peer_goes)
{
    on_all_kinds(wake_on_close);
}

/* ---- two processes ----------------------------------------------------------------------------- */

static void be_killed(struct dp_wire *wire)
{
    struct dp_wire_request send;

    dp_wire_isend(wire, 1, "last words", 11, &send);
    while (send.status == DP_EAGAIN)
        wire->ops->progress(wire);
    raise(SIGKILL);
}

CASE(a_killed_process_is_noticed_and_leaves_nothing)
{
    for (int k = 0; k < KINDS; k++) {
        if (!is_here(&kinds[k]))
            continue;
        const int files = count_files();
        struct pair p = make_pair(&kinds[k]);
        char words[11];
        struct dp_wire_request receives[2];
        int status;

        fflush(NULL);
        pid_t child = fork();
        if (child == 0)
            be_killed(p.b);
        dp_wire_close(p.b);
        p.b = NULL;
        for (int i = 0; i < 2; i++)
            dp_wire_irecv(p.a, words, sizeof(words), &receives[i]);
        finish(&p, &receives[1]);
        assert_int_equal(receives[0].status, 0);
        assert_string_equal(words, "last words");
        assert_int_equal(receives[1].status, DP_ECOMM);
        waitpid(child, &status, 0);
        free_pair(&p);
        assert_int_equal(count_files(), files);
    }
}

/* ---- faults -------------------------------------------------------------------------------- */

CASE(a_cut_breaks_both_ends)
{
    for (int k = 0; k < KINDS; k++) {
        if (!kinds[k].wrapped)
            continue;
        ENDED_BY(free_pair) struct pair p = make_pair(&kinds[k]);
        struct dp_wire_request sends[2], receives[2];
        char in;
        for (int i = 0; i < 2; i++) {
            dp_wire_irecv(p.b, &in, 1, &receives[i]);
            dp_wire_isend(p.a, (uint64_t)i, "x", 1, &sends[i]);
            finish(&p, &sends[i]);
            finish(&p, &receives[i]);
            assert_int_equal(sends[i].status, i ? DP_ECOMM : 0);
            assert_int_equal(receives[i].status, i ? DP_ECOMM : 0);
            fault_wire_break(p.a, false);
        }
        assert_string_equal(p.a->why, "cut on purpose");
    }
}

CASE(a_silent_wire_passes_nothing_either_way_and_fails_nothing)
{
    for (int k = 0; k < KINDS; k++) {
        if (!kinds[k].wrapped)
            continue;
        ENDED_BY(free_pair) struct pair p = make_pair(&kinds[k]);
        struct dp_wire_request sends[2], receives[2], answer, question;
        char in, other;
        dp_wire_irecv(p.a, &other, 1, &answer);
        for (int i = 0; i < 2; i++) {
            dp_wire_irecv(p.b, &in, 1, &receives[i]);
            dp_wire_isend(p.a, (uint64_t)i, "x", 1, &sends[i]);
            finish(&p, &sends[i]);
            assert_int_equal(sends[i].status, 0);
            if (!i)
                finish(&p, &receives[i]);
            fault_wire_break(p.a, true);
        }
        dp_wire_isend(p.b, 7, "y", 1, &question);
        finish(&p, &question);
        for (int i = 0; i < 1000; i++)
            progress(&p);
        assert_int_equal(receives[0].status, 0);
        assert_int_equal(receives[1].status, DP_EAGAIN);
        assert_int_equal(answer.status, DP_EAGAIN);
        assert_false(p.a->error || p.b->error);
    }
}
