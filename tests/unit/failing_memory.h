/* SPDX-License-Identifier: Apache-2.0
 *
 * failing_memory.h - let every allocation fail once. Programs link with $(failing_memory_ldflags),
 * which puts the functions of failing_memory.c before those of the C library.
 */
#ifndef DP_TESTS_FAILING_MEMORY_H
#define DP_TESTS_FAILING_MEMORY_H

/* Call `call` with its first allocation failing, then with its second, ... until it succeeds. All
 * but the last must return DP_ENOMEM with an error text, and there must be at least at_least of
 * them. */
void expect_every_failure_reported(int (*call)(void), int at_least);

#endif
