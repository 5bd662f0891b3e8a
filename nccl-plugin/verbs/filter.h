/* SPDX-License-Identifier: Apache-2.0
 *
 * filter.h - NCCL_IB_HCA: which ports of which devices are used.
 *
 *      mlx5_0:1,mlx5_1:1   these ports; a name is a prefix, so mlx5 is all of them
 *      =mlx5_0,mlx5_1      these names and no longer ones; without a port all ports
 *      ^mlx5_2             all but these
 *      ^=mlx5_2            all but exactly this
 *      mlx5_0:1:3:0        NCCL 2.30: port 1 is on rail 3, plane 0
 */
#ifndef DPN_VERBS_FILTER_H
#define DPN_VERBS_FILTER_H

#include <dualpipe/dualpipe.h>

struct dpn_rail_place {
    int rail, plane; /* -1: not specified */
};

/* Whether list (NULL: everything) admits a port. place: the rail and plane that the list specifies.
 */
bool dpn_verbs_filter(const char *list, const char *device, int port, struct dpn_rail_place *place);

#endif
