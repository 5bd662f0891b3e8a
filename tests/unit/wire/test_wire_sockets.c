/* SPDX-License-Identifier: Apache-2.0
 *
 * test_wire_sockets.c - a TCP wire of several sockets: how many there are, which connections are
 * accepted, what happens to messages, and to the wire when one socket fails. test_wire.c runs what
 * every wire must do over four sockets, too.
 */
#include "cmocka_all.h"
#include "open_files.h"

#include "base/clock.h"
#include "base/fail.h"
#include "scratch.h"
#include "wire_dial.h"
#include "wire/tcp_wire.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <linux/tcp.h>
#include <sys/resource.h>
#include <sys/stat.h>

/* ---- two ends ----------------------------------------------------------------------------- */

struct pair {
    struct dp_wire_listener *listener;
    struct dp_wire *a, *b;
};

static void set_sockets(const char *count)
{
    setenv("DUALPIPE_WIRE_TCP_SOCKETS", count, 1);
}

static void progress(struct pair *p)
{
    p->a->ops->progress(p->a);
    if (p->b)
        p->b->ops->progress(p->b);
}

static struct pair make_pair(const char *listener_count, const char *caller_count)
{
    const int64_t until_ns = dp_now_ns() + 20 * DP_NS_PER_S;
    const struct dp_wire_config config = {.interface = "127.0.0.1"};
    struct dp_wire_address address;
    struct pair p = {0};
    uint64_t label;

    set_sockets(listener_count);
    assert_int_equal(dp_wire_tcp.listen(&config, &p.listener, &address), 0);
    set_sockets(caller_count);
    assert_int_equal(dp_wire_tcp.connect(&address, 77, &p.a), 0);
    while (!p.b || !p.a->connected) {
        progress(&p);
        assert_int_equal(p.a->error, 0);
        if (!p.b)
            dp_wire_tcp.accept(p.listener, &label, &p.b);
        assert_true(dp_now_ns() < until_ns);
    }
    assert_int_equal(label, 77);
    set_sockets("0");
    return p;
}

static void free_pair(struct pair *p)
{
    dp_wire_close(p->a);
    dp_wire_close(p->b);
    dp_wire_tcp.unlisten(p->listener);
}

static void finish(struct pair *p, const struct dp_wire_request *req)
{
    const int64_t until_ns = dp_now_ns() + 20 * DP_NS_PER_S;

    while (req->status == DP_EAGAIN) {
        progress(p);
        assert_true(dp_now_ns() < until_ns);
    }
}

/* ---- how many ----------------------------------------------------------------------------- */

CASE(the_explicit_number_decides_and_of_two_the_smaller)
{
    static const struct {
        const char *listener, *caller;
        int count;
    } cases[] = {{"8", "2", 2}, {"2", "8", 2}, {"0", "3", 3}, {"3", "0", 3}, {"1", "4", 1},
                 {"16", "16", 16}, {"0", "0", 1 /* within a host */}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct pair p = make_pair(cases[i].listener, cases[i].caller);
        assert_int_equal(dp_wire_tcp_count(p.a), cases[i].count);
        assert_int_equal(dp_wire_tcp_count(p.b), cases[i].count);
        free_pair(&p);
    }
}

CASE(more_sockets_than_there_may_be_are_refused_by_name)
{
    struct dp_wire_listener *listener;
    struct dp_wire_address address;

    set_sockets("17");
    expect_error(dp_wire_tcp.listen(&(struct dp_wire_config){0}, &listener, &address), DP_EINVAL,
                 "DUALPIPE_WIRE_TCP_SOCKETS");
    set_sockets("0");
}

/* A copy of /sys in which every interface has this speed. */
static void make_sys(const char *root, const char *speed)
{
    struct ifaddrs *all = NULL;
    char path[512];

    assert_int_equal(getifaddrs(&all), 0);
    for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
        snprintf(path, sizeof(path), "d='%s/sys/class/net/%s'; mkdir -p $d; echo '%s' >$d/speed",
                 root, i->ifa_name, speed);
        assert_int_equal(system(path), 0);
    }
    freeifaddrs(all);
}

