/* SPDX-License-Identifier: Apache-2.0
 *
 * clock.h - one clock for everything: monotonic, in ns, the same for all processes of a machine.
 */
#ifndef DP_BASE_CLOCK_H
#define DP_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#define DP_NS_PER_S  INT64_C(1000000000)
#define DP_NS_PER_MS INT64_C(1000000)
#define DP_NS_PER_US INT64_C(1000)

static inline int64_t dp_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * DP_NS_PER_S + t.tv_nsec;
}

#endif
