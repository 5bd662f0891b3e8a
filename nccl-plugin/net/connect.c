/* SPDX-License-Identifier: Apache-2.0
 *
 * connect.c - from a handle to a comm on both sides. A listener hears every wire that the option
 * allows; the connecting side takes the best that both have and that reaches so far.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "nccl-plugin/net/comm.h"
#include "nccl-plugin/net/devices.h"
#include "nccl-plugin/net/placement.h"
#include "nccl-plugin/verbs/verbs.h"
#include "wire/tcp.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- handles --------------------------------------------------------------------------------- */

enum { VERSION = 5 };
static const uint16_t VERBS = 1u << 15; /* among the wires */
static const uint32_t MAGIC = 0x4e507044; /* "DpPN" in memory */

struct handle {
    uint32_t magic;
    uint16_t version;
    uint16_t wires; /* 1 << DPN_SHM | ...; their addresses follow each other in bytes */
    uint32_t check; /* of all that follows and of wires */
    int32_t worker; /* see net/placement.h */
    uint8_t bytes[NCCL_NET_HANDLE_MAXSIZE - 16];
};
_Static_assert(sizeof(struct handle) == NCCL_NET_HANDLE_MAXSIZE, "a handle fits");

const struct dp_wire_ops *const dpn_wires[DPN_WIRES] = {&dp_wire_shm, &dp_wire_tcp};

/* FNV-1a: against mistakes; against malice there is the cookie. */
static uint32_t checksum(const struct handle *h)
{
    const size_t from = offsetof(struct handle, worker);
    uint32_t sum = 2166136261u ^ h->wires;

    for (size_t i = from; i < sizeof(*h); i++)
        sum = (sum ^ ((const uint8_t *)h)[i]) * 16777619u;
    return sum;
}

int dpn_handle_write(const struct dpn_addresses *addresses, void *handle)
{
    struct handle h = {.magic = MAGIC, .version = VERSION, .worker = addresses->worker};
    size_t at = 0;

    for (int w = 0; w < DPN_WIRES; w++) {
        const size_t len = dpn_wires[w]->address_bytes;
        if (!addresses->present[w])
            continue;
        if (at + len > sizeof(h.bytes))
            return dp_fail(DP_EINVAL, "the addresses of a listener do not fit into a handle");
        memcpy(h.bytes + at, &addresses->on[w], len);
        h.wires |= (uint16_t)(1u << w);
        at += len;
    }
    h.wires |= addresses->offers_verbs ? VERBS : 0;
    h.check = checksum(&h);
    memcpy(handle, &h, sizeof(h));
    return 0;
}

static int check(const struct handle *h)
{
    if (h->magic != MAGIC)
        return dp_fail(DP_EMISMATCH,
                       "the peer's handle begins with 0x%08x, expected 0x%08x: it is not one of "
                       "dualpipe; does every rank use the same NCCL_NET_PLUGIN?",
                       h->magic, MAGIC);
    if (h->version != VERSION)
        return dp_fail(DP_EMISMATCH,
                       "the peer's handle is of version %u, expected %u: it runs another version "
                       "of dualpipe",
                       h->version, VERSION);
    if (h->check != checksum(h) || !(h->wires & ~VERBS) ||
        (h->wires & ~VERBS) >> DPN_WIRES)
        return dp_fail(DP_EMISMATCH, "the peer's handle was damaged on its way (checksum 0x%08x, "
                       "expected 0x%08x, wires 0x%x)", h->check, checksum(h), h->wires);
    return 0;
}

int dpn_handle_read(const void *handle, struct dpn_addresses *out)
{
    struct handle h;
    size_t at = 0;

    memcpy(&h, handle, sizeof(h));
    int err = check(&h);
    if (err)
        return err;
    memset(out, 0, sizeof(*out));
    out->offers_verbs = h.wires & VERBS;
    out->worker = h.worker;
    for (int w = 0; w < DPN_WIRES; w++) {
        if (!(h.wires & 1u << w))
            continue;
        out->present[w] = true;
        memcpy(&out->on[w], h.bytes + at, dpn_wires[w]->address_bytes);
        at += dpn_wires[w]->address_bytes;
    }
    return 0;
}

