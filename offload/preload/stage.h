/* SPDX-License-Identifier: Apache-2.0
 *
 * stage.h - large copies between pageable memory and a device, through pinned memory that is near
 * the device. CUDA does the same with buffers and one thread of its own; here several threads copy
 * into and out of chunks while the device takes or fills others:
 *
 *      to the device    threads     fill 0  fill 1  fill 2  fill 3  wait 0, fill 0 ...
 *                       stream              0       1       2       3
 *
 * What a program can see is what CUDA's manual says of such copies ("API synchronization
 * behavior"): to the device, the call returns when all of the source has been read; to the host,
 * when all has arrived; without a stream, work before the copy is done first. Everything that is
 * not certainly such a copy is left to CUDA: in a stream that is captured, managed, registered or
 * another device's memory, a context that is not the stream's.
 */
#ifndef DPO_PRELOAD_STAGE_H
#define DPO_PRELOAD_STAGE_H

#include "offload/preload/driver.h"

/* true: done, as the real call would have done it, with success. false: the real call is to be
 * made; a part of the bytes may be on their way already, in the same stream and so before its own.
 * `caller` as of dpo_real. Any thread. */
bool dpo_stage(const struct dpo_copy *copy, const void *caller);

/* A process that was forked since the first copy: it has neither CUDA nor the threads that copy. */
bool dpo_is_child(void);

/* The context goes away, or (context NULL) all contexts of the device: its streams wait for no turn any
 * more. Any thread. */
void dpo_pace_drop(const void *context, int device);

#endif
