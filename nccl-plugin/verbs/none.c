/* SPDX-License-Identifier: Apache-2.0
 *
 * none.c - for a build without the header of libibverbs: there are no RDMA devices, and of the
 * functions below only dpn_verbs_find is ever called.
 */
#include "base/fail.h"
#include "nccl-plugin/verbs/verbs.h"

#include <stdio.h>

int dpn_verbs_find(struct dpn_device *out, int max, bool has_force_flush, char *why, size_t why_len)
{
    (void)out;
    (void)max;
    (void)has_force_flush;
    snprintf(why, why_len, "this build has no RDMA: libibverbs-dev was missing");
    return 0;
}

int dpn_verbs_fuse(const struct dpn_device *const *members, int count, struct dpn_device *out)
{
    (void)members;
    (void)count;
    (void)out;
    return dp_fail(DP_EUNSUPPORTED, "network interfaces are not fused");
}

static int open_none(struct dpn_comm *comm)
{
    (void)comm;
    return dp_fail(DP_EUNSUPPORTED, "this build has no RDMA: libibverbs-dev was missing");
}

const struct dpn_transport dpn_verbs = {.name = "verbs", .open = open_none};
