/* SPDX-License-Identifier: Apache-2.0
 *
 * copiers.h - memcpy by several threads. They are started by the first copy, take no signals, sleep
 * between copies, and run where the thread that started them may run.
 */
#ifndef DPO_PRELOAD_COPIERS_H
#define DPO_PRELOAD_COPIERS_H

#include <stddef.h>

/* Copy with `threads` of them, the calling one included; 0: half of the processors that it may use,
 * 1 to 4. `whole` as of dp_copy_piece. If the others are at work for another caller, or cannot be
 * started, the calling thread copies alone. Any thread; not in a child that was forked. */
void dpo_copiers_copy(int threads, void *to, const void *from, size_t bytes, size_t whole);

#endif
