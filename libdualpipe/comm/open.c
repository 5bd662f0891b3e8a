/* SPDX-License-Identifier: Apache-2.0
 *
 * open.c - join a group, by whatever is said of it: the caller's config first, then
 * DUALPIPE_COMM_*, then the launcher's variables.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "comm/wired.h"
#include "wire/net.h"

#include <string.h>

static int fill_config(const struct dp_comm_config *config, const struct dp_comm_settings *settings,
                       struct dp_comm_config *full)
{
    *full = *config;
    if (!config->size) {
        int err = dp_comm_config_from_env(full);
        if (err == DP_ENOENT)
            return dp_fail(DP_EINVAL, "no rank and size given, and %s", dp_last_error());
        if (err)
            return err;
    }
    if (config->address)
        full->address = config->address;
    if (!full->address)
        full->address = settings->address;
    full->transport = config->transport ? config->transport : settings->transport;
    full->secret = config->secret ? config->secret : settings->secret;
    full->timeout_ns =
        config->timeout_ns ? config->timeout_ns : settings->timeout_ms * DP_NS_PER_MS;
    return 0;
}

static int check_config(const struct dp_comm_config *config)
{
    static const char *const known[] = {"auto", "shm", "tcp"};
    bool is_known = false;

    if (config->size < 1 || config->rank < 0 || config->rank >= config->size)
        return dp_fail(DP_EINVAL, "rank %d of %d: expected a rank from 0 to %d", config->rank,
                       config->size, config->size < 1 ? 0 : config->size - 1);
    if (config->timeout_ns < 0)
        return dp_fail(DP_EINVAL, "timeout of %lld ns: expected 1 or more",
                       (long long)config->timeout_ns);
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        is_known |= !strcmp(config->transport, known[i]);
    if (!is_known)
        return dp_fail(DP_EINVAL, "transport '%s': expected auto, shm, tcp or mpi",
                       config->transport);
    if (!config->address && config->size > 1)
        return dp_fail(DP_EINVAL, "no address: expected host:port of rank 0, in the config or in "
                       "DUALPIPE_COMM_ADDRESS");
    return 0;
}

/* A group of one has nobody to talk to. */
static int open_alone(const struct dp_comm_config *config, struct dp_comm **out)
{
    int err = dp_comm_threads_new(1, out);

    if (!err)
        (*out)->deadline_ns = config->timeout_ns;
    return err;
}

int dp_comm_open(const struct dp_comm_config *config, struct dp_comm **out)
{
    struct dp_comm_config full;
    struct dp_comm_settings settings;
    char host[256];
    int port;

    if (!config || !out)
        return dp_fail(DP_EINVAL, "open without a %s", config ? "place for the comm" : "config");
    int err = dp_options_read(&dp_comm_option_area, &settings);
    if (!err && !strcmp(config->transport ? config->transport : settings.transport, "mpi"))
        return dp_comm_mpi_open(config, &settings, out);
    if (!err)
        err = fill_config(config, &settings, &full);
    if (!err)
        err = check_config(&full);
    if (err)
        return err;
    if (full.size == 1)
        return open_alone(&full, out);
    err = dp_net_split(full.address, host, sizeof(host), &port);
    if (err)
        return err;
    const struct dp_star_config star = {.rank = full.rank,
                                        .size = full.size,
                                        .host = host,
                                        .port = port,
                                        .secret = full.secret,
                                        .timeout_ns = full.timeout_ns};
    return dp_comm_wired_open(&star, full.transport, (struct dp_mesh_mpi){0}, &settings, out);
}
