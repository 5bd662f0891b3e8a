/* SPDX-License-Identifier: Apache-2.0
 *
 * net_memory.c - registration. The wires need none; it is kept to know which requests use what, since
 * NCCL may free memory in the middle of them.
 */
#include "base/fail.h"
#include "nccl-plugin/net_comm.h"

#include <stdlib.h>

int dpn_net_register(struct dpn_comm *comm, void *data, size_t size, int type,
                     struct dpn_memory **out)
{
    (void)data;
    if (type != NCCL_PTR_HOST)
        return dp_fail(DP_EUNSUPPORTED, "registering %zu bytes of type %d: only host memory (%d)",
                       size, type, NCCL_PTR_HOST);
    struct dpn_memory *memory = malloc(sizeof(*memory));
    if (!memory)
        return dp_fail(DP_ENOMEM, "no memory for a registration");
    pthread_mutex_lock(&comm->lock);
    memory->next = comm->memories;
    comm->memories = memory;
    pthread_mutex_unlock(&comm->lock);
    *out = memory;
    return 0;
}

static bool uses(const struct dpn_request *req, const struct dpn_memory *memory)
{
    for (unsigned i = 0; i < req->count; i++)
        if (!req->rooms[i].done && req->rooms[i].memory == memory)
            return true;
    return req->memory == memory && req->wire.status == DP_EAGAIN;
}

static bool is_in_flight(const struct dpn_comm *comm, const struct dpn_memory *memory)
{
    for (int i = 0; i < NCCL_NET_MAX_REQUESTS; i++)
        if (!(comm->free >> i & 1) && uses(&comm->requests[i], memory))
            return true;
    return false;
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
    if (is_ours && is_in_flight(comm, memory))
        dp_wire_fail(comm->wire, DP_EABORTED,
                     "memory was deregistered while a request still used it");
    pthread_mutex_unlock(&comm->lock);
    if (!is_ours)
        return dp_fail(DP_EINVAL, "deregistering what was not registered with this connection");
    free(memory);
    return 0;
}
