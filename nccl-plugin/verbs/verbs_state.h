/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_state.h - what the process knows since its first look: NCCL's options and the ports.
 */
#ifndef DPN_VERBS_STATE_H
#define DPN_VERBS_STATE_H

#include "nccl-plugin/verbs/verbs_device.h"

struct dpn_verbs_state {
    struct dpn_verbs_options options;
    struct dpn_ports ports;
};
extern struct dpn_verbs_state dpn_verbs_state;

#endif
