/* SPDX-License-Identifier: Apache-2.0
 *
 * test_wire_acceptor.c - which connections a wire's listener accepts, and the errors of those that
 * it does not.
 */
#include "cmocka_all.h"

#include "base/clock.h"
#include "base/fail.h"
#include "wire/acceptor.h"
#include "wire/shm.h"
#include "wire/sockets.h"
#include "wire/tcp.h"
#include "wire_dial.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>

static int connect_to(int port)
{
    const int fd = dial_port(0, port);

    assert_true(fd >= 0);
    return fd;
}

static const uint8_t cookie[DP_COOKIE_BYTES] = "a known cookie";

static int listen_known(int64_t handshake_timeout_ns, struct dp_wire_listener **listener,
                        struct dp_wire_address *address)
{
    struct dp_wire_config config = {.interface = "127.0.0.1",
                                    .handshake_timeout_ns = handshake_timeout_ns};
    union dp_sockaddr place = {
        .v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}};

    memcpy(config.cookie, cookie, sizeof(cookie));
    for (config.port = 20011; config.port < 21000; config.port++)
        if (!dp_wire_tcp.listen(&config, listener, address)) {
            dp_sockaddr_set_port(&place, config.port);
            dp_wire_tcp_address(&place, cookie, address);
            return config.port;
        }
    fail_msg("no free port");
    return 0;
}

static bool is_shown_out(struct dp_wire_listener *listener, int fd)
{
    const int64_t until = dp_now_ns() + 20 * DP_NS_PER_S;
    struct dp_wire *wire;
    uint64_t label;
    char byte;

    while (dp_now_ns() < until) {
        assert_int_equal(dp_wire_tcp.accept(listener, &label, &wire), DP_EAGAIN);
        ssize_t n = recv(fd, &byte, 1, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno == ECONNRESET))
            return true;
        assert_true(n < 0); /* it is sent nothing */
    }
    return false;
}

/* Both ends of a connection are here. */
static void want_files(rlim_t count)
{
    struct rlimit files;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    if (files.rlim_max < count) {
        print_message("%llu open files are allowed (ulimit -n), %llu wanted\n",
                      (unsigned long long)files.rlim_max, (unsigned long long)count);
        skip();
    }
    if (files.rlim_cur < count)
        files.rlim_cur = count;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
}

CASE(strangers_get_nothing_and_do_no_harm)
{
    want_files(3 * DP_ACCEPTOR_PENDING);
    struct dp_wire_listener *listener;
    struct dp_wire_address address;
    struct dp_hello hello = dial_hello(0, 0);
    struct {
        const void *bytes;
        size_t len;
    } says[] = {{"GET / HTTP/1.1\r\n\r\n", 18}, {"\0\0\0\0", 4}, {&hello, sizeof(hello)}};
    int port = listen_known(50 * DP_NS_PER_MS, &listener, &address);
    hello.kind = DP_HELLO_SHM;
    int silent[DP_ACCEPTOR_PENDING + 8];
    struct dp_wire *a, *b = NULL;
    uint64_t label;

    for (size_t i = 0; i < sizeof(says) / sizeof(says[0]); i++) {
        int fd = connect_to(port);
        assert_int_equal(send(fd, says[i].bytes, says[i].len, 0), says[i].len);
        assert_true(is_shown_out(listener, fd));
        close(fd);
    }
    /* More silent connections than there are places, and a valid one after them. */
    for (size_t i = 0; i < sizeof(silent) / sizeof(silent[0]); i++)
        silent[i] = connect_to(port);
    assert_int_equal(dp_wire_tcp.connect(&address, 5, &a), 0);
    while (dp_wire_tcp.accept(listener, &label, &b) == DP_EAGAIN)
        dp_wire_tcp.progress(a);
    assert_int_equal(label, 5);
    for (size_t i = 0; i < sizeof(silent) / sizeof(silent[0]); i++) {
        assert_true(is_shown_out(listener, silent[i]));
        close(silent[i]);
    }
    dp_wire_close(a);
    dp_wire_close(b);
    dp_wire_tcp.unlisten(listener);
}

