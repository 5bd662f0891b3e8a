/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz.h - what a fuzz target defines: take any bytes, and crash if something is wrong.
 *
 * A timer sends SIGALRM while it runs, in libFuzzer and in fuzz_main.c: what waits is interrupted.
 */
#ifndef DP_TESTS_FUZZ_H
#define DP_TESTS_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static inline void must(bool so)
{
    if (so)
        return;
    perror("fuzz: wrong; errno is");
    abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
