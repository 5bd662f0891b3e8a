/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_cuda.h - a stand-in for libcuda.so.1 on machines without a GPU: what tests may ask of it.
 *
 * It is there for two things: to run the code that talks to the driver at all, and to make the
 * driver fail in ways that a real one rarely does. It proves nothing about a real GPU, nor about
 * speed.
 *
 *   - Device memory is reserved address space without access: a read or write by the CPU crashes.
 *     The stand-in itself reaches it by a second mapping.
 *   - Every stream is a thread, so copies really are late; hold() stops them all, and shake()
 *     delays each by a random time, so that an order nobody asked for shows up as wrong bytes.
 *   - As with the driver, nearly every call wants a current context, and an error of the device is
 *     sticky: all later calls in that context return it.
 *
 * A test opens the same file with dlopen and looks up `fake_cuda`.
 */
#ifndef DP_TESTS_FAKE_CUDA_H
#define DP_TESTS_FAKE_CUDA_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FAKE_CUDA_DEVICES = 2 };
#define FAKE_CUDA_MEMORY_BYTES ((size_t)256 << 20) /* of each device */

struct fake_cuda {
    /* Forget all faults, sticky errors, hold and shake. */
    void (*reset)(void);
    /* While held, no stream goes on. */
    void (*hold)(bool held);
    /* Wait up to most_us before each piece of work; 0: do not. */
    void (*shake)(uint64_t seed, unsigned most_us);
    /* The n-th call from now (1: the next) of a function, or of any with NULL, returns result. */
    void (*fail_call)(const char *function, int n, CUresult result);
    /* The n-th piece of work that a stream carries out fails, which is sticky. */
    void (*fail_work)(int n, CUresult result);
    /* Whether a fault is armed that has not struck yet. */
    bool (*armed)(void);
    /* Streams with work that is not done; and wait until there are none. */
    int (*busy)(void);
    void (*drain)(void);
    /* Where the CPU can reach device memory: for the "kernels" of a test (cuLaunchHostFunc). */
    void *(*reach)(const void *device_ptr);
    /* Buffers, streams, events and retained contexts that are alive. */
    int (*alive)(void);
};

#endif
