/* SPDX-License-Identifier: Apache-2.0
 *
 * memory.c - registration: the list of what a comm has, so that nothing is left at its end and
 * nothing foreign is taken back. Pinning pages takes long, so the transport does it without the
 * comm's lock, for which NCCL's progress thread would wait.
 */
#include "base/fail.h"
#include "nccl-plugin/net/comm.h"

int dpn_net_register(struct dpn_comm *comm, const struct dpn_region *region,
                     struct dpn_memory **out)
{
    struct dpn_memory *memory = NULL;
    int err = dpn_check_process(comm);

    if (!err)
        err = comm->transport->reg(comm, region, &memory);
    if (err)
        return err;
    pthread_mutex_lock(&comm->lock);
    memory->next = comm->memories;
    comm->memories = memory;
    pthread_mutex_unlock(&comm->lock);
    *out = memory;
    return 0;
}

static bool unlink_memory(struct dpn_comm *comm, const struct dpn_memory *memory)
{
    for (struct dpn_memory **at = &comm->memories; *at; at = &(*at)->next)
        if (*at == memory) {
            *at = memory->next;
            return true;
        }
    return false;
}

int dpn_net_deregister(struct dpn_comm *comm, struct dpn_memory *memory)
{
    if (!memory || dpn_is_inherited(comm->open.net))
        return 0;
    pthread_mutex_lock(&comm->lock);
    bool is_ours = unlink_memory(comm, memory);
    pthread_mutex_unlock(&comm->lock);
    if (is_ours)
        comm->transport->dereg(comm, memory);
    return is_ours
               ? 0
               : dp_fail(DP_EINVAL, "deregistering what was not registered with this connection");
}