CASE(the_speed_of_the_link_decides_the_number_by_default)
{
    static const struct {
        const char *speed;
        int count;
    } cases[] = {{"-1", 4}, {"1000", 4}, {"40000", 4}, {"50000", 5}, {"56000", 6}, {"400000", 8}};
    const union dp_sockaddr here = {.v4 = {.sin_family = AF_INET, .sin_port = htons(9),
                                           .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}};
    union dp_sockaddr far = {.v4 = {.sin_family = AF_INET, .sin_port = htons(9)}};
    char root[SCRATCH_LEN];

    assert_int_equal(dp_tcp_route_sockets("", &here), 1);
    /* reserved for documentation: no host has it */
    inet_pton(AF_INET, "192.0.2.1", &far.v4.sin_addr);
    if (dp_tcp_route_sockets("", &far) == 1)
        skip_because("there is no way out of this host (no default route)");
    assert_true(scratch_directory(root, "sys"));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        make_sys(root, cases[i].speed);
        assert_int_equal(dp_tcp_route_sockets(root, &far), cases[i].count);
    }
    scratch_remove(root);
}

/* ---- messages ----------------------------------------------------------------------------- */

enum { MANY = 120, LONGEST = 700000 };

static size_t random_len(unsigned *seed)
{
    const unsigned kind = (unsigned)rand_r(seed) % 3;

    return (size_t)rand_r(seed) % (kind == 0 ? 100 : kind == 1 ? DP_TCP_LONG * 2 : LONGEST);
}

static char byte_of(unsigned message, size_t at)
{
    return (char)(message * 13 + at * 7 + (at >> 11));
}

/* As the net plugin receives: one receive at a time, whose target is set when the length is known;
 * and a sleep whenever nothing has arrived, which ends at once if something has. */
static struct {
    char *room;
    unsigned came;
} aimed;

static void aim(struct dp_wire_request *receive, uint64_t tag, size_t len)
{
    assert_int_equal(tag, aimed.came);
    receive->buf = aimed.room;
    receive->len = len;
}

static void take_one(struct dp_wire *wire, struct dp_wire_request *receive, size_t len)
{
    assert_int_equal(receive->status, 0);
    assert_int_equal(receive->moved, len);
    for (size_t i = 0; i < len; i++)
        if (aimed.room[i] != byte_of(aimed.came, i))
            fail_msg("byte %zu of message %u of %zu is wrong", i, aimed.came, len);
    aimed.came++;
    dp_wire_irecv(wire, NULL, 0, receive);
}

static void exchange(struct pair *p, unsigned seed)
{
    static struct dp_wire_request sends[MANY], receive;
    static char *out[MANY];
    const int64_t until_ns = dp_now_ns() + 60 * DP_NS_PER_S;
    size_t lens[MANY];

    aimed.room = malloc(LONGEST);
    aimed.came = 0;
    p->b->set_target = aim;
    dp_wire_irecv(p->b, NULL, 0, &receive);
    for (unsigned m = 0; m < MANY; m++) {
        lens[m] = random_len(&seed);
        out[m] = malloc(lens[m] + 1);
        for (size_t i = 0; i < lens[m]; i++)
            out[m][i] = byte_of(m, i);
        dp_wire_isend(p->a, m, out[m], lens[m], &sends[m]);
    }
    while (aimed.came < MANY) {
        struct pollfd fd = {.fd = -1};
        p->a->ops->progress(p->a);
        p->b->ops->progress(p->b);
        if (receive.status != DP_EAGAIN)
            take_one(p->b, &receive, lens[aimed.came]);
        else if (p->b->ops->arm(p->b, &fd) && !dp_wire_is_sending(p->a))
            assert_int_equal(poll(&fd, 1, 20000), 1);
        p->b->ops->disarm(p->b, fd.revents);
        assert_int_equal(p->b->error, 0);
        assert_true(dp_now_ns() < until_ns);
    }
    for (unsigned m = 0; m < MANY; m++) {
        finish(p, &sends[m]);
        assert_int_equal(sends[m].status, 0);
        free(out[m]);
    }
    free(aimed.room);
}

