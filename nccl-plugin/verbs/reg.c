/* SPDX-License-Identifier: Apache-2.0
 *
 * reg.c - memory registration of a connection: the same memory with the device of each rail.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "nccl-plugin/verbs/comm.h"

#include <stdlib.h>
#include <time.h>

static void put_all(const struct dpn_verbs_memory *memory)
{
    for (int r = 0; r < memory->rail_count; r++)
        dpn_mr_put(memory->hcas[r], memory->mrs[r]);
}

static bool is_supported(const struct dpn_verbs *v, const struct dpn_region *region)
{
    int wanted = NCCL_PTR_HOST;

    if (region->fd >= 0)
        wanted = NCCL_PTR_DMABUF | NCCL_PTR_CUDA;
    else if (region->type != NCCL_PTR_HOST)
        wanted = NCCL_PTR_CUDA;
    for (int r = 0; r < v->queues.rail_count; r++)
        if (!(v->queues.rails[r].port->hca->pointers & wanted))
            return false;
    return true;
}

int dpn_verbs_reg(struct dpn_comm *comm, const struct dpn_region *region, struct dpn_memory **out)
{
    struct dpn_verbs *v = comm->state;
    int err = 0;

    if (!is_supported(v, region))
        return dp_fail(DP_EUNSUPPORTED, "registering %zu bytes of %s: %s does not reach it",
                       region->size, region->fd >= 0 ? "a dma-buf" : "GPU memory",
                       v->queues.rails[0].port->name);
    struct dpn_verbs_memory *memory = calloc(1, sizeof(*memory));
    if (!memory)
        return dp_fail(DP_ENOMEM, "no memory for a registration");
    memory->from = (uintptr_t)region->data;
    memory->to = memory->from + region->size;
    memory->type = region->type;
    for (; memory->rail_count < v->queues.rail_count && !err; memory->rail_count += !err) {
        const int r = memory->rail_count;
        memory->hcas[r] = v->queues.rails[r].port->hca;
        err = dpn_mr_get(memory->hcas[r], region, &memory->mrs[r]);
    }
    if (err) {
        put_all(memory);
        free(memory);
        return err;
    }
    *out = &memory->base;
    return 0;
}

static bool recv_uses(const struct dpn_recv *recv, const struct dpn_memory *memory)
{
    for (unsigned i = 0; i < recv->count; i++)
        if (!recv->buffers[i].done && recv->buffers[i].memory == memory)
            return true;
    return false;
}

static bool flush_uses(const struct dpn_verbs *v, const struct dpn_memory *memory)
{
    for (uint32_t used = ~v->recv.flushes_free; used; used &= used - 1) {
        const struct dpn_flush *flush = &v->recv.flushes[__builtin_ctz(used)];
        if (flush->base.left && &flush->memory->base == memory)
            return true;
    }
    return false;
}

static bool is_in_flight(const struct dpn_verbs *v, const struct dpn_memory *memory)
{
    for (unsigned i = dpn_verbs_next_send(v, 0); i < DPN_SENDS; i = dpn_verbs_next_send(v, i + 1))
        if (v->send.sends[i].base.left && &v->send.sends[i].memory->base == memory)
            return true;
    for (uint32_t used = ~v->recv.free; used; used &= used - 1)
        if (recv_uses(&v->recv.recvs[__builtin_ctz(used)], memory))
            return true;
    return flush_uses(v, memory);
}

/* Whether nothing uses it any more. A connection that does ends; then its queue pairs are destroyed
 * first. */
static bool has_given_back(struct dpn_comm *comm, const struct dpn_memory *memory)
{
    bool has_ended = true;

    pthread_mutex_lock(&comm->lock);
    struct dpn_verbs *v = comm->state;
    if (v && is_in_flight(v, memory))
        dpn_verbs_fail(v, DP_EABORTED, "memory was deregistered while a request still used it");
    if (v && v->error)
        has_ended = dpn_verbs_has_ended(v);
    pthread_mutex_unlock(&comm->lock);
    return has_ended;
}

void dpn_verbs_dereg(struct dpn_comm *comm, struct dpn_memory *base)
{
    static const struct timespec pause = {.tv_nsec = 100 * DP_NS_PER_US};
    struct dpn_verbs_memory *memory = (struct dpn_verbs_memory *)base;

    while (!has_given_back(comm, base))
        nanosleep(&pause, NULL);
    put_all(memory);
    free(memory);
}
