/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs.h - RDMA, as the rest of the plugin sees it. Without libibverbs' header there is none.
 */
#ifndef DPN_VERBS_H
#define DPN_VERBS_H

#include "nccl-plugin/net/devices.h"
#include "nccl-plugin/net/transport.h"

extern const struct dpn_transport dpn_verbs;

/* Look for ports once per process, and describe each as a device; at most max. has_force_flush:
 * NCCL can be told that a device needs flushes; otherwise none is used that does. why tells what
 * was found, or why nothing. Returns how many. */
int dpn_verbs_find(struct dpn_device *out, int max, bool has_force_flush, char *why,
                   size_t why_len);

/* Put several into one: all rails of the members. DP_EUNSUPPORTED if that cannot be. */
int dpn_verbs_fuse(const struct dpn_device *const *members, int count, struct dpn_device *out);

#endif
