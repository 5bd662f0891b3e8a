/* SPDX-License-Identifier: Apache-2.0
 *
 * mpi_open.c - ranks that MPI has started: MPI gives rank and size, and the address of rank 0's
 * control connection; everything else is as with other processes.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "comm/peers.h"
#include "wire/base.h"
#include "wire/tcp.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* MPI loads parts of its own later, which look for its symbols: hence global. And what has started
 * MPI must stay until the process ends: hence never closed. */
static int load(const char *dir, const struct dp_mpi **out)
{
    char file[4096];

    snprintf(file, sizeof(file), "%s/mpi.so", dir ? dir : DP_MODULE_DIR);
    void *handle = dlopen(file, RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
    if (!handle)
        return dp_fail(DP_ENOENT,
                       "transport mpi: %s (expected a libdualpipe configured where MPI is, or "
                       "DUALPIPE_COMM_MODULE_DIR to say where mpi.so is)",
                       dlerror());
    const struct dp_mpi *mpi = dlsym(handle, "dp_mpi_module");
    if (!mpi || strcmp(mpi->version, dp_version()) || mpi->wire_bytes != sizeof(struct dp_wire_base)) {
        int err = dp_fail(DP_ENOENT, "transport mpi: %s is of version %s, expected %s", file,
                          mpi ? mpi->version : "unknown", dp_version());
        dlclose(handle);
        return err;
    }
    *out = mpi;
    return 0;
}

/* The other ranks wait for this broadcast, so that it carries rank 0's failure too. */
static int invite(struct dp_peers_mpi mpi, const struct dp_comm_settings *settings,
                  struct dp_rendezvous_config *rendezvous, struct dp_invitation *invitation)
{
    const struct dp_wire_config listening = {.interface = settings->interface, .needs_files = true};
    char why[DP_MPI_WHY] = "";

    memset(invitation, 0, sizeof(*invitation));
    if (rendezvous->rank == 0)
        invitation->error =
            dp_wire_tcp.listen(&listening, &rendezvous->listener, &invitation->address);
    if (mpi.ops->broadcast(mpi.group, invitation, sizeof(*invitation), why))
        return dp_fail(DP_ECOMM, "%s", why);
    if (invitation->error && rendezvous->rank)
        return dp_fail(invitation->error, "rank 0 cannot listen for the others");
    rendezvous->address = &invitation->address;
    return invitation->error;
}

static int check_config(const struct dp_comm_config *config,
                        const struct dp_rendezvous_config *rendezvous)
{
    if (config->size && (config->size != rendezvous->size || config->rank != rendezvous->rank))
        return dp_fail(DP_EINVAL, "rank %d of %d: expected what MPI reports, rank %d of %d; "
                       "mpirun -n %d starts as many ranks", config->rank, config->size,
                       rendezvous->rank, rendezvous->size, config->size);
    return 0;
}

int dp_comm_mpi_open(const struct dp_comm_config *config, const struct dp_comm_settings *settings,
                     struct dp_comm **out)
{
    struct dp_peers_mpi mpi;
    struct dp_invitation invitation;
    char why[DP_MPI_WHY] = "";
    struct dp_rendezvous_config rendezvous = {
        .poll = {config->poll, config->poll_user},
        .secret = config->secret ? config->secret : settings->secret,
        .timeout_ns = config->timeout_ns ? config->timeout_ns : settings->timeout_ms * DP_NS_PER_MS,
    };
    int err = load(settings->module_dir, &mpi.ops);

    if (err)
        return err;
    if (mpi.ops->begin(&mpi.group, &rendezvous.rank, &rendezvous.size, why))
        return dp_fail(DP_ECOMM, "%s", why);
    err = check_config(config, &rendezvous);
    if (!err)
        err = invite(mpi, settings, &rendezvous, &invitation);
    if (err) {
        dp_wire_tcp.unlisten(rendezvous.listener);
        mpi.ops->end(mpi.group, true);
        return err;
    }
    return dp_comm_wire_open(&rendezvous, DP_TRANSPORT_MPI, mpi, settings, out);
}
