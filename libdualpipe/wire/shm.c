/* SPDX-License-Identifier: Apache-2.0
 *
 * shm.c - a wire over shared memory, between two processes of one host. One segment per wire, of two
 * sides, one for each direction; the connecting process makes it, and passes it as a file along with
 * its hello over a unix socket. It has no name anywhere, so nothing can be left behind.
 *
 * A side is a ring of slots. A message is cut into pieces, a slot each; every slot has a line of 64
 * bytes that describes its piece. The sender writes the piece, then the line's turn; the receiver
 * looks at nothing but the turn of the next line. A piece of up to 40 bytes lies in the line itself,
 * so that a short message is one cache line that changes cores once.
 *
 *      lines   | turn 5 | turn 6 | turn 3 | turn 4 |        4 slots; the sender's next is the third
 *      slots   | bytes  | bytes  |        | bytes  |        line, once `taken` has come to 3
 *
 * The socket stays: it rings the other side awake, and it tells when the other process is gone.
 */
#include "config.h" /* GNU extensions: memfd_create */

#include "base/clock.h"
#include "base/fail.h"
#include "wire/door.h"
#include "wire/net.h"
#include "wire/wire.h"

#include <fcntl.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    SLOTS = 64, /* a power of 2 */
    SLOT_BYTES = 8192,
    INLINE_BYTES = 40,
    TURNS = 2 * SLOTS, /* pieces of one progress, so that one wire leaves time for the others */
    LOOKS = 4096       /* progresses in vain before the socket is looked at */
};

struct line {
    /* 1 + the number of the piece; so a line never has the turn that its reader waits for, unless
     * it was written for it. */
    alignas(64) atomic_uint turn;
    uint32_t len;
    uint64_t message_len, tag;
    char bytes[INLINE_BYTES];
};
_Static_assert(sizeof(struct line) == 64, "a line is one cache line");

/* Each flag is alone on its pair of cache lines: they are written by different cores. */
struct side {
    alignas(128) atomic_uint taken;         /* pieces that the receiver is done with */
    alignas(128) atomic_uint receiver_asleep; /* ring when there is a new piece */
    alignas(128) atomic_uint sender_asleep;   /* ring when a slot becomes free */
    alignas(128) struct line lines[SLOTS];
    alignas(4096) char slots[SLOTS][SLOT_BYTES];
};

struct segment {
    struct side sides[2]; /* [0]: from the connecting process, [1]: to it */
};

struct shm_wire {
    struct dp_wire base;
    struct dp_call call; /* until connected */
    int fd;              /* the socket, once connected; else -1 */
    bool peer_gone;      /* what it had sent is still in the ring */
    unsigned looks;
    struct segment *segment;
    struct side *out, *in;

    unsigned sent, known_taken; /* pieces */
    unsigned received;
};

struct shm_address {
    uint8_t host_id[DP_HOST_ID_BYTES];
    uint8_t name[16];
    uint8_t cookie[DP_COOKIE_BYTES];
};
_Static_assert(sizeof(struct shm_address) <= sizeof(struct dp_wire_address), "an address fits");

static struct shm_wire *of(struct dp_wire *wire)
{
    return (struct shm_wire *)wire;
}

/* ---- the other side's sleep -------------------------------------------------------------------- */

/* Exchanges only, on both sides: of two, one comes first. Is it ours, the sleeper's takes over all that
 * we had written, and it does not go to sleep; is it the sleeper's, we get its 1. */
static bool set_asleep(atomic_uint *asleep, unsigned value)
{
    return atomic_exchange_explicit(asleep, value, memory_order_acq_rel);
}

