/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/acceptor.h"

#include "base/clock.h"
#include "base/fail.h"
#include "wire/sockets.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static const uint32_t MAGIC = 0x44507731;   /* "DPw1" */
static const uint32_t CHALLENGE = 0x44507743; /* "DPwC" */
static const uint32_t WELCOME = 0x44507757; /* "DPwW" */
/* Instead of it, to a friend of another version: ours is in the last byte. */
static const uint32_t OTHER_VERSION = 0x44507600; /* "DPv" */

static const int64_t FIRST_PAUSE_NS = DP_NS_PER_MS, LAST_PAUSE_NS = 100 * DP_NS_PER_MS;

/* ---- acceptor  */

static void leave(struct dp_wire_listener *acceptor, struct dp_pending *pending)
{
    *pending = (struct dp_pending){0};
    acceptor->present--;
}

static void drop(struct dp_wire_listener *acceptor, struct dp_pending *pending)
{
    dp_fd_close(pending->fd);
    dp_fd_close(pending->passed_fd);
    leave(acceptor, pending);
}

int dp_acceptor_open(int fd, enum dp_hello_kind kind, const uint8_t cookie[DP_COOKIE_BYTES],
                     const struct dp_wire_config *config, struct dp_wire_listener **out)
{
    struct dp_wire_listener *acceptor = calloc(1, sizeof(*acceptor));

    if (!acceptor) {
        dp_fd_close(fd);
        return dp_fail(DP_ENOMEM, "no memory for a listener");
    }
    acceptor->fd = fd;
    acceptor->kind = (uint16_t)kind;
    acceptor->handshake_timeout_ns =
        config->handshake_timeout_ns ? config->handshake_timeout_ns : 5 * DP_NS_PER_S;
    acceptor->needs_files = config->needs_files;
    if (kind == DP_HELLO_SHM)
        dp_fds_allow(fd, false); /* for its connections, too */
    memcpy(acceptor->cookie, cookie, DP_COOKIE_BYTES);
    *out = acceptor;
    return 0;
}

void dp_acceptor_close(struct dp_wire_listener *acceptor)
{
    if (!acceptor)
        return;
    for (int i = 0; i < DP_ACCEPTOR_PENDING; i++)
        if (acceptor->pending[i].stage)
            drop(acceptor, &acceptor->pending[i]);
    dp_fd_close(acceptor->fd);
    free(acceptor);
}

int dp_acceptor_choose_cookie(const struct dp_wire_config *config, uint8_t cookie[DP_COOKIE_BYTES])
{
    static const uint8_t none[DP_COOKIE_BYTES];

    if (!memcmp(config->cookie, none, sizeof(none)))
        return dp_random_bytes(cookie, DP_COOKIE_BYTES);
    memcpy(cookie, config->cookie, DP_COOKIE_BYTES);
    return 0;
}

void dp_hello_prove(enum dp_hello_use use, const uint8_t cookie[DP_COOKIE_BYTES],
                    const struct dp_hello *hello, const uint8_t nonce[DP_NONCE_BYTES],
                    uint8_t out[DP_HMAC_BYTES])
{
    const uint8_t side = (uint8_t)use;
    struct dp_hmac hmac;

    dp_hmac_begin(&hmac, cookie, DP_COOKIE_BYTES);
    dp_hmac_add(&hmac, &side, sizeof(side));
    dp_hmac_add(&hmac, hello, sizeof(*hello));
    dp_hmac_add(&hmac, nonce, DP_NONCE_BYTES);
    dp_hmac_end(&hmac, out);
}

static bool is_proof(enum dp_hello_use use, const uint8_t cookie[DP_COOKIE_BYTES],
                     const struct dp_hello *hello, const uint8_t nonce[DP_NONCE_BYTES],
                     const uint8_t proof[DP_HMAC_BYTES])
{
    uint8_t expected[DP_HMAC_BYTES];

    dp_hello_prove(use, cookie, hello, nonce, expected);
    return dp_hmac_is_equal(expected, proof);
}

