/* SPDX-License-Identifier: Apache-2.0
 *
 * cmocka_all.h - cmocka with the headers it wants before itself.
 */
#ifndef DP_TESTS_CMOCKA_ALL_H
#define DP_TESTS_CMOCKA_ALL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

/* Leave a test out; tests/run.sh tells the reader why. */
static inline void skip_because(const char *why)
{
    print_message("%s\n", why);
    skip();
}

#endif
