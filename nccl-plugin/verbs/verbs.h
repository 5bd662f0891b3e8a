/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs.h - the RDMA transport's interface to the rest of the plugin. A build without the header of
 * libibverbs has no RDMA: verbs/none.c.
 */
#ifndef DPN_VERBS_H
#define DPN_VERBS_H

#include "nccl-plugin/net/devices.h"
#include "nccl-plugin/net/transport.h"

extern const struct dpn_transport dpn_verbs;

/* Find ports, once per process, and describe each as a device, at most max. has_force_flush: NCCL
 * can be told that a device needs flushes; otherwise devices that do are not used. why: what was
 * found, or why nothing. */
void dpn_verbs_find(struct dpn_devices *out, int max, bool has_force_flush, char *why,
                    size_t why_len);

/* Add a device, for which there is room, with the rails of several. DP_EUNSUPPORTED if that is not
 * possible. */
int dpn_verbs_fuse(struct dpn_devices *all, const int *members, int count);

#endif
