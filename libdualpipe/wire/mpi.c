/* SPDX-License-Identifier: Apache-2.0
 *
 * mpi.c - the module mpi.so, see mpi.h. A wire over MPI: messages are cut into pieces, which go through
 * buffers of the wire's own, so that MPI never holds a caller's buffer, and a wire can be closed at
 * any time.
 *
 * Receives for all buffers are posted always. A send is synchronous (MPI_Issend), which ends when
 * its receive was posted: so the sender can never be more than the buffers of both sides ahead.
 */
#include "config.h" /* GNU extensions: on_exit */

#include "wire/base.h"
#include "wire/mpi.h"

#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    BUFFERS = 4, /* each way */
    PIECE_BYTES = 32768,
    CHANNELS = 2048, /* room for them in MPI's tags */
    EPOCHS = 16,     /* after so many resets, an epoch's tags come again; 2048 * 16 is legal */
};
static const uint64_t GOODBYE = UINT64_MAX; /* a message_len: the wire was closed */
enum { FINALIZE_S = 2 }; /* how long other ranks may be late, where one may not come at all */

struct mpi_wire;
struct dp_mpi_group {
    MPI_Comm comm;
    struct mpi_wire *closed; /* wires that MPI may still read a piece of */
};

struct head {
    uint64_t message_len, tag, len;
};
struct piece {
    struct head head;
    char bytes[PIECE_BYTES];
};
enum { HEAD_BYTES = sizeof(struct head) };

struct mpi_wire {
    struct dp_wire_base base;
    struct dp_mpi_group *group;
    struct mpi_wire *next_closed;
    int peer, tag;
    unsigned sent, freed, received; /* pieces */
    MPI_Request sends[BUFFERS], receives[BUFFERS], goodbye;
    struct piece out[BUFFERS], in[BUFFERS];
    struct head last; /* the goodbye, which needs no room among the others */
};

static struct mpi_wire *of(struct dp_wire *wire)
{
    return (struct mpi_wire *)wire;
}

/* false, with the wire's error set, if MPI failed. */
static bool check(struct mpi_wire *w, int err)
{
    char text[MPI_MAX_ERROR_STRING] = "?";
    int len;

    if (err == MPI_SUCCESS)
        return true;
    MPI_Error_string(err, text, &len);
    dp_wire_fail(&w->base.wire, DP_ECOMM, "MPI: %.140s", text);
    return false;
}

static bool is_done(struct mpi_wire *w, MPI_Request *req)
{
    int done = 0;

    return check(w, MPI_Test(req, &done, MPI_STATUS_IGNORE)) && done;
}

/* ---- sending ------------------------------------------------------------------------------- */

/* A send that is done was received by a wire of the peer's. */
static void free_pieces(struct mpi_wire *w)
{
    while (w->freed != w->sent && is_done(w, &w->sends[w->freed % BUFFERS])) {
        w->freed++;
        w->base.wire.connected = true;
    }
}

static bool has_room(struct mpi_wire *w)
{
    free_pieces(w);
    return !w->base.wire.error && w->sent - w->freed < BUFFERS;
}

static bool send_piece(struct mpi_wire *w, uint64_t message_len, uint64_t tag, const char *bytes,
                       size_t len)
{
    const unsigned slot = w->sent % BUFFERS;
    struct piece *piece = &w->out[slot];

    piece->head = (struct head){message_len, tag, len};
    if (len)
        memcpy(piece->bytes, bytes, len);
    if (!check(w, MPI_Issend(piece, (int)(HEAD_BYTES + len), MPI_BYTE, w->peer, w->tag,
                             w->group->comm, &w->sends[slot])))
        return false;
    w->sent++;
    return true;
}

static void send_some(struct mpi_wire *w)
{
    struct dp_wire_request *req = w->base.sends.head;
    const size_t left = req->len - req->moved, len = left < PIECE_BYTES ? left : PIECE_BYTES;

    if (!send_piece(w, req->len, req->tag, req->buf + req->moved, len))
        return;
    req->moved += len;
    if (req->moved == req->len)
        dp_wire_finish_head(&w->base.sends, 0);
}

/* ---- receiving ----------------------------------------------------------------------------- */