static bool is_asked_for(const char *name)
{
    return !strcmp(dpn_options.wire, name);
}

/* For messages; verbs needs tcp for its words. */
static bool is_allowed(enum dpn_wire w)
{
    return is_asked_for("auto") || is_asked_for(dpn_wires[w]->name);
}

static bool is_listened_on(enum dpn_wire w)
{
    return is_allowed(w) || (w == DPN_TCP && is_asked_for("verbs"));
}

/* ---- comms --------------------------------------------------------------------------------- */

static void close_comm(struct dpn_open *open)
{
    struct dpn_comm *comm = (struct dpn_comm *)open;

    dpn_open_remove(open);
    pthread_mutex_lock(&comm->lock);
    if (comm->transport)
        comm->transport->close(comm);
    pthread_mutex_unlock(&comm->lock);
    while (comm->memories) {
        struct dpn_memory *memory = comm->memories;
        comm->memories = memory->next;
        comm->transport->dereg(comm, memory);
    }
    dp_wire_close(comm->wire);
    dpn_stat_close(&comm->stat);
    pthread_mutex_destroy(&comm->lock);
    free(comm);
}

void dpn_net_close(struct dpn_comm *comm)
{
    if (comm && !dpn_is_inherited(comm->open.net))
        close_comm(&comm->open);
}

/* For people. tcp: where this side connects to; NULL: it has accepted. */
static void name_peer(struct dpn_comm *comm, const struct dp_wire_address *tcp)
{
    uint8_t cookie[DP_COOKIE_BYTES];
    union dp_sockaddr place;
    int sockets;

    snprintf(comm->peer, sizeof(comm->peer), "this host");
    if (comm->wire->ops == &dp_wire_tcp &&
        !(tcp ? dp_wire_tcp_way(tcp, &place, cookie, &sockets)
              : dp_wire_tcp_peer(comm->wire, &place)))
        dp_sockaddr_text(&place, comm->peer);
}

/* Takes the wire. */
static int new_comm(struct dpn_net *net, int dev, struct dp_wire *wire, bool is_sender,
                    bool is_control_only, const struct dp_wire_address *tcp,
                    struct dpn_comm **out)
{
    struct dpn_comm *comm = calloc(1, sizeof(*comm));

    if (!comm) {
        dp_wire_close(wire);
        return dp_fail(DP_ENOMEM, "no memory for a connection");
    }
    comm->open.close = close_comm;
    comm->is_sender = is_sender;
    comm->dev = comm->counted_dev = dev;
    comm->ops = dpn_net_said(net, &comm->traffic_class);
    comm->peer_worker = -1;
    comm->wire = wire;
    comm->is_control_only = is_control_only;
    comm->polled_ns = dp_now_ns();
    if (wire->ops == &dp_wire_tcp)
        dp_wire_tcp_set_timeout(wire, is_control_only ? dpn_timeout_ns() / 2 : dpn_timeout_ns());
    name_peer(comm, tcp);
    pthread_mutex_init(&comm->lock, NULL);
    dpn_open_add(&comm->open, net);
    *out = comm;
    return 0;
}

static void choose_transport(struct dpn_comm *comm)
{
    comm->transport = comm->is_control_only ? &dpn_verbs : &dpn_wire_transport;
}

/* Both sides find out alike that there is no RDMA between them. Not where it was asked for, nor
 * where NCCL counts on what no other wire can do: GPU memory. */
static bool may_do_without_rdma(const struct dpn_device *device)
{
    return is_asked_for("auto") && !dpn_device_reaches_gpus(device);
}

static bool comm_may_do_without_rdma(const struct dpn_comm *comm)
{
    const struct dpn_device *device;

    return comm->is_control_only && !dpn_net_device(comm->dev, &device) &&
           may_do_without_rdma(device);
}

static int do_without_rdma(struct dpn_comm *comm)
{
    dp_log(DP_LOG_WARN, "%s; going on over tcp", dp_last_error());
    comm->transport->close(comm);
    if (!comm->wire)
        return dp_fail(DP_ECOMM, "the wire was lost while looking for RDMA");
    comm->is_control_only = false;
    comm->transport = &dpn_wire_transport;
    return comm->transport->open(comm);
}