static int listen_anywhere(union dp_sockaddr *place)
{
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    socklen_t len = sizeof(*place);

    *place = (union dp_sockaddr){
        .v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}};
    assert_int_equal(bind(listener, &place->any, sizeof(place->v4)), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(getsockname(listener, &place->any, &len), 0);
    return listener;
}

/* No file more than are open. */
static struct rlimit allow_no_more_files(void)
{
    struct rlimit before, none;
    const int next = dup(STDERR_FILENO);

    close(next);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = (rlim_t)next;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    return before;
}

/* ---- a flood ------------------------------------------------------------------------------- */

/* -1, and EAGAIN: the listener's queue in the system is full. */
static int connect_to_shm(const struct dp_wire_listener *listener)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);

    assert_true(fd >= 0);
    snprintf(un.sun_path, sizeof(un.sun_path), "%s/s", listener->folder);
    if (!connect(fd, (const struct sockaddr *)&un, sizeof(un)))
        return fd;
    const int error = errno;
    close(fd);
    errno = error;
    return -1;
}

static void ask(const struct dp_wire_ops *ops, struct dp_wire_listener *listener)
{
    struct dp_wire *wire;
    uint64_t label;

    assert_int_equal(ops->accept(listener, &label, &wire), DP_EAGAIN);
}

/* All places taken, by connections that are looked at and stay for ever, if they may. */
static void fill_places(const struct dp_wire_ops *ops, struct dp_wire_listener *listener)
{
    const int64_t until = dp_now_ns() + 20 * DP_NS_PER_S;

    while (listener->present < DP_ACCEPTOR_PENDING) {
        ask(ops, listener);
        assert_true(dp_now_ns() < until);
    }
    ask(ops, listener);
    for (int i = 0; i < DP_ACCEPTOR_PENDING; i++)
        listener->pending[i].until_ns = INT64_MAX / 2;
}

static void must_get_in(const struct dp_wire_ops *ops, struct dp_wire_listener *listener,
                        const struct dp_wire_address *address)
{
    const int64_t until = dp_now_ns() + 60 * DP_NS_PER_S;
    struct dp_wire *a, *b = NULL;
    uint64_t label;

    assert_int_equal(ops->connect(address, 5, &a), 0);
    while (ops->accept(listener, &label, &b) == DP_EAGAIN) {
        ops->progress(a);
        if (a->error)
            fail_msg("%s", dp_last_error());
        assert_true(dp_now_ns() < until);
    }
    assert_int_equal(label, 5);
    dp_wire_close(a);
    dp_wire_close(b);
}

static void close_all(const int *fds, int count)
{
    for (int i = 0; i < count; i++)
        close(fds[i]);
}

CASE(silent_connections_give_their_places_at_once)
{
    want_files(3 * DP_ACCEPTOR_PENDING);
    struct dp_wire_listener *listener;
    struct dp_wire_address address;
    const int port = listen_known(0, &listener, &address);
    int silent[DP_ACCEPTOR_PENDING];

    for (int i = 0; i < DP_ACCEPTOR_PENDING; i++)
        silent[i] = connect_to(port);
    fill_places(&dp_wire_tcp, listener);
    must_get_in(&dp_wire_tcp, listener, &address);
    close_all(silent, DP_ACCEPTOR_PENDING);
    dp_wire_tcp.unlisten(listener);
}

/* The places and the system's queue. */
CASE(a_full_queue_is_waited_for)
{
    enum { MOST = 16384 };
    static int silent[MOST];
    struct dp_wire_config config = {.interface = ""};
    struct dp_wire_listener *listener;
    struct dp_wire_address address;
    int count = 0;

    want_files(MOST + 2 * DP_ACCEPTOR_PENDING);
    assert_int_equal(dp_wire_shm.listen(&config, &listener, &address), 0);
    while (count < MOST && (silent[count] = connect_to_shm(listener)) >= 0)
        count++;
    if (count == MOST)
        skip_because("the system's queue of a unix socket is longer than 16384");
    assert_int_equal(errno, EAGAIN);
    must_get_in(&dp_wire_shm, listener, &address);
    close_all(silent, count);
    dp_wire_shm.unlisten(listener);
}

