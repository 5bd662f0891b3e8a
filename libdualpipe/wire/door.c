/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/door.h"

#include "base/clock.h"
#include "base/fail.h"
#include "wire/fds.h"
#include "wire/net.h"
#include "wire/sockets.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint32_t MAGIC = 0x44507731; /* "DPw1" */
static const uint32_t WELCOME = 0x44507757; /* "DPwW" */
/* Instead of it, to a friend of another version: ours is in the last byte. */
static const uint32_t OTHER_VERSION = 0x44507600; /* "DPv" */

/* ---- door ---------------------------------------------------------------------------------- */

static void show_out(struct dp_guest *guest)
{
    dp_fd_close(guest->fd);
    dp_fd_close(guest->passed_fd);
    *guest = (struct dp_guest){0};
}

int dp_door_open(int fd, enum dp_hello_kind kind, const uint8_t cookie[DP_COOKIE_BYTES],
                 int64_t patience_ns, struct dp_wire_listener **out)
{
    struct dp_wire_listener *door = calloc(1, sizeof(*door));

    if (!door) {
        dp_fd_close(fd);
        return dp_fail(DP_ENOMEM, "no memory for a listener");
    }
    door->fd = fd;
    door->kind = (uint16_t)kind;
    door->patience_ns = patience_ns ? patience_ns : 5 * DP_NS_PER_S;
    memcpy(door->cookie, cookie, DP_COOKIE_BYTES);
    *out = door;
    return 0;
}

void dp_door_close(struct dp_wire_listener *door)
{
    if (!door)
        return;
    for (int i = 0; i < DP_DOOR_GUESTS; i++)
        if (door->guests[i].present)
            show_out(&door->guests[i]);
    dp_fd_close(door->fd);
    free(door);
}

int dp_door_choose_cookie(const struct dp_wire_config *config, uint8_t cookie[DP_COOKIE_BYTES])
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

int dp_hello_check(const struct dp_wire_listener *door, const void *bytes, size_t len)
{
    struct dp_hello hello;

    /* Garbage goes at its first four bytes; a browser has no more to say anyway. */
    if (len >= sizeof(MAGIC) && memcmp(bytes, &MAGIC, sizeof(MAGIC)))
        return DP_EMISMATCH;
    if (len < sizeof(hello))
        return DP_EAGAIN;
    memcpy(&hello, bytes, sizeof(hello));
    if (hello.kind != door->kind || !is_same_cookie(hello.cookie, door->cookie))
        return DP_EMISMATCH;
    return hello.version == DP_DOOR_VERSION ? 0 : DP_EUNSUPPORTED;
}

static struct dp_guest *find_place(struct dp_wire_listener *door, int64_t now_ns)
{
    struct dp_guest *eldest = door->guests;

    for (int i = 0; i < DP_DOOR_GUESTS; i++) {
        if (!door->guests[i].present)
            return &door->guests[i];
        if (door->guests[i].until_ns < eldest->until_ns)
            eldest = &door->guests[i];
    }
    if (now_ns < eldest->until_ns - door->patience_ns + DP_DOOR_STAY_NS)
        return NULL;
    show_out(eldest);
    return eldest;
}

/* Said once, as the listener is asked all the time; and only if there is somebody: without room for a
 * file accept fails anyway. */
static void complain(struct dp_wire_listener *door, int error)
{
    struct pollfd fd = {.fd = door->fd, .events = POLLIN};

    if (error == EAGAIN || error == EINTR || error == ECONNABORTED || door->has_complained ||
        poll(&fd, 1, 0) < 1)
        return;
    dp_log(DP_LOG_WARN, "a peer that connects cannot be let in: %s", dp_errno_text(error));
    door->has_complained = true;
}

static void let_guests_in(struct dp_wire_listener *door, int64_t now_ns)
{
    struct dp_guest *guest;

    while ((guest = find_place(door, now_ns))) {
        int fd = dp_socket_accept(door->fd);
        if (fd < 0) {
            complain(door, errno);
            return;
        }
        *guest = (struct dp_guest){.present = true, .fd = fd, .passed_fd = -1,
                                   .until_ns = now_ns + door->patience_ns};
    }
}

