/* SPDX-License-Identifier: Apache-2.0
 *
 * door.h - who may come in: the first bytes on a stream socket, for both sides.
 *
 *      caller                        door
 *      connect
 *      hello: magic, cookie, label   ->   wrong, or not within its patience: closed, no answer
 *                                    <-   the cookie is right, but the version another: which one
 *                                    <-   welcome
 *
 * A guest is a connection that has not said its hello yet. Guests are looked at without ever waiting
 * for one, so that none can keep the others out. When all places are taken, those who come wait in the
 * system's queue, until the eldest guest has stayed DP_DOOR_STAY_NS and goes.
 */
#ifndef DP_WIRE_DOOR_H
#define DP_WIRE_DOOR_H

#include "wire/wire.h"

#include <sys/socket.h>

/* What a caller says, in the host's byte order: a host of the other one has the wrong magic. */
struct dp_hello {
    uint32_t magic;
    uint16_t version;
    uint16_t kind; /* of wire; a caller for shm has no business at a tcp door */
    uint8_t cookie[DP_COOKIE_BYTES];
    uint64_t label;
    uint64_t extra; /* the wire's own */
};

enum dp_hello_kind { DP_HELLO_TCP = 1, DP_HELLO_SHM };
enum { DP_DOOR_GUESTS = 256, DP_DOOR_VERSION = 4 };
#define DP_DOOR_STAY_NS INT64_C(500000000)

struct dp_guest {
    bool present;
    int fd;
    int passed_fd; /* a file that came with the hello, -1 none */
    size_t got;
    int64_t until_ns;
    struct dp_hello hello;
};

struct dp_tcp_wire;

struct dp_wire_listener {
    int fd; /* listening, non-blocking */
    uint16_t kind;
    uint8_t cookie[DP_COOKIE_BYTES];
    int64_t patience_ns;
    struct dp_tcp_wire *halves; /* tcp: wires that lack sockets */
    bool has_complained;
    struct dp_guest guests[DP_DOOR_GUESTS];
};

/* Takes fd, also on failure. */
int dp_door_open(int fd, enum dp_hello_kind kind, const uint8_t cookie[DP_COOKIE_BYTES],
                 int64_t patience_ns, struct dp_wire_listener **out);
/* door may be NULL. */
void dp_door_close(struct dp_wire_listener *door);
/* The config's cookie, or a random one. */
int dp_door_choose_cookie(const struct dp_wire_config *config, uint8_t cookie[DP_COOKIE_BYTES]);
/* DP_EAGAIN, or 0 and *out: a guest who said the right hello. Its files are the caller's. */
int dp_door_admit(struct dp_wire_listener *door, struct dp_guest *out);
/* Whether these bytes are the right hello: 0, DP_EAGAIN for too few, DP_EUNSUPPORTED if only the version
 * is another, DP_EMISMATCH. */
int dp_hello_check(const struct dp_wire_listener *door, const void *bytes, size_t len);

/* The other side. */
struct dp_call {
    int fd;
    int passed_fd; /* goes along with the hello, then closed; -1 none */
    bool connected, said;
    bool is_refused; /* the host is there, and nobody listens */
    struct dp_hello hello;
    char where[80]; /* for sentences */
};

/* Start to connect, and say hello if that can be done at once; never waits. DP_EIO if there is no
 * socket to be had. where tells the address. */
int dp_call_start(struct dp_call *call, const struct sockaddr *address, socklen_t len,
                  const char *where, const struct dp_hello *hello, int passed_fd);
/* 0: welcome. DP_EAGAIN. DP_ECOMM: nobody there, or not let in; dp_last_error() says which. */
int dp_call_progress(struct dp_call *call);
/* The same for a wire: true once it is connected, and then *fd is its socket. Fails the wire if that
 * cannot be. */
bool dp_call_connect(struct dp_call *call, struct dp_wire *wire, int *fd);
/* What to poll for until then. */
struct pollfd dp_call_poll(const struct dp_call *call);
void dp_call_fini(struct dp_call *call);

#endif
