/* SPDX-License-Identifier: Apache-2.0
 *
 * mesh.c - a rank connects to all ranks below its own and lets in those above. All at once: nothing
 * blocks, so there is no order in which it could lock up.
 */
#include "comm/mesh.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/text.h"
#include "comm/nap.h"
#include "wire/tcp.h"

#include <stdlib.h>
#include <string.h>

/* What a wire says of itself when it connects. */
static uint64_t make_label(uint32_t epoch, int rank, int channel)
{
    return (uint64_t)epoch << 32 | (uint64_t)rank << 8 | (uint64_t)channel;
}

static bool is_same_host(const struct dp_card *a, const struct dp_card *b)
{
    return !memcmp(a->host_id, b->host_id, sizeof(a->host_id));
}

int dp_mesh_count_here(const struct dp_card *cards, int size, int rank)
{
    int count = 0;

    for (int i = 0; i < size; i++)
        count += is_same_host(&cards[i], &cards[rank]);
    return count;
}

enum { TRANSPORTS = DP_MESH_MPI + 1 };
static const char *const transports[TRANSPORTS] = {"auto", "shm", "tcp", "mpi"};

static enum dp_mesh_transport parse_transport(const char *name)
{
    for (int i = 0; i < TRANSPORTS; i++)
        if (!strcmp(name, transports[i]))
            return (enum dp_mesh_transport)i;
    return DP_MESH_AUTO;
}

static int listen_tcp(struct dp_mesh *mesh, const struct dp_star *star, const char *interface,
                      struct dp_card *card)
{
    union dp_sockaddr known;
    struct dp_wire_config config = {.interface = interface};

    if (!interface && dp_star_find_address(star, &known))
        config.reached_by = &known;
    return dp_wire_tcp.listen(&config, &mesh->tcp, &card->tcp);
}

int dp_mesh_init(struct dp_mesh *mesh, struct dp_star *star, const char *transport,
                 struct dp_mesh_mpi mpi, const struct dp_comm_settings *settings,
                 struct dp_card *card)
{
    const bool shm = parse_transport(transport) <= DP_MESH_SHM;
    const bool tcp = !strcmp(transport, "auto") || !strcmp(transport, "tcp");
    int err = 0;

    *card = (struct dp_card){.transport = (uint8_t)parse_transport(transport)};
    dp_host_id("", card->host_id);
    *mesh = (struct dp_mesh){
        .rank = star->rank,
        .size = star->size,
        .transport = parse_transport(transport),
        .mpi = mpi,
        .has_fault = settings->fault,
        .wires = calloc((size_t)star->size * DP_CHANNELS, sizeof(*mesh->wires)),
        .busy = calloc((size_t)star->size * DP_CHANNELS, sizeof(*mesh->busy)),
        .is_busy = calloc((size_t)star->size * DP_CHANNELS, sizeof(*mesh->is_busy)),
    };
    if (!mesh->wires || !mesh->busy || !mesh->is_busy)
        return dp_fail(DP_ENOMEM, "no memory for wires to %d ranks", star->size);
    if (settings->fault)
        err = dp_wire_fault_parse(settings->fault, &mesh->fault);
    if (!err && shm)
        err = dp_wire_shm.listen(&(struct dp_wire_config){0}, &mesh->shm, &card->shm);
    if (!err && tcp)
        err = listen_tcp(mesh, star, settings->interface, card);
    return err;
}

/* ---- connecting ------------------------------------------------------------------------------ */

static int put(struct dp_mesh *mesh, int peer, int channel, struct dp_wire *wire)
{
    struct dp_wire_fault fault = mesh->fault;

    if (mesh->has_fault) {
        /* Each wire its own faults, the same on every run. */
        fault.seed += (uint64_t)(mesh->rank * mesh->size + peer) * DP_CHANNELS + (uint64_t)channel;
        int err = dp_wire_fault_wrap(wire, &fault, &wire);
        if (err)
            return err;
    }
    mesh->wires[peer * DP_CHANNELS + channel] = wire;
    return 0;
}

