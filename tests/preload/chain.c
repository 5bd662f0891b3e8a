/* SPDX-License-Identifier: Apache-2.0
 *
 * chain.c - another library that is preloaded and interposes cudaMemcpy too; it says so on standard
 * error in the end.
 */
#include "config.h" /* GNU extensions: RTLD_NEXT */

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

static int calls;

EXPORT int cudaMemcpy(void *to, const void *from, size_t bytes, int kind);
EXPORT int cudaMemcpy(void *to, const void *from, size_t bytes, int kind)
{
    int (*real)(void *, const void *, size_t, int) = NULL;
    void *found = dlsym(RTLD_NEXT, "cudaMemcpy");

    memcpy(&real, &found, sizeof(found));
    calls++;
    return real ? real(to, from, bytes, kind) : -1;
}

__attribute__((destructor)) static void say(void)
{
    fprintf(stderr, "chain: %d\n", calls);
}