CASE(a_call_accepts_so_many_and_does_not_drop_them_again)
{
    struct dp_wire_config config = {.interface = ""};
    struct dp_wire_listener *listener;
    struct dp_wire_address address;
    int silent[4 * DP_ACCEPTOR_PENDING];

    want_files(10 * DP_ACCEPTOR_PENDING);
    assert_int_equal(dp_wire_shm.listen(&config, &listener, &address), 0);
    for (int i = 0; i < 4 * DP_ACCEPTOR_PENDING; i++)
        silent[i] = connect_to_shm(listener);
    for (int calls = 1; calls <= 4; calls++) {
        ask(&dp_wire_shm, listener);
        const int places = calls * DP_ACCEPTOR_ACCEPTS;
        assert_int_equal(listener->present,
                         places < DP_ACCEPTOR_PENDING ? places : DP_ACCEPTOR_PENDING);
        assert_true(listener->is_crowded);
        assert_true(listener->rests_ns > 0);
        listener->rests_ns = INT64_MAX; /* and rests */
        ask(&dp_wire_shm, listener);
        assert_int_equal(listener->rests_ns, INT64_MAX);
        listener->rests_ns = 0;
    }
    close_all(silent, 4 * DP_ACCEPTOR_PENDING);
    dp_wire_shm.unlisten(listener);
}

CASE(other_users_do_not_reach_the_socket_and_nobody_passes_a_file_unproved)
{
    enum { OTHER = 65534 };
    struct dp_wire_config config = {.interface = ""};
    struct dp_hello hello = dial_hello(0, 0);
    struct dp_wire_listener *listener;
    struct dp_wire_address address;
    const int on = 1;
    int fd, passes;

    hello.kind = DP_HELLO_SHM;
    assert_int_equal(dp_wire_shm.listen(&config, &listener, &address), 0);
    fd = connect_to_shm(listener);
    passes = dp_fds_send(fd, &hello, sizeof(hello), STDERR_FILENO) >= 0;
    /* A kernel that has the option refuses the file. */
    assert_int_equal(passes, setsockopt(fd, SOL_SOCKET, 83 /* SO_PASSRIGHTS */, &on, sizeof(on)) != 0);
    close(fd);
    must_get_in(&dp_wire_shm, listener, &address);
    if (geteuid() || seteuid(OTHER))
        skip_because("only root may be another user");
    assert_int_equal(connect_to_shm(listener), -1);
    assert_int_equal(errno, EACCES);
    assert_int_equal(seteuid(0), 0);
    dp_wire_shm.unlisten(listener);
}

/* Strangers hold all files but one. */
CASE(a_listener_short_of_files_drops_strangers)
{
    const struct dp_wire_config config = {.interface = "127.0.0.1", .needs_files = true};
    struct dp_wire_listener *listener;
    struct dp_wire_address address;
    struct dp_tcp_address place;
    struct dp_wire *a, *b = NULL;
    uint64_t label;
    int silent[4];

    assert_int_equal(dp_wire_tcp.listen(&config, &listener, &address), 0);
    memcpy(&place, &address, sizeof(place));
    for (int i = 0; i < 4; i++)
        silent[i] = connect_to(place.port);
    while (listener->present < 4)
        ask(&dp_wire_tcp, listener);
    assert_int_equal(dp_wire_tcp.connect(&address, 5, &a), 0);
    const struct rlimit before = allow_no_more_files();
    while (dp_wire_tcp.accept(listener, &label, &b) == DP_EAGAIN)
        dp_wire_tcp.progress(a);
    assert_non_null(b);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    close_all(silent, 4);
    dp_wire_close(a);
    dp_wire_close(b);
    dp_wire_tcp.unlisten(listener);
}

