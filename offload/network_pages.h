/* SPDX-License-Identifier: Apache-2.0
 *
 * network_pages.h - how many bytes the net plugin has moved over a network, in all processes of this
 * user on this machine: read out of the pages that it counts in (nccl-plugin/net/stat_page.h), without
 * a system call but once a second.
 *
 * Stands on base alone, so that libraries in other people's processes can have it.
 */
#ifndef DPO_NETWORK_PAGES_H
#define DPO_NETWORK_PAGES_H

#include <stdint.h>

struct dpo_network_pages;

/* directory: NULL, or DUALPIPE_NET_STAT_DIR. devices[count]: names of NICs as the plugin has them
 * ("mlx5_0", "eth0"), copied; those fused of several count for each of them. count 0: all. DP_ENOMEM. */
int dpo_network_pages_new(const char *directory, const char *const *devices, int count,
                          struct dpo_network_pages **out);
/* p may be NULL. */
void dpo_network_pages_free(struct dpo_network_pages *p);

/* Bytes sent and received since it was first asked, of all processes that it finds; never less than
 * before. Messages through memory of this host do not count. now_ns: of dp_now_ns. One thread at a
 * time. */
uint64_t dpo_network_pages_bytes(struct dpo_network_pages *p, int64_t now_ns);

#endif