CASE(long_and_short_messages_keep_their_order)
{
    static const char *const counts[] = {"2", "3", "7"};

    for (unsigned i = 0; i < 3; i++) {
        struct pair p = make_pair(counts[i], counts[i]);
        exchange(&p, i + 1);
        free_pair(&p);
    }
}

/* The bytes that have come by a socket, as the kernel counts them. */
static uint64_t received_by(struct dp_wire *wire, int index)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof(info);

    assert_int_equal(
        getsockopt(dp_tcp_of(wire)->sockets[index].fd, IPPROTO_TCP, TCP_INFO, &info, &len), 0);
    return info.tcpi_bytes_received;
}

CASE(a_slow_socket_gets_less)
{
    struct pair p = make_pair("3", "3");
    const size_t len = 16 << 20;
    const unsigned slow = 128 << 10; /* bytes a second: little, however slow the machine is */
    char *out = calloc(1, len), *in = malloc(len);
    struct dp_wire_request send, receive;

    assert_true(out && in);
    assert_int_equal(setsockopt(dp_tcp_of(p.a)->sockets[1].fd, SOL_SOCKET, SO_MAX_PACING_RATE,
                                &slow, sizeof(slow)),
                     0);
    dp_wire_isend(p.a, 1, out, len, &send);
    dp_wire_irecv(p.b, in, len, &receive);
    finish(&p, &receive);
    finish(&p, &send);
    assert_int_equal(receive.status, 0);
    assert_memory_equal(in, out, len);
    assert_true(received_by(p.b, 1) < len / 6);
    assert_true(received_by(p.b, 0) > len / 6 && received_by(p.b, 2) > len / 6);
    free(in);
    free(out);
    free_pair(&p);
}

/* ---- ends --------------------------------------------------------------------------------- */

CASE(a_failed_socket_fails_the_wire_and_is_named)
{
    const size_t len = 8 << 20;
    char *out = calloc(1, len), *in = malloc(len), word;

    assert_true(out && in);
    for (int dead = 0; dead < 4; dead++) {
        struct pair p = make_pair("4", "4");
        struct dp_wire_request send, receive, answer;
        char name[32];

        snprintf(name, sizeof(name), "socket %d of 4", dead + 1);
        shutdown(dp_tcp_of(p.a)->sockets[dead].fd, SHUT_RDWR);
        dp_wire_irecv(p.a, &word, 1, &answer);
        dp_wire_isend(p.a, 1, out, len, &send);
        dp_wire_irecv(p.b, in, len, &receive);
        finish(&p, &send);
        assert_int_equal(send.status, DP_ECOMM);
        finish(&p, &answer); /* which would never come */
        assert_int_equal(answer.status, DP_ECOMM);
        assert_non_null(strstr(p.a->why, name));
        dp_wire_close(p.a);
        p.a = p.b;
        p.b = NULL;
        finish(&p, &receive);
        assert_int_equal(receive.status, DP_ECOMM);
        assert_non_null(strstr(p.a->why, "of 4: "));
        free_pair(&p);
    }
    free(in);
    free(out);
}

/* The peer has sent everything and closed, and the sockets report that one after the other. */
CASE(a_long_message_sent_before_a_close_arrives)
{
    struct pair p = make_pair("4", "4");
    const size_t len = 1 << 20;
    char *out = calloc(1, len), *in = malloc(len);
    struct dp_wire_request send, receives[2];
    struct pollfd fd;

    assert_true(out && in);
    dp_wire_isend(p.a, 1, out, len, &send);
    dp_wire_irecv(p.b, in, len, &receives[0]);
    while (send.status == DP_EAGAIN)
        progress(&p);
    dp_wire_close(p.a);
    p.a = p.b;
    p.b = NULL;
    finish(&p, &receives[0]);
    assert_int_equal(receives[0].status, 0);
    dp_wire_irecv(p.a, in, len, &receives[1]);
    if (p.a->ops->arm(p.a, &fd))
        /* an end that has been seen does not put the wire to sleep */
        assert_int_equal(poll(&fd, 1, 20000), 1);
    finish(&p, &receives[1]);
    assert_int_equal(receives[1].status, DP_ECOMM);
    free(in);
    free(out);
    free_pair(&p);
}

