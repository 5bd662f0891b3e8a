/* SPDX-License-Identifier: Apache-2.0
 *
 * preload_calls.c - what a program does with CUDA, in an object of its own, as a Python extension
 * is: every interposed function once. Prints a line for each: its result, the memory policy in it
 * and the one after it, and errno; and for memory, as the kernel says it, on which node its pages are.
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
enum { BYTES = 1 << 20, BLOCK = 4096, PAGES = BYTES / BLOCK, NODES = 8 };

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

static void say_nodes(const char *name, char *memory)
{
    static void *pages[PAGES];
    static int nodes[PAGES];
    int count[NODES] = {0};

    for (int i = 0; i < PAGES; i++)
        pages[i] = memory + (size_t)i * BLOCK;
    if (syscall(SYS_move_pages, 0, PAGES, pages, NULL, nodes, 0))
        return;
    for (int i = 0; i < PAGES; i++)
        if (nodes[i] >= 0 && nodes[i] < NODES)
            count[nodes[i]]++;
    for (int n = 0; n < NODES; n++)
        if (count[n])
            printf("%s: %d pages on node %d\n", name, count[n], n);
    errno = 7;
}

/* `memory` is known after the call. */
#define SAY_MEMORY(function, memory, ...)                                                          \
    do {                                                                                           \
        say(#function, function(__VA_ARGS__));                                                     \
        say_nodes(#function, memory);                                                              \
    } while (0)

EXPORT int preload_calls(void);
EXPORT int preload_calls(void)
{
    static char from[BLOCK], to[BLOCK];
    void *memory = NULL, *own = aligned_alloc(BLOCK, BYTES);

    memset(own, 1, BYTES);
    memset(from, 5, sizeof(from));
    errno = 7;
    SAY_MEMORY(cudaHostAlloc, memory, &memory, BYTES, 0);
    SAY_MEMORY(cudaMallocHost, memory, &memory, BYTES);
    SAY_MEMORY(cudaHostRegister, own, own, BYTES, 0);
    SAY_MEMORY(cuMemHostAlloc, memory, &memory, BYTES, 0);
    SAY_MEMORY(cuMemAllocHost_v2, memory, &memory, BYTES);
    SAY_MEMORY(cuMemHostRegister_v2, own, own, BYTES, 0);
    SAY_MEMORY(cuMemAllocHost, memory, &memory, BYTES);
    SAY_MEMORY(cuMemHostRegister, own, own, BYTES, 0);
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

static double cpu_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); /* what others do meanwhile does not count */
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

/* ns of CPU time of a copy of no bytes. */
EXPORT double preload_time(int count);
EXPORT double preload_time(int count)
{
    const double began_ns = cpu_ns();

    for (int i = 0; i < count; i++)
        cudaMemcpy(NULL, NULL, 0, 1);
    return (cpu_ns() - began_ns) / count;
}
