/* SPDX-License-Identifier: Apache-2.0
 *
 * clock.h - the clock of the command, and how long it waits for a device.
 */
#ifndef TOOLS_CLOCK_H
#define TOOLS_CLOCK_H

#include <stdint.h>
#include <time.h>

/* For work that a device does by itself: far more than any takes, also when it is simulated on a
 * busy CPU. */
static const int64_t device_timeout_ns = INT64_C(600000000000);

static inline int64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

#endif