/* 0, DP_EAGAIN for too few bytes, DP_EUNSUPPORTED if only the version is another, DP_EMISMATCH. */
static int check_hello(const struct dp_wire_listener *acceptor, const struct dp_hello *hello,
                       size_t len)
{
    /* Garbage goes at its first four bytes; a browser has no more to say anyway. */
    if (len >= sizeof(MAGIC) && hello->magic != MAGIC)
        return DP_EMISMATCH;
    if (len < sizeof(*hello))
        return DP_EAGAIN;
    if (hello->kind != acceptor->kind)
        return DP_EMISMATCH;
    return hello->version == DP_HELLO_VERSION ? 0 : DP_EUNSUPPORTED;
}

/* How soon a pending connection has to leave: 0 not yet, then the higher the sooner. */
static int rank_of(const struct dp_wire_listener *acceptor, const struct dp_pending *pending,
                   int64_t now_ns)
{
    if (pending->stage == DP_PENDING_FILE) /* no stranger */
        return 0;
    if (pending->is_read && pending->stage == DP_PENDING_HELLO)
        return 2;
    return now_ns >= pending->until_ns - acceptor->handshake_timeout_ns + DP_ACCEPTOR_EVICT_NS;
}

/* Whether a connection waits for a place. */
static bool is_wanted(const struct dp_wire_listener *acceptor)
{
    struct pollfd fd = {.fd = acceptor->fd, .events = POLLIN};

    return poll(&fd, 1, 0) > 0;
}

/* Of equal ranks the oldest leaves. NULL: none has to. */
static struct dp_pending *find_worst(struct dp_wire_listener *acceptor, int64_t now_ns)
{
    struct dp_pending *worst = NULL;
    int worst_rank = 0;

    for (int i = 0; i < DP_ACCEPTOR_PENDING; i++) {
        struct dp_pending *pending = &acceptor->pending[i];
        const int rank = pending->stage ? rank_of(acceptor, pending, now_ns) : 0;
        if (rank > worst_rank ||
            (rank && rank == worst_rank && pending->until_ns < worst->until_ns)) {
            worst = pending;
            worst_rank = rank;
        }
    }
    return worst;
}

/* What a call has accepted is not read before its end, and so does not leave in the same call. */
static struct dp_pending *find_place(struct dp_wire_listener *acceptor, int64_t now_ns)
{
    for (int i = 0; i < DP_ACCEPTOR_PENDING; i++)
        if (!acceptor->pending[i].stage)
            return &acceptor->pending[i];
    struct dp_pending *worst = find_worst(acceptor, now_ns);
    if (!worst || !is_wanted(acceptor))
        return NULL;
    drop(acceptor, worst);
    return worst;
}

/* DP_EAGAIN: there will be room for a file, as strangers hold some. The warning comes once, as the
 * listener is asked all the time. */
static int handle_shortage(struct dp_wire_listener *acceptor, int64_t now_ns, int error)
{
    static const char what[] = "the connection of a peer cannot be accepted";
    struct dp_pending *worst = find_worst(acceptor, now_ns);
    bool are_strangers = false;

    if (worst)
        drop(acceptor, worst);
    for (int i = 0; i < DP_ACCEPTOR_PENDING; i++)
        are_strangers |= acceptor->pending[i].stage > DP_PENDING_NONE &&
                         acceptor->pending[i].stage < DP_PENDING_FILE;
    if (worst || are_strangers)
        return DP_EAGAIN;
    if (acceptor->needs_files)
        return dp_fail_quietly(DP_EIO, "%s: %s", what, dp_errno_text(error));
    if (!acceptor->has_warned)
        dp_log(DP_LOG_WARN, "%s: %s", what, dp_errno_text(error));
    acceptor->has_warned = true;
    return DP_EAGAIN;
}

/* Without room for a file accept fails even if no connection waits. */
static int note_accept_error(struct dp_wire_listener *acceptor, int64_t now_ns, int error)
{
    if (error == EAGAIN || error == EINTR || error == ECONNABORTED || !is_wanted(acceptor))
        return 0;
    const int err = handle_shortage(acceptor, now_ns, error);
    return err == DP_EAGAIN ? 0 : err;
}

