/* SPDX-License-Identifier: Apache-2.0
 *
 * ll128.h - whether NCCL may use its protocol LL128 (net/ordered_copy.h says what that needs).
 */
#ifndef DPN_NET_LL128_H
#define DPN_NET_LL128_H

#include <stdbool.h>

/* Rule it out if NCCL does not name the receives that its kernels watch, by NCCL_PROTO, which it
 * reads later; warn if NCCL_PROTO is set already and admits it. names_watched: this version of the
 * plugin's interface is of a NCCL that does, unless it is told not to. */
void dpn_ll128_decide(bool names_watched);

#endif