static int connect_below(struct dp_mesh *mesh, const struct dp_card *cards)
{
    for (int peer = 0; peer < mesh->rank; peer++) {
        const bool same_host = is_same_host(&cards[peer], &cards[mesh->rank]);
        if (mesh->transport == DP_MESH_SHM && !same_host)
            return dp_fail(DP_EUNSUPPORTED,
                           "transport shm: rank %d is on another host than rank %d; expected auto "
                           "or tcp",
                           peer, mesh->rank);
        const bool shm = same_host && mesh->transport != DP_MESH_TCP;
        const struct dp_wire_ops *ops = shm ? &dp_wire_shm : &dp_wire_tcp;
        for (int channel = 0; channel < DP_CHANNELS; channel++) {
            struct dp_wire *wire;
            int err = ops->connect(shm ? &cards[peer].shm : &cards[peer].tcp,
                                   make_label(mesh->epoch, mesh->rank, channel), &wire);
            if (!err)
                err = put(mesh, peer, channel, wire);
            if (err)
                return err;
        }
    }
    return 0;
}

/* MPI needs nobody to be let in: both sides of a wire come to be by themselves. */
static int connect_by_mpi(struct dp_mesh *mesh)
{
    int err = 0;

    for (int peer = 0; peer < mesh->size && !err; peer++)
        for (int channel = 0; channel < DP_CHANNELS && peer != mesh->rank && !err; channel++) {
            struct dp_wire *wire = mesh->mpi.ops->wire(mesh->mpi.group, peer, channel, mesh->epoch);
            err = wire ? put(mesh, peer, channel, wire)
                       : dp_fail(DP_ENOMEM, "no memory for a wire to rank %d", peer);
        }
    return err;
}

/* A caller who shows the cookie but says something strange is one of an earlier connect. */
static int let_in(struct dp_mesh *mesh, const struct dp_wire_ops *ops,
                  struct dp_wire_listener *listener)
{
    struct dp_wire *wire;
    uint64_t label;
    int err = 0;

    while (listener && !err) {
        err = ops->accept(listener, &label, &wire);
        if (err)
            break;
        const int peer = (int)(label >> 8 & 0xFFFFFF), channel = (int)(label & 0xFF);
        if (label >> 32 != mesh->epoch || peer <= mesh->rank || peer >= mesh->size ||
            channel >= DP_CHANNELS || dp_mesh_wire(mesh, peer, channel))
            dp_wire_close(wire);
        else
            err = put(mesh, peer, channel, wire);
    }
    return err == DP_EAGAIN ? 0 : err;
}

/* DP_EAGAIN while some are missing. */
static int check_wires(struct dp_mesh *mesh)
{
    int err = 0;

    for (int peer = 0; peer < mesh->size; peer++)
        for (int channel = 0; channel < DP_CHANNELS && peer != mesh->rank; channel++) {
            struct dp_wire *wire = dp_mesh_wire(mesh, peer, channel);
            if (wire)
                wire->ops->progress(wire);
            if (wire && wire->error)
                return dp_fail(wire->error, "no connection from rank %d to rank %d: %s",
                               mesh->rank, peer, wire->why);
            if (!wire || !wire->connected)
                err = DP_EAGAIN;
        }
    return err;
}

static int say_missing(const struct dp_mesh *mesh)
{
    struct dp_text t = {0};

    for (int peer = 0; peer < mesh->size; peer++) {
        bool complete = true;
        for (int channel = 0; channel < DP_CHANNELS && peer != mesh->rank; channel++) {
            const struct dp_wire *wire = dp_mesh_wire(mesh, peer, channel);
            complete &= wire && wire->connected;
        }
        if (!complete)
            dp_text_addf(&t, "%s%d", t.len ? ", " : "", peer);
    }
    int err = dp_fail(DP_ETIMEDOUT, "no connection between rank %d and rank %s in time", mesh->rank,
                      t.data ? t.data : "?");
    dp_text_fini(&t);
    return err;
}

