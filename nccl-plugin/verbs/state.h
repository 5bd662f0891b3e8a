/* SPDX-License-Identifier: Apache-2.0
 *
 * state.h - what the process knows since its first look: NCCL's options and the ports.
 */
#ifndef DPN_VERBS_STATE_H
#define DPN_VERBS_STATE_H

#include "nccl-plugin/verbs/device.h"

struct dpn_verbs_state {
    struct dpn_verbs_options options;
    struct dpn_ports ports;
    uint32_t
        count_from; /* 0: what a new connection counts begins there. Tests let it go round soon */
};
extern struct dpn_verbs_state dpn_verbs_state;

#endif