static bool answer(const struct dp_guest *guest, uint32_t word)
{
    return send(guest->fd, &word, sizeof(word), MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof(word);
}

/* DP_EAGAIN, 0 a good hello, else out with it. Reads no byte beyond the hello. */
static int listen_to(const struct dp_wire_listener *door, struct dp_guest *guest)
{
    char *hello = (char *)&guest->hello;
    ssize_t n = dp_fds_receive(guest->fd, hello + guest->got, sizeof(guest->hello) - guest->got,
                               &guest->passed_fd);

    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? DP_EAGAIN : DP_EMISMATCH;
    if (n == 0)
        return DP_EMISMATCH;
    guest->got += (size_t)n;
    int err = dp_hello_check(door, hello, guest->got);
    if (err == DP_EUNSUPPORTED)
        answer(guest, OTHER_VERSION | DP_DOOR_VERSION);
    if (!err && !answer(guest, WELCOME))
        return DP_EMISMATCH;
    return err;
}

int dp_door_admit(struct dp_wire_listener *door, struct dp_guest *out)
{
    const int64_t now_ns = dp_now_ns();

    let_guests_in(door, now_ns);
    for (int i = 0; i < DP_DOOR_GUESTS; i++) {
        struct dp_guest *guest = &door->guests[i];
        if (!guest->present)
            continue;
        int err = listen_to(door, guest);
        if (!err) {
            *out = *guest;
            *guest = (struct dp_guest){0};
            return 0;
        }
        if (err != DP_EAGAIN || now_ns > guest->until_ns)
            show_out(guest);
    }
    return DP_EAGAIN;
}

/* ---- call ---------------------------------------------------------------------------------- */

static int refused(struct dp_call *call, const char *what, int error)
{
    int fd = call->fd;

    call->fd = -1;
    call->is_refused = error == ECONNREFUSED;
    dp_fd_close(fd);
    return dp_fail_quietly(DP_ECOMM, "%s: %s%s%s", call->where, what, error ? ": " : "",
                           error ? strerror(error) : "");
}

static int dial(struct dp_call *call, const struct sockaddr *address, socklen_t len)
{
    if (!connect(call->fd, address, len)) {
        call->connected = true;
        return 0;
    }
    if (errno == EINPROGRESS || errno == EINTR)
        return 0;
    return refused(call, "cannot connect", errno);
}

static int say_hello(struct dp_call *call)
{
    /* The first bytes of a connection: they fit, or something is wrong. */
    if (dp_fds_send(call->fd, &call->hello, sizeof(call->hello), call->passed_fd) !=
        (ssize_t)sizeof(call->hello))
        return refused(call, "cannot connect", errno);
    dp_fd_close(call->passed_fd);
    call->passed_fd = -1;
    call->said = true;
    return 0;
}

static int finish_dialing(struct dp_call *call)
{
    struct pollfd fd = {.fd = call->fd, .events = POLLOUT};
    int error = 0;
    socklen_t len = sizeof(error);

    if (poll(&fd, 1, 0) <= 0)
        return DP_EAGAIN;
    if (getsockopt(call->fd, SOL_SOCKET, SO_ERROR, &error, &len) || error)
        return refused(call, "cannot connect", error);
    call->connected = true;
    return 0;
}

/* Connected, and the hello said. */
static int get_through(struct dp_call *call)
{
    int err = call->connected ? 0 : finish_dialing(call);

    return err || call->said ? err : say_hello(call);
}

int dp_call_start(struct dp_call *call, const struct sockaddr *address, socklen_t len,
                  const char *where, const struct dp_hello *hello, int passed_fd)
{
    *call = (struct dp_call){.fd = -1, .passed_fd = passed_fd, .hello = *hello};
    call->hello.magic = MAGIC;
    call->hello.version = DP_DOOR_VERSION;
    strncpy(call->where, where, sizeof(call->where) - 1);
    call->fd = dp_socket_open(address->sa_family);
    if (call->fd < 0)
        return dp_fail_quietly(DP_EIO, "%s: no socket: %s", where, dp_errno_text(errno));
    int err = dial(call, address, len);
    if (!err)
        err = get_through(call);
    return err == DP_EAGAIN ? 0 : err;
}

static int speaks_otherwise(struct dp_call *call, unsigned version)
{
    char what[120];

    snprintf(what, sizeof(what),
             "speaks version %u of the handshake, and here it is %d: both sides need the same dualpipe",
             version, DP_DOOR_VERSION);
    return refused(call, what, 0);
}

int dp_call_progress(struct dp_call *call)
{
    uint32_t welcome;
    int err = get_through(call);

    if (err)
        return err;
    ssize_t n = recv(call->fd, &welcome, sizeof(welcome), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return DP_EAGAIN;
    if (n == (ssize_t)sizeof(welcome) && (welcome & ~0xffu) == OTHER_VERSION)
        return speaks_otherwise(call, welcome & 0xff);
    if (n != (ssize_t)sizeof(welcome) || welcome != WELCOME)
        return refused(call, "was there, but did not let us in", n < 0 ? errno : 0);
    return 0;
}

bool dp_call_connect(struct dp_call *call, struct dp_wire *wire, int *fd)
{
    int err = dp_call_progress(call);

    if (err && err != DP_EAGAIN)
        dp_wire_fail(wire, err, "%s", dp_last_error());
    if (err)
        return false;
    *fd = call->fd;
    call->fd = -1;
    wire->connected = true;
    return true;
}

struct pollfd dp_call_poll(const struct dp_call *call)
{
    return (struct pollfd){.fd = call->fd, .events = call->connected ? POLLIN : POLLOUT};
}

void dp_call_fini(struct dp_call *call)
{
    dp_fd_close(call->fd);
    dp_fd_close(call->passed_fd);
    call->fd = call->passed_fd = -1;
}