/* A device that is bypassed is not what carries the bytes: "eth0 (shm)". */
static void name_rail(struct dpn_comm *comm)
{
    const struct dpn_device *device;
    const char *name = dpn_net_device(comm->counted_dev, &device) ? "" : device->name;

    if (comm->transport == &dpn_wire_transport)
        snprintf(comm->rail, sizeof(comm->rail), "%.*s (%s)", DPN_STAT_DEVICE_LEN - 16, name,
                 comm->wire->ops->name);
    else
        snprintf(comm->rail, sizeof(comm->rail), "%.*s", DPN_STAT_DEVICE_LEN - 1, name);
}

static void begin_counting(struct dpn_comm *comm)
{
    const bool is_wire = comm->transport == &dpn_wire_transport;
    const struct dpn_device *device;
    int count = 0;

    dpn_net_devices(&count);
    for (int i = 0; i < count && !dpn_net_device(i, &device); i++) /* some may be fused since */
        dpn_stat_name_device(i, device->name, device->speed_mbps);
    dpn_stat_open(&comm->stat, comm->counted_dev, comm->is_sender,
                  is_wire ? comm->wire->ops->name : comm->transport->name, comm->peer);
    name_rail(comm);
}

/* The wire is connected. */
static int open_transport(struct dpn_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    if (!comm->transport)
        choose_transport(comm);
    int err = comm->transport->open(comm);
    if (err == DP_EUNSUPPORTED && comm_may_do_without_rdma(comm))
        err = do_without_rdma(comm);
    else if (err == DP_EUNSUPPORTED)
        dp_log(DP_LOG_ERROR, "%s", dp_last_error());
    if (!err)
        begin_counting(comm);
    pthread_mutex_unlock(&comm->lock);
    return err;
}

/* ---- listen, accept ------------------------------------------------------------------------- */

static void close_listener(struct dpn_open *open)
{
    struct dpn_listener *listener = (struct dpn_listener *)open;

    dpn_net_close(listener->pending);
    dpn_open_remove(open);
    for (int w = 0; w < DPN_WIRES; w++)
        if (listener->on[w])
            dpn_wires[w]->unlisten(listener->on[w]);
    free(listener);
}

void dpn_net_close_listener(struct dpn_listener *listener)
{
    if (listener && !dpn_is_inherited(listener->open.net))
        close_listener(&listener->open);
}

static int listen_on_wires(const struct dpn_device *device, struct dpn_listener *listener,
                           struct dpn_addresses *addresses)
{
    const struct dp_wire_config config = {.interface = device->interface.address};

    for (int w = 0; w < DPN_WIRES; w++) {
        if (!is_listened_on(w) || (w == DPN_TCP && !*config.interface))
            continue;
        int err = dpn_wires[w]->listen(&config, &listener->on[w], &addresses->on[w]);
        if (err == DP_EUNSUPPORTED && is_asked_for("auto"))
            continue;
        if (err)
            return err == DP_EUNSUPPORTED ? dp_fail(err, "%s", dp_last_error()) : err;
        addresses->present[w] = true;
    }
    if (addresses->present[DPN_TCP]) {
        int err = dpn_sockets_tell(&addresses->on[DPN_TCP]);
        if (err)
            return err;
    }
    addresses->offers_verbs = device->rail_count && addresses->present[DPN_TCP];
    return 0;
}

int dpn_net_listen(struct dpn_net *net, int dev, void *handle, struct dpn_listener **out)
{
    struct dpn_addresses addresses = {.worker = dpn_placement_worker()};
    const struct dpn_device *device;
    int err = dpn_net_device(dev, &device);

    if (err)
        return err;
    struct dpn_listener *listener = calloc(1, sizeof(*listener));
    if (!listener)
        return dp_fail(DP_ENOMEM, "no memory for a listener");
    listener->open.close = close_listener;
    listener->dev = dev;
    dpn_open_add(&listener->open, net);
    err = listen_on_wires(device, listener, &addresses);
    if (!err)
        err = dpn_handle_write(&addresses, handle);
    if (err) {
        dpn_net_close_listener(listener);
        return err;
    }
    *out = listener;
    return 0;
}