/* Its place goes to another one after the challenge, and after its proof. */
CASE(a_connector_that_was_dropped_at_any_point_tries_again)
{
    const struct dp_wire_ops *const all[] = {&dp_wire_tcp, &dp_wire_shm};

    for (int i = 0; i < 2 * 4; i++) {
        const struct dp_wire_ops *ops = all[i % 2];
        const struct dp_wire_config config = {.interface = i % 2 ? NULL : "127.0.0.1"};
        struct dp_wire_listener *listener;
        struct dp_wire_address address;
        struct dp_wire *a, *b = NULL;
        uint64_t label;

        assert_int_equal(ops->listen(&config, &listener, &address), 0);
        assert_int_equal(ops->connect(&address, 5, &a), 0);
        for (int step = 0; step < i / 2; step++) {
            ops->accept(listener, &label, &b);
            if (step + 1 < i / 2)
                ops->progress(a);
        }
        for (int p = 0; p < DP_ACCEPTOR_PENDING; p++)
            listener->pending[p].until_ns = 0;
        while (!b && ops->accept(listener, &label, &b) == DP_EAGAIN) {
            ops->progress(a);
            assert_int_equal(a->error, 0);
        }
        assert_int_equal(label, 5);
        dp_wire_close(a);
        dp_wire_close(b);
        ops->unlisten(listener);
    }
}

/* ---- files --------------------------------------------------------------------------------- */

/* The longest is too long for a name in it. */
CASE(the_folder_is_in_the_users_one_or_that_of_the_system)
{
    char own[] = P_tmpdir "/dp-run-XXXXXX", longest[80];
    const char *const dirs[] = {own, "relative", "", "/does/not/exist", longest, NULL};
    struct dp_wire_listener *listener;
    struct dp_wire_address address;
    struct dp_wire *wire;
    struct stat st;

    assert_non_null(mkdtemp(own));
    snprintf(longest, sizeof(longest), "/%0*d", (int)sizeof(longest) - 2, 0);
    for (int i = 0; i < 6; i++) {
        if (dirs[i])
            setenv("XDG_RUNTIME_DIR", dirs[i], 1);
        else
            unsetenv("XDG_RUNTIME_DIR");
        assert_int_equal(dp_wire_shm.listen(&(struct dp_wire_config){0}, &listener, &address), 0);
        assert_memory_equal(listener->folder, i ? P_tmpdir : own, strlen(i ? P_tmpdir : own));
        assert_int_equal(stat(listener->folder, &st), 0);
        assert_int_equal(st.st_mode, S_IFDIR | 0700);
        must_get_in(&dp_wire_shm, listener, &address);
        if (!i)
            unsetenv("XDG_RUNTIME_DIR");
        else
            setenv("XDG_RUNTIME_DIR", own, 1);
        assert_int_equal(dp_wire_shm.connect(&address, 5, &wire), DP_EUNSUPPORTED);
        dp_wire_shm.unlisten(listener);
    }
    unsetenv("XDG_RUNTIME_DIR");
    assert_int_equal(rmdir(own), 0); /* nothing is left in it */
}

static int dead_folder(char folder[DP_ACCEPTOR_FOLDER])
{
    int status = 0, pipes[2];

    assert_int_equal(pipe(pipes), 0);
    const pid_t child = fork();
    if (!child) {
        struct dp_wire_listener *listener;
        struct dp_wire_address address;
        if (dp_wire_shm.listen(&(struct dp_wire_config){0}, &listener, &address) ||
            write(pipes[1], listener->folder, DP_ACCEPTOR_FOLDER) != DP_ACCEPTOR_FOLDER)
            _exit(1);
        _exit(0); /* as if it was killed */
    }
    assert_int_equal(read(pipes[0], folder, DP_ACCEPTOR_FOLDER), DP_ACCEPTOR_FOLDER);
    assert_int_equal(waitpid(child, &status, 0), child);
    close(pipes[0]);
    close(pipes[1]);
    return status;
}

CASE(what_a_killed_process_left_is_removed_by_the_next)
{
    char folder[DP_ACCEPTOR_FOLDER], next[DP_ACCEPTOR_FOLDER];

    assert_int_equal(dead_folder(folder), 0);
    assert_int_equal(access(folder, F_OK), 0);
    assert_int_equal(dead_folder(next), 0);
    assert_int_not_equal(access(folder, F_OK), 0);
}

