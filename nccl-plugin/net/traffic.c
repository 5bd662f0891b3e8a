/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl-plugin/net/traffic.h"

/* SendRecv, Send, Recv, AlltoAll, Scatter and Gather in NCCL's count. */
static const uint32_t point_to_point = 0x7e0;

enum dpn_traffic dpn_traffic_of(uint32_t ops)
{
    if (!ops || ops == UINT32_MAX)
        return DPN_TRAFFIC_ANY;
    return ops & ~point_to_point ? DPN_TRAFFIC_GRADIENT : DPN_TRAFFIC_PIPELINE;
}

int dpn_traffic_choose(int64_t by_kind, int by_operator, int by_communicator, int most)
{
    const int chosen = by_kind >= 0 ? (int)by_kind : by_operator >= 0 ? by_operator
                                                                      : by_communicator;

    return chosen >= 0 && chosen <= most ? chosen : 0;
}
