/* SPDX-License-Identifier: Apache-2.0
 *
 * grow.c - more processes for a group that survives. The live ranks agree on their set, and then
 * meet the new ones as the ranks of a job meet at its start: what comes out is a group of its own.
 */
#include "base/fail.h"
#include "comm/comm_core.h"
#include "comm/peers.h"

#include <stdlib.h>

static int check_config(const char *what, const struct dp_comm_config *config, const void *out)
{
    if (!config || !out)
        return dp_fail(DP_EINVAL, "%s without a %s", what,
                       config ? "place for the comm" : "config");
    if (config->rank || config->size || config->listener)
        return dp_fail(DP_EINVAL,
                       "%s: expected a config with rank, size and listener 0, as the group "
                       "decides on them",
                       what);
    return 0;
}

/* The ranks of comm that live are the first ones, in their order. */
static int count_alive(struct dp_comm *comm, struct dp_comm_config *config)
{
    bool *alive = calloc((size_t)comm->size, sizeof(*alive));
    int err = alive ? dp_comm_agree_alive(comm, alive)
                    : dp_fail(DP_ENOMEM, "no memory to agree with %d ranks", comm->size);

    for (int i = 0; i < comm->size && !err; i++) {
        config->rank += alive[i] && i < comm->rank;
        config->size += alive[i];
    }
    free(alive);
    return err;
}

int dp_comm_grow(struct dp_comm *comm, int count, const struct dp_comm_config *config,
                 struct dp_comm **out)
{
    if (!comm || count < 1)
        return dp_fail(DP_EINVAL, "grow by %d ranks: expected a comm and 1 or more", count);
    if (!comm->ops->survival)
        return dp_fail(DP_EUNSUPPORTED,
                       "grow: the transport %s takes in no process after its start",
                       comm->ops->name);
    int err = check_config("grow", config, out);
    if (err)
        return err;
    struct dp_comm_config full = *config;
    err = count_alive(comm, &full);
    if (err)
        return err;
    const int first_new = full.size;
    full.size += count;
    if (!full.poll) {
        full.poll = comm->world->poll;
        full.poll_user = comm->world->poll_user;
    }
    return dp_comm_meet(&full, first_new, out);
}

int dp_comm_join(const struct dp_comm_config *config, struct dp_comm **out)
{
    int err = check_config("join", config, out);

    if (err)
        return err;
    struct dp_comm_config full = *config;
    full.rank = -1;
    return dp_comm_meet(&full, 0, out);
}
