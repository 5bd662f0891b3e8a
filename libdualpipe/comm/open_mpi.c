/* SPDX-License-Identifier: Apache-2.0
 *
 * open_mpi.c - ranks that MPI has started: MPI tells rank and size, and where rank 0's control
 * connection is; everything else is as with other processes.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "comm/wired.h"
#include "wire/tcp.h"

#include <string.h>

/* From rank 0 to all. */
struct invitation {
    int32_t error; /* rank 0 cannot listen */
    struct dp_wire_address address;
};

/* Rank 0's failure must reach the others, who wait for its broadcast. */
static int invite(struct dp_mesh_mpi mpi, const struct dp_comm_settings *settings,
                  struct dp_star_config *star, struct invitation *told)
{
    const struct dp_wire_config listening = {.interface = settings->interface};
    char why[DP_MPI_WHY] = "";

    memset(told, 0, sizeof(*told));
    if (star->rank == 0)
        told->error = dp_wire_tcp.listen(&listening, &star->listener, &told->address);
    if (mpi.ops->broadcast(mpi.group, told, sizeof(*told), why))
        return dp_fail(DP_ECOMM, "%s", why);
    if (told->error && star->rank)
        return dp_fail(told->error, "rank 0 cannot listen for the others");
    star->address = &told->address;
    return told->error;
}

static int check_config(const struct dp_comm_config *config, const struct dp_star_config *star)
{
    if (config->size && (config->size != star->size || config->rank != star->rank))
        return dp_fail(DP_EINVAL, "rank %d of %d: expected what MPI says, rank %d of %d",
                       config->rank, config->size, star->rank, star->size);
    return 0;
}

int dp_comm_mpi_open(const struct dp_comm_config *config, const struct dp_comm_settings *settings,
                     struct dp_comm **out)
{
    struct dp_mesh_mpi mpi;
    struct invitation told;
    char why[DP_MPI_WHY] = "";
    struct dp_star_config star = {
        .secret = config->secret ? config->secret : settings->secret,
        .timeout_ns =
            config->timeout_ns ? config->timeout_ns : settings->timeout_ms * DP_NS_PER_MS,
    };
    int err = dp_mpi_load(settings->module_dir, &mpi.ops);

    if (err)
        return err;
    if (mpi.ops->begin(&mpi.group, &star.rank, &star.size, why))
        return dp_fail(DP_ECOMM, "%s", why);
    err = check_config(config, &star);
    if (!err)
        err = invite(mpi, settings, &star, &told);
    if (err) {
        dp_wire_tcp.unlisten(star.listener);
        mpi.ops->end(mpi.group);
        return err;
    }
    return dp_comm_wired_open(&star, "mpi", mpi, settings, out);
}