static atomic_bool is_closed;

static void *close_one(void *fd)
{
    dp_fd_close(*(int *)fd);
    atomic_store(&is_closed, true);
    return NULL;
}

/* As that of a socket which has data for a peer that does not read. */
CASE(a_close_that_takes_long_delays_no_other)
{
    const struct linger linger = {.l_onoff = 1, .l_linger = 600};
    union dp_sockaddr place;
    const int listener = listen_anywhere(&place);
    int fd = connect_to(dp_sockaddr_port(&place));
    const int peer = accept(listener, NULL, NULL);
    char bytes[65536] = "";
    pthread_t closer;

    while (send(fd, bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
        ;
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)), 0);
    const int number = fd;
    assert_int_equal(pthread_create(&closer, NULL, close_one, &fd), 0);
    while (fcntl(number, F_GETFD) >= 0)
        ;
    const int other = dp_socket_open(AF_INET);
    dp_fd_close(other);
    assert_false(atomic_load(&is_closed));
    while (recv(peer, bytes, sizeof(bytes), 0) > 0)
        ;
    assert_int_equal(pthread_join(closer, NULL), 0);
    close(peer);
    close(listener);
}

/* A connection that was closed before it was answered, as one without a place is. */
CASE(a_connector_without_an_answer_tries_again)
{
    struct dp_wire_listener *listener;
    struct dp_wire_address address;
    struct dp_wire *a;
    uint64_t label;
    const int64_t until = dp_now_ns() + 60 * DP_NS_PER_S;

    listen_known(0, &listener, &address);
    assert_int_equal(dp_wire_tcp.connect(&address, 5, &a), 0);
    for (int fd = -1; fd < 0 && dp_now_ns() < until;) {
        dp_wire_tcp.progress(a);
        fd = accept(listener->fd, NULL, NULL);
        if (fd >= 0)
            close(fd);
    }
    struct dp_wire *b = NULL;
    while (dp_wire_tcp.accept(listener, &label, &b) == DP_EAGAIN) {
        dp_wire_tcp.progress(a);
        assert_int_equal(a->error, 0);
        assert_true(dp_now_ns() < until);
    }
    dp_wire_close(a);
    dp_wire_close(b);
    dp_wire_tcp.unlisten(listener);
}

/* ---- proofs -------------------------------------------------------------------------------- */

static struct dialer listen_for_dialers(void)
{
    struct dialer d = {.cookie = cookie, .wanted = 5};
    struct dp_wire_address address;

    d.port = listen_known(0, &d.listener, &address);
    return d;
}

/* The hello of a peer, the acceptor's challenge, and what stands in place of the proof. */
static int prove_with(struct dialer *d, const uint8_t proof[DP_HMAC_BYTES], struct dp_challenge *c)
{
    const struct dp_hello hello = dial_hello(5, 0);
    const int fd = connect_to(d->port);

    assert_true(dial_challenge(d, fd, &hello, c));
    assert_int_equal(send(fd, proof ? proof : c->proof, DP_HMAC_BYTES, 0), DP_HMAC_BYTES);
    return fd;
}

CASE(who_cannot_prove_the_cookie_is_shown_out)
{
    struct dialer d = listen_for_dialers(), other = d;
    const struct dp_hello hello = dial_hello(5, 0);
    struct dp_challenge first, second;
    uint8_t proof[DP_HMAC_BYTES] = {0};
    int fds[4];

    other.cookie = (const uint8_t[DP_COOKIE_BYTES]){"another cookie"};
    fds[0] = prove_with(&d, proof, &first);     /* anything */
    fds[1] = prove_with(&d, NULL, &second);     /* the acceptor's own proof, sent back */
    assert_memory_not_equal(first.nonce, second.nonce, sizeof(first.nonce));
    fds[2] = dial(&other, 5, 0);
    dp_hello_prove(DP_HELLO_CONNECTOR, cookie, &hello, first.nonce, proof);
    fds[3] = prove_with(&d, proof, &second);    /* the right one of another connection */
    for (int i = 0; i < 4; i++) {
        assert_true(is_shown_out(d.listener, fds[i]));
        close(fds[i]);
    }
    fds[0] = dial(&d, 5, 0);
    while (!d.wire)
        dial_accept(&d);
    dp_wire_close(d.wire);
    close(fds[0]);
    dp_wire_tcp.unlisten(d.listener);
}