/* Where the system cannot watch another socket, no wait may sleep on the others. */
CASE(a_wait_that_cannot_watch_all_sockets_does_not_sleep)
{
    const int64_t until_ns = dp_now_ns() + 20 * DP_NS_PER_S;
    const size_t len = (size_t)128 << 20;
    struct pair p = make_pair("2", "2");
    struct dp_tcp_wire *w = dp_tcp_of(p.a);
    char *out = calloc(1, len);
    const int epoll_fd = w->epoll_fd;
    struct dp_wire_request send;
    struct pollfd fd;

    assert_non_null(out);
    dp_wire_isend(p.a, 1, out, len, &send);
    do {
        p.a->ops->progress(p.a);
        assert_true(dp_now_ns() < until_ns);
    } while (w->in_a_hurry || !w->sockets[0].sending || !w->sockets[1].sending);
    w->epoll_fd = w->sockets[0].fd; /* no epoll at all */
    assert_false(p.a->ops->arm(p.a, &fd));
    w->epoll_fd = epoll_fd;
    assert_true(p.a->ops->arm(p.a, &fd));
    assert_int_equal(fd.fd, epoll_fd);
    free_pair(&p);
    free(out);
}

/* ---- which connections become sockets of a wire ------------------------------------------- */

static const uint8_t cookie[DP_COOKIE_BYTES] = "a known cookie";

static struct dialer listen_known(int64_t handshake_timeout_ns)
{
    struct dialer d = {.cookie = cookie};
    struct dp_wire_config config = {.interface = "127.0.0.1",
                                    .handshake_timeout_ns = handshake_timeout_ns};
    struct dp_wire_address address;
    struct dp_tcp_address a;

    memcpy(config.cookie, cookie, sizeof(cookie));
    assert_int_equal(dp_wire_tcp.listen(&config, &d.listener, &address), 0);
    memcpy(&a, &address, sizeof(a));
    d.port = a.port;
    return d;
}

/* Socket `index` of `count` of the wire `token`. */
static int send_hello(struct dialer *d, uint64_t token, uint64_t index, uint64_t count,
                      uint64_t label)
{
    const int fd = dial(d, label, token << 16 | index << 8 | count);

    assert_true(fd >= 0);
    return fd;
}

static void accept_none(struct dp_wire_listener *listener)
{
    struct dp_wire *wire;
    uint64_t label;

    assert_int_equal(dp_wire_tcp.accept(listener, &label, &wire), DP_EAGAIN);
}

static bool is_shown_out(struct dp_wire_listener *listener, int fd)
{
    const int64_t until_ns = dp_now_ns() + 20 * DP_NS_PER_S;
    char bytes[16];

    while (dp_now_ns() < until_ns) {
        accept_none(listener);
        ssize_t n = recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno == ECONNRESET))
            return true;
    }
    return false;
}

CASE(half_a_wire_is_dropped_in_time_and_leaves_nothing)
{
    const int files = count_files();
    struct dialer d = listen_known(50 * DP_NS_PER_MS);
    struct dp_wire_listener *listener = d.listener;
    int first = send_hello(&d, 1, 0, 3, 0), second = send_hello(&d, 1, 2, 3, 0);

    assert_true(is_shown_out(listener, first));
    assert_true(is_shown_out(listener, second));
    assert_null(listener->incomplete);
    dp_wire_tcp.unlisten(listener);
    close(first);
    close(second);

    /* And one that is still there when no listener is left. */
    d = listen_known(0);
    listener = d.listener;
    first = send_hello(&d, 1, 0, 3, 0);
    while (!listener->incomplete)
        accept_none(listener);
    dp_wire_tcp.unlisten(listener);
    close(first);
    assert_int_equal(count_files(), files);
}

