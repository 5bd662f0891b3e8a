/* SPDX-License-Identifier: Apache-2.0
 *
 * acceptor.h - the handshake: the first bytes on a stream socket, for both sides.
 *
 *      connector                     acceptor
 *      connect
 *      hello: magic, nonce, label    ->   wrong, or later than the handshake timeout: closed, no
 *                                         answer; another version: the acceptor's version
 *                                    <-   challenge: a nonce, its proof
 *      its proof                     ->   wrong: closed, no answer
 *                                    <-   welcome
 *      shm: a byte, and the file     ->
 *
 * The cookie itself does not travel. A proof is an HMAC-SHA256, keyed with the cookie, of the side
 * that proves, the hello and the acceptor's nonce: it holds for this side of this connection only.
 * Each side closes the connection if the proof of the other one is wrong.
 *
 * A file comes only after the proof, as to close a stranger's file may take as long as the stranger
 * likes. The kernel passes none before (SO_PASSRIGHTS, Linux 6.16), and where it does not know that,
 * the folder of the socket keeps other users out (shm_open.c).
 *
 * A pending connection has not proved that it knows the cookie yet. Pending connections are polled
 * without waiting for any of them, so that a silent one cannot keep the others out. When all
 * DP_ACCEPTOR_PENDING places are taken, or no file can be opened, a new connection has at once the
 * place of one that has said nothing. Otherwise it waits in the system's queue until the oldest pending
 * one has been there for DP_ACCEPTOR_EVICT_NS. A call accepts DP_ACCEPTOR_ACCEPTS connections; after
 * one that accepted so many the acceptor rests for three times as long as the call took.
 *
 * A connector tries again after an error that may pass: no process listens, the host cannot be reached
 * or is silent, the system's queue is full, or the acceptor has dropped the connection, as it does when
 * it needs the place or when this side was stopped for longer than the handshake timeout. It gives up
 * when its pauses add up to DP_CONNECTOR_RETRY_NS since an acceptor has proved last that it knows the
 * cookie: such an acceptor is alive.
 */
#ifndef DP_WIRE_ACCEPTOR_H
#define DP_WIRE_ACCEPTOR_H

#include "base/hmac.h"
#include "wire/wire.h"

#include <sys/socket.h>

/* What a connector sends, in host byte order: a host of the other byte order has the wrong magic.
 */
struct dp_hello {
    uint32_t magic;
    uint16_t version;
    uint16_t kind; /* of wire: a hello for shm is refused by a tcp acceptor */
    uint8_t nonce[DP_NONCE_BYTES];
    uint64_t label;
    uint64_t extra; /* the wire's own */
};

/* What the acceptor answers. */
struct dp_challenge {
    uint32_t magic, zero;
    uint8_t nonce[DP_NONCE_BYTES];
    uint8_t proof[DP_HMAC_BYTES];
};

/* What an HMAC over a handshake is for: the proof of a side, or a key that only the two know. */
enum dp_hello_use { DP_HELLO_CONNECTOR = 1, DP_HELLO_ACCEPTOR, DP_HELLO_SESSION };

enum dp_hello_kind { DP_HELLO_TCP = 1, DP_HELLO_SHM };
enum { DP_ACCEPTOR_PENDING = 32, DP_ACCEPTOR_ACCEPTS = 16, DP_HELLO_VERSION = 9 };
enum { DP_ACCEPTOR_FOLDER = 88 };
#define DP_CONNECTOR_RETRY_NS INT64_C(10000000000)

/* What is expected next. */
enum dp_pending_stage { DP_PENDING_NONE, DP_PENDING_HELLO, DP_PENDING_PROOF, DP_PENDING_FILE };

struct dp_pending {
    enum dp_pending_stage stage; /* NONE: a free place */
    int fd;
    int passed_fd; /* the file of shm, -1 none */
    size_t got;    /* of what is expected */
    bool is_read;  /* it was looked at once */
    int64_t until_ns;
    struct dp_hello hello;
    uint8_t nonce[DP_NONCE_BYTES]; /* the acceptor's */
    uint8_t proof[DP_HMAC_BYTES];
    uint8_t session[DP_HMAC_BYTES]; /* see DP_HELLO_SESSION */
};

