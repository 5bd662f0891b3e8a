/* SPDX-License-Identifier: Apache-2.0
 *
 * none.c - a build without libibverbs' header: there are no RDMA devices, and nothing below is
 * ever called but dpn_verbs_find.
 */
#include "base/fail.h"
#include "nccl-plugin/verbs/verbs.h"

#include <stdio.h>

int dpn_verbs_find(struct dpn_device *out, int max, bool has_force_flush, char *why, size_t why_len)
{
    (void)out;
    (void)max;
    (void)has_force_flush;
    snprintf(why, why_len, "this build knows no RDMA: libibverbs-dev was not there");
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
    return dp_fail(DP_EUNSUPPORTED, "this build knows no RDMA: libibverbs-dev was not there");
}

const struct dpn_transport dpn_verbs = {.name = "verbs", .open = open_none};