CASE(a_connection_without_a_cookie_is_no_socket_of_a_wire)
{
    struct dialer d = listen_known(0);
    struct dp_wire_listener *listener = d.listener;
    struct dialer stranger = d;
    int first = send_hello(&d, 9, 0, 2, 5), thief, second;
    struct dp_wire *wire = NULL;
    uint64_t label;

    stranger.cookie = (const uint8_t[DP_COOKIE_BYTES]){"another cookie"};
    thief = send_hello(&stranger, 9, 1, 2, 5);
    assert_true(is_shown_out(listener, thief));
    second = send_hello(&d, 9, 1, 2, 5);
    while (!wire)
        dp_wire_tcp.accept(listener, &label, &wire);
    assert_int_equal(label, 5);
    assert_int_equal(dp_wire_tcp_count(wire), 2);
    dp_wire_close(wire);
    dp_wire_tcp.unlisten(listener);
    close(first);
    close(second);
    close(thief);
}

CASE(a_socket_that_fits_into_no_wire_is_shown_out)
{
    static const struct {
        uint64_t token, index, count, label;
    } odd[] = {{4, 2, 2, 0}, {4, 0, 17, 0}, {4, 255, 255, 0}, {4, 0, 2, 0} /* again */,
               {4, 1, 3, 0} /* now three */, {4, 1, 2, 1} /* another label */};
    struct dialer d = listen_known(0);
    struct dp_wire_listener *listener = d.listener;
    int first = send_hello(&d, 4, 0, 2, 0), second;
    struct dp_wire *wire = NULL;
    uint64_t label;

    while (!listener->incomplete)
        accept_none(listener);
    for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
        int fd = send_hello(&d, odd[i].token, odd[i].index, odd[i].count, odd[i].label);
        assert_true(is_shown_out(listener, fd));
        close(fd);
    }
    second = send_hello(&d, 4, 1, 2, 0);
    while (!wire)
        dp_wire_tcp.accept(listener, &label, &wire);
    dp_wire_close(wire);
    dp_wire_tcp.unlisten(listener);
    close(first);
    close(second);
}

/* ---- frames that cannot be ---------------------------------------------------------------- */

struct said {
    int socket;
    struct dp_tcp_frame frame; /* its part follows, of zeros */
};

enum { LEN = 300000, HALF = 150000 };
#define FRAME(at, part, ...) \
    {.magic = DP_TCP_MAGIC, .len = LEN, .offset = (at), .rest = LEN - (at) - (part), __VA_ARGS__}

