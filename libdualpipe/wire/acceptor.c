/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/acceptor.h"

#include "base/clock.h"
#include "base/fail.h"
#include "wire/fds.h"
#include "wire/net.h"
#include "wire/sockets.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static const uint32_t MAGIC = 0x44507731;   /* "DPw1" */
static const uint32_t WELCOME = 0x44507757; /* "DPwW" */
/* Instead of it, to a friend of another version: ours is in the last byte. */
static const uint32_t OTHER_VERSION = 0x44507600; /* "DPv" */

/* ---- acceptor  */

static void drop(struct dp_pending *pending)
{
    dp_fd_close(pending->fd);
    dp_fd_close(pending->passed_fd);
    *pending = (struct dp_pending){0};
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
    memcpy(acceptor->cookie, cookie, DP_COOKIE_BYTES);
    *out = acceptor;
    return 0;
}

void dp_acceptor_close(struct dp_wire_listener *acceptor)
{
    if (!acceptor)
        return;
    for (int i = 0; i < DP_ACCEPTOR_PENDING; i++)
        if (acceptor->pending[i].present)
            drop(&acceptor->pending[i]);
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

/* In the same time whatever is wrong with it. */
static bool is_same_cookie(const uint8_t *a, const uint8_t *b)
{
    uint8_t differing = 0;

    for (int i = 0; i < DP_COOKIE_BYTES; i++)
        differing |= a[i] ^ b[i];
    return !differing;
}

int dp_hello_check(const struct dp_wire_listener *acceptor, const void *bytes, size_t len)
{
    struct dp_hello hello;

    /* Garbage goes at its first four bytes; a browser has no more to say anyway. */
    if (len >= sizeof(MAGIC) && memcmp(bytes, &MAGIC, sizeof(MAGIC)))
        return DP_EMISMATCH;
    if (len < sizeof(hello))
        return DP_EAGAIN;
    memcpy(&hello, bytes, sizeof(hello));
    if (hello.kind != acceptor->kind || !is_same_cookie(hello.cookie, acceptor->cookie))
        return DP_EMISMATCH;
    return hello.version == DP_HELLO_VERSION ? 0 : DP_EUNSUPPORTED;
}

static struct dp_pending *find_place(struct dp_wire_listener *acceptor, int64_t now_ns)
{
    struct dp_pending *oldest = acceptor->pending;

    for (int i = 0; i < DP_ACCEPTOR_PENDING; i++) {
        if (!acceptor->pending[i].present)
            return &acceptor->pending[i];
        if (acceptor->pending[i].until_ns < oldest->until_ns)
            oldest = &acceptor->pending[i];
    }
    if (now_ns < oldest->until_ns - acceptor->handshake_timeout_ns + DP_ACCEPTOR_EVICT_NS)
        return NULL;
    drop(oldest);
    return oldest;
}

/* A connection waits, and no file may be opened for it. The warning comes once, as the listener is
 * asked all the time. */
static int report_shortage(struct dp_wire_listener *acceptor, int error)
{
    static const char what[] = "the connection of a peer cannot be accepted";

    if (acceptor->needs_files)
        return dp_fail_quietly(DP_EIO, "%s: %s", what, dp_errno_text(error));
    if (!acceptor->has_warned)
        dp_log(DP_LOG_WARN, "%s: %s", what, dp_errno_text(error));
    acceptor->has_warned = true;
    return DP_EAGAIN;
}

/* Without room for a file accept fails even if no connection waits. */
static int note_accept_error(struct dp_wire_listener *acceptor, int error)
{
    struct pollfd fd = {.fd = acceptor->fd, .events = POLLIN};

    if (error == EAGAIN || error == EINTR || error == ECONNABORTED || poll(&fd, 1, 0) < 1)
        return 0;
    return report_shortage(acceptor, error);
}

/* 0, or DP_EIO. */
static int accept_pending(struct dp_wire_listener *acceptor, int64_t now_ns)
{
    struct dp_pending *pending;

    while ((pending = find_place(acceptor, now_ns))) {
        int fd = dp_socket_accept(acceptor->fd);
        if (fd < 0) {
            const int err = note_accept_error(acceptor, errno);
            return err == DP_EAGAIN ? 0 : err;
        }
        *pending = (struct dp_pending){.present = true,
                                       .fd = fd,
                                       .passed_fd = -1,
                                       .until_ns = now_ns + acceptor->handshake_timeout_ns};
    }
    return 0;
}

static bool answer(const struct dp_pending *pending, uint32_t word)
{
    return send(pending->fd, &word, sizeof(word), MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof(word);
}

/* The kernel drops a file that comes with a hello when there is no number for it, so the hello
 * stays unread until there is one. */
static bool has_room_for_file(const struct dp_pending *pending)
{
    const int fd = pending->got ? -1 : eventfd(0, EFD_CLOEXEC);

    if (fd >= 0)
        close(fd);
    return fd >= 0 || pending->got || (errno != EMFILE && errno != ENFILE);
}

/* DP_EAGAIN, 0 a good hello, DP_EIO; any other error: the connection is dropped. Reads no byte
 * beyond the hello. */
static int receive_hello(struct dp_wire_listener *acceptor, struct dp_pending *pending)
{
    char *hello = (char *)&pending->hello;

    if (acceptor->kind == DP_HELLO_SHM && !has_room_for_file(pending))
        return report_shortage(acceptor, errno);
    ssize_t n = dp_fds_receive(pending->fd, hello + pending->got,
                               sizeof(pending->hello) - pending->got, &pending->passed_fd);

    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? DP_EAGAIN : DP_EMISMATCH;
    if (n == 0)
        return DP_EMISMATCH;
    pending->got += (size_t)n;
    int err = dp_hello_check(acceptor, hello, pending->got);
    if (err == DP_EUNSUPPORTED)
        answer(pending, OTHER_VERSION | DP_HELLO_VERSION);
    if (!err && !answer(pending, WELCOME))
        return DP_EMISMATCH;
    return err;
}

bool dp_acceptor_arm(const struct dp_wire_listener *acceptor, struct pollfd *fd)
{
    *fd = (struct pollfd){.fd = acceptor->fd, .events = POLLIN};
    for (int i = 0; i < DP_ACCEPTOR_PENDING; i++)
        if (acceptor->pending[i].present)
            return false;
    return !acceptor->incomplete;
}

int dp_acceptor_admit(struct dp_wire_listener *acceptor, struct dp_pending *out)
{
    const int64_t now_ns = dp_now_ns();

    int shortage = accept_pending(acceptor, now_ns);
    for (int i = 0; i < DP_ACCEPTOR_PENDING; i++) {
        struct dp_pending *pending = &acceptor->pending[i];
        if (!pending->present)
            continue;
        int err = receive_hello(acceptor, pending);
        if (!err) {
            *out = *pending;
            *pending = (struct dp_pending){0};
            return 0;
        }
        if (err == DP_EIO)
            shortage = err;
        else if (err != DP_EAGAIN || now_ns > pending->until_ns)
            drop(pending);
    }
    return shortage ? shortage : DP_EAGAIN;
}

/* ---- call ---------------------------------------------------------------------------------- */

static int refused(struct dp_connector *connector, const char *what, int error)
{
    int fd = connector->fd;

    connector->fd = -1;
    connector->is_refused = error == ECONNREFUSED;
    dp_fd_close(fd);
    return dp_fail_quietly(DP_ECOMM, "%s: %s%s%s", connector->where, what, error ? ": " : "",
                           error ? strerror(error) : "");
}

static int start_connect(struct dp_connector *connector, const struct sockaddr *address,
                         socklen_t len)
{
    if (!connect(connector->fd, address, len)) {
        connector->connected = true;
        return 0;
    }
    if (errno == EINPROGRESS || errno == EINTR)
        return 0;
    return refused(connector, "cannot connect", errno);
}

static int send_hello(struct dp_connector *connector)
{
    /* The first bytes of a connection: they fit, or something is wrong. */
    if (dp_fds_send(connector->fd, &connector->hello, sizeof(connector->hello),
                    connector->passed_fd) != (ssize_t)sizeof(connector->hello))
        return refused(connector, "cannot connect", errno);
    dp_fd_close(connector->passed_fd);
    connector->passed_fd = -1;
    connector->hello_sent = true;
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
        return refused(connector, "cannot connect", error);
    connector->connected = true;
    return 0;
}

/* Connected, and the hello said. */
static int connect_and_greet(struct dp_connector *connector)
{
    int err = connector->connected ? 0 : finish_connect(connector);

    return err || connector->hello_sent ? err : send_hello(connector);
}

int dp_connector_start(struct dp_connector *connector, const struct sockaddr *address,
                       socklen_t len, const char *where, const struct dp_hello *hello,
                       int passed_fd)
{
    *connector = (struct dp_connector){.fd = -1, .passed_fd = passed_fd, .hello = *hello};
    connector->hello.magic = MAGIC;
    connector->hello.version = DP_HELLO_VERSION;
    strncpy(connector->where, where, sizeof(connector->where) - 1);
    connector->fd = dp_socket_open(address->sa_family);
    if (connector->fd < 0)
        return dp_fail_quietly(DP_EIO, "no socket for a connection to %s: %s", where,
                               dp_errno_text(errno));
    int err = start_connect(connector, address, len);
    if (!err)
        err = connect_and_greet(connector);
    return err == DP_EAGAIN ? 0 : err;
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

int dp_connector_progress(struct dp_connector *connector)
{
    uint32_t welcome;
    int err = connect_and_greet(connector);

    if (err)
        return err;
    ssize_t n = recv(connector->fd, &welcome, sizeof(welcome), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return DP_EAGAIN;
    if (n == (ssize_t)sizeof(welcome) && (welcome & ~0xffu) == OTHER_VERSION)
        return fail_on_version(connector, welcome & 0xff);
    if (n != (ssize_t)sizeof(welcome) || welcome != WELCOME)
        return refused(connector, "was there, but did not let us in", n < 0 ? errno : 0);
    return 0;
}

bool dp_connector_connect(struct dp_connector *connector, struct dp_wire *wire, int *fd)
{
    int err = dp_connector_progress(connector);

    if (err && err != DP_EAGAIN)
        dp_wire_fail(wire, err, "%s", dp_last_error());
    if (err)
        return false;
    *fd = connector->fd;
    connector->fd = -1;
    wire->connected = true;
    return true;
}

struct pollfd dp_connector_poll(const struct dp_connector *connector)
{
    return (struct pollfd){.fd = connector->fd, .events = connector->connected ? POLLIN : POLLOUT};
}

void dp_connector_fini(struct dp_connector *connector)
{
    dp_fd_close(connector->fd);
    dp_fd_close(connector->passed_fd);
    connector->fd = connector->passed_fd = -1;
}