/* 0, or DP_EIO. */
static int accept_pending(struct dp_wire_listener *acceptor, int64_t now_ns)
{
    acceptor->is_crowded = false;
    for (int i = 0; i < DP_ACCEPTOR_ACCEPTS; i++) {
        struct dp_pending *pending = find_place(acceptor, now_ns);
        if (!pending)
            return 0;
        int fd = dp_socket_accept(acceptor->fd);
        if (fd < 0)
            return note_accept_error(acceptor, now_ns, errno);
        *pending = (struct dp_pending){.stage = DP_PENDING_HELLO,
                                       .fd = fd,
                                       .passed_fd = -1,
                                       .until_ns = now_ns + acceptor->handshake_timeout_ns};
        acceptor->present++;
    }
    acceptor->is_crowded = true;
    return 0;
}

/* The first bytes of a connection: they fit, or something is wrong. */
static bool answer(const struct dp_pending *pending, const void *bytes, size_t len)
{
    return send(pending->fd, bytes, len, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)len;
}

static int received(struct dp_pending *pending, ssize_t n)
{
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? DP_EAGAIN : DP_EMISMATCH;
    pending->got += (size_t)n;
    return n ? 0 : DP_EMISMATCH;
}

/* Reads no byte beyond them, and no file. 0: some have come. */
static int receive_bytes(struct dp_pending *pending, void *bytes, size_t len)
{
    return received(pending, recv(pending->fd, (char *)bytes + pending->got, len - pending->got,
                                  MSG_DONTWAIT));
}

static void expect(struct dp_pending *pending, enum dp_pending_stage stage)
{
    pending->stage = stage;
    pending->got = 0;
}

static int challenge(const struct dp_wire_listener *acceptor, struct dp_pending *pending)
{
    struct dp_challenge c = {.magic = CHALLENGE};

    if (dp_random_bytes(pending->nonce, sizeof(pending->nonce)))
        return DP_EMISMATCH;
    memcpy(c.nonce, pending->nonce, sizeof(c.nonce));
    dp_hello_prove(DP_HELLO_ACCEPTOR, acceptor->cookie, &pending->hello, c.nonce, c.proof);
    expect(pending, DP_PENDING_PROOF);
    return answer(pending, &c, sizeof(c)) ? 0 : DP_EMISMATCH;
}

static int receive_hello(const struct dp_wire_listener *acceptor, struct dp_pending *pending)
{
    const uint32_t version = OTHER_VERSION | DP_HELLO_VERSION;
    int err = receive_bytes(pending, &pending->hello, sizeof(pending->hello));

    if (!err)
        err = check_hello(acceptor, &pending->hello, pending->got);
    if (err == DP_EUNSUPPORTED)
        answer(pending, &version, sizeof(version));
    return err ? err : challenge(acceptor, pending);
}

static int receive_proof(const struct dp_wire_listener *acceptor, struct dp_pending *pending)
{
    const int err = receive_bytes(pending, pending->proof, sizeof(pending->proof));

    if (err || pending->got < sizeof(pending->proof))
        return err ? err : DP_EAGAIN;
    if (!is_proof(DP_HELLO_CONNECTOR, acceptor->cookie, &pending->hello, pending->nonce,
                  pending->proof))
        return DP_EMISMATCH;
    dp_hello_prove(DP_HELLO_SESSION, acceptor->cookie, &pending->hello, pending->nonce,
                   pending->session);
    if (acceptor->kind == DP_HELLO_SHM) {
        expect(pending, DP_PENDING_FILE);
        dp_fds_allow(pending->fd, true);
    }
    return answer(pending, &WELCOME, sizeof(WELCOME)) ? 0 : DP_EMISMATCH;
}

/* The kernel drops a file that there is no number for, so the byte with which it comes stays unread
 * until there is one. */
static int receive_file(struct dp_wire_listener *acceptor, struct dp_pending *pending,
                        int64_t now_ns)
{
    const int fd = eventfd(0, EFD_CLOEXEC);
    char byte;

    if (fd < 0 && (errno == EMFILE || errno == ENFILE))
        return handle_shortage(acceptor, now_ns, errno);
    close(fd);
    return received(pending, dp_fds_receive(pending->fd, &byte, 1, &pending->passed_fd));
}

