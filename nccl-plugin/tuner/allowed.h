/* SPDX-License-Identifier: Apache-2.0
 *
 * allowed.h - versions 1 and 2 of the tuner get no costs, so NCCL does not say what may be
 * chosen. It is worked out here: what every such NCCL has, less what the call and NCCL_ALGO and
 * NCCL_PROTO rule out.
 */
#ifndef DPN_TUNER_ALLOWED_H
#define DPN_TUNER_ALLOWED_H

#include "nccl-plugin/nccl_abi.h"

#include <stdbool.h>

enum { DPN_ALGORITHMS_V1 = 6 };

/* What the user's variables leave, read once for a communicator. */
struct dpn_allowed {
    bool algorithms[DPN_ALGORITHMS_V1], protocols[NCCL_NUM_PROTOCOLS];
};
void dpn_allowed_read(struct dpn_allowed *allowed);

/* What NCCL says with a call, and the communicator; 0: not known. */
struct dpn_support {
    bool has_collnet, has_nvls;
    size_t ranks, nodes;
};

/* 1 where a cell may be chosen, else NCCL_ALGO_PROTO_IGNORE. LL128 corrupts data on machines that
 * are not made for it, so only NCCL_PROTO can let it in, by name. */
void dpn_allowed_costs(const struct dpn_allowed *allowed, const struct dpn_support *support,
                       ncclFunc_t function, float costs[DPN_ALGORITHMS_V1][NCCL_NUM_PROTOCOLS]);

#endif
