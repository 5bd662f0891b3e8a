/* SPDX-License-Identifier: Apache-2.0
 *
 * none.c - for a build without the header of libibverbs: there are no RDMA devices, and of the
 * functions below only dpn_verbs_find is ever called.
 */
#include "base/fail.h"
#include "nccl-plugin/verbs/verbs.h"

#include <stdio.h>

void dpn_verbs_find(struct dpn_devices *out, int max, bool has_force_flush, char *why,
                    size_t why_len)
{
    (void)max;
    (void)has_force_flush;
    out->count = 0;
    snprintf(why, why_len, "this build has no RDMA: libibverbs-dev was missing");
}

int dpn_verbs_fuse(struct dpn_devices *all, const int *members, int count)
{
    (void)all;
    (void)members;
    (void)count;
    return dp_fail(DP_EUNSUPPORTED, "network interfaces are not fused");
}

static int open_none(struct dpn_comm *comm)
{
    (void)comm;
    return dp_fail(DP_EUNSUPPORTED, "this build has no RDMA: libibverbs-dev was missing");
}

const struct dpn_transport dpn_verbs = {.name = "verbs", .open = open_none};
