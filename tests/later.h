/* SPDX-License-Identifier: Apache-2.0
 *
 * later.h - structs as of a program that was compiled against a later release.
 */
#ifndef DP_TESTS_LATER_H
#define DP_TESTS_LATER_H

#include <stdint.h>

/* Unless `unknown` is 0 it asks for what this release does not know. */
#define LATER(type)                                                                                \
    struct later_##type {                                                                          \
        struct type known;                                                                         \
        int64_t unknown;                                                                           \
    }

#endif