/* DP_EAGAIN, 0 the cookie is proved, DP_EIO; any other error: the connection is dropped. */
static int advance(struct dp_wire_listener *acceptor, struct dp_pending *pending, int64_t now_ns)
{
    int err = 0;

    if (pending->stage == DP_PENDING_HELLO)
        err = receive_hello(acceptor, pending);
    if (!err && pending->stage == DP_PENDING_PROOF)
        err = receive_proof(acceptor, pending);
    if (!err && pending->stage == DP_PENDING_FILE)
        err = receive_file(acceptor, pending, now_ns);
    return err;
}

bool dp_acceptor_arm(const struct dp_wire_listener *acceptor, struct pollfd *fd)
{
    *fd = (struct pollfd){.fd = acceptor->fd, .events = POLLIN};
    return !acceptor->present && !acceptor->incomplete && !acceptor->is_crowded;
}

/* A flood of connections has a quarter of the time of a thread that asks all the time. */
static void rest(struct dp_wire_listener *acceptor, int64_t since_ns)
{
    const int64_t now_ns = dp_now_ns();

    acceptor->rests_ns = now_ns + 3 * (now_ns - since_ns);
}

int dp_acceptor_admit(struct dp_wire_listener *acceptor, struct dp_pending *out)
{
    const int64_t now_ns = dp_now_ns();

    if (acceptor->is_crowded && now_ns < acceptor->rests_ns)
        return DP_EAGAIN;
    int shortage = accept_pending(acceptor, now_ns);
    for (int i = 0; acceptor->present && i < DP_ACCEPTOR_PENDING; i++) {
        struct dp_pending *pending = &acceptor->pending[i];
        if (!pending->stage)
            continue;
        int err = advance(acceptor, pending, now_ns);
        pending->is_read = true;
        if (!err) {
            *out = *pending;
            leave(acceptor, pending);
            return 0;
        }
        if (err == DP_EIO)
            shortage = err;
        else if (err != DP_EAGAIN || now_ns > pending->until_ns)
            drop(acceptor, pending);
    }
    if (acceptor->is_crowded)
        rest(acceptor, now_ns);
    return shortage ? shortage : DP_EAGAIN;
}

/* ---- call ---------------------------------------------------------------------------------- */

/* Not for dp_last_error(): a connection is made beside other work, and the caller has had no failure. */
static int say(struct dp_connector *connector, int err, const char *what, int error)
{
    snprintf(connector->why, sizeof(connector->why), "%s: %s%s%s", connector->where, what,
             error ? ": " : "", error ? dp_errno_text(error) : "");
    return err;
}

static int refused(struct dp_connector *connector, const char *what, int error)
{
    int fd = connector->fd;

    connector->fd = -1;
    dp_fd_close(fd);
    return say(connector, DP_ECOMM, what, error);
}

static int open_socket(struct dp_connector *connector)
{
    connector->fd = dp_socket_open(connector->address.ss_family);
    if (connector->fd >= 0 && connector->address.ss_family == AF_UNIX)
        dp_fds_allow(connector->fd, false);
    return connector->fd;
}

/* 0: the peer has closed the connection. Those of a host that is up or down, of what lies between, and
 * of a unix socket's queue that is full. */
static bool may_pass(int error)
{
    static const int passing[] = {0,         ECONNREFUSED, ECONNRESET, ECONNABORTED, EPIPE, ETIMEDOUT,
                                  EHOSTDOWN, EHOSTUNREACH, ENETDOWN,   ENETUNREACH,  EAGAIN};

    for (size_t i = 0; i < sizeof(passing) / sizeof(passing[0]); i++)
        if (error == passing[i])
            return true;
    return false;
}

static void reset_pauses(struct dp_connector *connector)
{
    connector->pause_ns = FIRST_PAUSE_NS;
    connector->paused_ns = 0;
}

/* With another socket, after a pause that becomes longer. The pauses are added up and not the time, of
 * which a process that is stopped has none. */
