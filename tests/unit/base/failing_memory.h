/* SPDX-License-Identifier: Apache-2.0
 *
 * failing_memory.h - count the allocations of a thread, and let one fail. Programs link with
 * $(failing_memory_ldflags), which puts the functions of failing_memory.c before those of the C library.
 */
#ifndef DP_TESTS_FAILING_MEMORY_H
#define DP_TESTS_FAILING_MEMORY_H

extern _Thread_local int allocations;     /* of this thread so far */
extern _Thread_local int until_no_memory; /* allocations that still succeed; -1: all do */

/* Call `call` with its first allocation failing, then with its second, ... until it succeeds. All
 * but the last must return DP_ENOMEM with an error text, and there must be at least at_least of
 * them. */
void expect_every_failure_reported(int (*call)(void), int at_least);

#endif