struct dp_tcp_wire;

struct dp_wire_listener {
    int fd; /* listening, non-blocking */
    char folder[DP_ACCEPTOR_FOLDER]; /* shm: of the socket's name */
    pid_t owner;                     /* the process that removes it */
    uint16_t kind;
    uint8_t cookie[DP_COOKIE_BYTES];
    int64_t handshake_timeout_ns;
    bool needs_files;               /* as in struct dp_wire_config */
    int most_sockets;               /* the same; set by tcp */
    struct dp_tcp_wire *incomplete; /* tcp: wires that lack sockets */
    bool has_warned;
    bool is_crowded;  /* more connections waited than the last call accepted, */
    int64_t rests_ns; /* and there is none until then */
    int present; /* of the places below; a listener that is asked all the time seldom has any */
    struct dp_pending pending[DP_ACCEPTOR_PENDING];
};

/* Takes fd, also on failure. */
int dp_acceptor_open(int fd, enum dp_hello_kind kind, const uint8_t cookie[DP_COOKIE_BYTES],
                     const struct dp_wire_config *config, struct dp_wire_listener **out);
/* acceptor may be NULL. */
void dp_acceptor_close(struct dp_wire_listener *acceptor);
/* The config's cookie, or a random one. */
int dp_acceptor_choose_cookie(const struct dp_wire_config *config, uint8_t cookie[DP_COOKIE_BYTES]);
/* DP_EAGAIN, or 0 and *out: a pending connection that has proved the cookie. Its files are the
 * caller's. DP_EIO as in struct dp_wire_ops. */
int dp_acceptor_admit(struct dp_wire_listener *acceptor, struct dp_pending *out);
/* The HMAC of a hello, whole as it is sent, and the acceptor's nonce. */
void dp_hello_prove(enum dp_hello_use use, const uint8_t cookie[DP_COOKIE_BYTES],
                    const struct dp_hello *hello, const uint8_t nonce[DP_NONCE_BYTES],
                    uint8_t out[DP_HMAC_BYTES]);

/* The connecting side. */
struct dp_connector {
    int fd;
    int passed_fd; /* sent after the welcome, then closed; -1: none */
    bool connected, hello_sent, proof_sent;
    bool is_refused; /* the last attempt was: the host answered that no process listens */
    uint8_t cookie[DP_COOKIE_BYTES];
    struct dp_hello hello;
    size_t got; /* of the challenge, or of the welcome */
    struct dp_challenge challenge;
    uint32_t welcome;
    uint8_t session[DP_HMAC_BYTES]; /* once proof_sent */
    char where[80]; /* for sentences */
    char why[224];  /* what the last attempt has failed for */
    struct sockaddr_storage address;
    socklen_t address_len;
    bool is_to_retry; /* at retry_ns */
    int64_t retry_ns, pause_ns, paused_ns; /* the next pause, and all since the last challenge */
};

/* Start to connect, and send the hello if that is possible at once; never waits. DP_EIO if no
 * socket can be opened, or no nonce be had. `where` is the address as text. Of the hello the caller
 * sets kind, label and extra. */
int dp_connector_start(struct dp_connector *connector, const struct sockaddr *address,
                       socklen_t len, const char *where, const struct dp_hello *hello,
                       const uint8_t cookie[DP_COOKIE_BYTES], int passed_fd);
/* True once the wire is connected, and then *fd is its socket. Fails the wire if that cannot be, and
 * says in it meanwhile how far it is; is_reached is for all of its sockets. */
bool dp_connector_connect(struct dp_connector *connector, struct dp_wire *wire, int *fd);
/* What to poll for until then. */
struct pollfd dp_connector_poll(const struct dp_connector *connector);
void dp_connector_fini(struct dp_connector *connector);

#endif