static bool post_receive(struct mpi_wire *w, unsigned slot)
{
    return check(w, MPI_Irecv(&w->in[slot], sizeof(w->in[slot]), MPI_BYTE, w->peer, w->tag,
                              w->group->comm, &w->receives[slot]));
}

static void take_piece(struct mpi_wire *w, const struct piece *piece)
{
    struct dp_wire_request *req = w->base.receives.head;

    w->base.wire.connected = true;
    if (piece->head.message_len == GOODBYE) {
        dp_wire_fail(&w->base.wire, DP_ECOMM, "the wire was closed");
        return;
    }
    if (w->base.skip) {
        w->base.skip = piece->head.len < w->base.skip ? w->base.skip - piece->head.len : 0;
        return;
    }
    req->tag = piece->head.tag;
    if (piece->head.message_len > req->len) {
        w->base.skip = piece->head.message_len - piece->head.len;
        req->moved = piece->head.message_len;
        dp_wire_finish_head(&w->base.receives, DP_EMISMATCH);
        return;
    }
    if (piece->head.len)
        memcpy(req->buf + req->moved, piece->bytes, piece->head.len);
    req->moved += piece->head.len;
    if (req->moved == piece->head.message_len)
        dp_wire_finish_head(&w->base.receives, 0);
}

static void receive_pieces(struct mpi_wire *w)
{
    while (dp_wire_wants_input(&w->base) && is_done(w, &w->receives[w->received % BUFFERS])) {
        const unsigned slot = w->received++ % BUFFERS;
        take_piece(w, &w->in[slot]);
        if (w->base.wire.error || !post_receive(w, slot))
            return;
    }
}

/* ---- the table ----------------------------------------------------------------------------- */

static void mpi_progress(struct dp_wire *wire)
{
    struct mpi_wire *w = of(wire);

    while (!wire->error && w->base.sends.head && has_room(w))
        send_some(w);
    if (!wire->error)
        receive_pieces(w);
}

static bool mpi_has_message(struct dp_wire *wire)
{
    struct mpi_wire *w = of(wire);

    return !wire->error && !w->base.receives.head && !w->base.skip &&
           is_done(w, &w->receives[w->received % BUFFERS]) &&
           w->in[w->received % BUFFERS].head.message_len != GOODBYE;
}

/* MPI has no file descriptor to poll: a sleeping rank must wake up after a time limit. */
static bool mpi_arm(struct dp_wire *wire, struct pollfd *fd)
{
    *fd = (struct pollfd){.fd = -1};
    return !wire->error;
}

static void mpi_disarm(struct dp_wire *wire, short revents)
{
    (void)wire;
    (void)revents;
}

static void cancel_receives(struct mpi_wire *w)
{
    for (int i = 0; i < BUFFERS; i++)
        if (w->receives[i] != MPI_REQUEST_NULL) {
            MPI_Cancel(&w->receives[i]);
            MPI_Wait(&w->receives[i], MPI_STATUS_IGNORE);
        }
}

/* The end mark comes after all messages that were sent, unless the other side has sent one first. */
static void say_goodbye(struct mpi_wire *w)
{
    w->last.message_len = GOODBYE;
    if (!w->base.wire.error && !check(w, MPI_Issend(&w->last, HEAD_BYTES, MPI_BYTE, w->peer, w->tag,
                                               w->group->comm, &w->goodbye)))
        w->goodbye = MPI_REQUEST_NULL;
}

/* Free the closed wires that MPI is done with. A piece that the other side never takes stays where
 * MPI may look for it: rather that than memory given back that is still read. */
static void sweep(struct dp_mpi_group *group)
{
    for (struct mpi_wire **at = &group->closed; *at;) {
        struct mpi_wire *w = *at;
        free_pieces(w);
        if (w->freed != w->sent || !is_done(w, &w->goodbye)) {
            at = &w->next_closed;
            continue;
        }
        *at = w->next_closed;
        free(w);
    }
}

static void mpi_close(struct dp_wire *wire)
{
    struct mpi_wire *w = of(wire);

    cancel_receives(w);
    say_goodbye(w);
    w->next_closed = w->group->closed;
    w->group->closed = w;
    sweep(w->group);
}

/* What MPI does in the meantime cannot be observed; close ends it. */
static void mpi_quiesce(struct dp_wire *wire)
{
    (void)wire;
}

