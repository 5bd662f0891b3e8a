/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/agree.h"

#include "base/fail.h"

#include <stdio.h>
#include <stdlib.h>

bool may_be_death(int err)
{
    return err == DP_ECOMM || err == DP_ETIMEDOUT || err == DP_EABORTED;
}

void agree_revoke(struct dp_comm *comm, struct dp_comm *const *groups, int count, int err)
{
    char text[DP_ABORT_TEXT];

    snprintf(text, sizeof(text), "%s", dp_last_error());
    dp_comm_revoke(comm, err, text);
    for (int i = 0; i < count; i++)
        if (groups[i])
            dp_comm_revoke(groups[i], err, text);
}

/* *done: on all that live it was true; *whole: all live. */
static int agree(struct dp_comm *comm, bool *done, bool *whole)
{
    const int size = dp_comm_size(comm);
    uint64_t flags = *done;
    bool *alive = calloc((size_t)size, sizeof(*alive));
    int err = alive ? dp_comm_agree_flags(comm, &flags, alive)
                    : dp_fail(DP_ENOMEM, "no memory for a list of %d ranks", size);

    *done = flags;
    *whole = !err;
    for (int rank = 0; rank < size && !err; rank++)
        *whole = *whole && alive[rank];
    free(alive);
    return err;
}

int agree_all(struct dp_comm *comm, int err)
{
    bool done = !err, whole;

    if (err && !may_be_death(err))
        return err;
    const int agreed = agree(comm, &done, &whole);
    if (agreed || err)
        return agreed ? agreed : err;
    if (!done || !whole)
        return dp_fail_quietly(DP_ECOMM, "a rank has died, or has not got through");
    /* It keeps ranks from leaving before all have learnt that they may: one that has not would take
     * those that have left for dead. A death in it is found later. */
    dp_comm_barrier(comm);
    return 0;
}
