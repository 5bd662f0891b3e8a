/* SPDX-License-Identifier: Apache-2.0
 *
 * preload_calls.c - what a program does with CUDA, in an object of its own, as a Python extension
 * is: every interposed function once. Prints a line for each: its result, the memory policy in it
 * and the one after it, and errno.
 */
#include "config.h" /* GNU extensions: syscall */

#include "preload/fake_cudart.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
enum { BYTES = 1 << 20, BLOCK = 4096 };

static void say(const char *name, int status)
{
    const int error = errno;
    int after = -1;

    syscall(SYS_get_mempolicy, &after, NULL, 0, NULL, 0);
    printf("%s: status %d, policy %d, then %d, errno %d\n", name, status,
           fake_policy_of_last_call(), after, error);
    fflush(stdout);
    errno = 7;
}

EXPORT int preload_calls(void);
EXPORT int preload_calls(void)
{
    static char from[BLOCK], to[BLOCK];
    void *memory = NULL, *own = aligned_alloc(BLOCK, BYTES);

    memset(own, 1, BYTES);
    memset(from, 5, sizeof(from));
    errno = 7;
    say("cudaHostAlloc", cudaHostAlloc(&memory, BYTES, 0));
    say("cudaMallocHost", cudaMallocHost(&memory, BYTES));
    say("cudaHostRegister", cudaHostRegister(own, BYTES, 0));
    say("cuMemHostAlloc", cuMemHostAlloc(&memory, BYTES, 0));
    say("cuMemAllocHost_v2", cuMemAllocHost_v2(&memory, BYTES));
    say("cuMemHostRegister_v2", cuMemHostRegister_v2(own, BYTES, 0));
    fake_fail_next();
    say("a failing cudaHostAlloc", cudaHostAlloc(&memory, BYTES, 0));
    say("cudaMemcpy", cudaMemcpy(to, from, BLOCK, 1));
    say("cudaMemcpy_ptds", cudaMemcpy_ptds(to, from, BLOCK, 2));
    say("cudaMemcpyAsync", cudaMemcpyAsync(to, from, BLOCK, 3, NULL));
    say("cudaMemcpyAsync_ptsz", cudaMemcpyAsync_ptsz(to, from, BLOCK, 1, NULL));
    free(own);
    return memcmp(from, to, BLOCK) != 0;
}

/* Large enough to be staged; without what that takes it is copied as ever. */
EXPORT int preload_large(void);
EXPORT int preload_large(void)
{
    enum { LARGE = 4 << 20 };
    char *from = malloc(LARGE), *to = calloc(1, LARGE);

    memset(from, 3, LARGE);
    const int status = cudaMemcpy(to, from, LARGE, 1);
    const int differs = memcmp(to, from, LARGE);
    free(from);
    free(to);
    return status || differs;
}

static double now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

/* ns of a copy of no bytes. */
EXPORT double preload_time(int count);
EXPORT double preload_time(int count)
{
    const double began_ns = now_ns();

    for (int i = 0; i < count; i++)
        cudaMemcpy(NULL, NULL, 0, 1);
    return (now_ns() - began_ns) / count;
}
