/* SPDX-License-Identifier: Apache-2.0
 *
 * open.c - join a group. Settings come from the caller's config first, then
 * DUALPIPE_COMM_*, then the launcher's variables.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "base/sized.h"
#include "base/text.h"
#include "comm/backoff.h"
#include "comm/peers.h"
#include "wire/net.h"
#include "wire/tcp.h"

#include <unistd.h>

enum { KEY_TEXT = 256 };

static int ask_launcher(const struct dp_comm_config *config, struct dp_comm_config *full)
{
    int err = config->size ? 0 : dp_comm_config_from_env(full);

    return err == DP_ENOENT ? dp_fail(DP_EINVAL, "no rank and size given, and %s", dp_last_error())
                            : err;
}

static void add_settings(const struct dp_comm_config *config,
                         const struct dp_comm_settings *settings, struct dp_comm_config *full)
{
    if (config->address)
        full->address = config->address;
    if (!full->address)
        full->address = settings->address;
    full->secret = config->secret ? config->secret : settings->secret;
    full->timeout_ns =
        config->timeout_ns ? config->timeout_ns : settings->timeout_ms * DP_NS_PER_MS;
}

static int check_rank(const struct dp_comm_config *config)
{
    if (config->size < 1 || config->rank < 0 || config->rank >= config->size)
        return dp_fail(DP_EINVAL, "rank %d of %d: expected a rank from 0 to %d", config->rank,
                       config->size, config->size < 1 ? 0 : config->size - 1);
    return 0;
}

static int check_config(const struct dp_comm_config *config)
{
    if (config->timeout_ns < 0)
        return dp_fail(DP_EINVAL, "timeout of %lld ns: expected 1 or more",
                       (long long)config->timeout_ns);
    if (config->listener < 0 || (config->listener && config->rank))
        return dp_fail(DP_EINVAL, "listener: descriptor %d on rank %d, expected one of 1 or more, on "
                       "rank 0 only", config->listener, config->rank);
    if (config->store)
        DP_RESERVED(config->store, "store");
    if (config->store && (!config->store->put || !config->store->get))
        return dp_fail(DP_EINVAL, "store: no %s function", config->store->put ? "get" : "put");
    if (!config->address && config->size != 1 && !config->listener && !config->store)
        return dp_fail(DP_EINVAL, "no address: expected host:port of rank 0, in the config or in "
                       "DUALPIPE_COMM_ADDRESS");
    return 0;
}

/* A group of one needs no connections. */
static int open_alone(const struct dp_comm_config *config, struct dp_comm **out)
{
    int err = dp_comm_threads_new(1, out);

    if (err)
        return err;
    dp_comm_set(*out, DP_COMM_DEADLINE, config->timeout_ns);
    dp_comm_set_poll(*out, config->poll, config->poll_user);
    return 0;
}

/* ---- other ways to rank 0 than an address --------------------------------------------------------- */

static void make_key(const struct dp_comm_store *store, char key[KEY_TEXT])
{
    dp_snprintf(key, KEY_TEXT, "%s/rendezvous", store->prefix ? store->prefix : "dualpipe");
}

/* The others hear of it if rank 0 cannot listen. */
static int put_invitation(const struct dp_comm_config *config,
                          const struct dp_comm_settings *settings,
                          struct dp_rendezvous_config *rendezvous, struct dp_invitation *invitation)
{
    const struct dp_wire_config listening = {.interface = config->listener ? NULL : settings->interface,
                                             .listener = config->listener,
                                             .needs_files = true};
    const struct dp_comm_store *store = config->store;
    char key[KEY_TEXT];

    make_key(store, key);
    invitation->error =
        dp_wire_tcp.listen(&listening, &rendezvous->listener, &invitation->address);
    const int err = store->put(store->user, key, invitation, sizeof(*invitation));
    if (invitation->error)
        return invitation->error;
    return err ? dp_fail(err, "the store did not take the address of rank 0 (%s): %s", key,
                         dp_strerror(err))
               : 0;
}

static int get_invitation(const struct dp_comm_config *config, struct dp_invitation *invitation)
{
    const struct dp_comm_store *store = config->store;
    const int64_t until_ns = dp_now_ns() + config->timeout_ns;
    const struct dp_poll poll = {config->poll, config->poll_user};
    unsigned backoff_us = 0;
    char key[KEY_TEXT];
    size_t len;
    int err;

    make_key(store, key);
    for (;;) {
        len = sizeof(*invitation);
        err = store->get(store->user, key, invitation, &len);
        if (err != DP_EAGAIN)
            break;
        if (dp_now_ns() > until_ns)
            return dp_fail(DP_ETIMEDOUT, "rank 0 has left no address in the store (%s) within %.1f s",
                           key, (double)config->timeout_ns / DP_NS_PER_S);
        err = dp_poll_call(&poll);
        if (err)
            return err;
        dp_backoff(&backoff_us);
    }
    if (err)
        return dp_fail(err, "the store did not give the address of rank 0 (%s): %s", key,
                       dp_strerror(err));
    if (len != sizeof(*invitation))
        return dp_fail(DP_EMISMATCH, "%s in the store: %zu bytes, expected %zu", key, len,
                       sizeof(*invitation));
    return invitation->error ? dp_fail(invitation->error, "rank 0 cannot listen for the others") : 0;
}

