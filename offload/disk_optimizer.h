/* SPDX-License-Identifier: Apache-2.0
 *
 * disk_optimizer.h - what tests want to know of an optimizer whose state is in a file.
 */
#ifndef DPO_DISK_OPTIMIZER_H
#define DPO_DISK_OPTIMIZER_H

#include <dualpipe/offload.h>

bool dpo_disk_is_uring(const struct dp_offload_optimizer *o);
/* Whose threads read and write; NULL with io_uring. */
struct dp_device *dpo_disk_device(const struct dp_offload_optimizer *o);
/* Of the memory that parts pass through; -1: not known. */
int dpo_disk_node(const struct dp_offload_optimizer *o);
/* The file. */
int dpo_disk_file(const struct dp_offload_optimizer *o);

#endif