static int accept_on_wires(struct dpn_listener *listener, uint64_t *label, struct dp_wire **out)
{
    int err = DP_EAGAIN;

    for (int w = 0; w < DPN_WIRES && err == DP_EAGAIN; w++)
        if (listener->on[w])
            err = dpn_wires[w]->accept(listener->on[w], label, out);
    return err;
}

static int accept_peer(struct dpn_listener *listener)
{
    const struct dpn_device *device;
    struct dp_wire *wire;
    uint64_t label;
    int err = accept_on_wires(listener, &label, &wire);

    if (!err)
        err = dpn_net_device(listener->dev, &device);
    if (err)
        return err;
    if (label == DPN_BY_VERBS && !device->rail_count) {
        dp_wire_close(wire);
        return dp_fail(DP_EMISMATCH, "the peer wants RDMA of %s, which has none", device->name);
    }
    err = new_comm(listener->open.net, listener->dev, wire, false, label == DPN_BY_VERBS, NULL,
                   &listener->pending);
    if (!err) { /* finalize closes the youngest first: a listener goes before what it holds */
        dpn_open_remove(&listener->open);
        dpn_open_add(&listener->open, listener->pending->open.net);
    }
    return err;
}

/* The wire fails for a peer that has ended, or whose host is silent. */
static int continue_accepting(struct dpn_listener *listener, struct dpn_comm **out)
{
    struct dpn_comm *pending = listener->pending;
    int err = open_transport(pending);

    if (err == DP_EAGAIN) {
        dpn_late_wait(&pending->late, pending->peer, "has connected and does not go on");
        return err;
    }
    listener->pending = NULL;
    if (err)
        dpn_net_close(pending);
    else
        *out = pending;
    return err;
}

int dpn_net_accept(struct dpn_listener *listener, struct dpn_comm **out)
{
    int err = listener->pending ? 0 : accept_peer(listener);

    if (err == DP_EAGAIN)
        dpn_late_wait(&listener->late, "an address that is not known yet", "has not connected");
    if (err)
        return err;
    listener->late = (struct dpn_late){0};
    return continue_accepting(listener, out);
}

/* ---- connect ------------------------------------------------------------------------------- */

static int no_wire(const struct dpn_addresses *addresses)
{
    return dp_fail(DP_EUNSUPPORTED,
                   "no way to the peer: it listens on%s%s%s, here DUALPIPE_NET_WIRE is %s, and shm "
                   "stays within a host; set it to auto on all ranks",
                   addresses->present[DPN_SHM] ? " shm" : "",
                   addresses->present[DPN_TCP] ? " tcp" : "",
                   addresses->offers_verbs ? " verbs" : "", dpn_options.wire);
}

/* Within a host, too, if GPU memory is to be reached. */
static bool is_better_by_verbs(const struct dpn_device *device,
                               const struct dpn_addresses *addresses, enum dpn_wire w)
{
    return addresses->offers_verbs && device->rail_count &&
           (w == DPN_TCP || dpn_device_reaches_gpus(device));
}

/* Words beside RDMA need one socket, unless messages might have to go that way after all. */
static struct dp_wire_address limit_sockets(const struct dpn_device *device,
                                             const struct dp_wire_address *tcp, bool by_verbs)
{
    struct dp_wire_address address = *tcp;

    if (by_verbs && !may_do_without_rdma(device))
        dp_wire_tcp_ask_for(&address, 1);
    return address;
}

static int connect_best_wire(const struct dpn_device *device, const struct dpn_addresses *addresses,
                             bool *is_control_only, struct dp_wire **out)
{
    for (int w = 0; w < DPN_WIRES; w++) {
        const bool by_verbs = is_better_by_verbs(device, addresses, w);
        if (!addresses->present[w] ||
            (by_verbs ? w != DPN_TCP || !is_listened_on(w) : !is_allowed(w)))
            continue;
        *is_control_only = by_verbs;
        const struct dp_wire_address address =
            limit_sockets(device, &addresses->on[w], by_verbs);
        int err = dpn_wires[w]->connect(&address, by_verbs ? DPN_BY_VERBS : DPN_BY_WIRE, out);
        if (err != DP_EUNSUPPORTED)
            return err;
    }
    return no_wire(addresses);
}