static int invite(const struct dp_comm_config *config, const struct dp_comm_settings *settings,
                  struct dp_rendezvous_config *rendezvous, struct dp_invitation *invitation)
{
    if (!config->store)
        return dp_rendezvous_listen(NULL, 0, config->listener, &rendezvous->listener);
    rendezvous->address = &invitation->address;
    return config->rank ? get_invitation(config, invitation)
                        : put_invitation(config, settings, rendezvous, invitation);
}

/* Takes the listener. */
static int open_wires(const struct dp_comm_config *config, const struct dp_comm_settings *settings,
                      enum dp_transport transport, int first_new, struct dp_comm **out)
{
    struct dp_rendezvous_config rendezvous = {.rank = config->rank,
                                              .size = config->size,
                                              .first_new = first_new,
                                              .secret = config->secret,
                                              .timeout_ns = config->timeout_ns,
                                              .poll = {config->poll, config->poll_user}};
    struct dp_comm_settings local = *settings;
    struct dp_invitation invitation = {0};
    char host[256] = "";
    int err = 0;

    if (config->store || config->listener)
        err = invite(config, settings, &rendezvous, &invitation);
    else
        err = dp_net_split(config->address, host, sizeof(host), &rendezvous.port);
    if (err) {
        dp_wire_tcp.unlisten(rendezvous.listener);
        return err;
    }
    rendezvous.host = host;
    if (!local.interface)
        local.interface = dp_rendezvous_interface(host);
    return dp_comm_wire_open(&rendezvous, transport, (struct dp_peers_mpi){0}, &local, out);
}

static int read_settings(const struct dp_comm_config *config, struct dp_comm_settings *settings,
                         enum dp_transport *transport)
{
    int err = dp_options_read(&dp_comm_option_area, settings);

    return err ? err
               : dp_transport_find(config->transport ? config->transport : settings->transport,
                                   transport);
}

/* Takes no listener on failure. */
static int prepare(const struct dp_comm_config *config, struct dp_comm_settings *settings,
                   struct dp_comm_config *full, enum dp_transport *transport)
{
    int err = read_settings(config, settings, transport);
    const bool by_mpi = !err && *transport == DP_TRANSPORT_MPI;

    if (err)
        return err;
    if (by_mpi && (config->listener || config->store))
        return dp_fail(DP_EINVAL, "transport mpi: its ranks find each other without a %s",
                       config->store ? "store" : "listener");
    if (by_mpi)
        return 0;
    *full = *config;
    err = ask_launcher(config, full);
    if (err)
        return err;
    add_settings(config, settings, full);
    err = check_rank(full);
    return err ? err : check_config(full);
}

int dp_comm_meet(const struct dp_comm_config *config, int first_new, struct dp_comm **out)
{
    struct dp_comm_settings settings;
    struct dp_comm_config full = *config;
    enum dp_transport transport;
    int err = read_settings(config, &settings, &transport);

    if (err)
        return err;
    add_settings(config, &settings, &full);
    if (transport == DP_TRANSPORT_MPI)
        return dp_fail(DP_EUNSUPPORTED, "transport mpi: MPI takes in no process after its start; "
                                        "expected auto, shm or tcp");
    err = check_config(&full);
    return err ? err : open_wires(&full, &settings, transport, first_new, out);
}

int dp_comm_open_sized(const struct dp_comm_config *config, struct dp_comm **out, size_t size)
{
    struct dp_comm_config own, full;
    struct dp_comm_settings settings;
    enum dp_transport transport;

    if (!config || !out)
        return dp_fail(DP_EINVAL, "open without a %s", config ? "place for the comm" : "config");
    int err = dp_sized_take(&own, sizeof(own), config, size, "struct dp_comm_config");
    config = &own;
    if (!err)
        err = prepare(config, &settings, &full, &transport);
    if (!err && transport == DP_TRANSPORT_MPI)
        return dp_comm_mpi_open(config, &settings, out);
    if (!err && full.size > 1)
        return open_wires(&full, &settings, transport, 0, out);
    if (config->listener > 0)
        close(config->listener);
    return err ? err : open_alone(&full, out);
}