static void expect_nonsense(const struct said *says, int count)
{
    static const char zeros[LEN];
    static char in[LEN];
    int fds[2];
    struct dialer d = listen_known(0);
    struct dp_wire_listener *listener = d.listener;
    struct dp_wire *wire = NULL;
    struct dp_wire_request receives[3];
    uint64_t label;

    for (int i = 0; i < 2; i++)
        fds[i] = send_hello(&d, 1, (uint64_t)i, 2, 0);
    while (!wire)
        dp_wire_tcp.accept(listener, &label, &wire);
    for (int i = 0; i < 3; i++)
        dp_wire_irecv(wire, in, sizeof(in), &receives[i]);
    for (int i = 0; i < count; i++) {
        const size_t part = dp_tcp_part(&says[i].frame);
        send(fds[says[i].socket], &says[i].frame, sizeof(says[i].frame), MSG_NOSIGNAL);
        for (size_t sent = 0; sent < part && part <= LEN && !wire->error;) {
            ssize_t n = send(fds[says[i].socket], zeros, part - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
            sent += n > 0 ? (size_t)n : 0;
            wire->ops->progress(wire);
        }
    }
    const int64_t until_ns = dp_now_ns() + 20 * DP_NS_PER_S;
    while (!wire->error && dp_now_ns() < until_ns)
        wire->ops->progress(wire);
    assert_int_equal(wire->error, DP_EMISMATCH);
    assert_string_equal(wire->why, "what arrived is no message");
    dp_wire_close(wire);
    dp_wire_tcp.unlisten(listener);
    close(fds[0]);
    close(fds[1]);
}

CASE(frames_that_cannot_be_end_the_wire)
{
    static const struct {
        int count;
        struct said says[4];
    } cases[] = {
        {1, {{0, FRAME(0, HALF, )}}},                           /* a part, but of one socket only */
        {1, {{0, FRAME(LEN + 1, 0, .stripe = 1)}}},             /* behind the end */
        {1, {{0, FRAME(0, HALF, .stripe = 2)}}},                /* the first one was left out */
        {1, {{0, FRAME(0, HALF, .stripe = 1, .zero = 1)}}},
        {1, {{0, {.magic = DP_TCP_MAGIC, .len = 10, .rest = 11, .stripe = 1}}}},
        {2, {{0, FRAME(0, HALF, .stripe = 1)}, {1, FRAME(HALF, HALF, .stripe = 1, .tag = 3)}}},
        {2, {{0, FRAME(0, HALF, .stripe = 1)}, {1, FRAME(HALF, HALF, )}}},
        /* More than there is of it: */
        {3, {{0, FRAME(0, HALF, .stripe = 1)}, {1, FRAME(0, 100, .stripe = 1)},
             {1, FRAME(HALF, HALF, .stripe = 1)}}},
        /* A piece of what is done already: */
        /* All go on, and something is missing: */
        {3, {{0, FRAME(0, HALF, .stripe = 1)}, {0, FRAME(0, HALF, .stripe = 2)},
             {1, FRAME(0, HALF, .stripe = 3)}}},
        {4, {{0, FRAME(0, LEN, .stripe = 1)}, {0, FRAME(0, LEN, .stripe = 2)},
             {1, FRAME(0, HALF, .stripe = 1)}, {0, FRAME(0, HALF, .stripe = 3)}}},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        expect_nonsense(cases[i].says, cases[i].count);
}

/* ---- how a connection ends ---------------------------------------------------------------- */

/* A send meets the reset first, and the receive then finds the end of the stream. */
CASE(a_reset_differs_from_the_end_of_the_peer)
{
    const struct sockaddr nobody = {.sa_family = AF_UNSPEC};
    struct dp_wire_request receive, send;
    char byte = 1, in;

    for (int resets = 0; resets < 2; resets++) {
        struct pair p = make_pair("1", "1");
        dp_wire_irecv(p.a, &in, 1, &receive);
        if (resets)
            assert_int_equal(connect(dp_tcp_of(p.b)->sockets[0].fd, &nobody, sizeof(nobody)), 0);
        dp_wire_close(p.b);
        p.b = NULL;
        dp_wire_isend(p.a, 1, &byte, 1, &send);
        finish(&p, &receive);
        assert_int_equal(receive.status, DP_ECOMM);
        assert_int_equal(p.a->is_reset, resets);
        assert_int_equal(p.a->is_closed, !resets);
        assert_string_equal(p.a->why,
                            resets ? "Connection reset by peer" : "the connection was closed");
        free_pair(&p);
    }
}

static void hear(void *user, enum dp_log_level level, const char *line)
{
    if (level == DP_LOG_INFO && !*(char *)user)
        snprintf(user, 200, "%s", line);
}

CASE(interfaces_that_cannot_be_listed_are_told_of)
{
    char heard[200] = "";
    union dp_sockaddr guess;
    struct rlimit files, none;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    none = (struct rlimit){.rlim_cur = 0, .rlim_max = files.rlim_max};
    dp_log_set(hear, heard, DP_LOG_INFO);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    dp_interface_guess(&guess);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
    dp_log_set(NULL, NULL, DP_LOG_DEFAULT);
    assert_non_null(strstr(heard, "cannot list the network interfaces: Too many open files"));
    assert_int_equal(guess.v4.sin_addr.s_addr, htonl(INADDR_LOOPBACK));
}
