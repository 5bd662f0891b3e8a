/* SPDX-License-Identifier: Apache-2.0
 *
 * wire_limit.h - what a message between two processes could cost at best, as methods of bench/wire.h.
 */
#ifndef DP_TESTS_BENCH_WIRE_LIMIT_H
#define DP_TESTS_BENCH_WIRE_LIMIT_H

#include "bench/wire.h"

/* Before there are ranks, and when they have ended. 0, or an exit status: why has been printed. */
int wire_limit_open(void);
void wire_limit_close(void);
/* Both ranks call it once: tell each other where their buffers are, and see which of them may copy. */
int wire_limit_meet(struct wire_job *j);
/* Whether both ranks may copy from and to each other's memory. */
bool wire_limit_may_copy(void);
/* Methods. Both sides copy, straight. */
int wire_limit_copy(struct wire_job *j, size_t size, int times);
/* A number in a line of memory there, and one back. */
int wire_limit_line(struct wire_job *j, size_t size, int times);

#endif
