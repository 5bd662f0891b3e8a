/* SPDX-License-Identifier: Apache-2.0
 *
 * disk_optimizer.h - what tests want to know of an optimizer whose state is in a file.
 */
#ifndef DPO_DISK_OPTIMIZER_H
#define DPO_DISK_OPTIMIZER_H

#include <dualpipe/offload.h>

bool dpo_disk_is_uring(const struct dp_offload_optimizer *o);
/* The file. */
int dpo_disk_file(const struct dp_offload_optimizer *o);

#endif