/* All that is in the socket goes on to the other one, and is kept. */
static void relay(int from, int to, char *seen, size_t *len)
{
    const ssize_t n = recv(from, seen + *len, 256, MSG_DONTWAIT);

    if (n <= 0)
        return;
    assert_int_equal(send(to, seen + *len, (size_t)n, 0), n);
    *len += (size_t)n;
}

CASE(the_cookie_does_not_travel_and_an_address_is_hidden)
{
    const int64_t until_ns = dp_now_ns() + 20 * DP_NS_PER_S;
    struct dialer d = listen_for_dialers();
    struct dp_wire_address address, hidden;
    union dp_sockaddr place;
    const int listener = listen_anywhere(&place);
    char seen[4096];
    size_t len = 0;
    struct dp_wire *a;

    dp_wire_tcp_address(&place, cookie, &address);
    assert_int_equal(dp_wire_tcp.connect(&address, 5, &a), 0);
    const int in = accept(listener, NULL, NULL), out = connect_to(d.port);
    while (!a->connected || !d.wire) {
        assert_true(dp_now_ns() < until_ns && len < 2048);
        dp_wire_tcp.progress(a);
        relay(in, out, seen, &len);
        dial_accept(&d);
        relay(out, in, seen, &len);
    }
    assert_true(len > 0);
    for (size_t i = 0; i + 8 <= len; i++)
        assert_memory_not_equal(seen + i, cookie, 8);
    /* Both sides have the same key, and each direction its own. */
    for (int by_connector = 0; by_connector < 2; by_connector++) {
        hidden = address;
        dp_wire_tcp_hide(by_connector ? a : d.wire, by_connector, &hidden);
        assert_memory_not_equal(&hidden, &address, sizeof(address));
        dp_wire_tcp_hide(by_connector ? d.wire : a, !by_connector, &hidden);
        assert_memory_not_equal(&hidden, &address, sizeof(address));
        dp_wire_tcp_hide(by_connector ? d.wire : a, !by_connector, &hidden);
        dp_wire_tcp_hide(by_connector ? d.wire : a, by_connector, &hidden);
        assert_memory_equal(&hidden, &address, sizeof(address));
    }
    dp_wire_close(a);
    dp_wire_close(d.wire);
    dp_wire_tcp.unlisten(d.listener);
    close(in);
    close(out);
    close(listener);
}

/* Somebody at the place of the listener, with another cookie. */
CASE(a_false_acceptor_is_left)
{
    struct dialer d = listen_for_dialers();
    union dp_sockaddr place = {
        .v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}};
    struct dp_wire_address address;
    struct dp_wire *wire;

    dp_sockaddr_set_port(&place, d.port);
    dp_wire_tcp_address(&place, (const uint8_t[DP_COOKIE_BYTES]){"another cookie"}, &address);
    assert_int_equal(dp_wire_tcp.connect(&address, 5, &wire), 0);
    while (!wire->error) {
        dp_wire_tcp.progress(wire);
        dial_accept(&d);
    }
    assert_int_equal(wire->error, DP_ECOMM);
    assert_non_null(strstr(wire->why, "does not know the cookie of this address"));
    assert_null(d.wire);
    dp_wire_close(wire);
    dp_wire_tcp.unlisten(d.listener);
}

CASE(a_peer_of_another_version_gets_our_version)
{
    struct dialer d = listen_for_dialers();
    struct dp_hello hello = dial_hello(5, 0);
    struct dp_challenge answer = {0};
    const int fd = connect_to(d.port);

    hello.version = 2;
    assert_false(dial_challenge(&d, fd, &hello, &answer));
    assert_int_equal(answer.magic, 0x44507600 | DP_HELLO_VERSION);
    close(fd);
    dp_wire_tcp.unlisten(d.listener);
}

