/* SPDX-License-Identifier: Apache-2.0
 *
 * traffic.h - what a connection is for, as NCCL announces it (setNetAttr) before it connects:
 * messages between the stages of a pipeline are waited for at once, gradients are large and may
 * yield. Each kind may have a traffic class and a service level of its own, so that switches tell
 * them apart.
 */
#ifndef DPN_NET_TRAFFIC_H
#define DPN_NET_TRAFFIC_H

#include "nccl-plugin/net/options.h"

enum dpn_traffic { DPN_TRAFFIC_ANY, DPN_TRAFFIC_PIPELINE, DPN_TRAFFIC_GRADIENT };

/* ops: a bit for each of NCCL's functions, all of them: not said. Pipeline if there are only sends,
 * receives and what consists of them. */
enum dpn_traffic dpn_traffic_of(uint32_t ops);

/* What the options of a kind say, else (-1) what the operator asked of NCCL, else (-1) what the
 * communicator was given; 0 if that is out of 0 to most. */
int dpn_traffic_choose(int64_t by_kind, int by_operator, int by_communicator, int most);

#endif
