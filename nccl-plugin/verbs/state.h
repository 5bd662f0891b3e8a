/* SPDX-License-Identifier: Apache-2.0
 *
 * state.h - the options and the ports of this process, read once by dpn_verbs_find.
 */
#ifndef DPN_VERBS_STATE_H
#define DPN_VERBS_STATE_H

#include "nccl-plugin/verbs/device.h"

struct dpn_verbs_state {
    struct dpn_verbs_options options;
    struct dpn_ports ports;
    uint32_t
        /* 0: first value of the counters of a new connection. Tests set it to make them wrap soon
         */
        first_count;
};
extern struct dpn_verbs_state dpn_verbs_state;

#endif
