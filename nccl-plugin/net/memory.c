/* SPDX-License-Identifier: Apache-2.0
 *
 * memory.c - registration: the list of what a comm has, so that nothing is left at its end and
 * nothing foreign is taken back.
 */
#include "base/fail.h"
#include "nccl-plugin/net/comm.h"

int dpn_net_register(struct dpn_comm *comm, const struct dpn_region *region,
                     struct dpn_memory **out)
{
    struct dpn_memory *memory = NULL;

    pthread_mutex_lock(&comm->lock);
    int err = comm->transport->reg(comm, region, &memory);
    if (!err) {
        memory->next = comm->memories;
        comm->memories = memory;
        *out = memory;
    }
    pthread_mutex_unlock(&comm->lock);
    return err;
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
    if (!memory)
        return 0;
    pthread_mutex_lock(&comm->lock);
    bool is_ours = unlink_memory(comm, memory);
    if (is_ours)
        comm->transport->dereg(comm, memory);
    pthread_mutex_unlock(&comm->lock);
    return is_ours
               ? 0
               : dp_fail(DP_EINVAL, "deregistering what was not registered with this connection");
}