static int try_again(struct dp_connector *connector, const char *what, int error)
{
    connector->is_refused = error == ECONNREFUSED;
    say(connector, DP_EAGAIN, what, error);
    if (!may_pass(error) || connector->paused_ns > DP_CONNECTOR_RETRY_NS)
        return refused(connector, what, error);
    dp_fd_close(connector->fd);
    connector->connected = connector->hello_sent = connector->proof_sent = false;
    connector->got = 0;
    if (open_socket(connector) < 0)
        return say(connector, DP_EIO, "no socket to connect again", errno);
    connector->is_to_retry = true;
    connector->retry_ns = dp_now_ns() + connector->pause_ns;
    connector->paused_ns += connector->pause_ns;
    if (connector->pause_ns < LAST_PAUSE_NS)
        connector->pause_ns *= 2;
    return DP_EAGAIN;
}

static int start_connect(struct dp_connector *connector)
{
    connector->is_to_retry = false;
    if (!connect(connector->fd, (const struct sockaddr *)&connector->address,
                 connector->address_len)) {
        connector->connected = true;
        return 0;
    }
    if (errno == EINPROGRESS || errno == EINTR)
        return 0;
    /* A unix socket's name goes with its listener. */
    return try_again(connector, "cannot connect", errno == ENOENT ? ECONNREFUSED : errno);
}

/* Each time with another nonce: an answer to an earlier hello proves nothing. The first bytes of a
 * connection fit, or something is wrong. */
static int send_hello(struct dp_connector *connector)
{
    struct dp_hello *hello = &connector->hello;

    if (dp_random_bytes(hello->nonce, sizeof(hello->nonce)))
        return refused(connector, dp_last_error(), 0);
    if (dp_fds_send(connector->fd, hello, sizeof(*hello), -1) != (ssize_t)sizeof(*hello))
        return try_again(connector, "cannot connect", errno);
    connector->hello_sent = true;
    return 0;
}

static int send_proof(struct dp_connector *connector)
{
    uint8_t proof[DP_HMAC_BYTES];

    dp_hello_prove(DP_HELLO_CONNECTOR, connector->cookie, &connector->hello,
                   connector->challenge.nonce, proof);
    dp_hello_prove(DP_HELLO_SESSION, connector->cookie, &connector->hello,
                   connector->challenge.nonce, connector->session);
    if (dp_fds_send(connector->fd, proof, sizeof(proof), -1) != (ssize_t)sizeof(proof))
        return try_again(connector, "cannot connect", errno);
    connector->proof_sent = true;
    return 0;
}

static int finish_connect(struct dp_connector *connector)
{
    struct pollfd fd = {.fd = connector->fd, .events = POLLOUT};
    int error = 0;
    socklen_t len = sizeof(error);

    if (poll(&fd, 1, 0) <= 0)
        return DP_EAGAIN;
    if (getsockopt(connector->fd, SOL_SOCKET, SO_ERROR, &error, &len) || error)
        return try_again(connector, "cannot connect", error);
    connector->connected = true;
    connector->is_refused = false;
    return 0;
}

/* Connected, and the hello said. */
static int connect_and_greet(struct dp_connector *connector)
{
    int err = 0;

    if (connector->is_to_retry)
        err = dp_now_ns() < connector->retry_ns ? DP_EAGAIN : start_connect(connector);
    if (!err && !connector->connected)
        err = finish_connect(connector);
    return err || connector->hello_sent ? err : send_hello(connector);
}

int dp_connector_start(struct dp_connector *connector, const struct sockaddr *address,
                       socklen_t len, const char *where, const struct dp_hello *hello,
                       const uint8_t cookie[DP_COOKIE_BYTES], int passed_fd)
{
    *connector = (struct dp_connector){.fd = -1, .passed_fd = passed_fd, .hello = *hello};
    connector->hello.magic = MAGIC;
    connector->hello.version = DP_HELLO_VERSION;
    memcpy(connector->cookie, cookie, DP_COOKIE_BYTES);
    strncpy(connector->where, where, sizeof(connector->where) - 1);
    memcpy(&connector->address, address, len);
    connector->address_len = len;
    reset_pauses(connector);
    if (open_socket(connector) < 0)
        return dp_fail_quietly(DP_EIO, "no socket for a connection to %s: %s", where,
                               dp_errno_text(errno));
    int err = start_connect(connector);
    if (!err)
        err = connect_and_greet(connector);
    return err && err != DP_EAGAIN ? dp_fail_quietly(err, "%s", connector->why) : 0;
}