static const struct dp_wire_ops mpi_ops = {
    .name = "mpi",
    .progress = mpi_progress,
    .has_message = mpi_has_message,
    .arm = mpi_arm,
    .disarm = mpi_disarm,
    .quiesce = mpi_quiesce,
    .close = mpi_close,
};

static struct dp_wire *module_wire(struct dp_mpi_group *group, int peer, int channel,
                                   uint32_t epoch)
{
    struct mpi_wire *w = channel < CHANNELS ? calloc(1, sizeof(*w)) : NULL;

    sweep(group);
    if (!w)
        return NULL;
    dp_wire_init(&w->base, &mpi_ops);
    w->group = group;
    w->peer = peer;
    w->tag = (int)(epoch % EPOCHS) * CHANNELS + channel;
    w->goodbye = MPI_REQUEST_NULL;
    for (int i = 0; i < BUFFERS; i++)
        w->sends[i] = w->receives[i] = MPI_REQUEST_NULL;
    for (unsigned i = 0; i < BUFFERS && post_receive(w, i); i++)
        ;
    return &w->base.wire;
}

/* ---- groups -------------------------------------------------------------------------------- */

static int say(int err, const char *what, char *why)
{
    char text[MPI_MAX_ERROR_STRING] = "?";
    int len;

    if (err == MPI_SUCCESS)
        return 0;
    MPI_Error_string(err, text, &len);
    snprintf(why, DP_MPI_WHY, "%s: %.200s", what, text);
    return -1;
}

static bool has_broken; /* the last group that was closed */

static void *leave(void *status)
{
    nanosleep(&(struct timespec){.tv_sec = FINALIZE_S}, NULL);
    _exit((int)(intptr_t)status);
}

/* MPI_Finalize waits for all ranks, without a deadline, also for one that was stopped. A process that
 * leaves before that makes mpirun end the others. */
static void end_mpi(int status, void *unused)
{
    int ended = 1;
    pthread_t thread;

    (void)unused;
    MPI_Finalized(&ended);
    if (ended)
        return;
    fflush(NULL);
    const bool limited =
        has_broken && !pthread_create(&thread, NULL, leave, (void *)(intptr_t)status);
    MPI_Finalize();
    if (limited && !pthread_cancel(thread))
        pthread_join(thread, NULL);
}

static int start_mpi(char *why)
{
    int started = 0, ended = 0, level;

    MPI_Finalized(&ended);
    if (ended) {
        snprintf(why, DP_MPI_WHY, "MPI has been ended in this process, and cannot start again");
        return -1;
    }
    MPI_Initialized(&started);
    if (started)
        return 0;
    int err = say(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level), "MPI_Init_thread", why);
    if (!err)
        on_exit(end_mpi, NULL);
    return err;
}

static int module_begin(struct dp_mpi_group **out, int *rank, int *size, char *why)
{
    struct dp_mpi_group *group = calloc(1, sizeof(*group));
    int err = group ? start_mpi(why) : -1;

    if (!group)
        snprintf(why, DP_MPI_WHY, "no memory");
    if (!err)
        err = say(MPI_Comm_dup(MPI_COMM_WORLD, &group->comm), "MPI_Comm_dup", why);
    if (err) {
        free(group);
        return err;
    }
    MPI_Comm_set_errhandler(group->comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(group->comm, rank);
    MPI_Comm_size(group->comm, size);
    *out = group;
    return 0;
}

static int module_broadcast(struct dp_mpi_group *group, void *buf, size_t len, char *why)
{
    return say(MPI_Bcast(buf, (int)len, MPI_BYTE, 0, group->comm), "MPI_Bcast", why);
}

/* Not MPI_Comm_free, which is collective: the handle is given up. Pieces that are still on their
 * way stay with their wires. */
static void module_end(struct dp_mpi_group *group, bool is_broken)
{
    if (!group)
        return;
    has_broken = is_broken;
    sweep(group);
    if (!group->closed)
        free(group);
}

extern DP_PUBLIC const struct dp_mpi dp_mpi_module;
const struct dp_mpi dp_mpi_module = {
    .version = DP_MODULE_VERSION,
    .wire_bytes = sizeof(struct dp_wire_base),
    .begin = module_begin,
    .broadcast = module_broadcast,
    .wire = module_wire,
    .end = module_end,
};
