/* SPDX-License-Identifier: Apache-2.0
 *
 * cpu_pause.h - tell the core that this is a loop that waits for another core's store.
 */
#ifndef DP_COMM_CPU_PAUSE_H
#define DP_COMM_CPU_PAUSE_H

static inline void dp_cpu_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("isb" ::: "memory");
#endif
}

#endif