static int fail_on_version(struct dp_connector *connector, unsigned version)
{
    char what[120];

    snprintf(
        what, sizeof(what),
        "speaks version %u of the handshake, and here it is %d: both sides need the same dualpipe",
        version, DP_HELLO_VERSION);
    return refused(connector, what, 0);
}

/* What each step expects: its bytes come at once or in parts. */
static int receive_answer(struct dp_connector *connector, void *bytes, size_t len)
{
    const ssize_t n = recv(connector->fd, (char *)bytes + connector->got, len - connector->got,
                           MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return DP_EAGAIN;
    if (n <= 0)
        return try_again(connector, "was there, but did not let us in", n < 0 ? errno : 0);
    connector->got += (size_t)n;
    return 0;
}

static int receive_challenge(struct dp_connector *connector)
{
    const struct dp_challenge *c = &connector->challenge;
    const int err = receive_answer(connector, &connector->challenge, sizeof(*c));

    if (err)
        return err;
    if (connector->got >= sizeof(c->magic) && (c->magic & ~0xffu) == OTHER_VERSION)
        return fail_on_version(connector, c->magic & 0xff);
    if (connector->got < sizeof(*c))
        return DP_EAGAIN;
    if (c->magic != CHALLENGE || !is_proof(DP_HELLO_ACCEPTOR, connector->cookie, &connector->hello,
                                           c->nonce, c->proof))
        return refused(connector, "listens, but does not know the cookie of this address", 0);
    reset_pauses(connector);
    connector->got = 0;
    if (connector->passed_fd >= 0)
        dp_fds_allow(connector->fd, true);
    return send_proof(connector);
}

static int receive_welcome(struct dp_connector *connector)
{
    const int err = receive_answer(connector, &connector->welcome, sizeof(connector->welcome));

    if (err)
        return err;
    if (connector->got < sizeof(connector->welcome))
        return DP_EAGAIN;
    return connector->welcome == WELCOME
               ? 0
               : refused(connector, "was there, but did not let us in", 0);
}

static int send_file(struct dp_connector *connector)
{
    if (connector->passed_fd >= 0 && dp_fds_send(connector->fd, "", 1, connector->passed_fd) != 1)
        return try_again(connector, "cannot pass on the shared memory", errno);
    dp_fd_close(connector->passed_fd);
    connector->passed_fd = -1;
    return 0;
}

/* 0: welcome received. DP_EAGAIN: not yet. DP_ECOMM: no listener, or refused; its why says which. */
static int make_progress(struct dp_connector *connector)
{
    int err = connect_and_greet(connector);

    if (!err && !connector->proof_sent)
        err = receive_challenge(connector);
    if (!err)
        err = receive_welcome(connector);
    return err ? err : send_file(connector);
}

bool dp_connector_connect(struct dp_connector *connector, struct dp_wire *wire, int *fd)
{
    int err = make_progress(connector);

    wire->is_reached &= connector->connected;
    wire->is_refused |= connector->is_refused;
    if (connector->is_to_retry)
        snprintf(wire->why, sizeof(wire->why), "%s", connector->why);
    if (err && err != DP_EAGAIN)
        dp_wire_fail(wire, err, "%s", connector->why);
    if (err)
        return false;
    wire->why[0] = '\0';
    *fd = connector->fd;
    connector->fd = -1;
    return true;
}

/* A socket that pauses before another try has hung up: a poll of it would return at once. */
struct pollfd dp_connector_poll(const struct dp_connector *connector)
{
    return (struct pollfd){.fd = connector->is_to_retry ? -1 : connector->fd,
                           .events = connector->connected ? POLLIN : POLLOUT};
}

void dp_connector_fini(struct dp_connector *connector)
{
    dp_fd_close(connector->fd);
    dp_fd_close(connector->passed_fd);
    connector->fd = connector->passed_fd = -1;
}