/* An attempt is known by the place of its handle and by what it says: another handle may be put
 * into the same memory when an attempt was given up. handle_at NULL: none any more. */
static void mark_attempt(struct dpn_comm *comm, const void *handle_at)
{
    pthread_mutex_lock(&comm->open.net->lock);
    if (handle_at)
        memcpy(comm->handle, handle_at, sizeof(comm->handle));
    comm->handle_at = handle_at;
    pthread_mutex_unlock(&comm->open.net->lock);
}

static int begin_connecting(struct dpn_net *net, int dev, const void *handle,
                            struct dpn_comm **out)
{
    const struct dpn_device *device;
    struct dpn_addresses addresses;
    struct dp_wire *wire;
    bool is_control_only = false;
    int err = dpn_handle_read(handle, &addresses);

    if (!err)
        err = dpn_net_device(dev, &device);
    if (!err)
        err = connect_best_wire(device, &addresses, &is_control_only, &wire);
    if (!err)
        err = new_comm(net, dev, wire, true, is_control_only, &addresses.on[DPN_TCP], out);
    if (err)
        return err;
    (*out)->peer_worker = addresses.worker;
    mark_attempt(*out, handle);
    return 0;
}

static struct dpn_comm *find_attempt(struct dpn_net *net, const void *handle)
{
    struct dpn_comm *found = NULL;

    pthread_mutex_lock(&net->lock);
    for (struct dpn_open *o = net->open; o && !found; o = o->next) {
        struct dpn_comm *comm = (struct dpn_comm *)o;
        if (o->close == close_comm && comm->is_sender && comm->handle_at == handle &&
            !memcmp(comm->handle, handle, sizeof(comm->handle)))
            found = comm;
    }
    pthread_mutex_unlock(&net->lock);
    return found;
}

/* The peer's host is silent, or no process listens there, which the wire tries again for a while. Only
 * time with calls counts: this process may have been stopped. */
static int check_silence(struct dpn_comm *comm)
{
    const int64_t now_ns = dp_now_ns(), step_ns = now_ns - comm->polled_ns;

    comm->polled_ns = now_ns;
    comm->silent_ns += step_ns < DP_NS_PER_S ? step_ns : 0;
    if (comm->silent_ns <= dpn_timeout_ns())
        return DP_EAGAIN;
    return dp_fail(DP_ETIMEDOUT, "no answer over %s of %s for %lld s (DUALPIPE_NET_TIMEOUT)%s%s",
                   comm->wire->ops->name, comm->peer, (long long)dpn_options.timeout_s,
                   *comm->wire->why ? "; last attempt: " : "", comm->wire->why);
}

static int continue_connecting(struct dpn_comm *comm)
{
    struct dp_wire *wire = comm->wire;

    if (!comm->transport)
        wire->ops->progress(wire);
    if (wire->error)
        return dp_fail(wire->error, "cannot connect over %s: %s", wire->ops->name, wire->why);
    if (!wire->connected && !wire->is_reached)
        return check_silence(comm);
    comm->polled_ns = dp_now_ns();
    comm->silent_ns = 0;
    int err = wire->connected ? open_transport(comm) : DP_EAGAIN;
    if (err == DP_EAGAIN)
        dpn_late_wait(&comm->late, comm->peer,
                      wire->connected ? "does not go on with the handshake"
                                      : "has not accepted the connection, while its system answers");
    return err;
}

int dpn_net_connect(struct dpn_net *net, int dev, const void *handle, struct dpn_comm **out)
{
    const struct dpn_device *device;
    struct dpn_comm *comm = find_attempt(net, handle);
    int err = dpn_net_device(dev, &device);

    if (!err && !comm)
        err = begin_connecting(net, dev, handle, &comm);
    if (err)
        return err;
    err = continue_connecting(comm);
    if (err == DP_EAGAIN)
        return err;
    if (err) {
        dpn_net_close(comm);
        return err;
    }
    mark_attempt(comm, NULL);
    *out = comm;
    return 0;
}