static void ring(struct shm_wire *w, atomic_uint *asleep)
{
    if (set_asleep(asleep, 0))
        send(w->fd, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Read away what rang, and notice if nobody is at the other end. */
static void look_at_socket(struct shm_wire *w)
{
    char rings[64];
    ssize_t n = recv(w->fd, rings, sizeof(rings), MSG_DONTWAIT);

    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        w->peer_gone = true;
}

static void look_sometimes(struct shm_wire *w)
{
    if (++w->looks < LOOKS || w->peer_gone)
        return;
    w->looks = 0;
    look_at_socket(w);
}

/* ---- sending ------------------------------------------------------------------------------- */

static bool has_room(struct shm_wire *w)
{
    if (w->sent - w->known_taken < SLOTS)
        return true;
    w->known_taken = atomic_load_explicit(&w->out->taken, memory_order_acquire);
    return w->sent - w->known_taken < SLOTS;
}

/* Write the next piece of the first message. */
static void send_piece(struct shm_wire *w)
{
    struct dp_wire_request *req = w->base.sends.head;
    const unsigned slot = w->sent % SLOTS;
    struct line *line = &w->out->lines[slot];
    const size_t left = req->len - req->moved, len = left < SLOT_BYTES ? left : SLOT_BYTES;

    line->len = (uint32_t)len;
    line->message_len = req->len;
    line->tag = req->tag;
    if (len)
        memcpy(len <= INLINE_BYTES ? line->bytes : w->out->slots[slot], req->buf + req->moved, len);
    atomic_store_explicit(&line->turn, ++w->sent, memory_order_release);
    req->moved += len;
    if (req->moved == req->len)
        dp_wire_finish_head(&w->base.sends, 0);
}

static void send_pieces(struct shm_wire *w)
{
    const unsigned before = w->sent;

    for (int i = 0; i < TURNS && w->base.sends.head && has_room(w); i++)
        send_piece(w);
    if (w->sent != before)
        ring(w, &w->out->receiver_asleep);
}

/* ---- receiving ----------------------------------------------------------------------------- */

static bool has_piece(const struct shm_wire *w)
{
    const struct line *line = &w->in->lines[w->received % SLOTS];

    return atomic_load_explicit(&line->turn, memory_order_acquire) == w->received + 1;
}

static void free_slot(struct shm_wire *w)
{
    atomic_store_explicit(&w->in->taken, ++w->received, memory_order_release);
}

/* The rest of a message that was too long for its receive. */
static void skip_piece(struct shm_wire *w)
{
    const size_t len = w->in->lines[w->received % SLOTS].len;

    w->base.skip = len < w->base.skip ? w->base.skip - len : 0;
    free_slot(w);
}

/* The lines are written by another process: nothing in them is believed that would lead out of the
 * slot or the buffer. */
static void receive_piece(struct shm_wire *w)
{
    struct dp_wire_request *req = w->base.receives.head;
    const unsigned slot = w->received % SLOTS;
    const struct line *line = &w->in->lines[slot];
    const size_t len = line->len, message_len = line->message_len;

    if (len > SLOT_BYTES || message_len > DP_WIRE_MAX_BYTES || req->moved > message_len ||
        len > message_len - req->moved) {
        dp_wire_fail(&w->base, DP_EMISMATCH, "what arrived is no message");
        return;
    }
    req->tag = line->tag;
    if (w->base.aim && !req->moved)
        w->base.aim(req, req->tag, message_len);
    if (message_len > req->len) {
        req->moved = message_len;
        w->base.skip = message_len - len;
        free_slot(w);
        dp_wire_finish_head(&w->base.receives, DP_EMISMATCH);
        return;
    }
    if (len)
        memcpy(req->buf + req->moved, len <= INLINE_BYTES ? line->bytes : w->in->slots[slot], len);
    req->moved += len;
    free_slot(w);
    if (req->moved == message_len)
        dp_wire_finish_head(&w->base.receives, 0);
}

static void receive_pieces(struct shm_wire *w)
{
    const unsigned before = w->received;

    for (int i = 0; i < TURNS && dp_wire_wants_input(&w->base) && has_piece(w); i++) {
        if (w->base.skip)
            skip_piece(w);
        else
            receive_piece(w);
    }
    if (w->received != before)
        ring(w, &w->in->sender_asleep);
    else if (w->peer_gone)
        dp_wire_fail(&w->base, DP_ECOMM, "the connection was closed");
}

/* ---- the table ----------------------------------------------------------------------------- */

static bool is_connected(struct shm_wire *w)
{
    return w->base.connected || dp_call_connect(&w->call, &w->base, &w->fd);
}

static void shm_progress(struct dp_wire *wire)
{
    struct shm_wire *w = of(wire);

    if (wire->error || !is_connected(w))
        return;
    if (wire->sends.head)
        send_pieces(w);
    if (wire->sends.head && w->peer_gone)
        dp_wire_fail_sends(wire, "the connection was closed");
    if (dp_wire_wants_input(wire))
        receive_pieces(w);
    if (dp_wire_is_busy(wire))
        look_sometimes(w);
}

static bool shm_arm(struct dp_wire *wire, struct pollfd *fd)
{
    struct shm_wire *w = of(wire);

    if (wire->error || w->peer_gone)
        return false;
    if (!wire->connected) {
        *fd = dp_call_poll(&w->call);
        return true;
    }
    *fd = (struct pollfd){.fd = w->fd, .events = POLLIN};
    if (dp_wire_wants_input(wire))
        set_asleep(&w->in->receiver_asleep, 1);
    if (wire->sends.head)
        set_asleep(&w->out->sender_asleep, 1);
    return !(dp_wire_wants_input(wire) && has_piece(w)) && !(wire->sends.head && has_room(w));
}

static void shm_disarm(struct dp_wire *wire, short revents)
{
    struct shm_wire *w = of(wire);

    if (!wire->connected)
        return;
    set_asleep(&w->in->receiver_asleep, 0);
    set_asleep(&w->out->sender_asleep, 0);
    if (revents)
        look_at_socket(w);
}

static void shm_close(struct dp_wire *wire)
{
    struct shm_wire *w = of(wire);

    dp_call_fini(&w->call);
    dp_fd_close(w->fd);
    if (w->segment)
        munmap(w->segment, sizeof(*w->segment));
    free(w);
}

/* ---- making it ----------------------------------------------------------------------------- */

static struct shm_wire *new_wire(void)
{
    struct shm_wire *w = calloc(1, sizeof(*w));

    if (!w)
        return NULL;
    dp_wire_init(&w->base, &dp_wire_shm);
    w->base.buffer_bytes = (size_t)SLOTS * SLOT_BYTES;
    w->fd = w->call.fd = w->call.passed_fd = -1;
    return w;
}

/* `first`: the process that connects. */
static int map_segment(struct shm_wire *w, int fd, bool first)
{
    void *at = mmap(NULL, sizeof(*w->segment), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (at == MAP_FAILED)
        return dp_fail(DP_ENOMEM, "cannot map %zu bytes of shared memory: %s", sizeof(*w->segment),
                       strerror(errno));
    w->segment = at;
    w->out = &w->segment->sides[!first];
    w->in = &w->segment->sides[first];
    return 0;
}

/* Sealed, so that neither side can cut it off under the other, which would be killed for reading. */
static int make_segment(int *out)
{
    int fd = memfd_create("dualpipe", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0)
        return dp_fail(DP_EIO, "no shared memory: %s", strerror(errno));
    if (ftruncate(fd, sizeof(struct segment)) ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
        int err = dp_fail(DP_ENOMEM, "no %zu bytes of shared memory: %s", sizeof(struct segment),
                          strerror(errno));
        close(fd);
        return err;
    }
    *out = fd;
    return 0;
}

static bool is_segment(int fd)
{
    struct stat st;

    return fd >= 0 && !fstat(fd, &st) && st.st_size == sizeof(struct segment) &&
           (fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK);
}

/* An abstract name: the first byte is 0, and it is gone with the socket. */
static socklen_t fill_name(struct sockaddr_un *un, const uint8_t name[16])
{
    *un = (struct sockaddr_un){.sun_family = AF_UNIX};
    size_t len = 1 + (size_t)snprintf(un->sun_path + 1, sizeof(un->sun_path) - 1, "dualpipe-");
    for (int i = 0; i < 16; i++)
        len += (size_t)snprintf(un->sun_path + len, sizeof(un->sun_path) - len, "%02x", name[i]);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
}

static int start_call(struct shm_wire *w, const struct shm_address *a, uint64_t label)
{
    struct dp_hello hello = {.kind = DP_HELLO_SHM, .label = label, .extra = sizeof(struct segment)};
    struct sockaddr_un un;
    socklen_t len = fill_name(&un, a->name);
    int fd = -1, err = make_segment(&fd);

    if (err)
        return err;
    err = map_segment(w, fd, true);
    if (err) {
        close(fd);
        return err;
    }
    memcpy(hello.cookie, a->cookie, sizeof(hello.cookie));
    err = dp_call_start(&w->call, (struct sockaddr *)&un, len, un.sun_path + 1, &hello, fd);
    if (err)
        dp_wire_fail(&w->base, err, "%s", dp_last_error());
    return 0;
}

static int shm_connect(const struct dp_wire_address *address, uint64_t label, struct dp_wire **out)
{
    uint8_t host_id[DP_HOST_ID_BYTES];
    struct shm_address a;

    memcpy(&a, address, sizeof(a));
    dp_host_id("", host_id);
    if (memcmp(host_id, a.host_id, sizeof(host_id)))
        return dp_fail_quietly(DP_EUNSUPPORTED, "shared memory does not reach another host");
    struct shm_wire *w = new_wire();
    if (!w)
        return dp_fail(DP_ENOMEM, "no memory for a wire");
    int err = start_call(w, &a, label);
    if (err) {
        shm_close(&w->base);
        return err;
    }
    *out = &w->base;
    return 0;
}

/* ---- listening ----------------------------------------------------------------------------- */

static int bind_to_name(const uint8_t name[16], int *out)
{
    struct sockaddr_un un;
    socklen_t len = fill_name(&un, name);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0 || bind(fd, (struct sockaddr *)&un, len) || listen(fd, SOMAXCONN)) {
        int err = dp_fail(DP_EIO, "cannot listen on a unix socket: %s", strerror(errno));
        dp_fd_close(fd);
        return err;
    }
    *out = fd;
    return 0;
}

static int shm_listen(const struct dp_wire_config *config, struct dp_wire_listener **out,
                      struct dp_wire_address *address)
{
    struct shm_address a;
    int fd = -1, err = dp_random_bytes(a.name, sizeof(a.name));

    if (!err)
        err = dp_door_choose_cookie(config, a.cookie);
    if (!err)
        err = bind_to_name(a.name, &fd);
    if (!err)
        err = dp_door_open(fd, DP_HELLO_SHM, a.cookie, config->patience_ns, out);
    if (err)
        return err;
    dp_host_id("", a.host_id);
    memset(address, 0, sizeof(*address));
    memcpy(address, &a, sizeof(a));
    return 0;
}

static int shm_accept(struct dp_wire_listener *listener, uint64_t *label, struct dp_wire **out)
{
    struct dp_guest guest;
    int err = dp_door_admit(listener, &guest);

    if (err)
        return err;
    struct shm_wire *w = new_wire();
    if (!w)
        err = dp_fail(DP_ENOMEM, "no memory for a wire");
    else if (guest.hello.extra != sizeof(struct segment) || !is_segment(guest.passed_fd))
        err = DP_EAGAIN; /* he knew the cookie, but is of another build: nobody of ours */
    else
        err = map_segment(w, guest.passed_fd, false);
    dp_fd_close(guest.passed_fd);
    if (err) {
        close(guest.fd);
        free(w);
        return err;
    }
    w->fd = guest.fd;
    w->base.connected = true;
    *label = guest.hello.label;
    *out = &w->base;
    return 0;
}

const struct dp_wire_ops dp_wire_shm = {
    .name = "shm",
    .address_bytes = sizeof(struct shm_address),
    .listen = shm_listen,
    .accept = shm_accept,
    .unlisten = dp_door_close,
    .connect = shm_connect,
    .progress = shm_progress,
    .arm = shm_arm,
    .disarm = shm_disarm,
    .close = shm_close,
};