/* The other side of it: an acceptor that answers with a later version. */
CASE(an_acceptor_of_another_version_is_named)
{
    const uint32_t word = 0x44507600 | 10;
    union dp_sockaddr place;
    struct dp_wire_address address;
    int listener = listen_anywhere(&place), pending;
    struct dp_wire *wire;
    char text[80];

    dp_wire_tcp_address(&place, cookie, &address);
    assert_int_equal(dp_wire_tcp.connect(&address, 5, &wire), 0);
    pending = accept(listener, NULL, NULL);
    assert_int_equal(send(pending, &word, sizeof(word), 0), sizeof(word));
    while (!wire->error)
        dp_wire_tcp.progress(wire);
    assert_int_equal(wire->error, DP_ECOMM);
    snprintf(text, sizeof(text), "speaks version 10 of the handshake, and here it is %d",
             DP_HELLO_VERSION);
    assert_non_null(strstr(wire->why, text));
    dp_wire_close(wire);
    close(pending);
    close(listener);
}

CASE(nonsense_on_a_connected_wire_breaks_it_and_nothing_else)
{
    struct dialer d = listen_for_dialers();
    struct dp_wire *wire;
    struct dp_wire_request receive;
    char buf[8];
    const int fd = dial(&d, 5, 0);

    while (!d.wire)
        dial_accept(&d);
    wire = d.wire;
    assert_int_equal(send(fd, "what I always wanted to say", 27, 0), 27);
    dp_wire_irecv(wire, buf, sizeof(buf), &receive);
    while (receive.status == DP_EAGAIN)
        dp_wire_tcp.progress(wire);
    assert_int_equal(receive.status, DP_EMISMATCH);
    assert_string_equal(wire->why, "what arrived is no message");
    close(fd);
    dp_wire_close(wire);
    dp_wire_tcp.unlisten(d.listener);
}

CASE(a_port_in_use_and_a_bad_interface_are_named)
{
    struct dp_wire_listener *first, *second;
    struct dp_wire_address address;
    int port = listen_known(0, &first, &address);

    assert_int_equal(dp_wire_tcp.listen(&(struct dp_wire_config){.port = port}, &second, &address),
                     DP_ECOMM);
    assert_non_null(strstr(dp_last_error(), "is in use by another program"));
    assert_int_equal(
        dp_wire_tcp.listen(&(struct dp_wire_config){.interface = "eth77"}, &second, &address),
        DP_EINVAL);
    assert_non_null(strstr(dp_last_error(), "interface 'eth77': expected"));
    dp_wire_tcp.unlisten(first);
    dp_wire_tcp.unlisten(NULL);
    dp_wire_shm.unlisten(NULL);
}

static int warnings;

static void count_warnings(void *user, enum dp_log_level level, const char *line)
{
    if (level == DP_LOG_WARN && strstr(line, "Too many open files (this process may have") &&
        strstr(line, "ulimit -n"))
        warnings++;
}

static void come_in_late(const struct dp_wire_ops *ops)
{
    struct dp_wire_listener *listener;
    struct dp_wire_address address, elsewhere;
    struct dp_wire_listener *second;
    struct dp_wire *a, *b = NULL;
    uint64_t label;

    warnings = 0;
    assert_int_equal(ops->listen(&(struct dp_wire_config){0}, &listener, &address), 0);
    assert_int_equal(ops->connect(&address, 5, &a), 0);
    const struct rlimit before = allow_no_more_files();
    for (int i = 0; i < 10; i++) {
        ops->progress(a);
        assert_int_equal(ops->accept(listener, &label, &b), DP_EAGAIN);
    }
    assert_int_equal(warnings, 1);
    assert_true(ops->listen(&(struct dp_wire_config){0}, &second, &elsewhere) < 0);
    assert_non_null(strstr(dp_last_error(), "Too many open files (this process may have"));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    while (ops->accept(listener, &label, &b) == DP_EAGAIN)
        ops->progress(a);
    assert_non_null(b);
    dp_wire_close(a);
    dp_wire_close(b);
    ops->unlisten(listener);
}