/* Who would use which wire must be clear on both sides. */
static int check_transports(const struct dp_mesh *mesh, const struct dp_card *cards)
{
    for (int i = 1; i < mesh->size; i++)
        if (cards[i].transport != cards[0].transport)
            return dp_fail(DP_EMISMATCH,
                           "transport: all ranks must agree; rank 0 has %s, but rank %d has %s",
                           transports[cards[0].transport % TRANSPORTS], i,
                           transports[cards[i].transport % TRANSPORTS]);
    return 0;
}

int dp_mesh_connect(struct dp_mesh *mesh, const struct dp_star *star, int64_t until_ns)
{
    unsigned nap_us = 0;

    mesh->epoch = star->epoch;
    int err = check_transports(mesh, star->cards);
    if (!err)
        err = mesh->mpi.ops ? connect_by_mpi(mesh) : connect_below(mesh, star->cards);
    while (!err) {
        err = let_in(mesh, &dp_wire_shm, mesh->shm);
        if (!err)
            err = let_in(mesh, &dp_wire_tcp, mesh->tcp);
        if (!err)
            err = check_wires(mesh);
        if (err != DP_EAGAIN)
            break;
        err = dp_now_ns() > until_ns ? say_missing(mesh) : 0;
        dp_nap(&nap_us);
    }
    return err;
}

/* ---- wires with something to do -------------------------------------------------------------- */

void dp_mesh_note(struct dp_mesh *mesh, int peer, int channel)
{
    const int index = peer * DP_CHANNELS + channel;

    if (mesh->is_busy[index] || !dp_wire_is_busy(mesh->wires[index]))
        return;
    mesh->is_busy[index] = true;
    mesh->busy[mesh->busy_count++] = index;
}

void dp_mesh_progress(struct dp_mesh *mesh)
{
    for (int i = 0; i < mesh->busy_count;) {
        const int index = mesh->busy[i];
        struct dp_wire *wire = mesh->wires[index];
        wire->ops->progress(wire);
        if (dp_wire_is_busy(wire)) {
            i++;
            continue;
        }
        mesh->is_busy[index] = false;
        mesh->busy[i] = mesh->busy[--mesh->busy_count];
    }
}

unsigned dp_mesh_moves(const struct dp_mesh *mesh)
{
    unsigned moves = 0;

    for (int i = 0; i < mesh->busy_count; i++)
        moves += mesh->wires[mesh->busy[i]]->moves;
    return moves;
}

bool dp_mesh_arm(struct dp_mesh *mesh, struct pollfd *fds, int *armed)
{
    for (*armed = 0; *armed < mesh->busy_count;) {
        struct dp_wire *wire = mesh->wires[mesh->busy[*armed]];
        fds[*armed] = (struct pollfd){.fd = -1};
        if (!wire->ops->arm(wire, &fds[(*armed)++]))
            return false;
    }
    return true;
}

void dp_mesh_disarm(struct dp_mesh *mesh, const struct pollfd *fds, int armed)
{
    for (int i = 0; i < armed; i++) {
        struct dp_wire *wire = mesh->wires[mesh->busy[i]];
        wire->ops->disarm(wire, fds[i].revents);
    }
}

static void forget_busy(struct dp_mesh *mesh)
{
    while (mesh->busy_count)
        mesh->is_busy[mesh->busy[--mesh->busy_count]] = false;
}

void dp_mesh_fail(struct dp_mesh *mesh)
{
    for (int i = 0; i < mesh->size * DP_CHANNELS; i++)
        if (mesh->wires[i])
            dp_wire_fail(mesh->wires[i], DP_EABORTED, "aborted");
    forget_busy(mesh);
}

/* ---- end ----------------------------------------------------------------------------------- */

void dp_mesh_disconnect(struct dp_mesh *mesh)
{
    forget_busy(mesh);
    for (int i = 0; mesh->wires && i < mesh->size * DP_CHANNELS; i++) {
        dp_wire_close(mesh->wires[i]);
        mesh->wires[i] = NULL;
    }
}

void dp_mesh_fini(struct dp_mesh *mesh)
{
    dp_mesh_disconnect(mesh);
    dp_wire_shm.unlisten(mesh->shm);
    dp_wire_tcp.unlisten(mesh->tcp);
    free(mesh->is_busy);
    free(mesh->busy);
    free(mesh->wires);
    mesh->wires = NULL;
}