CASE(an_error_for_lack_of_files_names_the_limit)
{
    dp_log_set(count_warnings, NULL, DP_LOG_WARN);
    come_in_late(&dp_wire_tcp);
    come_in_late(&dp_wire_shm);
    dp_log_set(NULL, NULL, DP_LOG_DEFAULT);
}

/* The connection is deferred, not lost: it is accepted when there is room. */
static void need_files(const struct dp_wire_ops *ops)
{
    const struct dp_wire_config config = {.needs_files = true};
    struct dp_wire_listener *listener;
    struct dp_wire_address address;
    struct dp_wire *a, *b = NULL;
    uint64_t label;

    assert_int_equal(ops->listen(&config, &listener, &address), 0);
    struct rlimit before = allow_no_more_files();
    assert_int_equal(ops->accept(listener, &label, &b), DP_EAGAIN);
    assert_int_equal(ops->connect(&address, 5, &a), DP_EIO);
    assert_non_null(strstr(dp_last_error(), "Too many open files (this process may have"));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(ops->connect(&address, 5, &a), 0);
    before = allow_no_more_files();
    ops->progress(a);
    assert_int_equal(ops->accept(listener, &label, &b), DP_EIO);
    assert_non_null(strstr(dp_last_error(), "cannot be accepted: Too many open files (this"));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    while (ops->accept(listener, &label, &b) == DP_EAGAIN)
        ops->progress(a);
    assert_non_null(b);
    dp_wire_close(a);
    dp_wire_close(b);
    ops->unlisten(listener);
}

CASE(a_listener_that_needs_files_fails_while_there_are_too_few)
{
    need_files(&dp_wire_tcp);
    need_files(&dp_wire_shm);
}

/* The connection is there; one file more would be the shared memory of the peer. */
CASE(shared_memory_waits_until_there_is_a_file_for_it)
{
    const struct dp_wire_config config = {.needs_files = true};
    struct dp_wire_listener *listener;
    struct dp_wire_address address;
    struct dp_wire *a, *b = NULL;
    uint64_t label;

    assert_int_equal(dp_wire_shm.listen(&config, &listener, &address), 0);
    assert_int_equal(dp_wire_shm.connect(&address, 5, &a), 0);
    assert_int_equal(dp_wire_shm.accept(listener, &label, &b), DP_EAGAIN); /* challenges */
    dp_wire_shm.progress(a);
    const struct rlimit before = allow_no_more_files();
    assert_int_equal(dp_wire_shm.accept(listener, &label, &b), DP_EIO);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    while (dp_wire_shm.accept(listener, &label, &b) == DP_EAGAIN)
        dp_wire_shm.progress(a);
    assert_non_null(b);
    dp_wire_close(a);
    dp_wire_close(b);
    dp_wire_shm.unlisten(listener);
}

static void connect_to_closed_port(const struct dp_wire_ops *ops, const char *interface)
{
    const struct dp_wire_config config = {.interface = interface};
    struct dp_wire_listener *listener;
    struct dp_wire_address address;
    struct dp_wire *wire;
    struct dp_wire_request receive;
    char byte;

    assert_int_equal(ops->listen(&config, &listener, &address), 0);
    ops->unlisten(listener);
    assert_int_equal(ops->connect(&address, 0, &wire), 0);
    dp_wire_irecv(wire, &byte, 1, &receive);
    dp_fail_quietly(DP_EINVAL, "what the caller has to say");
    while (receive.status == DP_EAGAIN)
        ops->progress(wire);
    assert_int_equal(receive.status, DP_ECOMM);
    assert_non_null(strstr(wire->why, "Connection refused"));
    assert_string_equal(dp_last_error(), "what the caller has to say");
    dp_wire_close(wire);
}

CASE(a_closed_port_breaks_the_wire)
{
    connect_to_closed_port(&dp_wire_tcp, "127.0.0.1");
    connect_to_closed_port(&dp_wire_tcp, NULL);
    connect_to_closed_port(&dp_wire_shm, NULL);
}
